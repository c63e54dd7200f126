// SPDX-License-Identifier: Apache-2.0
#include "sampler/stacks/aggregator.h"

#include <malloc.h>
#include <sys/uio.h>
#include <xxhash.h>

#include <algorithm>
#include <deque>
#include <list>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/base/fd.h"
#include "common/base/strings.h"
#include "sampler/stacks/frames.h"
#include "sampler/stacks/spaces.h"
#include "sampler/unwind/recorded.h"

namespace borescope::stacks {
namespace {

constexpr uint64_t kKernelImageBytes = 1 << 30;  // how much room the kernel's image has at most: its true size tells nobody anything
constexpr size_t kMaxJobs = 64;
constexpr size_t kMaxProcessesInWindow = 1024;  // whose shares decide language and name
constexpr size_t kMaxFrames = 1 << 18;            // of all stacks together
constexpr int64_t kSweepPauseNs = 1'000'000'000;
constexpr size_t kMaxPlaces = 4096;               // different ends of cut stacks; beyond it one for each reason
constexpr const char* kFurtherPlaces = "(places beyond the first 4096)";
constexpr uint64_t kPcMask = ~USER_FRAME_INTERRUPTED;

struct Hash128 {
  uint64_t low, high;
  bool operator==(const Hash128&) const = default;
};
struct HashOfHash {
  size_t operator()(const Hash128& h) const { return h.low; }
};

struct Stack {
  Hash128 hash{};
  std::vector<uint32_t> frames;  // leaf first
  borescope_loss reason = LOSS_NONE;
  uint32_t place = 0;         // where it is cut, index in places_
  uint32_t leaf = UINT32_MAX;  // the innermost user frame
  bool live = false;
};

// Where a stack is cut.
struct Place {
  std::string path, build_id;
  uint32_t name = kNoName;  // of an example
  std::string function;     // as long as that has no name
  borescope_loss reason = LOSS_NONE;
};

struct Cell {
  int64_t count = 0, weight_ns = 0;
};

struct OpenWindow {
  std::unordered_map<uint32_t, Cell> stacks;
  double squares = 0;  // sum of the squared weights
  std::unordered_map<std::shared_ptr<ProcessInfo>, int64_t> processes;  // weight of each
};

struct WindowKey {
  int64_t index;   // since the job's start
  uint64_t group;  // cgroup, or process
  auto operator<=>(const WindowKey&) const = default;
};

struct JobState {
  bool active = false;
  JobOptions options;
  JobStats stats;
  int64_t first_open = 0;  // windows before it have been given out
  std::map<WindowKey, OpenWindow> windows;
  std::unordered_set<uint64_t> excluded;
  std::unordered_map<uint32_t, Cell> cuts;  // by place
  std::unordered_map<uint32_t, uint64_t> undecided;  // samples whose innermost user frame waits for this name
};

// A sample that waits for unwind tables, with all that it points to.
struct Held {
  engine::Sample sample;
  uint64_t wanted = 0;  // jobs that it is still to be charged to
  Process process;      // as it was then
  std::shared_ptr<symbols::MappedFile> waits_for;
  std::vector<uint64_t> kernel, user;
  engine::RawStack raw;
  std::vector<std::byte> stack;
  std::string comm;
  size_t bytes = 0;
};

// A sample that is told when its names are there.
struct Untold {
  engine::Sample sample;
  uint64_t wanted = 0;
  uint32_t stack = 0;
  std::vector<uint64_t> kernel, user;
  std::string comm;
  int64_t until_ns = 0;
  size_t bytes = 0;
};

// Where the code of a process lies, and what its files' tables say. For one stack: what it was asked stays the same.
class ProcessCode final : public unwind::CodeMap {
 public:
  ProcessCode(Spaces& spaces, unwind::Tables* tables, Process& process, int64_t now_ns)
      : spaces_(spaces), tables_(tables), process_(process), now_ns_(now_ns) {}

  unwind::CodePlace Find(uint64_t pc) override {
    unwind::CodePlace place;
    auto mapping = spaces_.FindMapping(process_, pc, now_ns_);
    if (!mapping) return place;
    using Kind = unwind::CodePlace::Kind;
    place.kind = mapping->file ? Kind::kFile : mapping->path == "[uprobes]" ? Kind::kProbe : Kind::kAnonymous;
    place.file_offset = pc - mapping->start + mapping->offset;
    if (!mapping->elf()) return place;
    auto it = std::find_if(known_.begin(), known_.end(), [&](const Known& k) { return k.file == mapping->file; });
    if (it == known_.end()) {
      Known known{mapping->file, nullptr, unwind::Tables::State::kPending};
      if (tables_) known.table = tables_->Get(known.file, &known.state);
      it = known_.insert(known_.end(), std::move(known));
    }
    place.table = it->table.get();
    place.pending = !it->table && it->state == unwind::Tables::State::kPending;
    if (place.pending) waits_for_ = it->file;
    return place;
  }
  bool ReadCode(uint64_t pc, void* into, size_t n) override {
    auto mapping = spaces_.FindMapping(process_, pc, now_ns_);
    if (!mapping) return false;
    if (mapping->elf()) {
      auto linked = mapping->elf()->OffsetToVaddr(pc - mapping->start + mapping->offset);
      return linked && mapping->elf()->Read(*linked, into, n);
    }
    iovec local{into, n}, remote{reinterpret_cast<void*>(pc), n};
    return process_vm_readv(process_.tgid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(n);
  }
  // The file whose table is being made; null: nothing was missing.
  const std::shared_ptr<symbols::MappedFile>& waits_for() const { return waits_for_; }

 private:
  struct Known {
    std::shared_ptr<symbols::MappedFile> file;
    std::shared_ptr<const unwind::CompiledTable> table;
    unwind::Tables::State state;
  };
  Spaces& spaces_;
  unwind::Tables* tables_;
  Process& process_;
  int64_t now_ns_;
  std::vector<Known> known_;
  std::shared_ptr<symbols::MappedFile> waits_for_;
};

class AggregatorImpl final : public Aggregator {
 public:
  explicit AggregatorImpl(Options options)
      : options_(std::move(options)),
        spaces_(options_.proc_root, [this](const Process& process, const Mapping& mapping) { Want(process, mapping); }),
        frames_(spaces_, options_.proc_root, options_.kernel_names, options_.names) {}

  void OnMmap(const engine::Mmap& event) override { spaces_.OnMmap(event); }
  void OnFork(const engine::Fork& event) override { spaces_.OnFork(event); }
  void OnExec(const engine::Exec& event) override { spaces_.OnExec(event); }
  void OnExit(const engine::Exit& event) override { spaces_.OnExit(event); }
  void OnFound(const engine::Found& event) override { spaces_.OnFound(event); }
  void OnCgroup(const engine::Cgroup&) override {}
  void OnSample(const engine::Sample& sample) override;

  void StartJob(engine::JobId job, const JobOptions& options) override;
  void StopJob(engine::JobId job) override;
  void Exclude(engine::JobId job, uint64_t cgroup_id) override;
  std::vector<Window> CloseWindows(engine::JobId job, int64_t up_to_mono_ns, bool all) override;
  std::vector<Window> OpenWindows(engine::JobId job, int64_t now_mono_ns) override;
  void Poll(int64_t now_mono_ns) override;
  bool AwaitsNames(engine::JobId job, int64_t up_to_mono_ns, bool all) const override;
  uint64_t late_names() const override { return late_names_; }
  size_t held(engine::JobId job) const override;
  JobStats stats(engine::JobId job) const override { return Valid(job) ? jobs_[job].stats : JobStats(); }
  std::vector<Cut> cuts(engine::JobId job) const override;
  size_t memory_bytes() const override;
  uint64_t untracked() const override { return spaces_.untracked(); }

 private:
  static bool Valid(engine::JobId job) { return job >= 0 && static_cast<size_t>(job) < kMaxJobs; }
  bool HasRoom(int64_t now_ns);
  void Want(const Process& process, const Mapping& mapping);
  void WantMissing(Process& process, const engine::MissingFile& missing, int64_t now_ns);
  bool Hold(const engine::Sample& sample, uint64_t wanted, const Process& process, std::shared_ptr<symbols::MappedFile> waits_for);
  borescope_loss Unwind(const engine::Sample& sample, ProcessCode& code);
  void Release(Held& held, uint64_t jobs);
  void DropHeld(uint64_t jobs, std::optional<uint64_t> cgroup_id);
  void Charge(Process* process, const engine::Sample& sample, uint64_t wanted, borescope_loss reason);
  Hash128 HashOf(const Process* process, const engine::Sample& sample, borescope_loss reason) const;
  uint32_t Intern(Process* process, const engine::Sample& sample, borescope_loss reason);
  Stack Build(Process* process, const engine::Sample& sample, borescope_loss reason);
  uint32_t PlaceOf(const Stack& stack);
  void Sweep();
  bool Pending(const Stack& stack) const;
  void TakeNames();
  void Decide(JobState& job, const Stack& stack, int64_t count);
  void CountLate(JobState& job, const OpenWindow& window);
  void Report(const engine::Sample& sample, uint64_t wanted, uint32_t stack);
  void Tell(const engine::Sample& sample, uint64_t wanted, const Stack& stack);
  void TellUntold(const std::function<bool(const Untold&)>& due);
  void AddNamed(uint32_t frame);
  Window BuildWindow(engine::JobId job, const WindowKey& key, const OpenWindow& window, int64_t end);
  profile::Profile BuildProfile(const JobOptions& options, const OpenWindow& window, const ProcessInfo* main, int64_t start,
                                int64_t end);

  Options options_;
  Spaces spaces_;
  Frames frames_;
  std::array<JobState, kMaxJobs> jobs_;

  std::vector<Stack> stacks_;
  std::vector<uint32_t> free_;
  std::unordered_map<Hash128, uint32_t, HashOfHash> index_;
  int64_t swept_ns_ = INT64_MIN;

  std::vector<Place> places_;
  std::map<std::tuple<std::string, std::string, borescope_loss>, uint32_t> place_index_;  // by path, build id, reason

  std::list<Held> held_;  // in the order of their coming
  size_t held_bytes_ = 0;

  std::deque<Untold> untold_;  // in the order of their coming
  size_t untold_bytes_ = 0;
  int64_t now_ns_ = 0;  // at the last Poll
  uint64_t late_names_ = 0;

  std::vector<uint64_t> pcs_;  // of the sample at hand: user pcs, leaf first
  mutable std::vector<uint64_t> words_;
  std::vector<NamedFrame> named_;
};

// For another stack and its frames.
bool AggregatorImpl::HasRoom(int64_t now_ns) {
  auto full = [&] { return index_.size() >= options_.max_stacks || frames_.size() >= kMaxFrames; };
  if (!full()) return true;
  if (swept_ns_ != INT64_MIN && now_ns < swept_ns_ + kSweepPauseNs) return false;
  swept_ns_ = now_ns;
  Sweep();
  return !full();
}

// Before the first sample needs it.
void AggregatorImpl::Want(const Process& process, const Mapping& mapping) {
  if (!options_.tables) return;
  const symbols::MappedFile& file = *mapping.file;
  unwind_file_key key = {};
  if (mapping.path == "[vdso]") {
    key.inode = UNWIND_VDSO_INODE;
  } else {
    // The kernel maps the file of the overlay's layer, whose numbers nobody tells here: the first sample does.
    key.inode = file.overlay ? 0 : file.opened_id.inode;
    key.size = file.version.bytes;
    key.mtime_sec = file.version.mtime_sec;
    key.device = file.opened_id.device_major << 20 | file.opened_id.device_minor;
  }
  options_.tables->Want(key, mapping.file, process.cgroup_id);
}

void AggregatorImpl::WantMissing(Process& process, const engine::MissingFile& missing, int64_t now_ns) {
  if (!options_.tables) return;
  if (missing.key.inode == UNWIND_VDSO_INODE && missing.key.device == 0) {
    options_.tables->Want(missing.key, spaces_.files().Vdso());
    return;
  }
  symbols::FileId id{missing.key.device >> 20, missing.key.device & 0xfffff, missing.key.inode};
  symbols::FileVersion version{missing.key.size, missing.key.mtime_sec};
  auto file = spaces_.FindFile(process, missing.start, missing.end, missing.file_offset, id, version, now_ns);
  if (file) options_.tables->Want(missing.key, file, process.cgroup_id);
}

// False: there is no room.
bool AggregatorImpl::Hold(const engine::Sample& sample, uint64_t wanted, const Process& process,
                          std::shared_ptr<symbols::MappedFile> waits_for) {
  size_t bytes = sizeof(Held) + sample.raw->stack.size() + (sample.kernel_pcs.size() + sample.user_pcs.size()) * sizeof(uint64_t);
  if (held_bytes_ + bytes > kMaxHeldBytes) return false;
  Held& held = held_.emplace_back();
  held.sample = sample;
  held.wanted = wanted;
  held.process = process;
  held.process.past = true;
  held.waits_for = std::move(waits_for);
  held.kernel.assign(sample.kernel_pcs.begin(), sample.kernel_pcs.end());
  held.user.assign(sample.user_pcs.begin(), sample.user_pcs.end());
  held.raw = *sample.raw;
  held.stack.assign(sample.raw->stack.begin(), sample.raw->stack.end());
  held.comm = sample.comm;
  held.raw.stack = held.stack;
  held.sample.kernel_pcs = held.kernel;
  held.sample.user_pcs = held.user;
  held.sample.raw = &held.raw;
  held.sample.missing = nullptr;
  held.sample.comm = held.comm;
  held.bytes = bytes;
  held_bytes_ += bytes;
  return true;
}

// Fills pcs_. The kernel would have gone on where the recorded piece of stack ends: had it had the tables.
borescope_loss AggregatorImpl::Unwind(const engine::Sample& sample, ProcessCode& code) {
  const engine::RawStack& raw = *sample.raw;
  borescope_loss reason = unwind::UnwindRecorded(raw.regs, raw.start, raw.stack, code, &pcs_, unwind::kMaxFrames, sample.after_syscall);
  return reason == LOSS_STACK_UNREADABLE ? LOSS_TABLES_NOT_READY : reason;
}

// Charges a held sample to some of the jobs that want it, as far as its stack can be unwound now.
void AggregatorImpl::Release(Held& held, uint64_t jobs) {
  ProcessCode code(spaces_, options_.tables, held.process, held.sample.time_ns);
  borescope_loss reason = Unwind(held.sample, code);
  Charge(&held.process, held.sample, held.wanted & jobs, reason);
  held.wanted &= ~jobs;
}

void AggregatorImpl::DropHeld(uint64_t jobs, std::optional<uint64_t> cgroup_id) {
  std::erase_if(held_, [&](Held& held) {
    if (!cgroup_id || held.sample.cgroup_id == *cgroup_id) held.wanted &= ~jobs;
    if (held.wanted == 0) held_bytes_ -= held.bytes;
    return held.wanted == 0;
  });
}

void AggregatorImpl::Poll(int64_t now_mono_ns) {
  now_ns_ = now_mono_ns;
  if (options_.tables) options_.tables->Poll();
  std::vector<std::pair<const symbols::MappedFile*, bool>> pending;  // each file is asked for once
  auto is_pending = [&](const std::shared_ptr<symbols::MappedFile>& file) {
    for (const auto& [known, answer] : pending) {
      if (known == file.get()) return answer;
    }
    unwind::Tables::State state = unwind::Tables::State::kPending;
    bool answer = !options_.tables->Get(file, &state) && state == unwind::Tables::State::kPending;
    pending.emplace_back(file.get(), answer);
    return answer;
  };
  std::erase_if(held_, [&](Held& held) {
    bool last = held.sample.time_ns < now_mono_ns - kHoldNs;
    if (!last && is_pending(held.waits_for)) return false;
    if (!last) {  // its next frames may lie in a file that is pending too
      ProcessCode code(spaces_, options_.tables, held.process, held.sample.time_ns);
      Unwind(held.sample, code);
      if (code.waits_for()) {
        held.waits_for = code.waits_for();
        return false;
      }
    }
    Release(held, held.wanted);
    held_bytes_ -= held.bytes;
    return true;
  });
  TakeNames();
  TellUntold([&](const Untold& untold) { return untold.until_ns <= now_mono_ns || !Pending(stacks_[untold.stack]); });
}

bool AggregatorImpl::Pending(const Stack& stack) const {
  return std::any_of(stack.frames.begin(), stack.frames.end(), [&](uint32_t frame) { return frames_.pending(frames_[frame]); });
}

void AggregatorImpl::TakeNames() {
  for (uint32_t name : frames_.TakeNames()) {
    for (JobState& job : jobs_) {
      if (!job.active) continue;
      auto it = job.undecided.find(name);
      if (it == job.undecided.end()) continue;
      if (frames_.lines(name).empty()) job.stats.unsymbolized += it->second;
      job.undecided.erase(it);
    }
  }
}

// Whether samples of a stack have a name for their innermost user frame: counted, also backwards, or left open until that is known.
void AggregatorImpl::Decide(JobState& job, const Stack& stack, int64_t count) {
  if (stack.leaf == UINT32_MAX) return;
  const uint32_t name = frames_[stack.leaf].name;
  if (frames_.state(name) == Name::State::kWaiting) {
    job.undecided[name] += static_cast<uint64_t>(count);
  } else if (frames_.lines(name).empty()) {
    job.stats.unsymbolized += static_cast<uint64_t>(count);
  }
}

// Of a window that is handed out: what has no name now has none.
void AggregatorImpl::CountLate(JobState& job, const OpenWindow& window) {
  if (frames_.pending() == 0) return;
  std::unordered_set<uint32_t> late;
  for (const auto& [id, cell] : window.stacks) {
    const Stack& stack = stacks_[id];
    for (uint32_t frame : stack.frames) {
      if (frames_.pending(frames_[frame])) late.insert(frames_[frame].name);
    }
    if (stack.leaf == UINT32_MAX) continue;
    auto it = job.undecided.find(frames_[stack.leaf].name);
    if (it == job.undecided.end()) continue;
    job.stats.unsymbolized += static_cast<uint64_t>(cell.count);
    it->second -= static_cast<uint64_t>(cell.count);
    if (it->second == 0) job.undecided.erase(it);
  }
  late_names_ += late.size();
}

bool AggregatorImpl::AwaitsNames(engine::JobId job, int64_t up_to_mono_ns, bool all) const {
  if (!Valid(job) || !jobs_[job].active || frames_.pending() == 0) return false;
  const JobState& state = jobs_[job];
  for (const auto& [key, window] : state.windows) {
    if (!all && state.options.start_mono_ns + (key.index + 1) * state.options.window_ns > up_to_mono_ns) break;
    for (const auto& [id, cell] : window.stacks) {
      if (Pending(stacks_[id])) return true;
    }
  }
  return false;
}

size_t AggregatorImpl::held(engine::JobId job) const {
  if (!Valid(job)) return 0;
  return static_cast<size_t>(std::count_if(held_.begin(), held_.end(), [&](const Held& h) { return h.wanted >> job & 1; }));
}

Hash128 AggregatorImpl::HashOf(const Process* process, const engine::Sample& sample, borescope_loss reason) const {
  words_.clear();
  // kernel stacks alone are the same in every process
  words_.push_back(process && !pcs_.empty() ? process->space->key : 0);
  words_.push_back((static_cast<uint64_t>(reason) << 32) | (sample.after_syscall ? 1ull << 31 : 0) | sample.kernel_pcs.size());
  words_.insert(words_.end(), sample.kernel_pcs.begin(), sample.kernel_pcs.end());
  words_.insert(words_.end(), pcs_.begin(), pcs_.end());
  XXH128_hash_t h = XXH3_128bits(words_.data(), words_.size() * sizeof(uint64_t));
  return {h.low64, h.high64};
}

Stack AggregatorImpl::Build(Process* process, const engine::Sample& sample, borescope_loss reason) {
  Stack stack;
  stack.reason = reason;
  for (size_t i = 0; i < sample.kernel_pcs.size(); ++i) {
    stack.frames.push_back(frames_.Kernel(sample.kernel_pcs[i], i == 0, sample.time_ns));
  }
  for (size_t i = 0; i < pcs_.size(); ++i) {
    // A return address stands behind its call, and so does the pc of a thread in a system call. A signal trampoline has not called anybody: its
    // first instruction is what the handler returns to.
    bool trampoline = i + 1 < pcs_.size() && (pcs_[i + 1] & USER_FRAME_INTERRUPTED);
    bool exact = i == 0 ? !sample.after_syscall : (pcs_[i] & USER_FRAME_INTERRUPTED) || trampoline;
    uint32_t index = frames_.User(process, (pcs_[i] & kPcMask) - (exact ? 0 : 1), sample.time_ns);
    if (i == 0) stack.leaf = index;
    stack.frames.push_back(index);
  }
  if (stack.frames.empty() && stack.reason == LOSS_NONE) stack.reason = LOSS_NO_USER_REGS;
  if (stack.reason != LOSS_NONE) {
    stack.place = PlaceOf(stack);
    stack.frames.push_back(frames_.Cut(stack.reason));
  }
  stack.frames.shrink_to_fit();
  return stack;
}

uint32_t AggregatorImpl::PlaceOf(const Stack& stack) {
  Place place;
  place.reason = stack.reason;
  if (!stack.frames.empty() && frames_[stack.frames.back()].kind == Frame::Kind::kUser) {
    const Frame& frame = frames_[stack.frames.back()];
    place.name = frame.name;
    place.function = frames_.Unnamed(frame);
    if (frame.mapping) place.path = frame.mapping->path;
    if (frame.mapping && frame.mapping->file) place.build_id = HexEncode(frame.mapping->file->build_id);
  }
  std::tuple key{place.path, place.build_id, place.reason};
  if (auto it = place_index_.find(key); it != place_index_.end()) return it->second;
  if (places_.size() >= kMaxPlaces && place.path != kFurtherPlaces) {
    place = {kFurtherPlaces, "", kNoName, "", stack.reason};
    key = {place.path, "", place.reason};
    if (auto it = place_index_.find(key); it != place_index_.end()) return it->second;
  }
  auto index = static_cast<uint32_t>(places_.size());
  places_.push_back(std::move(place));
  place_index_.emplace(std::move(key), index);
  return index;
}

// UINT32_MAX: the table is full.
uint32_t AggregatorImpl::Intern(Process* process, const engine::Sample& sample, borescope_loss reason) {
  Hash128 hash = HashOf(process, sample, reason);
  if (auto it = index_.find(hash); it != index_.end()) return it->second;
  if (!HasRoom(sample.time_ns)) return UINT32_MAX;
  Stack stack = Build(process, sample, reason);
  stack.hash = hash;
  stack.live = true;
  uint32_t id;
  if (free_.empty()) {
    id = static_cast<uint32_t>(stacks_.size());
    stacks_.push_back(std::move(stack));
  } else {
    id = free_.back();
    free_.pop_back();
    stacks_[id] = std::move(stack);
  }
  index_.emplace(hash, id);
  return id;
}

// Forgets the stacks that no open window holds, and the frames and places that only they had; the places of a job's cuts stay.
void AggregatorImpl::Sweep() {
  std::vector<bool> held(stacks_.size());
  for (const JobState& job : jobs_) {
    for (const auto& [key, window] : job.windows) {
      for (const auto& [id, cell] : window.stacks) held[id] = true;
    }
  }
  for (const Untold& untold : untold_) held[untold.stack] = true;
  std::vector<bool> used(frames_.size());
  for (uint32_t id = 0; id < stacks_.size(); ++id) {
    Stack& stack = stacks_[id];
    if (!stack.live) continue;
    if (!held[id]) {
      index_.erase(stack.hash);
      stack = {};
      free_.push_back(id);
      continue;
    }
    for (uint32_t frame : stack.frames) used[frame] = true;
  }
  std::vector<uint32_t> of_places;
  for (const Place& place : places_) {
    if (place.name != kNoName) of_places.push_back(place.name);
  }
  Frames::Moved moved = frames_.Sweep(used, of_places);
  for (Stack& stack : stacks_) {
    for (uint32_t& frame : stack.frames) frame = moved.frames[frame];
    if (stack.leaf != UINT32_MAX) stack.leaf = moved.frames[stack.leaf];
  }
  for (Place& place : places_) {
    if (place.name != kNoName) place.name = moved.names[place.name];
  }
  for (JobState& job : jobs_) {
    std::unordered_map<uint32_t, uint64_t> undecided;
    for (const auto& [name, count] : job.undecided) undecided[moved.names[name]] += count;
    job.undecided = std::move(undecided);
  }
  std::vector<bool> kept(places_.size());
  auto is_cut = [](const Stack& stack) { return stack.live && stack.reason != LOSS_NONE; };
  for (const Stack& stack : stacks_) {
    if (is_cut(stack)) kept[stack.place] = true;
  }
  for (const JobState& job : jobs_) {
    for (const auto& [place, cell] : job.cuts) kept[place] = true;
  }
  std::vector<uint32_t> place_moved(places_.size());
  uint32_t places = 0;
  for (uint32_t i = 0; i < places_.size(); ++i) {
    if (!kept[i]) continue;
    if (places != i) places_[places] = std::move(places_[i]);
    place_moved[i] = places++;
  }
  std::erase_if(place_index_, [&](const auto& entry) { return !kept[entry.second]; });
  places_.resize(places);
  for (auto& [key, place] : place_index_) place = place_moved[place];
  for (Stack& stack : stacks_) {
    if (is_cut(stack)) stack.place = place_moved[stack.place];
  }
  for (JobState& job : jobs_) {
    std::unordered_map<uint32_t, Cell> cuts;
    for (const auto& [place, cell] : job.cuts) cuts[place_moved[place]] = cell;
    job.cuts = std::move(cuts);
  }
}

void AggregatorImpl::OnSample(const engine::Sample& sample) {
  uint64_t wanted = 0;
  for (uint64_t mask = sample.job_mask; mask != 0; mask &= mask - 1) {
    int bit = __builtin_ctzll(mask);
    if (jobs_[bit].active && !jobs_[bit].excluded.contains(sample.cgroup_id)) wanted |= uint64_t{1} << bit;
  }
  if (wanted == 0) return;
  Process* process = spaces_.Get(sample.tgid, sample.space, sample.cgroup_id, sample.time_ns, sample.comm);
  if (process && sample.missing) WantMissing(*process, *sample.missing, sample.time_ns);
  borescope_loss reason = sample.end_reason;
  pcs_.assign(sample.user_pcs.begin(), sample.user_pcs.end());
  if (process && sample.raw && reason == LOSS_TABLES_NOT_READY) {
    ProcessCode code(spaces_, options_.tables, *process, sample.time_ns);
    reason = Unwind(sample, code);
    if (options_.tables && code.waits_for() && Hold(sample, wanted, *process, code.waits_for())) return;
  }
  Charge(process, sample, wanted, reason);
}

// The sample's user stack is pcs_.
void AggregatorImpl::Charge(Process* process, const engine::Sample& sample, uint64_t wanted, borescope_loss reason) {
  uint32_t id = Intern(process, sample, reason);
  if (id != UINT32_MAX && options_.on_sample) Report(sample, wanted, id);

  for (uint64_t mask = wanted; mask != 0; mask &= mask - 1) {
    JobState& job = jobs_[__builtin_ctzll(mask)];
    if (id == UINT32_MAX) {
      job.stats.loss[LOSS_STACK_TABLE_FULL].count += 1;
      job.stats.loss[LOSS_STACK_TABLE_FULL].ns += sample.weight_ns;
      continue;
    }
    const Stack& stack = stacks_[id];
    job.stats.collected += 1;
    job.stats.sampled_ns += sample.weight_ns;
    Decide(job, stack, 1);
    if (stack.reason != LOSS_NONE) {
      job.stats.truncated += 1;
      job.stats.loss[stack.reason].count += 1;
      job.stats.loss[stack.reason].ns += sample.weight_ns;
      Cell& cut = job.cuts[stack.place];
      cut.count += 1;
      cut.weight_ns += sample.weight_ns;
    }
    int64_t index = std::max(job.first_open, (sample.time_ns - job.options.start_mono_ns) / job.options.window_ns);
    uint64_t group = job.options.split_by_process ? static_cast<uint64_t>(sample.tgid) : sample.cgroup_id;
    OpenWindow& window = job.windows[{index, group}];
    Cell& cell = window.stacks[id];
    cell.count += 1;
    cell.weight_ns += sample.weight_ns;
    window.squares += static_cast<double>(sample.weight_ns) * static_cast<double>(sample.weight_ns);
    if (process) {
      auto it = window.processes.find(process->info);
      if (it != window.processes.end()) {
        it->second += sample.weight_ns;
      } else if (window.processes.size() < kMaxProcessesInWindow) {
        window.processes.emplace(process->info, sample.weight_ns);
      }
    }
  }
}

void AggregatorImpl::AddNamed(uint32_t index) {
  const Frame& frame = frames_[index];
  std::span<const Line> lines = frames_.lines(frame.name);
  if (lines.empty()) named_.push_back({frames_.Unnamed(frame), frames_.Module(frame)});
  for (size_t i = 0; i < lines.size(); ++i) {
    const FunctionName& function = frames_.function(lines[i].function);
    std::string location = function.module;
    if (!function.file.empty()) {
      location = function.file.substr(function.file.rfind('/') + 1);
      if (lines[i].line != 0) location += ":" + std::to_string(lines[i].line);
    }
    named_.push_back({function.name, std::move(location), i + 1 < lines.size()});
  }
}

// Tells of a sample now, or when it is its turn.
void AggregatorImpl::Report(const engine::Sample& sample, uint64_t wanted, uint32_t id) {
  engine::Sample shown = sample;
  shown.user_pcs = pcs_;
  if (untold_.empty() && !Pending(stacks_[id])) return Tell(shown, wanted, stacks_[id]);
  Untold& untold = untold_.emplace_back();
  untold.sample = shown;
  untold.wanted = wanted;
  untold.stack = id;
  untold.kernel.assign(sample.kernel_pcs.begin(), sample.kernel_pcs.end());
  untold.user = pcs_;
  untold.comm = sample.comm;
  untold.sample.raw = nullptr;
  untold.sample.missing = nullptr;
  untold.until_ns = std::max(sample.time_ns, now_ns_) + kNameWaitNs;
  untold.bytes = sizeof(Untold) + (untold.kernel.size() + untold.user.size()) * sizeof(uint64_t);
  untold_bytes_ += untold.bytes;
  TellUntold([&](const Untold&) { return untold_bytes_ > kMaxReportBytes; });
}

void AggregatorImpl::TellUntold(const std::function<bool(const Untold&)>& due) {
  while (!untold_.empty() && due(untold_.front())) {
    Untold& untold = untold_.front();
    untold.sample.kernel_pcs = untold.kernel;
    untold.sample.user_pcs = untold.user;
    untold.sample.comm = untold.comm;
    if (untold.wanted != 0) Tell(untold.sample, untold.wanted, stacks_[untold.stack]);
    untold_bytes_ -= untold.bytes;
    untold_.pop_front();
  }
}

void AggregatorImpl::Tell(const engine::Sample& sample, uint64_t wanted, const Stack& stack) {
  named_.clear();
  for (uint32_t index : stack.frames) AddNamed(index);
  engine::Sample shown = sample;
  shown.job_mask = wanted;
  options_.on_sample({&shown, &named_, stack.reason});
}

void AggregatorImpl::StartJob(engine::JobId job, const JobOptions& options) {
  if (!Valid(job)) return;
  DropHeld(uint64_t{1} << job, std::nullopt);
  JobState& state = jobs_[job];
  state = {};
  state.active = true;
  state.options = options;
  state.options.window_ns = std::max<int64_t>(1, options.window_ns);
  state.options.frequency_hz = std::max(1, options.frequency_hz);
}

void AggregatorImpl::StopJob(engine::JobId job) {
  if (!Valid(job)) return;
  TellUntold([](const Untold&) { return true; });
  DropHeld(uint64_t{1} << job, std::nullopt);
  jobs_[job] = {};
  if (std::any_of(jobs_.begin(), jobs_.end(), [](const JobState& j) { return j.active; })) {
    if (places_.size() >= kMaxPlaces) Sweep();
    return;
  }
  // idle: give everything back
  std::vector<Stack>().swap(stacks_);
  std::vector<uint32_t>().swap(free_);
  index_ = {};
  std::vector<Place>().swap(places_);
  place_index_ = {};
  std::list<Held>().swap(held_);
  std::deque<Untold>().swap(untold_);
  frames_.Clear();
  spaces_.Clear();
  if (options_.tables) options_.tables->Release();
  malloc_trim(0);
}

void AggregatorImpl::Exclude(engine::JobId job, uint64_t cgroup_id) {
  if (!Valid(job)) return;
  JobState& state = jobs_[job];
  if (!state.excluded.insert(cgroup_id).second || state.options.split_by_process) return;
  DropHeld(uint64_t{1} << job, cgroup_id);
  for (Untold& untold : untold_) {
    if (untold.sample.cgroup_id == cgroup_id) untold.wanted &= ~(uint64_t{1} << job);
  }
  for (auto it = state.windows.begin(); it != state.windows.end();) {
    if (it->first.group != cgroup_id) {
      ++it;
      continue;
    }
    for (const auto& [id, cell] : it->second.stacks) {
      const Stack& stack = stacks_[id];
      auto count = static_cast<uint64_t>(cell.count);
      state.stats.collected -= count;
      state.stats.sampled_ns -= cell.weight_ns;
      Decide(state, stack, -cell.count);
      if (stack.reason == LOSS_NONE) continue;
      state.stats.truncated -= count;
      state.stats.loss[stack.reason].count -= count;
      state.stats.loss[stack.reason].ns -= cell.weight_ns;
      Cell& cut = state.cuts[stack.place];
      cut.count -= cell.count;
      cut.weight_ns -= cell.weight_ns;
    }
    it = state.windows.erase(it);
  }
}

std::vector<Window> AggregatorImpl::CloseWindows(engine::JobId job, int64_t up_to_mono_ns, bool all) {
  std::vector<Window> closed;
  if (!Valid(job) || !jobs_[job].active) return closed;
  TakeNames();
  JobState& state = jobs_[job];
  const JobOptions& options = state.options;
  // What waits for tables does not outlast its window.
  std::erase_if(held_, [&](Held& held) {
    uint64_t bit = uint64_t{1} << job;
    if (!(held.wanted & bit)) return false;
    int64_t index = std::max(state.first_open, (held.sample.time_ns - options.start_mono_ns) / options.window_ns);
    if (!all && options.start_mono_ns + (index + 1) * options.window_ns > up_to_mono_ns) return false;
    Release(held, bit);
    if (held.wanted == 0) held_bytes_ -= held.bytes;
    return held.wanted == 0;
  });
  while (!state.windows.empty()) {
    auto it = state.windows.begin();
    int64_t start = options.start_mono_ns + it->first.index * options.window_ns, end = start + options.window_ns;
    if (!all && end > up_to_mono_ns) break;
    CountLate(state, it->second);
    closed.push_back(BuildWindow(job, it->first, it->second, all ? std::max(start, std::min(end, up_to_mono_ns)) : end));
    state.windows.erase(it);
  }
  if (all) TellUntold([](const Untold&) { return true; });
  if (up_to_mono_ns > options.start_mono_ns) {
    int64_t whole = (up_to_mono_ns - options.start_mono_ns) / options.window_ns;
    state.first_open = std::max(state.first_open, whole);
  }
  return closed;
}

std::vector<Window> AggregatorImpl::OpenWindows(engine::JobId job, int64_t now_mono_ns) {
  std::vector<Window> open;
  if (!Valid(job) || !jobs_[job].active) return open;
  for (const auto& [key, window] : jobs_[job].windows) open.push_back(BuildWindow(job, key, window, now_mono_ns));
  return open;
}

Window AggregatorImpl::BuildWindow(engine::JobId job, const WindowKey& key, const OpenWindow& window, int64_t end) {
  const JobOptions& options = jobs_[job].options;
  Window out;
  out.job = job;
  if (options.split_by_process) {
    out.tgid = static_cast<pid_t>(key.group);
  } else {
    out.cgroup_id = key.group;
  }
  out.start_mono_ns = options.start_mono_ns + key.index * options.window_ns;
  out.end_mono_ns = end;
  const ProcessInfo* main = nullptr;
  int64_t most = -1;
  for (const auto& [info, weight] : window.processes) {
    if (weight > most) {
      most = weight;
      main = info.get();
    }
  }
  out.comm = main ? main->comm : "";
  out.language = symbols::LanguageName(main ? main->language : symbols::Language::kUnknown);
  out.profile = BuildProfile(options, window, main, out.start_mono_ns, out.end_mono_ns);
  return out;
}

std::vector<Cut> AggregatorImpl::cuts(engine::JobId job) const {
  std::vector<Cut> cuts;
  if (!Valid(job)) return cuts;
  for (const auto& [index, cell] : jobs_[job].cuts) {
    if (cell.count <= 0) continue;
    const Place& place = places_[index];
    std::span<const Line> lines = frames_.lines(place.name);
    cuts.push_back({place.path, place.build_id, lines.empty() ? place.function : frames_.function(lines[0].function).name, place.reason,
                    static_cast<uint64_t>(cell.count), cell.weight_ns});
  }
  std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) {
    return std::tie(b.samples, a.path, a.build_id, a.reason) < std::tie(a.samples, b.path, b.build_id, b.reason);
  });
  return cuts;
}

profile::Profile AggregatorImpl::BuildProfile(const JobOptions& options, const OpenWindow& window, const ProcessInfo* main,
                                              int64_t start, int64_t end) {
  profile::Profile profile;
  profile.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
  profile.default_sample_type = "cpu";
  profile.period_type = {"cpu", "nanoseconds"};
  profile.period = 1'000'000'000 / options.frequency_hz;
  profile.duration_ns = end - start;
  profile.squares = window.squares;

  std::vector<std::pair<uint32_t, Cell>> cells(window.stacks.begin(), window.stacks.end());
  std::sort(cells.begin(), cells.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  // has_functions tells tools that nothing of the mapping is left to name; the others, that some of it has that
  std::unordered_set<uint64_t> unnamed, with_files, with_lines;
  for (const auto& [id, cell] : cells) {
    for (uint32_t index : stacks_[id].frames) {
      const Frame& frame = frames_[index];
      if (!frame.mapping) continue;
      std::span<const Line> lines = frames_.lines(frame.name);
      if (lines.empty()) unnamed.insert(frame.mapping->id);
      for (const Line& line : lines) {
        if (!frames_.function(line.function).file.empty()) with_files.insert(frame.mapping->id);
        if (line.line != 0) with_lines.insert(frame.mapping->id);
      }
    }
  }
  std::unordered_map<uint64_t, uint32_t> mappings;
  auto add_mapping = [&](const Mapping& m) {
    auto [it, added] = mappings.try_emplace(m.id);
    if (added) {
      profile::Mapping out;
      out.start = m.start;
      out.limit = m.end;
      out.file_offset = m.offset;
      out.filename = m.path;
      if (m.file) out.build_id = HexEncode(m.file->build_id);
      out.has_functions = !unnamed.contains(m.id);
      out.has_filenames = with_files.contains(m.id);
      out.has_line_numbers = with_lines.contains(m.id);
      it->second = profile.AddMapping(out);
    }
    return it->second;
  };
  if (main && main->executable) add_mapping(*main->executable);  // readers take the first mapping for the program

  uint32_t kernel = profile::kNone;
  std::unordered_map<uint32_t, uint32_t> functions, locations;
  auto add_location = [&](uint32_t index) {
    auto [it, added] = locations.try_emplace(index);
    if (!added) return it->second;
    const Frame& frame = frames_[index];
    profile::Location location;
    if (frame.kind == Frame::Kind::kKernel) {
      if (kernel == profile::kNone) {
        profile::Mapping m;
        m.limit = kKernelImageBytes;
        m.filename = "[kernel.kallsyms]";
        m.has_functions = true;
        kernel = profile.AddMapping(m);
      }
      location.mapping = kernel;
    } else if (frame.mapping) {
      location.mapping = add_mapping(*frame.mapping);
    }
    if (frame.kind != Frame::Kind::kCut) location.address = frame.address;
    if (auto within = frames_.Within(frame)) location.function_start = frame.address - *within;
    for (const Line& line : frames_.lines(frame.name)) {
      auto [f, new_function] = functions.try_emplace(line.function);
      if (new_function) {
        const FunctionName& name = frames_.function(line.function);
        f->second = profile.AddFunction({name.name, name.system_name, name.file, name.start_line});
      }
      location.lines.push_back({f->second, line.line});
    }
    return it->second = profile.AddLocation(location);
  };
  std::vector<uint32_t> stack;
  for (const auto& [id, cell] : cells) {
    stack.clear();
    for (uint32_t index : stacks_[id].frames) stack.push_back(add_location(index));
    int64_t values[] = {cell.count, cell.weight_ns};
    profile.AddSample(stack, values);
  }
  return profile;
}

size_t AggregatorImpl::memory_bytes() const {
  constexpr size_t kNode = 64, kStackFrames = 128;
  size_t bytes = stacks_.capacity() * sizeof(Stack) + index_.size() * (kNode + kStackFrames) + held_bytes_ + untold_bytes_ + places_.size() * (sizeof(Place) + 4 * kNode);
  for (const JobState& job : jobs_) {
    for (const auto& [key, window] : job.windows) bytes += (window.stacks.size() + window.processes.size()) * kNode;
  }
  return bytes + frames_.memory_bytes() + spaces_.memory_bytes();
}

}  // namespace

std::unique_ptr<Aggregator> Aggregator::Create(Options options) { return std::make_unique<AggregatorImpl>(std::move(options)); }

}  // namespace borescope::stacks
