// SPDX-License-Identifier: Apache-2.0
#include "sampler/stacks/aggregator.h"

#include <malloc.h>
#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/base/fd.h"
#include "common/base/strings.h"
#include "sampler/stacks/frames.h"
#include "sampler/stacks/spaces.h"

namespace borescope::stacks {
namespace {

constexpr size_t kMaxJobs = 64;
constexpr size_t kMaxProcessesInWindow = 1024;  // whose shares decide language and name
constexpr size_t kMaxFrames = 1 << 18;            // of all stacks together
constexpr int64_t kSweepPauseNs = 1'000'000'000;

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
  bool unsymbolized = false;  // the innermost user frame has no name
  bool live = false;
};

struct Cell {
  int64_t count = 0, weight_ns = 0;
};

struct OpenWindow {
  std::unordered_map<uint32_t, Cell> stacks;
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
};

class AggregatorImpl final : public Aggregator {
 public:
  explicit AggregatorImpl(Options options)
      : options_(std::move(options)), spaces_(options_.proc_root), frames_(spaces_, options_.proc_root) {}

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
  JobStats stats(engine::JobId job) const override { return Valid(job) ? jobs_[job].stats : JobStats(); }
  size_t memory_bytes() const override;

 private:
  static bool Valid(engine::JobId job) { return job >= 0 && static_cast<size_t>(job) < kMaxJobs; }
  bool HasRoom(int64_t now_ns);
  std::optional<unwind::LeafRule> LeafRuleOf(Process& process, const engine::Sample& sample);
  borescope_loss Checked(Process* process, const engine::Sample& sample);
  Hash128 HashOf(const Process* process, const engine::Sample& sample, borescope_loss reason) const;
  uint32_t Intern(Process* process, const engine::Sample& sample, borescope_loss reason);
  Stack Build(Process* process, const engine::Sample& sample, borescope_loss reason);
  void Sweep();
  void Report(const engine::Sample& sample, const Stack& stack);
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

  // What an interrupted pc says of its frame, by (space, pc): asked for at every sample.
  std::unordered_map<Hash128, unwind::LeafRule, HashOfHash> leaf_rules_;

  // Of the sample at hand: user pcs, leaf first, with the leaf's caller put in where the frame pointer did not show it.
  std::vector<uint64_t> pcs_;
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

// None: it is new, and there is no room for its frame.
std::optional<unwind::LeafRule> AggregatorImpl::LeafRuleOf(Process& process, const engine::Sample& sample) {
  uint64_t pc = sample.user_pcs[0];
  auto key = [&] { return Hash128{(pc * 0x9e3779b97f4a7c15u) ^ process.space->key, pc}; };
  auto it = leaf_rules_.find(key());
  if (it != leaf_rules_.end()) return it->second;
  if (frames_.size() >= kMaxFrames && !HasRoom(sample.time_ns)) return std::nullopt;
  unwind::LeafRule rule = frames_[frames_.Leaf(process, pc, sample.time_ns)].leaf;
  if (leaf_rules_.size() >= options_.max_stacks) leaf_rules_.clear();
  leaf_rules_[key()] = rule;  // looking the frame up may have given the space a new key
  return rule;
}

// Fills pcs_; returns why the walk ended, as far as the interrupted function tells. LOSS_STACK_TABLE_FULL: there is no room to look.
borescope_loss AggregatorImpl::Checked(Process* process, const engine::Sample& sample) {
  pcs_.clear();
  if (sample.user_pcs.empty()) return sample.end_reason;
  if (!process) return LOSS_UNKNOWN_CODE;
  pcs_.push_back(sample.user_pcs[0]);
  using Kind = unwind::LeafRule::Kind;
  auto known = LeafRuleOf(*process, sample);
  if (!known) return LOSS_STACK_TABLE_FULL;
  unwind::LeafRule rule = *known;
  Kind kind = rule.kind;
  if (kind == Kind::kDelta) {
    bool own = sample.user_bp == sample.user_sp + rule.delta - 8;
    kind = own ? Kind::kChain : rule.delta / 8 < sample.stack_top.size() ? Kind::kStack : Kind::kNone;
  }
  switch (kind) {
    case Kind::kChain:
      break;
    case Kind::kBare:
    case Kind::kStack:
      if (rule.delta / 8 >= sample.stack_top.size()) return LOSS_STACK_UNREADABLE;
      pcs_.push_back(sample.stack_top[rule.delta / 8]);
      if (kind == Kind::kBare) {
        auto from = spaces_.FindMapping(*process, pcs_[1] - 1, sample.time_ns), to = spaces_.FindMapping(*process, pcs_[0], sample.time_ns);
        if (!from || !to || from->file != to->file) {
          pcs_.pop_back();
          return LOSS_NO_FRAME_POINTER;
        }
      }
      break;
    case Kind::kUnreadable:
      return LOSS_UNKNOWN_CODE;
    default:
      return LOSS_NO_FRAME_POINTER;
  }
  pcs_.insert(pcs_.end(), sample.user_pcs.begin() + 1, sample.user_pcs.end());
  return sample.end_reason;
}

Hash128 AggregatorImpl::HashOf(const Process* process, const engine::Sample& sample, borescope_loss reason) const {
  words_.clear();
  // kernel stacks alone are the same in every process
  words_.push_back(process && !pcs_.empty() ? process->space->key : 0);
  words_.push_back((static_cast<uint64_t>(reason) << 32) | sample.kernel_pcs.size());
  words_.insert(words_.end(), sample.kernel_pcs.begin(), sample.kernel_pcs.end());
  words_.insert(words_.end(), pcs_.begin(), pcs_.end());
  XXH128_hash_t h = XXH3_128bits(words_.data(), words_.size() * sizeof(uint64_t));
  return {h.low64, h.high64};
}

// Names the frames and keeps those whose caller is certain.
Stack AggregatorImpl::Build(Process* process, const engine::Sample& sample, borescope_loss reason) {
  Stack stack;
  stack.reason = reason;
  for (size_t i = 0; i < sample.kernel_pcs.size(); ++i) {
    stack.frames.push_back(frames_.Kernel(sample.kernel_pcs[i], i == 0, sample.time_ns));
  }
  if (!pcs_.empty()) {
    uint32_t leaf = frames_.Leaf(*process, pcs_[0], sample.time_ns);
    stack.frames.push_back(leaf);
    stack.unsymbolized = frames_[leaf].function == kNoFunction;
    if (frames_[leaf].thread_start) {
      stack.reason = LOSS_NONE;
      pcs_.resize(1);
    }
    uint32_t callee = leaf;
    for (size_t i = 1; i < pcs_.size(); ++i) {
      uint32_t index = pcs_[i] == 0 ? leaf : frames_.Caller(*process, pcs_[i], sample.time_ns);
      const Frame& frame = frames_[index];
      bool of_main = frames_[callee].main;
      if (pcs_[i] == 0 || !frame.caller.follows_call) {
        // what main returns to is libc's business; else the function before it does not keep the chain
        stack.reason = of_main ? LOSS_NONE : !frame.caller.readable ? LOSS_UNKNOWN_CODE : LOSS_NO_FRAME_POINTER;
        break;
      }
      stack.frames.push_back(index);
      if (of_main || frame.caller.root || frame.thread_start || (frames_[callee].thread_body && !frame.caller.frame_pointer)) {
        stack.reason = LOSS_NONE;
        break;
      }
      if (!frame.caller.frame_pointer) {
        bool whole = i + 1 == pcs_.size() && reason == LOSS_NONE && frame.caller.keeps_rbp;
        stack.reason = whole ? LOSS_NONE : LOSS_NO_FRAME_POINTER;
        break;
      }
      callee = index;
    }
  }
  if (stack.frames.empty() && stack.reason == LOSS_NONE) stack.reason = LOSS_NO_USER_REGS;
  if (stack.reason != LOSS_NONE) stack.frames.push_back(frames_.Cut(stack.reason));
  stack.frames.shrink_to_fit();
  return stack;
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

// Forgets the stacks that no open window holds, and the frames that only they had.
void AggregatorImpl::Sweep() {
  std::vector<bool> held(stacks_.size());
  for (const JobState& job : jobs_) {
    for (const auto& [key, window] : job.windows) {
      for (const auto& [id, cell] : window.stacks) held[id] = true;
    }
  }
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
  std::vector<uint32_t> moved = frames_.Sweep(used);
  for (Stack& stack : stacks_) {
    for (uint32_t& frame : stack.frames) frame = moved[frame];
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
  borescope_loss reason = Checked(process, sample);
  uint32_t id = reason == LOSS_STACK_TABLE_FULL ? UINT32_MAX : Intern(process, sample, reason);
  if (id != UINT32_MAX && options_.on_sample) Report(sample, stacks_[id]);

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
    job.stats.unsymbolized += stack.unsymbolized;
    if (stack.reason != LOSS_NONE) {
      job.stats.truncated += 1;
      job.stats.loss[stack.reason].count += 1;
      job.stats.loss[stack.reason].ns += sample.weight_ns;
    }
    int64_t index = std::max(job.first_open, (sample.time_ns - job.options.start_mono_ns) / job.options.window_ns);
    uint64_t group = job.options.split_by_process ? static_cast<uint64_t>(sample.tgid) : sample.cgroup_id;
    OpenWindow& window = job.windows[{index, group}];
    Cell& cell = window.stacks[id];
    cell.count += 1;
    cell.weight_ns += sample.weight_ns;
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

void AggregatorImpl::Report(const engine::Sample& sample, const Stack& stack) {
  named_.clear();
  for (uint32_t index : stack.frames) {
    const Frame& frame = frames_[index];
    named_.push_back({frames_.Text(frame), frames_.Module(frame)});
  }
  options_.on_sample({&sample, &named_, stack.reason});
}

void AggregatorImpl::StartJob(engine::JobId job, const JobOptions& options) {
  if (!Valid(job)) return;
  JobState& state = jobs_[job];
  state = {};
  state.active = true;
  state.options = options;
  state.options.window_ns = std::max<int64_t>(1, options.window_ns);
  state.options.frequency_hz = std::max(1, options.frequency_hz);
}

void AggregatorImpl::StopJob(engine::JobId job) {
  if (!Valid(job)) return;
  jobs_[job] = {};
  if (std::any_of(jobs_.begin(), jobs_.end(), [](const JobState& j) { return j.active; })) return;
  // idle: give everything back
  std::vector<Stack>().swap(stacks_);
  std::vector<uint32_t>().swap(free_);
  index_ = {};
  leaf_rules_ = {};
  frames_.Clear();
  spaces_.Clear();
  malloc_trim(0);
}

void AggregatorImpl::Exclude(engine::JobId job, uint64_t cgroup_id) {
  if (!Valid(job)) return;
  JobState& state = jobs_[job];
  if (!state.excluded.insert(cgroup_id).second || state.options.split_by_process) return;
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
      if (stack.unsymbolized) state.stats.unsymbolized -= count;
      if (stack.reason == LOSS_NONE) continue;
      state.stats.truncated -= count;
      state.stats.loss[stack.reason].count -= count;
      state.stats.loss[stack.reason].ns -= cell.weight_ns;
    }
    it = state.windows.erase(it);
  }
}

std::vector<Window> AggregatorImpl::CloseWindows(engine::JobId job, int64_t up_to_mono_ns, bool all) {
  std::vector<Window> closed;
  if (!Valid(job) || !jobs_[job].active) return closed;
  JobState& state = jobs_[job];
  const JobOptions& options = state.options;
  while (!state.windows.empty()) {
    auto it = state.windows.begin();
    int64_t start = options.start_mono_ns + it->first.index * options.window_ns, end = start + options.window_ns;
    if (!all && end > up_to_mono_ns) break;
    Window out;
    out.job = job;
    if (options.split_by_process) {
      out.tgid = static_cast<pid_t>(it->first.group);
    } else {
      out.cgroup_id = it->first.group;
    }
    out.start_mono_ns = start;
    out.end_mono_ns = all ? std::max(start, std::min(end, up_to_mono_ns)) : end;
    const ProcessInfo* main = nullptr;
    int64_t most = -1;
    for (const auto& [info, weight] : it->second.processes) {
      if (weight > most) {
        most = weight;
        main = info.get();
      }
    }
    out.comm = main ? main->comm : "";
    out.language = symbols::LanguageName(main ? main->language : symbols::Language::kUnknown);
    out.profile = BuildProfile(options, it->second, main, out.start_mono_ns, out.end_mono_ns);
    closed.push_back(std::move(out));
    state.windows.erase(it);
  }
  if (up_to_mono_ns > options.start_mono_ns) {
    int64_t whole = (up_to_mono_ns - options.start_mono_ns) / options.window_ns;
    state.first_open = std::max(state.first_open, whole);
  }
  return closed;
}

profile::Profile AggregatorImpl::BuildProfile(const JobOptions& options, const OpenWindow& window, const ProcessInfo* main,
                                              int64_t start, int64_t end) {
  profile::Profile profile;
  profile.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
  profile.default_sample_type = "cpu";
  profile.period_type = {"cpu", "nanoseconds"};
  profile.period = 1'000'000'000 / options.frequency_hz;
  profile.duration_ns = end - start;

  std::vector<std::pair<uint32_t, Cell>> cells(window.stacks.begin(), window.stacks.end());
  std::sort(cells.begin(), cells.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  // has_functions tells tools that nothing of the mapping is left to name
  std::unordered_set<uint64_t> unnamed;
  for (const auto& [id, cell] : cells) {
    for (uint32_t index : stacks_[id].frames) {
      const Frame& frame = frames_[index];
      if (frame.mapping && frame.function == kNoFunction) unnamed.insert(frame.mapping->id);
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
        m.limit = frames_.kernel_text_size();
        m.filename = "[kernel.kallsyms]";
        m.has_functions = true;
        kernel = profile.AddMapping(m);
      }
      location.mapping = kernel;
    } else if (frame.mapping) {
      location.mapping = add_mapping(*frame.mapping);
    }
    if (frame.kind != Frame::Kind::kCut) location.address = frame.address;
    if (frame.function != kNoFunction) {
      auto [f, new_function] = functions.try_emplace(frame.function);
      if (new_function) {
        const FunctionName& name = frames_.function(frame.function);
        f->second = profile.AddFunction({name.name, name.system_name, "", 0});
      }
      location.lines.push_back({f->second, 0});
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
  size_t bytes = stacks_.capacity() * sizeof(Stack) + index_.size() * (kNode + kStackFrames) + leaf_rules_.size() * kNode;
  for (const JobState& job : jobs_) {
    for (const auto& [key, window] : job.windows) bytes += (window.stacks.size() + window.processes.size()) * kNode;
  }
  return bytes + frames_.memory_bytes() + spaces_.memory_bytes();
}

}  // namespace

std::unique_ptr<Aggregator> Aggregator::Create(Options options) { return std::make_unique<AggregatorImpl>(std::move(options)); }

}  // namespace borescope::stacks
