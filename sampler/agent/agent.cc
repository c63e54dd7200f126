// SPDX-License-Identifier: Apache-2.0
#include "sampler/agent/agent.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "common/base/log.h"
#include "common/base/strings.h"
#include "sampler/guard/capabilities.h"
#include "sampler/publish/series.h"

namespace borescope::agent {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kWindowNs = 10 * kSecond;
constexpr int64_t kDrainEveryNs = 100'000'000;
// A window is handed over that long after its end: by then two drains have brought what belongs to it.
constexpr int64_t kWindowDelayNs = 250'000'000;
// And so long at most when names are still to come.
constexpr int64_t kWindowNamesNs = kSecond;
constexpr int64_t kFirstProgressNs = 2 * kSecond;
constexpr int64_t kProgressEveryNs = 10 * kSecond;
constexpr int64_t kSkewNs = kSecond;
constexpr int64_t kGridSlackNs = 1'000'000;  // two readings of a pair of clocks differ by less
constexpr int64_t kStatusEveryNs = 10 * kSecond;
constexpr std::string_view kCpuProfileName = "process_cpu";

std::string BootId() {
  Result<std::string> text = ReadFile("/proc/sys/kernel/random/boot_id", 256);
  return text.ok() ? std::string(Trim(*text)) : std::string();
}

std::string CgroupUid(const api::NodePod& pod) { return pod.cgroup_uid.empty() ? pod.uid : pod.cgroup_uid; }

std::string SessionName(const api::Job& job) { return job.session.namespace_name + "/" + job.session.name; }

const api::JobProfile* CpuProfile(const api::Job& job) {
  auto it = std::find_if(job.profiles.begin(), job.profiles.end(),
                         [](const api::JobProfile& p) { return p.kind == api::ProfileKindName(api::ProfileKind::kCpu); });
  return it == job.profiles.end() ? nullptr : &*it;
}

bool Chosen(const api::Job& job, const targets::Container& container) {
  if (container.naming == targets::Naming::kSandbox) return false;
  if (job.container_names.empty()) return true;
  return container.naming == targets::Naming::kNamed &&
         std::find(job.container_names.begin(), job.container_names.end(), container.name) != job.container_names.end();
}

bool Terminal(api::JobState state) { return state == api::JobState::kPublished || state == api::JobState::kFailed; }

// How far the boot clock is ahead of the monotonic one, as exact as an undisturbed pair of readings.
int64_t BootMinusMono() {
  int64_t best_width = INT64_MAX, difference = 0;
  for (int i = 0; i < 8 && best_width > 1'000; ++i) {
    int64_t before = NowNs(CLOCK_MONOTONIC), boot = NowNs(CLOCK_BOOTTIME), after = NowNs(CLOCK_MONOTONIC);
    if (after - before >= best_width) continue;
    best_width = after - before;
    difference = boot - before - best_width / 2;
  }
  return difference;
}

}  // namespace

// Tells the containers of processes before the stacks see them.
class Agent::Fan : public engine::Observer {
 public:
  explicit Fan(Agent& agent) : agent_(agent), stacks_(*agent.aggregator_), containers_(agent.containers_) {}
  void OnSample(const engine::Sample& e) override {
    containers_.OnProcess(e.cgroup_id, e.tgid);
    stacks_.OnSample(e);
  }
  void OnMmap(const engine::Mmap& e) override { stacks_.OnMmap(e); }
  void OnFork(const engine::Fork& e) override {
    containers_.OnProcess(e.cgroup_id, e.tgid);
    stacks_.OnFork(e);
  }
  void OnExec(const engine::Exec& e) override {
    containers_.OnProcess(e.cgroup_id, e.tgid);
    stacks_.OnExec(e);
  }
  void OnExit(const engine::Exit& e) override { stacks_.OnExit(e); }
  void OnFound(const engine::Found& e) override {
    containers_.OnProcess(e.cgroup_id, e.tgid);
    stacks_.OnFound(e);
  }
  void OnCgroup(const engine::Cgroup& e) override {
    if (containers_.OnCgroup(e)) agent_.OnNewContainer(e);
    stacks_.OnCgroup(e);
  }

 private:
  Agent& agent_;
  stacks::Aggregator& stacks_;
  targets::Containers& containers_;
};

Agent::Agent(AgentOptions options)
    : options_(std::move(options)),
      incarnation_(RandomHex(8)),
      boot_id_(BootId()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      containers_(options_.engine.proc_root),
      cpu_usage_(options_.engine.proc_root),
      metrics_(*options_.registry),
      machine_({.boot_id = boot_id_, .kinds = {}, .sinks = [this] {
                  std::set<std::string> names;
                  for (const publish::Sink& sink : options_.sinks) names.insert(sink.name);
                  return names;
                }()}) {}

Agent::~Agent() = default;

Result<std::unique_ptr<Agent>> Agent::Create(AgentOptions options) {
  std::unique_ptr<Agent> agent(new Agent(std::move(options)));
  Agent* a = agent.get();
  if (!a->wake_.valid()) return ErrnoError("eventfd");
  if (!a->options_.samples_file.empty()) {
    // Appended: what was taken before a restart is not taken back by it.
    ASSIGN_OR_RETURN(a->samples_, publish::SamplesFile::Open(a->options_.samples_file, publish::SamplesFile::Mode::kAppend));
  }
  publish::Publisher::Options publisher;
  publisher.on_change = [a] {
    a->publishing_changed_ = true;
    WakeEventFd(a->wake_.get());
  };
  ASSIGN_OR_RETURN(a->publisher_, publish::Publisher::Create(a->options_.sinks, std::move(publisher)));
  ASSIGN_OR_RETURN(a->introductions_, publish::Introductions::Create(a->options_.sinks));
  ASSIGN_OR_RETURN(a->link_, ApiLink::Create(a->options_.kube, {.node = a->options_.node, .wake = [a] { WakeEventFd(a->wake_.get()); }}));

  if (Result<std::string> text = ReadFile(a->options_.engine.proc_root + "/self/status", 64 << 10); text.ok()) {
    a->missing_ = guard::DescribeMissing(guard::MissingCapabilities(*text));
    if (!a->missing_.empty()) Log(LogLevel::kWarning, "degraded", {{"why", a->missing_}});
  }
  utsname name{};
  ::uname(&name);
  std::string machine = name.machine;
  a->status_.sampler_version = a->options_.version;
  a->status_.kernel_version = name.release;
  a->status_.boot_id = a->boot_id_;
  a->status_.incarnation = a->incarnation_;
  a->status_.architecture = machine == "x86_64" ? "amd64" : machine == "aarch64" ? "arm64" : machine;
  a->status_.cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
  for (const publish::Sink& sink : a->options_.sinks) a->status_.sink_names.push_back(sink.name);
  a->report_.incarnation = a->incarnation_;
  a->report_.boot_id = a->boot_id_;
  if (auto watch = guard::KernelWatch::Open(a->options_.kernel_log, [a](const guard::KernelFault& fault) { a->OnKernelFault(fault); }); watch.ok()) {
    a->kernel_watch_ = *std::move(watch);
  } else {
    a->kernel_unwatched_ = watch.error().message;
    Log(LogLevel::kWarning, "the kernel's log is not followed", {{"error", a->kernel_unwatched_}});
  }
  if (Status opened = a->OpenEngine(); !opened.ok()) {
    Log(LogLevel::kError, "the engine can't be opened: no jobs can be taken", {{"error", opened.error().message}});
  }
  return agent;
}

Status Agent::OpenEngine() {
  if (engine_) return OkStatus();
  if (quarantined_) return engine_error_;
  engine::KernelReport kernel;
  Result<std::unique_ptr<engine::Engine>> opened = engine::Engine::Open(options_.engine, &kernel);
  metrics_.SetKernel(kernel);
  status_.kernel_findings.clear();
  for (const engine::KernelFinding& finding : kernel.findings) {
    if (finding.verdict == engine::Verdict::kAvoided) continue;
    status_.kernel_findings.push_back({finding.name, std::string(engine::VerdictName(finding.verdict)), SanitizeName(finding.message, 500)});
    if (finding.verdict != engine::Verdict::kRefused) Log(LogLevel::kWarning, "about this kernel", {{"finding", finding.name}, {"message", finding.message}});
  }
  Status ready = opened.ok() ? OpenTables(**opened) : opened.error();
  std::lock_guard lock(shared_mutex_);
  engine_ok_ = ready.ok();
  if (!ready.ok()) {
    engine_error_ = ready.error();
    status_.kinds.clear();
    machine_.SetKinds({std::string(api::ProfileKindName(api::ProfileKind::kCpu))});  // the job is told why, not that the kind is unknown
    return ready;
  }
  engine_ = *std::move(opened);
  engine_counters_ = engine_->counters();
  bare_tick_ns_ = engine::MeasureBareTick();
  status_.kinds = {std::string(api::ProfileKindName(api::ProfileKind::kCpu))};
  machine_.SetKinds({status_.kinds.begin(), status_.kinds.end()});
  return OkStatus();
}

void Agent::OnKernelFault(const guard::KernelFault& fault) {
  if (fault_seen_.exchange(true)) return;  // others follow, of other CPUs: the engine may be gone by then
  bool go_on = options_.engine.kernel_overrides.contains(std::string(engine::kKernelFault));
  if (!go_on && engine_) engine_->Halt();  // before any lock is waited for
  {
    std::lock_guard lock(shared_mutex_);
    kernel_fault_ = fault;
  }
  Log(LogLevel::kError, go_on ? "a fault of the kernel; sampling goes on, for it is told to" : "a fault of the kernel: sampling stops until the sampler is started anew",
      {{"kernel", fault.headline}, {"program", fault.program}});
  WakeEventFd(wake_.get());
}

void Agent::Quarantine(Now now) {
  {
    std::lock_guard lock(shared_mutex_);
    quarantined_ = true;
    engine_ok_ = false;
    engine_error_ = {ErrorCode::kUnsupported, "the kernel reported a fault with a BPF program on the stack (" + kernel_fault_->headline + "; " + kernel_fault_->program +
                                                  "): nothing is sampled on this node until the sampler is started anew; look at the node's dmesg first, best restart the node"};
  }
  status_.kinds.clear();
  machine_.SetKinds({std::string(api::ProfileKindName(api::ProfileKind::kCpu))});  // new jobs are told why
  Apply(machine_.OnKernelFault(engine_error_.message, now), now);
  // Told first: taking the programs down waits for every CPU, and may do so for ever.
  UpdateStatus();
  Report(now);
  fan_.reset();
  aggregator_.reset();
  names_.reset();
  tables_.reset();
  engine_.reset();
}

void Agent::WatchKernel() {
  if (!kernel_watch_) return;
  if (job_of_engine_id_.empty()) {
    kernel_watch_->Disarm();
  } else {
    kernel_watch_->Arm();
  }
}

Status Agent::OpenTables(engine::Engine& engine) {
  unwind::Tables::Options tables;
  tables.memory = &engine.table_memory();
  tables.budget_bytes = options_.unwind_bytes;
  tables.cache_directory = options_.unwind_cache;
  ASSIGN_OR_RETURN(tables_, unwind::Tables::Create(std::move(tables)));
  naming::Names::Options names;
  names.proc_root = options_.engine.proc_root;
  ASSIGN_OR_RETURN(names_, naming::Names::Create(std::move(names)));
  stacks::Options stacks;
  stacks.proc_root = options_.engine.proc_root;
  stacks.tables = tables_.get();
  stacks.names = names_.get();
  if (samples_) stacks.on_sample = [this](const stacks::NamedSample& sample) { OnNamedSample(sample); };
  stacks.kernel_names = [this](uint64_t address) { return engine_->NameKernel(address); };  // samples come from an engine
  aggregator_ = stacks::Aggregator::Create(std::move(stacks));
  fan_ = std::make_unique<Fan>(*this);
  return OkStatus();
}

Now Agent::GetNow() const {
  kube::ClockOffset::Estimate estimate = link_->clock_offset();
  // Time stamps of whole seconds can't tell a small offset from none.
  bool known = estimate.known && std::abs(estimate.offset_ns) > estimate.error_ns;
  return {.boot_ns = NowNs(CLOCK_BOOTTIME), .real_ns = NowNs(CLOCK_REALTIME) + (known ? estimate.offset_ns : 0)};
}

int64_t Agent::BootToMono(int64_t boot_ns) { return boot_ns - BootMinusMono(); }

std::string Agent::NotReady() const {
  std::lock_guard lock(shared_mutex_);
  if (!engine_ok_) return engine_error_.message;
  if (!protected_) return "not yet known whether the admission policy protects other nodes";
  if (!*protected_) return unprotected_why_;
  if (!link_->connected()) return "no watch of our NodeSampler stands";
  return "";
}

void Agent::RefreshMetrics() {
  engine::Counters counters;
  int64_t children_ns = 0;
  bool is_protected = false, is_unsafe = false;
  {
    std::lock_guard lock(shared_mutex_);
    counters = engine_counters_;
    children_ns = children_ns_;
    is_protected = protected_.value_or(false);
    is_unsafe = kernel_fault_.has_value();
  }
  metrics_.SetCost(guard::MeasureCost(counters, children_ns));
  metrics_.SetKernelWatch(kernel_watch_ != nullptr, kernel_watch_ ? kernel_watch_->missed() : 0, is_unsafe);
  metrics_.SetPublisher(publisher_->stats());
  kube::ClockOffset::Estimate offset = link_->clock_offset();
  metrics_.SetApi(link_->requests(), link_->connected(), is_protected, offset.known ? offset.offset_ns : 0);
}

void Agent::Run(int stop_fd) {
  UpdateStatus();
  link_->Start();
  Log(LogLevel::kInfo, "sampler started",
      {{"node", link_->node()}, {"incarnation", incarnation_}, {"version", options_.version}, {"sinks", static_cast<int64_t>(options_.sinks.size())}});
  while (true) {
    Wait(stop_fd);
    pollfd stop{stop_fd, POLLIN, 0};
    if (::poll(&stop, 1, 0) > 0) break;
    Now now = GetNow();
    bool fault = false;
    {
      std::lock_guard lock(shared_mutex_);
      fault = kernel_fault_.has_value() && !quarantined_;
    }
    if (fault && !options_.engine.kernel_overrides.contains(std::string(engine::kKernelFault))) Quarantine(now);
    bool news = TakeInbox(now) || fault;
    Drain();
    for (uint64_t cgroup_id : containers_.Resolve(NowNs(CLOCK_MONOTONIC))) {
      std::vector<std::string> jobs;
      for (const auto& [id, runtime] : runtimes_) jobs.push_back(id);
      for (const std::string& id : jobs) Choose(id, cgroup_id, now);
    }
    UpdateFigures(now);
    std::vector<Action> due = machine_.OnTick(now, [&](const std::string& id) {
      auto runtime = runtimes_.find(id);
      return runtime != runtimes_.end() && runtime->second.engine_id >= 0 && aggregator_->AwaitsNames(runtime->second.engine_id, INT64_MAX, true);
    });
    Apply(due, now);
    // A job that came back while its end was being drained can be taken anew.
    bool forgot = std::any_of(due.begin(), due.end(), [](const Action& action) { return action.kind == Action::Kind::kForget; });
    if (forgot && have_spec_ && have_report_) ApplySpec(now);
    CloseWindows(now);
    FollowPublishing(now);
    if (!job_of_engine_id_.empty() && NowNs(CLOCK_MONOTONIC) >= next_account_mono_ns_) AccountCost();
    Report(now);
    if (news || now.boot_ns >= next_status_boot_ns_) {
      next_status_boot_ns_ = now.boot_ns + kStatusEveryNs;
      UpdateStatus();
    }
  }
  Shutdown();
}

void Agent::Wait(int stop_fd) {
  int64_t boot = NowNs(CLOCK_BOOTTIME);
  int64_t next = machine_.NextTickBootNs();
  bool armed = false;
  for (const auto& [id, runtime] : runtimes_) {
    if (!runtime.held.empty()) next = std::min(next, boot + kDrainEveryNs);
    if (runtime.engine_id < 0) continue;
    armed = true;
    const JobRecord* job = machine_.Find(id);
    if (job != nullptr && job->deadline_boot_ns > boot) next = std::min(next, job->deadline_boot_ns);
    if (runtime.next_window_mono_ns != 0) {
      int64_t until = runtime.next_window_mono_ns + (runtime.window_cpu_read ? kWindowDelayNs : 0) - NowNs(CLOCK_MONOTONIC);
      if (until > 0) next = std::min(next, boot + until);  // else it waits for names, which wake us
    }
  }
  if (armed) next = std::min(next, boot + kDrainEveryNs);
  int timeout_ms = -1;
  // Rounded up: an early wake-up would find nothing to do and come back at once.
  if (next != INT64_MAX) timeout_ms = static_cast<int>(std::clamp<int64_t>((next - boot + 999'999) / 1'000'000, 0, 60'000));
  std::array<pollfd, 5> fds = {{{wake_.get(), POLLIN, 0},
                                {stop_fd, POLLIN, 0},
                                {engine_ ? engine_->wake_fd() : -1, POLLIN, 0},
                                {armed && tables_ ? tables_->wake_fd() : -1, POLLIN, 0},
                                {armed && names_ ? names_->wake_fd() : -1, POLLIN, 0}}};
  ::poll(fds.data(), fds.size(), timeout_ms);
  uint64_t count;
  while (::read(wake_.get(), &count, sizeof count) > 0) {
  }
}

void Agent::Drain() {
  if (!engine_ || job_of_engine_id_.empty()) return;
  if (Status drained = engine_->Drain(*fan_); !drained.ok()) {
    Log(LogLevel::kError, "the ring buffer can't be drained", {{"error", drained.error().message}});
  }
  aggregator_->Poll(NowNs(CLOCK_MONOTONIC));
  if (samples_) samples_->Flush();
}

bool Agent::TakeInbox(Now now) {
  ApiLink::Inbox inbox = link_->Take();
  if (inbox.report_found && !have_report_) {
    have_report_ = true;
    machine_.Restore(inbox.report_found->jobs);
  }
  if (inbox.is_protected) {
    std::lock_guard lock(shared_mutex_);
    protected_ = *inbox.is_protected;
    unprotected_why_ = inbox.unprotected_why;
  }
  if (inbox.gone) spec_ = {};
  if (inbox.sampler) {
    spec_ = std::move(inbox.sampler->spec);
    observed_generation_ = inbox.sampler->metadata.generation;
    have_spec_ = true;
  }
  // Jobs are taken up only when it is known what an earlier incarnation had.
  bool news = inbox.gone || inbox.sampler || inbox.is_protected || inbox.report_found;
  if (news && have_spec_ && have_report_) ApplySpec(now);
  return news;
}

void Agent::ApplySpec(Now now) {
  bool take_new = protected_.value_or(false);
  if (!engine_ && !spec_.jobs.empty()) [[maybe_unused]] Status retried = OpenEngine();
  std::vector<Action> actions = machine_.OnSpec(spec_, take_new, now);
  for (auto& [id, runtime] : runtimes_) {
    if (const JobRecord* job = machine_.Find(id); job != nullptr && !job->leaving) FollowPods(runtime, *job);
  }
  WantPods();
  Apply(actions, now);
}

// Remembers the pods that a job wants, also after they have left the spec: their windows are still to be named.
void Agent::FollowPods(Runtime& runtime, const JobRecord& job) {
  for (const api::NodePod& pod : spec_.pods) {
    if (std::find(job.spec.pod_uids.begin(), job.spec.pod_uids.end(), pod.uid) != job.spec.pod_uids.end()) {
      runtime.pods[CgroupUid(pod)] = pod;
    }
  }
}

std::optional<int64_t> Agent::ReadPodsCpu(const Runtime& runtime) {
  std::vector<std::string> uids;
  for (const auto& [uid, pod] : runtime.pods) uids.push_back(uid);
  return cpu_usage_.Read(uids);
}

void Agent::WantPods() {
  std::map<std::string, std::set<std::string>> names_by_pod;
  auto want = [&](const api::NodePod& pod) {
    std::set<std::string>& names = names_by_pod[CgroupUid(pod)];
    for (const api::PodContainer& container : pod.containers) names.insert(container.name);
  };
  for (const auto& [id, runtime] : runtimes_) {
    for (const auto& [uid, pod] : runtime.pods) want(pod);
  }
  for (const api::NodePod& pod : spec_.pods) want(pod);
  containers_.SetPods(std::move(names_by_pod));
}

void Agent::Apply(const std::vector<Action>& actions, Now now) {
  for (const Action& action : actions) {
    const JobRecord* job = machine_.Find(action.job_id);
    auto runtime = runtimes_.find(action.job_id);
    bool armed = runtime != runtimes_.end() && runtime->second.engine_id >= 0;
    switch (action.kind) {
      case Action::Kind::kArm:
        Arm(action.job_id, now);
        break;
      case Action::Kind::kSetWindow:
        if (job != nullptr && armed) {
          engine_->SetWindow(runtime->second.engine_id, job->start_boot_ns, job->deadline_boot_ns);
          publisher_->SetDeadline(action.job_id, job->deadline_boot_ns + job->spec.publish_deadline_seconds * kSecond);
          // Still waiting: the window is not one that a container of ours began, so the grid is another one.
          int64_t start_mono_ns = BootToMono(job->start_boot_ns);
          if (job->state == api::JobState::kWaiting && std::abs(start_mono_ns - runtime->second.grid_mono_ns) > kGridSlackNs) {
            RestartGrid(runtime->second, start_mono_ns, job->start_real_ns);
          }
        }
        break;
      case Action::Kind::kSetPods:
        if (job != nullptr && armed) {
          std::vector<std::string> uids;
          for (const auto& [uid, pod] : runtime->second.pods) {
            if (std::find(job->spec.pod_uids.begin(), job->spec.pod_uids.end(), pod.uid) != job->spec.pod_uids.end()) uids.push_back(uid);
          }
          if (Status set = engine_->SetPods(runtime->second.engine_id, uids); !set.ok()) {
            Log(LogLevel::kError, "the pods of a job can't be changed", {{"job", action.job_id}, {"error", set.error().message}});
          }
          for (const auto& [cgroup_id, container] : containers_.all()) Choose(action.job_id, cgroup_id, now);
        }
        break;
      case Action::Kind::kFinish:
        Finish(action.job_id, now);
        break;
      case Action::Kind::kSettle:
        Settle(action.job_id, now);
        break;
      case Action::Kind::kForget:
        Forget(action.job_id);
        break;
    }
  }
}

void Agent::Arm(const std::string& job_id, Now now) {
  const JobRecord& job = *machine_.Find(job_id);
  if (!engine_) {
    Apply(machine_.OnArmed(job_id, engine_error_, now, quarantined_ ? api::kKernelUnsafe : ""), now);
    return;
  }
  if (kernel_watch_) kernel_watch_->Arm();
  const api::JobProfile& profile = *CpuProfile(job.spec);
  Runtime& runtime = runtimes_.try_emplace(job_id, profile.name, job.before).first->second;
  runtime.session = SessionName(job.spec);
  FollowPods(runtime, job);
  WantPods();
  std::vector<std::string> uids;
  for (const auto& [uid, pod] : runtime.pods) uids.push_back(uid);

  bool waiting = job.start_boot_ns == 0;
  engine::Job order;
  order.frequency_hz = profile.frequency_hertz;
  order.kernel_stacks = job.spec.kernel_stacks == api::KernelStacks::kAuto;
  order.start_boot_ns = waiting ? now.boot_ns : job.start_boot_ns;
  order.deadline_boot_ns = waiting ? now.boot_ns + std::max<int64_t>(0, job.spec.wait_until - now.real_ns) + JobMachine::kWaitGraceNs
                                   : job.deadline_boot_ns;
  if (job_of_engine_id_.empty()) AccountCost();  // the idle time until now is nobody's
  Result<engine::JobId> added = engine_->AddJob(order);
  if (!added.ok()) {
    runtimes_.erase(job_id);
    Apply(machine_.OnArmed(job_id, added.error(), now), now);
    WatchKernel();
    return;
  }
  runtime.engine_id = *added;
  runtime.arming = ++armings_;
  runtime.armed_boot_ns = now.boot_ns;
  runtime.frequency_hz = order.frequency_hz;
  job_of_engine_id_[*added] = job_id;
  int64_t grid_mono_ns = BootToMono(order.start_boot_ns);
  runtime.grid_mono_ns = grid_mono_ns;
  runtime.grid_real_ns = waiting ? now.real_ns : job.start_real_ns;
  aggregator_->StartJob(*added, {.start_mono_ns = grid_mono_ns, .window_ns = kWindowNs, .frequency_hz = order.frequency_hz});
  int64_t mono = NowNs(CLOCK_MONOTONIC);
  runtime.next_window_mono_ns = grid_mono_ns + kWindowNs * (std::max<int64_t>(0, mono - grid_mono_ns) / kWindowNs + 1);
  publisher_->SetDeadline(job_id, order.deadline_boot_ns + job.spec.publish_deadline_seconds * kSecond);
  introductions_->Ask(job.spec.sink_names);

  Status targeted = engine_->SetPods(*added, uids);
  Apply(machine_.OnArmed(job_id, targeted, now), now);
  if (!targeted.ok()) {
    engine_->RemoveJob(*added);
    aggregator_->StopJob(*added);
    job_of_engine_id_.erase(*added);
    runtimes_.erase(job_id);
    WatchKernel();
    return;
  }
  std::optional<int64_t> pods_cpu_ns = ReadPodsCpu(runtime);
  if (job.before != nullptr) {
    runtime.resumed_real_ns = now.real_ns;
    runtime.figures.CountRestartGap(pods_cpu_ns, job.spec.container_names.empty(), job.start_real_ns, now.real_ns, now.real_ns);
    metrics_.Resume(job_id, *job.before, runtime.figures);
  }
  runtime.figures.SetCpuAtArm(pods_cpu_ns);
  std::vector<uint64_t> known;
  for (const auto& [cgroup_id, container] : containers_.all()) {
    if (container.naming != targets::Naming::kPending) known.push_back(cgroup_id);
  }
  for (uint64_t cgroup_id : known) Choose(job_id, cgroup_id, now);
  Log(LogLevel::kInfo, "job armed",
      {{"job", job_id}, {"pods", static_cast<int64_t>(uids.size())}, {"hertz", order.frequency_hz}, {"waiting", waiting}});
}

void Agent::OnNewContainer(const engine::Cgroup& event) {
  // A waiting job's windows begin with its first container: as long as none is known, the last one made may be it.
  for (auto& [id, runtime] : runtimes_) {
    const JobRecord* job = machine_.Find(id);
    if (job == nullptr || job->state != api::JobState::kWaiting || runtime.engine_id < 0 || !runtime.pods.contains(std::string(event.pod_uid))) continue;
    bool another_pending = std::any_of(containers_.all().begin(), containers_.all().end(), [&](const auto& entry) {
      return entry.first != event.cgroup_id && entry.second.naming == targets::Naming::kPending && !entry.second.gone &&
             runtime.pods.contains(entry.second.pod_uid);
    });
    if (another_pending) continue;
    Now now = GetNow();
    RestartGrid(runtime, event.time_ns, now.real_ns - (BootToMono(now.boot_ns) - event.time_ns));
  }
}

void Agent::RestartGrid(Runtime& runtime, int64_t start_mono_ns, int64_t start_real_ns) {
  aggregator_->StartJob(runtime.engine_id, {.start_mono_ns = start_mono_ns, .window_ns = kWindowNs, .frequency_hz = runtime.frequency_hz});
  for (uint64_t cgroup_id : runtime.excluded) aggregator_->Exclude(runtime.engine_id, cgroup_id);
  runtime.grid_mono_ns = start_mono_ns;
  runtime.grid_real_ns = start_real_ns;
  int64_t mono = NowNs(CLOCK_MONOTONIC);
  runtime.next_window_mono_ns = start_mono_ns + kWindowNs * (std::max<int64_t>(0, mono - start_mono_ns) / kWindowNs + 1);
  runtime.window_cpu_read = false;
}

int64_t Agent::Exclude(Runtime& runtime, uint64_t cgroup_id) {
  if (runtime.engine_id < 0 || !runtime.excluded.insert(cgroup_id).second) return 0;
  engine_->ExcludeCgroup(runtime.engine_id, cgroup_id);
  int64_t before_ns = aggregator_->stats(runtime.engine_id).sampled_ns;
  aggregator_->Exclude(runtime.engine_id, cgroup_id);
  return before_ns - aggregator_->stats(runtime.engine_id).sampled_ns;
}

void Agent::Choose(const std::string& job_id, uint64_t cgroup_id, Now now) {
  const targets::Container* container = containers_.Find(cgroup_id);
  const JobRecord* job = machine_.Find(job_id);
  auto it = runtimes_.find(job_id);
  if (container == nullptr || container->naming == targets::Naming::kPending || job == nullptr || it == runtimes_.end()) return;
  Runtime& runtime = it->second;
  if (runtime.engine_id < 0 || !runtime.pods.contains(container->pod_uid)) return;
  if (Chosen(job->spec, *container)) {
    int64_t made_boot_ns = container->made_mono_ns + BootMinusMono();
    // What had ended before the job came is not what it waits for; what was running then begins the window at that moment.
    if (container->gone && made_boot_ns < runtime.armed_boot_ns) return;
    Apply(machine_.OnContainer(job_id, std::max(made_boot_ns, runtime.armed_boot_ns), now), now);
  } else {
    runtime.used_before_ns += Exclude(runtime, cgroup_id);  // was never the job's
  }
}

void Agent::OnNamedSample(const stacks::NamedSample& sample) {
  for (uint64_t mask = sample.raw->job_mask; mask != 0; mask &= mask - 1) {
    auto id = job_of_engine_id_.find(__builtin_ctzll(mask));
    if (id == job_of_engine_id_.end()) continue;
    auto it = runtimes_.find(id->second);
    if (it == runtimes_.end() || it->second.excluded.contains(sample.raw->cgroup_id)) continue;
    samples_->Write(sample, it->second.session);
  }
}

void Agent::UpdateFigures(Now now) {
  for (auto& [id, runtime] : runtimes_) {
    if (runtime.engine_id < 0) continue;
    const JobRecord* job = machine_.Find(id);
    runtime.kernel = engine_->counters(runtime.engine_id);
    runtime.user = aggregator_->stats(runtime.engine_id);
    if (!runtime.begun && job != nullptr && job->start_boot_ns != 0 && job->start_boot_ns <= now.boot_ns) {
      runtime.begun = true;
      // What was used between arming and a start that lay ahead is not the window's.
      if (job->state == api::JobState::kAccepted || job->state == api::JobState::kWaiting) runtime.used_before_ns = runtime.kernel.used_ns;
      runtime.next_progress_boot_ns = now.boot_ns + kFirstProgressNs;
    }
    if (job != nullptr && job->deadline_boot_ns != 0 && now.boot_ns >= job->deadline_boot_ns && runtime.used_at_end_ns < 0) {
      runtime.used_at_end_ns = runtime.kernel.used_ns;
    }
    if (runtime.used_at_end_ns >= 0) runtime.kernel.used_ns = runtime.used_at_end_ns;
    runtime.figures.SetCounters(runtime.kernel, runtime.user, runtime.used_before_ns);
  }
}

void Agent::CloseWindows(Now) {
  int64_t mono = NowNs(CLOCK_MONOTONIC);
  for (auto& [id, runtime] : runtimes_) {
    std::vector<stacks::Window> held = std::exchange(runtime.held, {});
    for (stacks::Window& window : held) Publish(id, runtime, std::move(window));
    const JobRecord* job = machine_.Find(id);
    if (runtime.engine_id < 0 || job == nullptr || runtime.next_window_mono_ns > mono) continue;
    if (!runtime.window_cpu_read) {
      runtime.window_cpu_read = true;
      runtime.figures.SetCpuAtWindow(runtime.RealTime(runtime.next_window_mono_ns - kWindowNs), ReadPodsCpu(runtime));
    }
    if (mono < runtime.next_window_mono_ns + kWindowDelayNs) continue;
    if (mono < runtime.next_window_mono_ns + kWindowNamesNs && aggregator_->AwaitsNames(runtime.engine_id, runtime.next_window_mono_ns, false)) continue;
    for (stacks::Window& window : aggregator_->CloseWindows(runtime.engine_id, runtime.next_window_mono_ns, false)) {
      Publish(id, runtime, std::move(window));
    }
    runtime.next_window_mono_ns += kWindowNs;
    runtime.window_cpu_read = false;
  }
}

void Agent::Publish(const std::string& job_id, Runtime& runtime, stacks::Window window) {
  const JobRecord* job = machine_.Find(job_id);
  const targets::Container* container = containers_.Find(window.cgroup_id);
  if (job == nullptr) return;
  if (container != nullptr && container->naming == targets::Naming::kPending) {
    containers_.HasRun(window.cgroup_id, NowNs(CLOCK_MONOTONIC));
    runtime.held.push_back(std::move(window));
    return;
  }
  auto pod = container == nullptr ? runtime.pods.end() : runtime.pods.find(container->pod_uid);
  if (pod == runtime.pods.end()) {
    Log(LogLevel::kWarning, "a window of a cgroup that is no container of a wanted pod is dropped", {{"job", job_id}, {"cgroup", window.cgroup_id}});
    runtime.figures.DropWindow(window, true);
    runtime.figures.AddLost(LossName(LOSS_UNKNOWN_CONTAINER), Exclude(runtime, window.cgroup_id));
    return;
  }
  if (!Chosen(job->spec, *container)) {
    runtime.figures.DropWindow(window, false);
    return;
  }
  if (window.profile.samples().empty()) return;

  publish::SeriesSource source;
  source.session_labels = job->spec.labels;
  for (const std::string& key : job->spec.pod_labels) {
    if (auto label = pod->second.pod_labels.find(key); label != pod->second.pod_labels.end()) source.pod_labels.insert(*label);
  }
  source.identity = pod->second.labels;
  for (const api::PodContainer& c : pod->second.containers) {
    if (c.name == container->name && source.identity["version"].empty()) source.identity["version"] = c.version;
  }
  source.container = container->name;
  source.language = window.language;
  source.session = job->spec.session.name;
  source.profile_name = kCpuProfileName;

  // The window's place on the wall clock is that of the session's grid; what a restart cut off is not claimed.
  int64_t grid_real_ns = runtime.RealTime(window.start_mono_ns);
  int64_t end_real_ns = grid_real_ns + window.end_mono_ns - window.start_mono_ns;
  window.profile.time_ns = std::max(grid_real_ns, runtime.resumed_real_ns);
  window.profile.duration_ns = std::max<int64_t>(0, end_real_ns - window.profile.time_ns);
  window.profile.comments.push_back("session " + job_id);

  runtime.figures.OnWindow({pod->second.uid, pod->second.name, container->name}, window);
  std::map<std::string, std::string> labels = publish::SeriesLabels(source);
  std::string kind(api::ProfileKindName(api::ProfileKind::kCpu));
  // A job that was taken anew has the same grid, and other profiles.
  std::string arming = incarnation_ + "/" + std::to_string(runtime.arming);
  int part = 0;
  for (publish::EncodedPart& encoded : publish::EncodeParts(window.profile)) {
    publish::Upload upload;
    upload.job_id = job_id;
    upload.id = publish::WindowId(job_id, container->container_id, kind, grid_real_ns, arming, part++);
    upload.labels = labels;
    upload.pprof_gzip = std::move(encoded.pprof_gzip);
    upload.window_start_ns = grid_real_ns;
    upload.sampled_ns = encoded.total;
    upload.sinks = job->spec.sink_names;
    publisher_->Enqueue(std::move(upload));
  }
}

void Agent::Finish(const std::string& job_id, Now now) {
  auto it = runtimes_.find(job_id);
  if (it == runtimes_.end() || it->second.engine_id < 0) return;
  Runtime& runtime = it->second;
  const JobRecord* job = machine_.Find(job_id);
  if (!quarantined_) {  // else the figures are those of the last drain, and the engine is left alone
    UpdateFigures(now);
    AccountCost();
  }
  int64_t end_mono_ns = BootToMono(job != nullptr && job->deadline_boot_ns != 0 ? job->deadline_boot_ns : now.boot_ns);
  for (stacks::Window& window : aggregator_->CloseWindows(runtime.engine_id, end_mono_ns, true)) Publish(job_id, runtime, std::move(window));
  aggregator_->StopJob(runtime.engine_id);
  if (!quarantined_) engine_->RemoveJob(runtime.engine_id);
  job_of_engine_id_.erase(runtime.engine_id);
  runtime.engine_id = -1;
  WatchKernel();
  publishing_changed_ = true;
  Log(LogLevel::kInfo, "job sampled",
      {{"job", job_id}, {"samples", runtime.figures.samples().collected}, {"sampled_ns", runtime.figures.cpu().sampled_ns}, {"used_ns", runtime.figures.cpu().used_ns}});
}

void Agent::Settle(const std::string& job_id, Now now) {
  const JobRecord& job = *machine_.Find(job_id);
  const api::JobProfile* profile = CpuProfile(job.spec);
  Runtime& runtime = runtimes_.try_emplace(job_id, profile == nullptr ? "cpu" : profile->name, job.before).first->second;
  runtime.session = SessionName(job.spec);
  FollowPods(runtime, job);
  int64_t start_real_ns = job.start_real_ns != 0 ? job.start_real_ns : job.before->start_time;
  runtime.figures.CountRestartGap(ReadPodsCpu(runtime), job.spec.container_names.empty(), start_real_ns, now.real_ns, job.end_real_ns);
  metrics_.Resume(job_id, *job.before, runtime.figures);
}

void Agent::Forget(const std::string& job_id) {
  auto it = runtimes_.find(job_id);
  if (it != runtimes_.end()) {
    metrics_.RemoveJob(job_id, it->second.session);
    runtimes_.erase(it);
  }
  publisher_->Forget(job_id);
  ledger_.Forget(job_id);
  report_.jobs.erase(job_id);
  WantPods();
  SendReport();
}

void Agent::FollowPublishing(Now now) {
  bool news = publishing_changed_.exchange(false);
  std::map<std::string, std::string> urls;
  for (const publish::Sink& sink : options_.sinks) urls[sink.name] = sink.url();
  for (auto& [id, runtime] : runtimes_) {
    const JobRecord* job = machine_.Find(id);
    if (job == nullptr || Terminal(job->state) || (!news && job->state != api::JobState::kSampled)) continue;
    std::map<std::string, publish::SinkProgress> progress = publisher_->Progress(id);
    runtime.figures.SetSinks(progress, job->spec.sink_names, urls);
    Publishing all;
    all.pending = static_cast<int64_t>(runtime.held.size());
    for (const auto& [sink, state] : progress) {
      all.pending += state.pending;
      all.failed += state.failed;
      if (state.failed > 0) {
        all.message = "sink " + sink + " did not store " + std::to_string(state.failed) + " of " + std::to_string(state.failed + state.stored) +
                      " windows: " + state.message;
      }
    }
    machine_.OnPublishing(id, all, now);
  }
}

void Agent::AccountCost() {
  int64_t mono = NowNs(CLOCK_MONOTONIC);
  next_account_mono_ns_ = mono + kSecond;
  engine::Counters counters = engine_->counters();
  unwind::Tables::Stats tables = tables_->stats();
  naming::Names::Stats names = names_->stats();
  const int64_t children_ns = tables.compile_cpu_ns + names.cpu_ns;
  {
    std::lock_guard lock(shared_mutex_);
    engine_counters_ = counters;
    children_ns_ = children_ns;
  }
  std::map<std::string, uint64_t> samples;
  for (const auto& [id, runtime] : runtimes_) {
    if (runtime.engine_id >= 0) samples[id] = runtime.user.collected;
  }
  guard::Cost cost = guard::MeasureCost(counters, children_ns);
  cost.tick_ns = static_cast<int64_t>(counters.runs) * bare_tick_ns_;
  ledger_.Account(cost, samples, mono);
  for (const auto& [id, runtime] : runtimes_) {
    metrics_.SetJob(id, runtime.session, runtime.figures, runtime.user, ledger_.Of(id));
  }
  metrics_.SetEngine(counters, aggregator_->memory_bytes(), aggregator_->untracked());
  metrics_.SetTables(tables);
  metrics_.SetNames(names, aggregator_->late_names());
  metrics_.SetUnknownContainers(containers_.unknown_total());
}

api::JobReport Agent::Compose(const JobRecord& job) const {
  api::JobReport report;
  if (job.before != nullptr) report = *job.before;
  auto it = runtimes_.find(job.spec.id);
  if (it != runtimes_.end()) {
    std::vector<stacks::Window> open;
    if (it->second.engine_id >= 0) open = aggregator_->OpenWindows(it->second.engine_id, NowNs(CLOCK_MONOTONIC));
    it->second.figures.Fill(report, open);
    guard::Overhead overhead = ledger_.Of(job.spec.id);
    report.overhead.peak_cpu_millis = std::max(report.overhead.peak_cpu_millis, overhead.peak_cpu_millis);
    report.overhead.peak_memory_bytes = std::max(report.overhead.peak_memory_bytes, overhead.peak_memory_bytes);
    report.overhead.tick_millis = std::max(report.overhead.tick_millis, overhead.tick_millis);
    if (overhead.average_cpu_millis > 0) report.overhead.average_cpu_millis = overhead.average_cpu_millis;
  }
  report.state = job.state;
  report.reason = job.reason;
  report.message = job.message;
  if (report.reason.empty() && it != runtimes_.end() && it->second.kernel.lowest_hz != 0 && it->second.kernel.lowest_hz < it->second.frequency_hz) {
    report.reason = api::kFrequencyLimited;
    report.message = "sampled at " + std::to_string(it->second.kernel.lowest_hz) + " Hz, not " + std::to_string(it->second.frequency_hz) +
                     " Hz: kernel.perf_event_max_sample_rate must be twice the frequency";
  }
  report.start_time = job.state == api::JobState::kAccepted && job.before == nullptr ? 0 : job.start_real_ns;
  report.end_time = job.end_real_ns;
  report.first_container_time = job.first_container_real_ns;
  report.boot_id = boot_id_;
  report.incarnation = incarnation_;
  report.deadline_boot_ns = job.deadline_boot_ns;
  return report;
}

void Agent::Report(Now now) {
  std::set<std::string> due = machine_.TakeChanged();
  for (auto& [id, runtime] : runtimes_) {
    const JobRecord* job = machine_.Find(id);
    if (job == nullptr || job->state != api::JobState::kSampling || now.boot_ns < runtime.next_progress_boot_ns) continue;
    runtime.next_progress_boot_ns = now.boot_ns + kProgressEveryNs;
    due.insert(id);
  }
  if (due.empty()) return;
  std::map<api::JobState, int> by_state;
  for (const auto& [id, job] : machine_.jobs()) ++by_state[job.state];
  metrics_.SetJobs(by_state);
  for (const std::string& id : due) {
    const JobRecord* job = machine_.Find(id);
    if (job == nullptr) continue;
    report_.jobs[id] = Compose(*job);
    auto runtime = runtimes_.find(id);
    if (runtime != runtimes_.end()) {
      metrics_.SetJob(id, runtime->second.session, runtime->second.figures, runtime->second.user, ledger_.Of(id));
    }
    if (job->state == api::JobState::kFailed) {
      Log(LogLevel::kWarning, "job failed", {{"job", id}, {"reason", job->reason}, {"message", job->message}});
    }
  }
  SendReport();
}

void Agent::SendReport() {
  api::NodeSamplerReportStatus fitted = report_;
  FitReport(fitted);
  link_->SetReport(std::move(fitted));
}

void Agent::UpdateStatus() {
  int64_t now = GetNow().real_ns;
  std::vector<api::Condition> before = status_.conditions;
  auto set = [&](std::string type, bool value, std::string reason, std::string message) {
    api::SetCondition(status_.conditions, {std::move(type), value ? "True" : "False", std::move(reason), SanitizeName(message, 1000)}, now);
  };
  if (engine_) {
    set("Ready", true, "EngineOpen", "can take cpu profiles");
  } else {
    set("Ready", false,
        quarantined_                                    ? std::string(api::kKernelUnsafe)
        : engine_error_.code == ErrorCode::kDenied      ? "CapabilityMissing"
        : engine_error_.code == ErrorCode::kUnsupported ? "KernelNotSupported"
                                                        : "EngineFailed",
        engine_error_.message);
  }
  std::string worse = missing_, why = missing_.empty() ? "AsExpected" : "CapabilityMissing";
  for (const api::KernelFinding& finding : status_.kernel_findings) {
    if (finding.action == engine::VerdictName(engine::Verdict::kRefused)) continue;
    worse += (worse.empty() ? "" : "; ") + finding.message;
    if (missing_.empty()) why = "Kernel" + finding.action;
  }
  set("Degraded", !worse.empty(), why, worse);
  {
    std::lock_guard lock(shared_mutex_);
    api::Condition is_unsafe{std::string(api::kKernelUnsafe), "False", "NoFaultSeen", ""};
    if (kernel_fault_) {
      is_unsafe = {is_unsafe.type, "True", quarantined_ ? "KernelFault" : "Overridden",
                   quarantined_ ? engine_error_.message : "the kernel reported a fault (" + kernel_fault_->headline + "; " + kernel_fault_->program + "); sampling goes on by --kernel-override"};
    } else if (!kernel_unwatched_.empty()) {
      is_unsafe = {is_unsafe.type, "Unknown", "KernelLogUnreadable", kernel_unwatched_};
    }
    api::SetCondition(status_.conditions, std::move(is_unsafe), now);
  }
  if (protected_) {
    set("Protected", *protected_, *protected_ ? "AdmissionPolicyInForce" : "AdmissionPolicyMissing", *protected_ ? "" : unprotected_why_);
  }
  kube::ClockOffset::Estimate offset = link_->clock_offset();
  if (offset.known) {
    bool skewed = std::abs(offset.offset_ns) - offset.error_ns > kSkewNs;
    set("ClockSkewed", skewed, skewed ? "ClockOffset" : "ClocksAgree",
        skewed ? "this node's clock differs from the API server's by more than 1 s; windows are corrected by the offset" : "");
    // An estimate that only became narrower is no news.
    int64_t millis = std::abs(offset.offset_ns) > offset.error_ns ? offset.offset_ns / 1'000'000 : 0;
    if (std::abs(millis - status_.clock_offset_millis) > 250) status_.clock_offset_millis = millis;
  }
  // Written only when capabilities change, so that the object's resourceVersion fences the operator's writes.
  if (status_.conditions != before || status_.observed_generation == 0) {
    status_.observed_generation = observed_generation_;
    link_->SetStatus(status_);
  }
}

void Agent::Shutdown() {
  Log(LogLevel::kInfo, "ending: publishing what is there", {{"jobs", static_cast<int64_t>(machine_.jobs().size())}});
  Now now = GetNow();
  for (auto& [id, runtime] : runtimes_) {
    if (runtime.engine_id < 0) continue;
    engine_->SetWindow(runtime.engine_id, machine_.Find(id) ? machine_.Find(id)->start_boot_ns : 0, now.boot_ns);
  }
  int64_t end_mono_ns = NowNs(CLOCK_MONOTONIC);
  if (!job_of_engine_id_.empty()) {
    engine_->Quiesce();
    Drain();
  }
  UpdateFigures(now);
  for (auto& [id, runtime] : runtimes_) {
    const JobRecord* job = machine_.Find(id);
    if (runtime.engine_id < 0 || job == nullptr) continue;
    runtime.figures.SetCpuAtWindow(runtime.RealTime(runtime.next_window_mono_ns - kWindowNs), ReadPodsCpu(runtime));
    for (stacks::Window& window : aggregator_->CloseWindows(runtime.engine_id, end_mono_ns, true)) Publish(id, runtime, std::move(window));
  }
  publisher_->Stop(std::chrono::seconds(5));
  publishing_changed_ = true;
  FollowPublishing(now);
  // The jobs stay in the report as they are: the next incarnation takes them up.
  for (const auto& [id, job] : machine_.jobs()) report_.jobs[id] = Compose(job);
  SendReport();
  link_->Stop(std::chrono::seconds(2));
}

}  // namespace borescope::agent
