// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/engine.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <linux/membarrier.h>
#include <linux/perf_event.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>

#include "bpf/abi/control.h"
#include "bpf/abi/record.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "sampler/engine/clocks.h"
#include "sampler/engine/pods.h"
#include "sampler/engine/rates.h"
#include "sampler/engine/sample_record.h"
#include "sampler/engine/sideband.h"
#include "sampler/engine/table_maps.h"

#include "borescope.skel.h"  // last: it needs the types of bpf/abi

namespace borescope::engine {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// A record gets its time when its program starts, but reaches the ring when it ends: so long we wait before reading what is to be
// delivered in order. Twice the hard stop in the interrupt.
constexpr auto kRecordInFlight = std::chrono::microseconds(300);
constexpr int64_t kSettleAgainNs = 50'000'000;      // counters() walks all tasks at most so often
constexpr int64_t kLookAtMachineNs = 2'000'000'000;
constexpr int64_t kForgetDeadNs = 10'000'000'000;   // an exited process is remembered for its last ticks
constexpr uint64_t kKeepAll = 1ull << 32;
constexpr const char* kHierarchyNames[HIERARCHY_MAX] = {"v2", "memory", "pids", "cpu"};

constexpr uint64_t Bit(JobId id) { return 1ull << id; }

template <typename F>
void ForEachJob(uint64_t mask, F f) {
  for (; mask != 0; mask &= mask - 1) f(std::countr_zero(mask));
}

// What a BPF program may write at the same moment.
template <typename T>
T Observe(T& from) {
  return std::atomic_ref<T>(from).load(std::memory_order_acquire);
}

std::string& LibbpfComplaint() {
  static thread_local std::string text;
  return text;
}

int KeepComplaint(enum libbpf_print_level level, const char* format, va_list args) {
  if (level != LIBBPF_WARN) return 0;
  char line[512];
  vsnprintf(line, sizeof(line), format, args);
  std::string& text = LibbpfComplaint();
  if (text.size() < 2000) text += line;
  return 0;
}

// Adds what the user should do about a refusal by the kernel.
Error WithHelp(Error error, const std::string& proc_root) {
  if (error.code == ErrorCode::kDenied) {
    std::string missing = MissingCapabilities(proc_root);
    error.message += missing.empty() ? "; all capabilities are there: look for a seccomp profile, an LSM or kernel lockdown that refuses it"
                                     : "; this process lacks " + missing + ": run as root, or add the capabilities";
  } else if (error.code == ErrorCode::kExhausted) {
    error.message += "; raise the limit of open files (ulimit -n) or the memory limit";
  }
  return error;
}

std::vector<int> OnlineCpus(const std::string& sys_root) {
  std::vector<int> cpus;
  auto text = ReadFile(sys_root + "/devices/system/cpu/online", 4096);
  if (!text.ok()) return cpus;
  for (std::string_view range : Split(Trim(*text), ',')) {
    size_t dash = range.find('-');
    auto first = ParseUint(range.substr(0, dash));
    auto last = dash == std::string_view::npos ? first : ParseUint(range.substr(dash + 1));
    for (uint64_t cpu = first.value_or(1); first && last && cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

// 0: not known.
uint64_t MaxSampleRate(const std::string& proc_root) {
  auto text = ReadFile(proc_root + "/sys/kernel/perf_event_max_sample_rate", 64);
  return text.ok() ? ParseUint(Trim(*text)).value_or(0) : 0;
}

// CONFIG_HZ: the coarse clock advances with the scheduler's tick.
uint64_t SchedulerHz() {
  timespec tick{};
  if (clock_getres(CLOCK_MONOTONIC_COARSE, &tick) != 0 || tick.tv_sec != 0 || tick.tv_nsec <= 0) return 0;
  return 1'000'000'000 / static_cast<uint64_t>(tick.tv_nsec);
}

// Bytes of kernel memory of a map, as the kernel accounts it.
uint64_t MapBytes(const std::string& proc_root, int fd) {
  auto info = ReadFile(proc_root + "/self/fdinfo/" + std::to_string(fd), 4096);
  if (!info.ok()) return 0;
  size_t at = info->find("memlock:");
  if (at == std::string::npos) return 0;
  std::string_view value = Trim(std::string_view(*info).substr(at + 8));
  return ParseUint(value.substr(0, value.find('\n'))).value_or(0);
}

// "bpf_prog_6deef7357e7b4530_x", "bpf_trampoline_6442": in kallsyms their module is "bpf", in the kernel's %ps they have none.
bool IsBpfSymbol(std::string_view name) {
  constexpr std::string_view kProgram = "bpf_prog_", kTrampoline = "bpf_trampoline_";
  if (name.starts_with(kTrampoline)) return ParseUint(name.substr(kTrampoline.size())).has_value();
  return name.starts_with(kProgram) && ParseUint(name.substr(kProgram.size(), 16), 16).has_value();
}

struct SkeletonDeleter {
  void operator()(borescope_bpf* s) const { borescope_bpf::destroy(s); }
};

struct LinkDeleter {
  void operator()(bpf_link* link) const { bpf_link__destroy(link); }
};
using Link = std::unique_ptr<bpf_link, LinkDeleter>;

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(const Options& options) : options_(options) {}
  ~EngineImpl() override;
  Status Init(KernelReport* report);

  Result<JobId> AddJob(const Job& job) override;
  void RemoveJob(JobId id) override;
  void SetWindow(JobId id, int64_t start_boot_ns, int64_t deadline_boot_ns) override;
  Status SetPods(JobId id, const std::vector<std::string>& pod_uids) override;
  void ExcludeCgroup(JobId id, uint64_t cgroup_id) override;
  Status AddProcess(JobId id, pid_t pid) override;
  Status AddAllProcesses(JobId id) override;
  Status Drain(Observer& observer) override;
  void Quiesce() override;
  int wake_fd() const override { return wake_.get(); }
  unwind::TableMemory& table_memory() override { return *table_maps_; }
  Result<std::string> NameKernel(uint64_t address) override;
  void Halt() override;
  JobCounters counters(JobId id) const override;
  Counters counters() const override;

 private:
  struct JobEntry {
    Job job;
    int64_t added_mono_ns = 0;  // older records with its bit are a former job's
    std::map<PodKey, std::string> pods;
    std::set<uint64_t> excluded;
    bool start_settled = false, deadline_settled = false;
    JobCounters counters;  // user space's part
  };

  // One record that waits for its turn, its bytes in bytes_.
  struct Pending {
    enum class Kind : uint8_t { kBpf, kMmap, kFound, kVisited, kCgroup };
    int64_t time_ns;
    Kind kind;
    size_t offset, size;
  };
  // A mapping's fixed part; build id and path follow.
  struct PendingMmap {
    Mmap mmap;
    size_t build_id_size, path_size;
  };
  struct PendingCgroup {
    uint64_t id, parent_id;
    PodKey pod;
    size_t name_size;
  };
  struct Process {
    uint64_t space = 0;
    uint64_t cgroup_id = 0;
    std::string comm;
    int64_t dead_since_ns = 0;  // 0: alive
  };

  Error Refused(std::string_view operation, int error_number) const {
    return WithHelp(ErrnoError(operation, error_number), options_.proc_root);
  }

  Status Attach();
  void Detach();
  Status ApplyRates();
  // On kernels that hang when they throttle a clock: whether they might.
  bool MayThrottle() const { return throttle_hangs_ && max_sample_rate_ != 0 && max_sample_rate_ < kSafeSampleRate; }
  // Walks all tasks; wanted processes not known yet are queued as found.
  Status VisitTasks();
  Status SettleMarks(uint64_t mark, pid_t tgid, uint64_t clear, bool* any);
  Result<CgroupTree> ReadCgroups(uint32_t hierarchy);
  Status ChooseHierarchy(const std::map<PodKey, std::string>& wanted);
  std::map<PodKey, std::string> WantedPods() const;
  uint64_t JobsOfTarget(const PodCgroup& cgroup) const;
  void PutTarget(const PodCgroup& cgroup);
  void RefreshTargets();
  Status FindTargets(const std::set<PodKey>& added);
  void ForgetJob(JobId id);
  void RunWorker();
  int64_t SettleEdges(int64_t now_boot_ns);

  template <typename Record>
  void Enqueue(typename Pending::Kind kind, int64_t time_ns, const Record& head, std::initializer_list<std::string_view> tails);
  static int OnRingRecord(void* self, void* data, size_t size);
  void Collect();
  void QueueVisited();
  void FollowMachine(int64_t now_mono_ns);
  void FollowHotplug();
  void Deliver(const Pending& p, Observer& observer);
  void DeliverSample(std::string_view record, Observer& observer);
  void DeliverCgroup(const borescope_cgroup& c, bool removed, Observer& observer);
  void NoteProcess(int64_t time_ns, pid_t tgid, uint64_t space, uint64_t cgroup_id, std::string_view comm, Observer& observer);

  const Options options_;
  std::unique_ptr<borescope_bpf, SkeletonDeleter> skel_;
  std::optional<TableMaps> table_maps_;
  std::unique_ptr<ring_buffer, decltype(&ring_buffer__free)> ring_{nullptr, &ring_buffer__free};
  UniqueFd wake_;
  std::span<borescope_clock> shared_clocks_;
  size_t shared_clocks_bytes_ = 0;
  int possible_cpus_ = 0;
  uint64_t map_bytes_ = 0;
  bool throttle_hangs_ = false;  // the kernel's fault of that name
  std::atomic<bool> halted_{false};

  // Guards all below up to the records: the owner's thread and the worker use it.
  mutable std::mutex mutex_;
  std::optional<Clocks> clocks_;
  std::array<int, BORESCOPE_MAX_RATES> armed_hz_{};  // 0: free
  std::vector<int> cpus_;                            // on which events are open
  int64_t looked_at_machine_ns_ = 0;
  uint64_t max_sample_rate_ = 0;
  const uint64_t scheduler_hz_ = SchedulerHz();
  std::array<std::optional<JobEntry>, BORESCOPE_MAX_JOBS> jobs_;
  std::vector<Link> links_;
  Link visit_link_;
  bool attached_ = false;
  std::optional<std::string> hierarchy_reason_;
  std::map<uint64_t, PodCgroup> targets_;  // what we know of the map of that name
  int64_t visit_began_mono_ns_ = 0, settled_mono_ns_ = 0;  // of the last walk over all tasks
  std::vector<borescope_task_info> visited_;  // wanted processes of the last walk
  std::condition_variable wake_worker_;
  bool stop_worker_ = false;
  std::thread worker_;

  // The owner's thread only.
  Sideband sideband_;
  std::vector<char> bytes_;
  std::vector<Pending> pending_;
  std::unordered_map<pid_t, Process> processes_;
  uint64_t events_lost_seen_ = 0, targets_full_seen_ = 0, threads_moved_seen_ = 0;
  bool rediscover_ = false;
};

EngineImpl::~EngineImpl() {
  {
    std::lock_guard lock(mutex_);
    stop_worker_ = true;
  }
  wake_worker_.notify_all();
  if (worker_.joinable()) worker_.join();
  Detach();
  ring_.reset();
  if (!shared_clocks_.empty()) munmap(shared_clocks_.data(), shared_clocks_bytes_);
}

Status EngineImpl::Init(KernelReport* report) {
  libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
  libbpf_set_print(KeepComplaint);
  RETURN_IF_ERROR(CheckOverrides(options_.kernel_overrides));
  KernelReport kernel = JudgeKernel(ReadKernelFacts(options_.proc_root, options_.sys_root), options_.kernel_overrides);
  if (report != nullptr) *report = kernel;
  RETURN_IF_ERROR(kernel.Allowed());
  throttle_hangs_ = std::ranges::any_of(kernel.findings, [](const KernelFinding& f) { return f.name == "cpu-clock-throttle" && f.verdict == Verdict::kAvoided; });
  LibbpfComplaint().clear();

  // One event for each CPU and rate, and one for mappings: more than the usual 1024 on large nodes.
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }

  skel_.reset(borescope_bpf::open());
  if (!skel_) return ErrnoError("opening the BPF object");
  possible_cpus_ = libbpf_num_possible_cpus();
  if (possible_cpus_ <= 0) return ErrnoError("reading the number of CPUs", -possible_cpus_);
  struct stat ns{};
  if (stat((options_.proc_root + "/self/ns/pid").c_str(), &ns) != 0) return ErrnoError("reading " + options_.proc_root + "/self/ns/pid");
  skel_->rodata->pid_namespace = static_cast<uint32_t>(ns.st_ino);
  bpf_map__set_max_entries(skel_->maps.ring, static_cast<uint32_t>(std::bit_ceil(std::max<size_t>(options_.ring_bytes, 4096))));
  skel_->rodata->raw_every = static_cast<uint32_t>(std::max(0, options_.raw_every));
  if (options_.raw_every > 0) {
    bpf_map__set_max_entries(skel_->maps.raw_tests, static_cast<uint32_t>(possible_cpus_));
  } else {
    bpf_map__set_autocreate(skel_->maps.raw_tests, false);  // the code that names it is dead
  }
  bpf_map__set_max_entries(skel_->maps.clocks, static_cast<uint32_t>(possible_cpus_) * BORESCOPE_MAX_RATES);
  if (int error = borescope_bpf::load(skel_.get()); error != 0) {
    Error refused = Refused("loading the BPF programs (bpf())", -error);
    // The verifier's refusals look like a lack of rights.
    if (MissingCapabilities(options_.proc_root).empty() && !LibbpfComplaint().empty()) {
      refused.message += "; libbpf: " + SanitizeName(LibbpfComplaint(), 1000);
    }
    return refused;
  }

  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, skel_->obj) {
    if (bpf_map__autocreate(map)) map_bytes_ += MapBytes(options_.proc_root, bpf_map__fd(map));
  }
  table_maps_.emplace(bpf_map__fd(skel_->maps.chunks), bpf_map__fd(skel_->maps.files), &skel_->bss->tables_changed);

  auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t entries = static_cast<size_t>(possible_cpus_) * BORESCOPE_MAX_RATES;
  shared_clocks_bytes_ = (entries * sizeof(borescope_clock) + page - 1) / page * page;
  void* memory = mmap(nullptr, shared_clocks_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, bpf_map__fd(skel_->maps.clocks), 0);
  if (memory == MAP_FAILED) return ErrnoError("mapping the clocks map");
  shared_clocks_ = {static_cast<borescope_clock*>(memory), entries};
  clocks_.emplace(bpf_program__fd(skel_->progs.tick), shared_clocks_, options_.fixed_period, std::random_device{}());

  ring_.reset(ring_buffer__new(bpf_map__fd(skel_->maps.ring), &EngineImpl::OnRingRecord, this, nullptr));
  if (!ring_) return ErrnoError("mapping the ring buffer");
  // Edge-triggered: readable after a wake-up of the programs, not whenever the ring holds something.
  wake_.Reset(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
  if (!wake_.valid() || epoll_ctl(wake_.get(), EPOLL_CTL_ADD, bpf_map__fd(skel_->maps.ring), &event) != 0) {
    return ErrnoError("waiting for the ring buffer (epoll)");
  }

  // Find out now, not with the first job, whether events may be opened.
  perf_event_attr attr{};
  attr.size = sizeof(attr);
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_CPU_CLOCK;
  attr.sample_period = 1'000'000'000;
  attr.disabled = 1;
  std::vector<int> cpus = OnlineCpus(options_.sys_root);
  if (cpus.empty()) return ErrnoError("reading /sys/devices/system/cpu/online");
  UniqueFd probe(static_cast<int>(syscall(SYS_perf_event_open, &attr, -1, cpus.front(), -1, PERF_FLAG_FD_CLOEXEC)));
  if (!probe.valid()) return Refused("perf_event_open (cpu-clock)", errno);

  worker_ = std::thread([this] { RunWorker(); });
  return OkStatus();
}

// ---- attaching ----

Status EngineImpl::Attach() {
  auto& bss = *skel_->bss;
  std::atomic_ref(bss.epoch).store(bss.epoch + 1);
  bpf_program* const programs[] = {skel_->progs.on_newtask,      skel_->progs.on_rename,       skel_->progs.on_exit,         skel_->progs.on_free,
                                   skel_->progs.on_cgroup_mkdir, skel_->progs.on_cgroup_rmdir, skel_->progs.on_cgroup_attach};
  attached_ = true;  // Detach undoes a half-done Attach
  RefreshTargets();  // a hook that was running when it was detached may have left a cgroup of a former job
  for (bpf_program* program : programs) {
    Link link(bpf_program__attach(program));
    if (!link) return Refused(std::string("attaching ") + bpf_program__name(program), errno);
    links_.push_back(std::move(link));
  }
  visit_link_.reset(bpf_program__attach_iter(skel_->progs.visit_tasks, nullptr));
  if (!visit_link_) return Refused("attaching the task iterator", errno);
  cpus_ = OnlineCpus(options_.sys_root);
  if (Status s = sideband_.Open(cpus_); !s.ok()) return WithHelp(s.error(), options_.proc_root);
  return VisitTasks();
}

void EngineImpl::Detach() {
  if (!attached_) return;
  for (int rate = 0; rate < BORESCOPE_MAX_RATES; ++rate) {
    clocks_->Stop(rate);
    armed_hz_[static_cast<size_t>(rate)] = 0;
  }
  links_.clear();
  visit_link_.reset();
  Collect();  // what the rings still hold
  sideband_.Close();
  processes_.clear();
  targets_.clear();
  attached_ = false;
}

Status EngineImpl::ApplyRates() {
  std::vector<int> frequencies;
  for (auto& job : jobs_) {
    if (!job) continue;
    // What is lowered is the highest there is, so it has a clock of its own and is never thinned.
    int hz = MayThrottle() ? 1 : std::max(1, ClampFrequency(job->job.frequency_hz, max_sample_rate_, scheduler_hz_));
    frequencies.push_back(hz);
    if (hz < job->job.frequency_hz && (job->counters.lowest_hz == 0 || hz < job->counters.lowest_hz)) {
      Log(LogLevel::kWarning, "engine: a job is sampled less often than it asks for: kernel.perf_event_max_sample_rate must be twice its frequency",
          {{"hertz", hz}, {"asked", job->job.frequency_hz}, {"max_sample_rate", max_sample_rate_}});
    }
    job->counters.lowest_hz = job->counters.lowest_hz == 0 ? hz : std::min(job->counters.lowest_hz, hz);
  }
  if (frequencies.empty()) return OkStatus();
  auto& bss = *skel_->bss;
  if (MayThrottle()) {  // no tick is better than the last one; the jobs have their lowest frequency from above
    Log(LogLevel::kError, "engine: nothing is sampled: this kernel hangs when a clock is throttled; raise kernel.perf_event_max_sample_rate",
        {{"max_sample_rate", max_sample_rate_}, {"needed", kSafeSampleRate}});
    for (size_t rate = 0; rate < armed_hz_.size(); ++rate) {
      std::atomic_ref(bss.rate_jobs[rate]).store(0);
      clocks_->Stop(static_cast<int>(rate));
      armed_hz_[rate] = 0;
    }
    return OkStatus();
  }
  RatePlan plan = PlanRates(frequencies);
  auto wanted = [&](int hz) { return std::ranges::find(plan.rates_hz, hz) != plan.rates_hz.end(); };

  // Clocks that are no longer wanted stop, new ones start; then each job that changes leaves its old clock before it gets its new
  // share and joins the new one.
  for (size_t rate = 0; rate < armed_hz_.size(); ++rate) {
    if (armed_hz_[rate] != 0 && !wanted(armed_hz_[rate])) {
      std::atomic_ref(bss.rate_jobs[rate]).store(0);
      clocks_->Stop(static_cast<int>(rate));
      armed_hz_[rate] = 0;
    }
  }
  for (int hz : plan.rates_hz) {
    if (std::ranges::find(armed_hz_, hz) != armed_hz_.end()) continue;
    size_t rate = static_cast<size_t>(std::ranges::find(armed_hz_, 0) - armed_hz_.begin());
    if (Status s = clocks_->Start(static_cast<int>(rate), hz, cpus_); !s.ok()) return WithHelp(s.error(), options_.proc_root);
    armed_hz_[rate] = hz;
  }
  size_t next = 0;
  for (size_t id = 0; id < jobs_.size(); ++id) {
    if (!jobs_[id]) continue;
    const auto& served = plan.served[next++];
    size_t rate = static_cast<size_t>(std::ranges::find(armed_hz_, served.rate_hz) - armed_hz_.begin());
    uint64_t bit = Bit(static_cast<JobId>(id));
    for (size_t other = 0; other < armed_hz_.size(); ++other) {
      if (other != rate) std::atomic_ref(bss.rate_jobs[other]).fetch_and(~bit);
    }
    std::atomic_ref(bss.jobs[id].frequency_hz).store(static_cast<uint64_t>(jobs_[id]->job.frequency_hz));
    std::atomic_ref(bss.jobs[id].keep).store(served.keep >= 1 ? kKeepAll : static_cast<uint64_t>(served.keep * static_cast<double>(kKeepAll)));
    std::atomic_ref(bss.rate_jobs[rate]).fetch_or(bit);
  }
  return OkStatus();
}

// ---- iterators ----

Status EngineImpl::VisitTasks() {
  visit_began_mono_ns_ = NowNs(CLOCK_MONOTONIC);
  UniqueFd fd(bpf_iter_create(bpf_link__fd(visit_link_.get())));
  if (!fd.valid()) return Refused("creating the task iterator", errno);
  visited_.clear();
  alignas(borescope_task_info) char buffer[sizeof(borescope_task_info) * 512];
  ssize_t n = 0;
  size_t have = 0;
  while ((n = read(fd.get(), buffer + have, sizeof(buffer) - have)) != 0) {
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return ErrnoError("reading the task iterator");
    }
    have += static_cast<size_t>(n);
    size_t whole = have / sizeof(borescope_task_info);
    for (size_t i = 0; i < whole; ++i) {
      borescope_task_info info;
      std::memcpy(&info, buffer + i * sizeof(info), sizeof(info));
      visited_.push_back(info);
    }
    have -= whole * sizeof(borescope_task_info);
    std::memmove(buffer, buffer + whole * sizeof(borescope_task_info), have);
  }
  settled_mono_ns_ = NowNs(CLOCK_MONOTONIC);
  return OkStatus();
}

Result<CgroupTree> EngineImpl::ReadCgroups(uint32_t hierarchy) {
  skel_->bss->list_hierarchy = hierarchy;
  Link link(bpf_program__attach_iter(skel_->progs.visit_cgroups, nullptr));
  if (!link) return Refused("attaching the cgroup iterator", errno);
  UniqueFd fd(bpf_iter_create(bpf_link__fd(link.get())));
  if (!fd.valid()) return Refused("creating the cgroup iterator", errno);
  std::string all;
  char buffer[65536];
  ssize_t n = 0;
  while ((n = read(fd.get(), buffer, sizeof(buffer))) != 0) {
    if (n > 0) {
      all.append(buffer, static_cast<size_t>(n));
    } else if (errno != EINTR && errno != EAGAIN) {
      return ErrnoError("reading the cgroup iterator");
    }
  }
  CgroupTree tree;
  for (size_t at = 0; at + sizeof(borescope_cgroup_info) <= all.size(); at += sizeof(borescope_cgroup_info)) {
    borescope_cgroup_info info;
    std::memcpy(&info, all.data() + at, sizeof(info));
    tree[info.id] = {info.parent_id, std::string(info.name, strnlen(info.name, sizeof(info.name)))};
  }
  return tree;
}

// Applies mark or clear until nothing changes any more: a thread made by one not yet visited is caught by the next round.
Status EngineImpl::SettleMarks(uint64_t mark, pid_t tgid, uint64_t clear, bool* any) {
  auto& bss = *skel_->bss;
  *any = false;
  std::atomic_ref(bss.mark_tgid).store(static_cast<uint32_t>(tgid));
  std::atomic_ref(bss.mark_jobs).store(mark);
  std::atomic_ref(bss.clear_jobs).store(clear);
  Status status;
  for (int round = 0; round < 5; ++round) {
    bss.slots_changed = 0;
    status = VisitTasks();
    if (!status.ok() || bss.slots_changed == 0) break;
    *any = true;
  }
  std::atomic_ref(bss.mark_jobs).store(0);
  std::atomic_ref(bss.clear_jobs).store(0);
  return status;
}

// ---- jobs ----

Result<JobId> EngineImpl::AddJob(const Job& job) {
  if (job.frequency_hz < 1 || job.frequency_hz > 999) {
    return Error{ErrorCode::kInvalid, "frequency " + std::to_string(job.frequency_hz) + " Hz is out of range: use 1 to 999"};
  }
  if (halted_) return Error{ErrorCode::kUnsupported, "sampling was stopped for good after a fault of the kernel"};
  std::lock_guard lock(mutex_);
  max_sample_rate_ = MaxSampleRate(options_.proc_root);
  if (MayThrottle()) {
    return Error{ErrorCode::kUnsupported, "this kernel hangs when a clock is throttled, and kernel.perf_event_max_sample_rate is " + std::to_string(max_sample_rate_) +
                                              ": raise it to " + std::to_string(kSafeSampleRate) + " or more, or use Linux 6.18"};
  }
  if (ClampFrequency(job.frequency_hz, max_sample_rate_, scheduler_hz_) == 0) {
    uint64_t needed = std::max(2 * static_cast<uint64_t>(job.frequency_hz), scheduler_hz_ + 1);
    return Error{ErrorCode::kUnsupported, "kernel.perf_event_max_sample_rate is " + std::to_string(max_sample_rate_) +
                                              ", at which the kernel drops samples: raise it to " + std::to_string(needed) + " or more"};
  }
  auto free = std::ranges::find_if(jobs_, [](const auto& j) { return !j.has_value(); });
  if (free == jobs_.end()) {
    return Error{ErrorCode::kExhausted, "all " + std::to_string(BORESCOPE_MAX_JOBS) + " jobs of this node are taken: wait for one to end"};
  }
  auto id = static_cast<JobId>(free - jobs_.begin());
  auto& bss = *skel_->bss;
  auto& state = bss.jobs[id];
  std::atomic_ref(state.deadline_boot_ns).store(0);  // closed until it is whole
  std::atomic_ref(state.start_boot_ns).store(static_cast<uint64_t>(std::max<int64_t>(0, job.start_boot_ns)));
  std::atomic_ref(bss.job_used_ns[id]).store(0);
  std::vector<borescope_lost> none(static_cast<size_t>(possible_cpus_));
  for (uint32_t reason = 0; reason < LOSS_MAX; ++reason) {
    uint32_t row = static_cast<uint32_t>(id) * LOSS_MAX + reason;
    bpf_map_update_elem(bpf_map__fd(skel_->maps.lost), &row, none.data(), BPF_ANY);
  }
  free->emplace();
  (*free)->job = job;
  (*free)->added_mono_ns = NowNs(CLOCK_MONOTONIC);
  Status status = attached_ ? OkStatus() : Attach();
  if (status.ok()) status = ApplyRates();
  if (!status.ok()) {
    ForgetJob(id);
    return status.error();
  }
  std::atomic_ref(state.deadline_boot_ns).store(static_cast<uint64_t>(std::max<int64_t>(0, job.deadline_boot_ns)));
  wake_worker_.notify_all();
  return id;
}

void EngineImpl::RemoveJob(JobId id) {
  std::lock_guard lock(mutex_);
  if (id < 0 || id >= BORESCOPE_MAX_JOBS || !jobs_[static_cast<size_t>(id)]) return;
  ForgetJob(id);
}

void EngineImpl::ForgetJob(JobId id) {
  auto& bss = *skel_->bss;
  std::atomic_ref(bss.jobs[id].deadline_boot_ns).store(0);
  for (auto& rate : bss.rate_jobs) std::atomic_ref(rate).fetch_and(~Bit(id));
  bool by_pod = bss.cgroup_jobs & Bit(id), by_group = bss.group_jobs & Bit(id);
  for (auto* mask : {&bss.all_jobs, &bss.cgroup_jobs, &bss.group_jobs}) std::atomic_ref(*mask).fetch_and(~Bit(id));
  jobs_[static_cast<size_t>(id)].reset();
  if (by_pod) RefreshTargets();
  if (std::ranges::none_of(jobs_, [](const auto& j) { return j.has_value(); })) {
    Detach();
    return;
  }
  // Threads still carry the bit as one to which their time is charged: settled now, it is not charged to the bit's next job.
  bool any = false;
  Status status = by_group ? SettleMarks(0, 0, Bit(id), &any) : VisitTasks();
  if (status.ok()) status = ApplyRates();
  if (!status.ok()) Log(LogLevel::kWarning, "engine: removing a job", {{"error", status.error().ToString()}});
}

void EngineImpl::SetWindow(JobId id, int64_t start_boot_ns, int64_t deadline_boot_ns) {
  std::lock_guard lock(mutex_);
  auto& job = jobs_[static_cast<size_t>(id)];
  if (!job) return;
  auto& state = skel_->bss->jobs[id];
  std::atomic_ref(state.start_boot_ns).store(static_cast<uint64_t>(std::max<int64_t>(0, start_boot_ns)));
  std::atomic_ref(state.deadline_boot_ns).store(static_cast<uint64_t>(std::max<int64_t>(0, deadline_boot_ns)));
  job->job.start_boot_ns = start_boot_ns;
  job->job.deadline_boot_ns = deadline_boot_ns;
  job->start_settled = job->deadline_settled = false;
  wake_worker_.notify_all();
}

// ---- targets ----

Status EngineImpl::AddProcess(JobId id, pid_t pid) {
  if (pid <= 0) return Error{ErrorCode::kInvalid, "process " + std::to_string(pid) + " is not a process id: use a positive number"};
  std::lock_guard lock(mutex_);
  std::atomic_ref(skel_->bss->group_jobs).fetch_or(Bit(id));
  bool any = false;
  RETURN_IF_ERROR(SettleMarks(Bit(id), pid, 0, &any));
  if (!any) {
    return Error{ErrorCode::kNotFound, "process " + std::to_string(pid) + " does not exist (or is a thread, not a process): see ps -e"};
  }
  rediscover_ = true;
  return OkStatus();
}

Status EngineImpl::AddAllProcesses(JobId id) {
  std::lock_guard lock(mutex_);
  std::atomic_ref(skel_->bss->all_jobs).fetch_or(Bit(id));
  rediscover_ = true;
  return VisitTasks();
}

std::map<PodKey, std::string> EngineImpl::WantedPods() const {
  std::map<PodKey, std::string> wanted;
  for (const auto& job : jobs_) {
    if (job) wanted.insert(job->pods.begin(), job->pods.end());
  }
  return wanted;
}

uint64_t EngineImpl::JobsOfTarget(const PodCgroup& cgroup) const {
  uint64_t mask = 0;
  for (size_t id = 0; id < jobs_.size(); ++id) {
    const auto& job = jobs_[id];
    if (job && job->pods.contains(cgroup.pod) && !job->excluded.contains(cgroup.container)) mask |= Bit(static_cast<JobId>(id));
  }
  return mask;
}

void EngineImpl::PutTarget(const PodCgroup& cgroup) {
  borescope_target target{.jobs = JobsOfTarget(cgroup), .container = cgroup.container, .pod = {cgroup.pod.high, cgroup.pod.low}};
  if (bpf_map_update_elem(bpf_map__fd(skel_->maps.targets), &cgroup.id, &target, BPF_ANY) == 0) {
    targets_[cgroup.id] = cgroup;
  } else {
    Log(LogLevel::kWarning, "engine: no room for another cgroup; it is not sampled", {{"cgroup", cgroup.name}, {"error", std::strerror(errno)}});
  }
}

// Brings the maps `pods` and `targets` to what the jobs want.
void EngineImpl::RefreshTargets() {
  int pods = bpf_map__fd(skel_->maps.pods), targets = bpf_map__fd(skel_->maps.targets);
  auto wanted = WantedPods();
  borescope_pod_key key{}, next{};
  std::vector<borescope_pod_key> stale;
  for (bool first = true; bpf_map_get_next_key(pods, first ? nullptr : &key, &next) == 0; first = false) {
    key = next;
    if (!wanted.contains({key.high, key.low})) stale.push_back(key);
  }
  for (const auto& k : stale) bpf_map_delete_elem(pods, &k);
  for (const auto& [pod, uid] : wanted) {
    borescope_pod_key k{pod.high, pod.low};
    uint64_t jobs = JobsOfTarget({.pod = pod, .name = {}});
    if (bpf_map_update_elem(pods, &k, &jobs, BPF_ANY) != 0) {
      Log(LogLevel::kWarning, "engine: no room for another pod", {{"pod", uid}, {"error", std::strerror(errno)}});
    }
  }
  std::erase_if(targets_, [&](const auto& t) { return !wanted.contains(t.second.pod); });
  // The hooks add cgroups of which we may not have read yet: the map tells, not targets_.
  std::set<uint64_t> ids;
  uint64_t id = 0, next_id = 0;
  for (bool first = true; bpf_map_get_next_key(targets, first ? nullptr : &id, &next_id) == 0; first = false) {
    id = next_id;
    ids.insert(id);
  }
  for (uint64_t cgroup_id : ids) {
    borescope_target target;
    if (bpf_map_lookup_elem(targets, &cgroup_id, &target) != 0) continue;  // removed just now
    PodKey pod{target.pod.high, target.pod.low};
    if (wanted.contains(pod)) {
      target.jobs = JobsOfTarget({.container = target.container, .pod = pod, .name = {}});
      bpf_map_update_elem(targets, &cgroup_id, &target, BPF_EXIST);
    } else {
      bpf_map_delete_elem(targets, &cgroup_id);
    }
  }
}

// Brings in the cgroups that exist; the observer is told of the containers that are new, and of all those of the added pods.
Status EngineImpl::FindTargets(const std::set<PodKey>& added) {
  ASSIGN_OR_RETURN(CgroupTree tree, ReadCgroups(skel_->bss->hierarchy));
  std::set<uint64_t> fresh;
  for (const PodCgroup& cgroup : FindPodCgroups(tree, WantedPods())) {
    if (targets_.contains(cgroup.id)) continue;
    PutTarget(cgroup);
    fresh.insert(cgroup.id);
  }
  int64_t now = NowNs(CLOCK_MONOTONIC);
  for (const auto& [id, cgroup] : targets_) {
    if (cgroup.container != id || (!fresh.contains(id) && !added.contains(cgroup.pod))) continue;
    Enqueue(Pending::Kind::kCgroup, now, PendingCgroup{id, cgroup.parent_id, cgroup.pod, cgroup.name.size()}, {cgroup.name});
  }
  return OkStatus();
}

Status EngineImpl::ChooseHierarchy(const std::map<PodKey, std::string>& wanted) {
  std::optional<uint32_t> with_wanted, with_containers;
  for (uint32_t h = 0; h < HIERARCHY_MAX; ++h) {
    ASSIGN_OR_RETURN(CgroupTree tree, ReadCgroups(h));
    if (!with_wanted && !FindPodCgroups(tree, wanted).empty()) with_wanted = h;
    if (!with_containers && NamesContainers(tree)) with_containers = h;
  }
  uint32_t choice = HIERARCHY_V2;
  std::string reason;
  if (with_wanted) {
    choice = *with_wanted;
    reason = "a wanted pod stands there";
  } else if (with_containers) {
    choice = *with_containers;
    reason = "containers stand there";
  } else {
    // Where the memory controller is, a container runtime makes its cgroups.
    auto controllers = ReadFile(options_.proc_root + "/cgroups", 1 << 16);
    bool memory_on_v1 = controllers.ok() && controllers->find("memory\t") != std::string::npos && controllers->find("memory\t0\t") == std::string::npos;
    choice = memory_on_v1 ? HIERARCHY_MEMORY : HIERARCHY_V2;
    reason = memory_on_v1 ? "no container runs yet; the memory controller is on v1" : "no container runs yet; the memory controller is on v2";
  }
  skel_->bss->hierarchy = choice;
  if (!hierarchy_reason_ || *hierarchy_reason_ != reason) {
    Log(LogLevel::kInfo, "engine: cgroup hierarchy by which containers are told apart", {{"hierarchy", kHierarchyNames[choice]}, {"reason", reason}});
  }
  hierarchy_reason_ = reason;
  return OkStatus();
}

Status EngineImpl::SetPods(JobId id, const std::vector<std::string>& pod_uids) {
  std::lock_guard lock(mutex_);
  auto& job = jobs_[static_cast<size_t>(id)];
  if (!job) return Error{ErrorCode::kInvalid, "job " + std::to_string(id) + " does not exist"};
  std::map<PodKey, std::string> pods;
  for (const std::string& uid : pod_uids) {
    auto key = ParsePodUid(uid);
    if (!key) return Error{ErrorCode::kInvalid, "pod uid " + SanitizeName(uid, 64) + " is not 32 hexadecimal digits"};
    pods.emplace(*key, uid);
  }
  if (pods.size() > BORESCOPE_MAX_PODS) {
    return Error{ErrorCode::kInvalid, std::to_string(pods.size()) + " pods are more than the " + std::to_string(BORESCOPE_MAX_PODS) + " of a node"};
  }
  std::set<PodKey> added;
  for (const auto& [pod, uid] : pods) {
    if (!job->pods.contains(pod)) added.insert(pod);
  }
  job->pods = std::move(pods);
  // No gap: from here on the hooks see what is made; then we bring in what exists.
  if (targets_.empty()) RETURN_IF_ERROR(ChooseHierarchy(WantedPods()));
  std::atomic_ref(skel_->bss->cgroup_jobs).fetch_or(Bit(id));
  RefreshTargets();
  RETURN_IF_ERROR(FindTargets(added));
  rediscover_ = true;
  return VisitTasks();
}

void EngineImpl::ExcludeCgroup(JobId id, uint64_t cgroup_id) {
  std::lock_guard lock(mutex_);
  auto& job = jobs_[static_cast<size_t>(id)];
  if (!job || !job->excluded.insert(cgroup_id).second) return;
  RefreshTargets();
  if (Status s = VisitTasks(); !s.ok()) Log(LogLevel::kWarning, "engine: settling run time", {{"error", s.error().ToString()}});
}

// ---- worker: redraws periods, settles run time where windows begin and end ----

void EngineImpl::RunWorker() {
  prctl(PR_SET_NAME, "engine-clock");
  prctl(PR_SET_TIMERSLACK, 1);
  std::unique_lock lock(mutex_);
  while (!stop_worker_) {
    int64_t next = clocks_->RedrawDue(NowNs(CLOCK_MONOTONIC));
    int64_t boot = NowNs(CLOCK_BOOTTIME);
    int64_t edge = SettleEdges(boot);
    if (edge != kNever) next = std::min(next, NowNs(CLOCK_MONOTONIC) + edge - boot);
    if (next == kNever) {
      wake_worker_.wait(lock);
    } else {
      wake_worker_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(next)));
    }
  }
}

// Settles the edges that have passed; returns the next one.
int64_t EngineImpl::SettleEdges(int64_t now_boot_ns) {
  int64_t next = kNever;
  bool due = false;
  for (auto& job : jobs_) {
    if (!job) continue;
    for (auto [at, settled] : {std::pair{job->job.start_boot_ns, &job->start_settled}, {job->job.deadline_boot_ns, &job->deadline_settled}}) {
      if (*settled) continue;
      if (at <= now_boot_ns) {
        *settled = due = true;
      } else {
        next = std::min(next, at);
      }
    }
  }
  if (due && attached_ && !halted_) {
    if (Status s = VisitTasks(); !s.ok()) Log(LogLevel::kWarning, "engine: settling run time", {{"error", s.error().ToString()}});
  }
  return next;
}

// ---- records ----

template <typename Record>
void EngineImpl::Enqueue(typename Pending::Kind kind, int64_t time_ns, const Record& head, std::initializer_list<std::string_view> tails) {
  size_t offset = (bytes_.size() + 7) / 8 * 8, size = sizeof(head);
  for (std::string_view tail : tails) size += tail.size();
  bytes_.resize(offset + size);
  char* to = bytes_.data() + offset;
  std::memcpy(to, &head, sizeof(head));
  to += sizeof(head);
  for (std::string_view tail : tails) to = std::copy(tail.begin(), tail.end(), to);
  pending_.push_back({time_ns, kind, offset, size});
}

int EngineImpl::OnRingRecord(void* self, void* data, size_t size) {
  auto* engine = static_cast<EngineImpl*>(self);
  borescope_record head;
  if (size < sizeof(head)) return 0;
  std::memcpy(&head, data, sizeof(head));
  if (head.version != BORESCOPE_ABI_VERSION || head.size > size) return 0;
  size_t offset = (engine->bytes_.size() + 7) / 8 * 8;
  engine->bytes_.resize(offset + size);
  std::memcpy(engine->bytes_.data() + offset, data, size);
  engine->pending_.push_back({static_cast<int64_t>(head.time_ns), Pending::Kind::kBpf, offset, size});
  return 0;
}

void EngineImpl::Collect() {
  ring_buffer__consume(ring_.get());
  uint64_t lost = sideband_.Read([this](const Mmap& m) {
    Enqueue(Pending::Kind::kMmap, m.time_ns, PendingMmap{m, m.build_id.size(), m.path.size()}, {m.build_id, m.path});
  });
  if (lost != 0) {
    Log(LogLevel::kWarning, "engine: the kernel could not tell of all mappings; maps are read again", {{"lost", lost}});
    processes_.clear();
    rediscover_ = true;
  }
}

// What others change about the machine while jobs are armed.
void EngineImpl::FollowMachine(int64_t now_mono_ns) {
  if (now_mono_ns - looked_at_machine_ns_ < kLookAtMachineNs) return;
  looked_at_machine_ns_ = now_mono_ns;
  FollowHotplug();
  uint64_t limit = MaxSampleRate(options_.proc_root);
  if (limit == max_sample_rate_) return;
  max_sample_rate_ = limit;
  if (Status s = ApplyRates(); !s.ok()) {
    Log(LogLevel::kError, "engine: following kernel.perf_event_max_sample_rate; it is tried again", {{"error", s.error().ToString()}});
    max_sample_rate_ = 0;
  }
}

// Events of a CPU that went offline do not come back with it, and a new one has none.
void EngineImpl::FollowHotplug() {
  std::vector<int> online = OnlineCpus(options_.sys_root);
  if (online == cpus_ || online.empty()) return;
  Log(LogLevel::kWarning, "engine: CPUs came or went; clocks are started anew", {{"before", static_cast<uint64_t>(cpus_.size())}, {"now", static_cast<uint64_t>(online.size())}});
  cpus_ = online;
  Collect();
  sideband_.Close();
  Status status = sideband_.Open(cpus_);
  for (size_t rate = 0; rate < armed_hz_.size() && status.ok(); ++rate) {
    if (armed_hz_[rate] == 0) continue;
    clocks_->Stop(static_cast<int>(rate));
    status = clocks_->Start(static_cast<int>(rate), armed_hz_[rate], cpus_);
  }
  if (!status.ok()) {
    Log(LogLevel::kError, "engine: starting the clocks anew; it is tried again", {{"error", status.error().ToString()}});
    cpus_.clear();
  }
  processes_.clear();  // mappings made meanwhile were not told
  rediscover_ = true;
}

void EngineImpl::Halt() {
  halted_ = true;
  auto& bss = *skel_->bss;
  for (auto& rate : bss.rate_jobs) std::atomic_ref(rate).store(0);
  for (auto& job : bss.jobs) std::atomic_ref(job.deadline_boot_ns).store(0);
  for (auto* jobs : {&bss.cgroup_jobs, &bss.group_jobs, &bss.all_jobs}) std::atomic_ref(*jobs).store(0);
}

Status EngineImpl::Drain(Observer& observer) {
  if (halted_) return OkStatus();
  epoll_event event;
  epoll_wait(wake_.get(), &event, 1, 0);
  int64_t now = NowNs(CLOCK_MONOTONIC);
  {
    std::lock_guard lock(mutex_);
    if (attached_) {
      FollowMachine(now);
      auto& bss = *skel_->bss;
      if (uint64_t lost = Observe(bss.events_lost); lost != events_lost_seen_) {
        Log(LogLevel::kWarning, "engine: ring buffer full, events are lost; processes and cgroups are looked up again", {{"lost", lost - events_lost_seen_}});
        events_lost_seen_ = lost;
        rediscover_ = true;
        if (Observe(bss.cgroup_jobs) != 0) RETURN_IF_ERROR(FindTargets({}));
      }
      if (uint64_t full = Observe(bss.targets_full); full != targets_full_seen_) {
        Log(LogLevel::kWarning, "engine: no room for another cgroup; it is not sampled", {{"cgroups", full - targets_full_seen_}});
        targets_full_seen_ = full;
      }
      uint64_t moved = Observe(bss.threads_moved);
      if (rediscover_ || moved != threads_moved_seen_) {
        threads_moved_seen_ = moved;
        RETURN_IF_ERROR(VisitTasks());
        if (rediscover_) QueueVisited();
        rediscover_ = false;
      }
      now = NowNs(CLOCK_MONOTONIC);
    }
  }
  if (attached_) std::this_thread::sleep_for(kRecordInFlight);
  Collect();

  std::ranges::stable_sort(pending_, {}, &Pending::time_ns);
  auto later = std::ranges::upper_bound(pending_, attached_ ? now : kNever, {}, &Pending::time_ns);
  for (auto it = pending_.begin(); it != later; ++it) Deliver(*it, observer);

  std::vector<char> rest;
  std::vector<Pending> rest_pending;
  for (auto it = later; it != pending_.end(); ++it) {
    size_t offset = (rest.size() + 7) / 8 * 8;
    rest.resize(offset + it->size);
    std::memcpy(rest.data() + offset, bytes_.data() + it->offset, it->size);
    rest_pending.push_back({it->time_ns, it->kind, offset, it->size});
  }
  bytes_.swap(rest);
  pending_.swap(rest_pending);
  std::erase_if(processes_, [&](const auto& p) { return p.second.dead_since_ns != 0 && p.second.dead_since_ns < now - kForgetDeadNs; });
  return OkStatus();
}

// The programs run in RCU read sections, for whose end this system call waits. It refuses where CPUs run without a tick (nohz_full).
void EngineImpl::Quiesce() {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
}

// What the last walk saw, against what we know: both ways, since records of either may be lost. Who is gone is told in its turn: some of
// those that were known when the walk began stand in pending_ still.
void EngineImpl::QueueVisited() {
  std::string seen;
  for (const borescope_task_info& info : visited_) {
    auto tgid = static_cast<pid_t>(info.tgid);
    seen.append(reinterpret_cast<const char*>(&tgid), sizeof(tgid));
    Enqueue(Pending::Kind::kFound, settled_mono_ns_, info, {});
  }
  Enqueue(Pending::Kind::kVisited, visit_began_mono_ns_, seen.size(), {seen});
}

// Makes the process known; tells of it when it was not, or has another address space than we knew.
void EngineImpl::NoteProcess(int64_t time_ns, pid_t tgid, uint64_t space, uint64_t cgroup_id, std::string_view comm, Observer& observer) {
  if (tgid == 0) return;
  auto [it, fresh] = processes_.try_emplace(tgid);
  if (!fresh && it->second.space == space) return;  // also the last ticks of one that has exited
  it->second = {space, cgroup_id, std::string(comm), 0};
  observer.OnFound({time_ns, tgid, space, cgroup_id, it->second.comm});
}

void EngineImpl::Deliver(const Pending& p, Observer& observer) {
  std::string_view bytes(bytes_.data() + p.offset, p.size);
  auto as = [&]<typename T>(T record) -> std::optional<T> {
    if (bytes.size() < sizeof(record)) return std::nullopt;
    std::memcpy(&record, bytes.data(), sizeof(record));
    return record;
  };
  auto text = [](const char* s, size_t size) { return std::string_view(s, strnlen(s, size)); };
  auto pid = [](uint32_t n) { return static_cast<pid_t>(n); };

  switch (p.kind) {
    case Pending::Kind::kMmap: {
      auto m = as(PendingMmap{});
      auto process = processes_.find(m->mmap.tgid);
      if (process == processes_.end()) return;  // of no interest
      m->mmap.build_id = bytes.substr(sizeof(*m), m->build_id_size);
      m->mmap.path = bytes.substr(sizeof(*m) + m->build_id_size, m->path_size);
      observer.OnMmap(m->mmap);
      return;
    }
    case Pending::Kind::kFound: {
      auto info = as(borescope_task_info{});
      NoteProcess(p.time_ns, pid(info->tgid), info->space, info->cgroup_id, text(info->comm, sizeof(info->comm)), observer);
      return;
    }
    case Pending::Kind::kVisited: {
      std::set<pid_t> seen;
      for (size_t at = sizeof(size_t); at + sizeof(pid_t) <= bytes.size(); at += sizeof(pid_t)) {
        pid_t tgid;
        std::memcpy(&tgid, bytes.data() + at, sizeof(tgid));
        seen.insert(tgid);
      }
      for (auto& [tgid, process] : processes_) {
        if (process.dead_since_ns != 0 || seen.contains(tgid)) continue;
        process.dead_since_ns = p.time_ns;
        observer.OnExit({p.time_ns, tgid, tgid, process.space, process.cgroup_id, true});
      }
      return;
    }
    case Pending::Kind::kCgroup: {
      auto c = as(PendingCgroup{});
      auto wanted = WantedPods();
      auto pod = wanted.find(c->pod);
      if (pod == wanted.end()) return;
      observer.OnCgroup({p.time_ns, c->id, c->parent_id, bytes.substr(sizeof(*c), c->name_size), pod->second, false});
      return;
    }
    case Pending::Kind::kBpf:
      break;
  }
  auto head = as(borescope_record{});
  switch (head->type) {
    case RECORD_SAMPLE:
      DeliverSample(bytes, observer);
      return;
    case RECORD_FORK:
      if (auto r = as(borescope_fork{}); r && r->tgid != 0) {
        processes_[pid(r->tgid)] = {r->space, r->cgroup_id, "", 0};
        observer.OnFork({p.time_ns, pid(r->parent_tgid), pid(r->tgid), r->space, r->cgroup_id});
      }
      return;
    case RECORD_EXEC:
      if (auto r = as(borescope_exec{}); r && r->tgid != 0) {
        std::string_view comm = text(r->comm, sizeof(r->comm));
        processes_[pid(r->tgid)] = {r->space, r->cgroup_id, std::string(comm), 0};
        observer.OnExec({p.time_ns, pid(r->tgid), r->space, r->old_space, r->cgroup_id, comm});
      }
      return;
    case RECORD_EXIT:
      if (auto r = as(borescope_exit{}); r && r->tgid != 0) {
        observer.OnExit({p.time_ns, pid(r->tgid), pid(r->tid), r->space, r->cgroup_id, r->group_dead != 0});
        if (r->group_dead != 0) {
          Process& process = processes_[pid(r->tgid)];
          process.space = r->space;
          process.dead_since_ns = p.time_ns;
        }
      }
      return;
    case RECORD_CGROUP_MKDIR:
    case RECORD_CGROUP_RMDIR:
      if (auto r = as(borescope_cgroup{})) DeliverCgroup(*r, head->type == RECORD_CGROUP_RMDIR, observer);
      return;
    default:
      return;
  }
}

void EngineImpl::DeliverCgroup(const borescope_cgroup& c, bool removed, Observer& observer) {
  PodCgroup cgroup{c.cgroup_id, c.parent_id, c.container_id, {c.pod_high, c.pod_low}, std::string(c.name, strnlen(c.name, sizeof(c.name)))};
  auto wanted = WantedPods();
  auto pod = wanted.find(cgroup.pod);
  {
    std::lock_guard lock(mutex_);
    auto known = targets_.find(cgroup.id);
    if (removed) {
      bpf_map_delete_elem(bpf_map__fd(skel_->maps.targets), &cgroup.id);  // we may have put it after the hook took it out
      if (known == targets_.end()) return;
      cgroup = known->second;
      targets_.erase(known);
    } else {
      if (known != targets_.end()) return;
      if (pod == wanted.end()) {
        bpf_map_delete_elem(bpf_map__fd(skel_->maps.targets), &cgroup.id);
        return;
      }
      PutTarget(cgroup);  // what it inherited may be out of date by now
    }
  }
  if (cgroup.container != cgroup.id || pod == wanted.end()) return;
  observer.OnCgroup({static_cast<int64_t>(c.head.time_ns), cgroup.id, cgroup.parent_id, cgroup.name, pod->second, removed});
}

void EngineImpl::DeliverSample(std::string_view record, Observer& observer) {
  SampleRecord parsed;
  if (!ParseSample(record, &parsed)) return;
  borescope_sample& r = parsed.head;
  auto time = static_cast<int64_t>(r.head.time_ns);
  auto tgid = static_cast<pid_t>(r.tgid);
  if (r.space == 0) r.space = 1ull << 63 | r.tgid;  // no slot (no memory for one): the process stands for its address space
  std::string_view comm(r.comm, strnlen(r.comm, sizeof(r.comm)));

  uint64_t mask = 0;
  ForEachJob(r.job_mask, [&](int id) {
    const auto& job = jobs_[static_cast<size_t>(id)];
    if (job && job->added_mono_ns <= time) mask |= Bit(id);
  });
  if (mask == 0) return;
  NoteProcess(time, tgid, r.space, r.cgroup_id, comm, observer);

  Sample sample;
  sample.time_ns = time;
  sample.tgid = tgid;
  sample.tid = static_cast<pid_t>(r.tid);
  sample.space = r.space;
  sample.cgroup_id = r.cgroup_id;
  sample.user_pcs = parsed.user;
  sample.end_reason = static_cast<borescope_loss>(r.end_reason);
  sample.missing = parsed.missing ? &*parsed.missing : nullptr;
  sample.raw = parsed.raw ? &*parsed.raw : nullptr;
  sample.in_kernel = r.flags & SAMPLE_IN_KERNEL;
  sample.after_syscall = r.flags & SAMPLE_AFTER_SYSCALL;
  sample.cpu = r.cpu;
  sample.comm = comm;

  // Whether a raw stack can be unwound after all is for the observer to say.
  bool cut = sample.end_reason != LOSS_NONE && !(sample.end_reason == LOSS_TABLES_NOT_READY && sample.raw != nullptr);
  // A sample of a faster clock stands for several of its ticks: the job takes so few of them.
  auto share = [&](const JobEntry& job) { return std::max(1.0, static_cast<double>(r.rate_hz) / job.job.frequency_hz); };
  // Jobs that see the same sample get it in one call: those with the same share of the clock and the same wish for kernel frames.
  while (mask != 0) {
    const JobEntry& first = *jobs_[static_cast<size_t>(std::countr_zero(mask))];
    double ticks = share(first);
    sample.weight_ns = static_cast<int64_t>(static_cast<double>(r.weight_ns) * ticks);
    sample.kernel_pcs = first.job.kernel_stacks ? parsed.kernel : std::span<const uint64_t>();
    sample.job_mask = 0;
    ForEachJob(mask, [&](int id) {
      JobEntry& job = *jobs_[static_cast<size_t>(id)];
      if (share(job) != ticks || job.job.kernel_stacks != first.job.kernel_stacks) return;
      sample.job_mask |= Bit(id);
      job.counters.samples++;
      job.counters.sampled_ns += sample.weight_ns;
      if (cut) job.counters.loss[sample.end_reason].count++;
    });
    mask &= ~sample.job_mask;
    observer.OnSample(sample);
  }
}

Result<std::string> EngineImpl::NameKernel(uint64_t address) {
  if (halted_) return std::string();
  auto& bss = *skel_->bss;
  bss.kernel_address = address;
  LIBBPF_OPTS(bpf_test_run_opts, run);
  if (int error = bpf_prog_test_run_opts(bpf_program__fd(skel_->progs.name_kernel), &run); error != 0) {
    return ErrnoError("asking the kernel for a name", -error);
  }
  std::string_view name(bss.kernel_name, strnlen(bss.kernel_name, sizeof(bss.kernel_name)));
  if (run.retval != 0 || name.starts_with("0x")) return std::string();  // what it cannot name it prints
  return std::string(name) + (IsBpfSymbol(name) ? " [bpf]" : "");
}

// ---- counters ----

JobCounters EngineImpl::counters(JobId id) const {
  std::lock_guard lock(mutex_);
  const auto& job = jobs_[static_cast<size_t>(id)];
  if (!job) return {};
  if (!halted_ && NowNs(CLOCK_MONOTONIC) - settled_mono_ns_ > kSettleAgainNs) {
    if (Status s = const_cast<EngineImpl*>(this)->VisitTasks(); !s.ok()) {
      Log(LogLevel::kWarning, "engine: settling run time", {{"error", s.error().ToString()}});
    }
  }
  JobCounters result = job->counters;
  result.used_ns = static_cast<int64_t>(Observe(skel_->bss->job_used_ns[id]));
  std::vector<borescope_lost> cpus(static_cast<size_t>(possible_cpus_));
  for (uint32_t reason = 0; reason < LOSS_MAX; ++reason) {
    uint32_t row = static_cast<uint32_t>(id) * LOSS_MAX + reason;
    if (bpf_map_lookup_elem(bpf_map__fd(skel_->maps.lost), &row, cpus.data()) != 0) continue;
    for (const borescope_lost& l : cpus) {
      result.loss[reason].count += l.count;
      result.loss[reason].ns += static_cast<int64_t>(l.ns);
    }
  }
  return result;
}

Counters EngineImpl::counters() const {
  Counters result;
  uint32_t zero = 0;
  std::vector<borescope_stats> cpus(static_cast<size_t>(possible_cpus_));
  if (bpf_map_lookup_elem(bpf_map__fd(skel_->maps.stats), &zero, cpus.data()) == 0) {
    for (const borescope_stats& s : cpus) {
      result.runs += s.ticks;
      result.stack_walks += s.walks;
      for (uint64_t ns : s.timed_ns) result.bpf_ns += static_cast<int64_t>(ns) * BORESCOPE_OWN_COST_ONE_IN;
    }
  }
  result.map_bytes = map_bytes_ + sideband_.memory_bytes() + table_maps_->memory_bytes();
  result.mapped_bytes = 2 * uint64_t{bpf_map__max_entries(skel_->maps.ring)} + sideband_.memory_bytes() + table_maps_->memory_bytes();
  return result;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Open(const Options& options, KernelReport* report) {
  auto engine = std::make_unique<EngineImpl>(options);
  RETURN_IF_ERROR(engine->Init(report));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace borescope::engine
