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
#include "sampler/naming/names.h"
#include "sampler/unwind/tables.h"

namespace borescope::stacks {

struct NamedFrame {
  std::string name;      // demangled; "[truncated: …]" for a cut; "app+0x1234" when it has no name (yet)
  std::string location;  // "file:line" when known, else the mapping's base name
  bool inlined = false;  // into the next one
};

// One sample with names, for --samples and for tests: told in the order of their coming when the names are there, at the latest kNameWaitNs
// later. Valid during the call only.
struct NamedSample {
  const engine::Sample* raw = nullptr;
  const std::vector<NamedFrame>* frames = nullptr;  // leaf first, kernel before user, the cut's frame last
  borescope_loss end_reason = LOSS_NONE;            // LOSS_NONE: whole
};

struct JobStats {
  uint64_t collected = 0;
  int64_t sampled_ns = 0;
  std::array<engine::Loss, LOSS_MAX> loss{};  // user space's part: truncated by reason, queue/table full
  uint64_t truncated = 0, unsymbolized = 0;
};

// Samples of a job whose stacks end too early in the same file for the same reason.
struct Cut {
  std::string path;          // of the mapping in which the outermost frame lies, "//anon" for code made at run time; "": no frame, or unknown;
                             // "(places beyond the first 4096)": of all further ones
  std::string build_id;      // hexadecimal, or empty
  std::string function;      // an example of such a frame
  borescope_loss reason = LOSS_NONE;
  uint64_t samples = 0;
  int64_t ns = 0;
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
  unwind::Tables* tables = nullptr;                   // unwind tables of what the targets map are asked for here; null: there are none
  naming::Names* names = nullptr;                     // names of addresses in files are asked for here; null: they have none
  size_t max_stacks = 1 << 17;                        // interned; beyond it: LOSS_STACK_TABLE_FULL
  std::function<void(const NamedSample&)> on_sample;  // may be empty
  // The kernel's name for an address of its text, "function" or "function [module]": Engine::NameKernel. Empty: names come from
  // PROC_ROOT/kallsyms, which costs 40 ms.
  std::function<Result<std::string>(uint64_t)> kernel_names;
};

// Interns stacks by hash, names each new one once while the process lives or from what the side-band told of it, and adds up weights
// per (job, container, window). A sample that came before the unwind tables of its code is kept with its registers and stack until they
// are there (at most kHoldNs, kMaxHeldBytes, and until its window closes), then unwound here. Names of addresses in files are asked for when
// they are first seen, and come later; what is handed out has the names that are there.
// One owner thread: the engine's.
class Aggregator : public engine::Observer {
 public:
  static constexpr int64_t kHoldNs = 5'000'000'000;
  static constexpr size_t kMaxHeldBytes = 4 << 20;
  static constexpr int64_t kNameWaitNs = 1'000'000'000;   // so long names may be waited for
  static constexpr size_t kMaxReportBytes = 8 << 20;      // of samples that wait for their names to be told

  static std::unique_ptr<Aggregator> Create(Options options);
  // Of a job that was started before: begins it anew, without what it had.
  virtual void StartJob(engine::JobId job, const JobOptions& options) = 0;
  virtual void StopJob(engine::JobId job) = 0;
  // Samples of this cgroup are not the job's (containerNames): dropped, and not counted; those of open windows are taken back.
  virtual void Exclude(engine::JobId job, uint64_t cgroup_id) = 0;
  // All windows that ended at or before up_to (their samples have been drained); with `all`, the open ones too, cut at up_to.
  virtual std::vector<Window> CloseWindows(engine::JobId job, int64_t up_to_mono_ns, bool all) = 0;
  // What the job's windows hold that have not been given out.
  virtual std::vector<Window> OpenWindows(engine::JobId job, int64_t now_mono_ns) = 0;
  // Takes the tables and names that have become ready, unwinds and tells what waited for them. Call it after each drain and when the tables
  // or names wake.
  virtual void Poll(int64_t now_mono_ns) = 0;
  // Whether names are still to come for what CloseWindows would hand out: it may be called a little later.
  virtual bool AwaitsNames(engine::JobId job, int64_t up_to_mono_ns, bool all) const = 0;
  // Addresses that were handed out before their names had come, so far.
  virtual uint64_t late_names() const = 0;
  // How many samples of the job wait for tables.
  virtual size_t held(engine::JobId job) const = 0;
  virtual JobStats stats(engine::JobId job) const = 0;
  // Where the stacks end that are not whole; the most samples first.
  virtual std::vector<Cut> cuts(engine::JobId job) const = 0;
  virtual size_t memory_bytes() const = 0;
  virtual uint64_t untracked() const = 0;  // processes, mappings and perf maps beyond the limits, in all
};

}  // namespace borescope::stacks
