// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/types.h"
#include "common/base/result.h"

namespace borescope::agent {

// One moment on the clocks that matter; real_ns is the API server's wall clock as far as we know it.
struct Now {
  int64_t boot_ns = 0;
  int64_t real_ns = 0;
};

// How a job stands with its sinks, all of them together.
struct Publishing {
  int64_t pending = 0, failed = 0;  // parts of windows
  std::string message = {};         // of a failure
};

// A job as the machine knows it.
struct JobRecord {
  api::Job spec;
  api::JobState state = api::JobState::kAccepted;
  std::string reason = {}, message = {};
  int64_t start_boot_ns = 0, deadline_boot_ns = 0;  // the window; 0: not known yet (waiting)
  int64_t start_real_ns = 0;                        // where the grid of 10 s windows begins
  int64_t end_real_ns = 0;                          // when sampling really ended; 0 before
  int64_t first_container_real_ns = 0;              // waitSeconds: when this node's first chosen container was made
  bool armed = false;
  int64_t look_again_boot_ns = 0;  // over, but names are still to come
  bool leaving = false;  // no longer in the spec
  // Set when an earlier incarnation of this sampler had the job: its report entry.
  const api::JobReport* before = nullptr;
};

struct Action {
  enum class Kind {
    kArm,        // engine: add the job with its window and its pods; answer with OnArmed
    kSetWindow,  // engine: the window has changed
    kSetPods,    // engine: the pods have changed
    kFinish,     // the window is over and drained: hand over all that is there, free the engine's job
    kSettle,     // a restart came too late to go on: count the gap; nothing is armed
    kForget,     // drop everything about it; its report entry is pruned. After OnTick gave it, apply the spec again
  };
  Kind kind;
  std::string job_id;
  bool operator==(const Action&) const = default;
};

// What becomes of the jobs of a NodeSampler spec, as a function of the spec, of time and of what happened: no I/O, no clock of its
// own. Its caller carries out the actions and reports each record of which `changed` says so.
class JobMachine {
 public:
  struct Config {
    std::string boot_id;
    std::set<std::string> kinds;  // that this build and node can take
    std::set<std::string> sinks;  // that are configured
  };
  explicit JobMachine(Config config);

  // The report entries that an earlier incarnation left; before the first OnSpec.
  void Restore(std::map<std::string, api::JobReport> entries);
  // The node can (or can't any more) take these kinds; for jobs that come from now on.
  void SetKinds(std::set<std::string> kinds) { config_.kinds = std::move(kinds); }

  // The desired jobs. Without take_new (an unprotected node) jobs that are not here yet are passed over.
  std::vector<Action> OnSpec(const api::NodeSamplerSpec& spec, bool take_new, Now now);
  // `reason`: why it failed, where the error's code does not say it.
  std::vector<Action> OnArmed(const std::string& job_id, const Status& status, Now now, std::string_view reason = {});
  // The kernel is no longer to be trusted: nothing is sampled any more, and what was armed ends here, failed. What it has brought is published.
  std::vector<Action> OnKernelFault(const std::string& message, Now now);
  // A chosen container was made (or was there): the window of a waiting job begins.
  std::vector<Action> OnContainer(const std::string& job_id, int64_t made_boot_ns, Now now);
  // awaits_names: whether names are still to come for what a job has sampled: it is not finished before, but for kNamesNs.
  std::vector<Action> OnTick(Now now, const std::function<bool(const std::string& job_id)>& awaits_names = {});
  void OnPublishing(const std::string& job_id, const Publishing& publishing, Now now);

  const std::map<std::string, JobRecord>& jobs() const { return jobs_; }
  const JobRecord* Find(const std::string& job_id) const;
  // The next moment, boot clock, at which OnTick has something to do; INT64_MAX when there is none.
  int64_t NextTickBootNs() const;
  // Jobs whose record changed since the last call: their report is due.
  std::set<std::string> TakeChanged();

  // After its deadline a job waits that long for its last samples to be drained.
  static constexpr int64_t kDrainNs = 150'000'000;
  // And so long at most for names.
  static constexpr int64_t kNamesNs = 1'000'000'000;
  // A waiting job is given up that long after waitUntil: until then it is the operator's to decide.
  static constexpr int64_t kWaitGraceNs = 5'000'000'000;

 private:
  void Accept(const api::Job& spec, Now now, std::vector<Action>& actions);
  void Resume(const api::Job& spec, const api::JobReport& before, Now now, std::vector<Action>& actions);
  void Update(JobRecord& job, const api::Job& spec, Now now, std::vector<Action>& actions);
  void EndNow(JobRecord& job, Now now, std::vector<Action>& actions);
  // Drops a job that is leaving; returns the next one.
  std::map<std::string, JobRecord>::iterator Leave(std::map<std::string, JobRecord>::iterator job, std::vector<Action>& actions);
  // Turns the absolute window into boot time, once.
  void FixWindow(JobRecord& job, Now now);
  void Go(JobRecord& job, api::JobState state, std::string reason = "", std::string message = "");
  Status Refusal(const api::Job& spec, std::string* reason) const;

  Config config_;
  std::map<std::string, JobRecord> jobs_;
  std::map<std::string, api::JobReport> restored_;
  std::set<std::string> changed_;
};

}  // namespace borescope::agent
