// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bpf/abi/loss.h"
#include "common/base/result.h"
#include "common/profile/profile.h"
#include "sampler/engine/engine.h"

namespace borescope::stacks {

struct NamedFrame {
  std::string name;      // demangled; "[truncated: no frame pointer]" for a cut; "app+0x1234" when no symbol covers it
  std::string location;  // "file:line" when known, else the mapping's base name
};

// One sample with names, for --samples and for tests. Valid during the call only.
struct NamedSample {
  const engine::Sample* raw = nullptr;
  const std::vector<NamedFrame>* frames = nullptr;  // leaf first, kernel before user, the cut's frame last
  borescope_loss end_reason = LOSS_NONE;            // after the user-space checks
};

struct JobStats {
  uint64_t collected = 0;
  int64_t sampled_ns = 0;
  std::array<engine::Loss, LOSS_MAX> loss{};  // user space's part: truncated by reason, queue/table full
  uint64_t truncated = 0, unsymbolized = 0;
};

struct JobOptions {
  int64_t start_mono_ns = 0;  // first window begins here
  int64_t window_ns = 10'000'000'000;
  int frequency_hz = 99;
  bool split_by_process = false;  // local mode: a window for each process instead of each cgroup
};

// What was sampled of one container (or process) in one window of a job.
struct Window {
  engine::JobId job = 0;
  uint64_t cgroup_id = 0;
  pid_t tgid = 0;           // split_by_process only
  std::string comm;
  std::string language;     // "cpp", "go", "python", "java", "nodejs", "rust", "unknown": of the busiest process
  int64_t start_mono_ns = 0, end_mono_ns = 0;
  profile::Profile profile; // sample types {samples/count, cpu/nanoseconds}, default cpu; time_ns is left to the publisher
};

struct Options {
  std::string proc_root = "/proc";
  size_t max_stacks = 1 << 17;                        // interned; beyond it: LOSS_STACK_TABLE_FULL
  std::function<void(const NamedSample&)> on_sample;  // may be empty
};

// Interns raw stacks by hash, checks each new one against the code (frame-pointer prologues, call sites), names it once while the
// process lives or from what the side-band told of it, and adds up weights per (job, container, window).
// One owner thread: the engine's.
class Aggregator : public engine::Observer {
 public:
  static std::unique_ptr<Aggregator> Create(Options options);
  virtual void StartJob(engine::JobId job, const JobOptions& options) = 0;
  virtual void StopJob(engine::JobId job) = 0;
  // Samples of this cgroup are not the job's (containerNames): dropped, and not counted; those of open windows are taken back.
  virtual void Exclude(engine::JobId job, uint64_t cgroup_id) = 0;
  // All windows that ended at or before up_to (their samples have been drained); with `all`, the open ones too, cut at up_to.
  virtual std::vector<Window> CloseWindows(engine::JobId job, int64_t up_to_mono_ns, bool all) = 0;
  virtual JobStats stats(engine::JobId job) const = 0;
  virtual size_t memory_bytes() const = 0;
};

}  // namespace borescope::stacks
