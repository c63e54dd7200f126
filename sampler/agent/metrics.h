// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/kube/rest.h"
#include "common/metrics/metrics.h"
#include "sampler/agent/job_figures.h"
#include "sampler/engine/engine.h"
#include "sampler/guard/guard.h"
#include "sampler/naming/names.h"
#include "sampler/publish/publisher.h"
#include "sampler/unwind/tables.h"

namespace borescope::agent {

// The sampler's series at /metrics. Per session: series with the label `session` (namespace/name), gone when it ends; totals stay.
// The engine's thread writes, any thread may scrape.
class Metrics {
 public:
  explicit Metrics(metrics::Registry& registry);

  // What one job has brought so far.
  void SetJob(const std::string& job_id, const std::string& session, const JobFigures& figures, const stacks::JobStats& user,
              const guard::Overhead& overhead);
  // A job of an earlier incarnation, which has counted what the entry says: only what comes on top is added to the totals.
  // `figures`: after the gap was counted.
  void Resume(const std::string& job_id, const api::JobReport& before, const JobFigures& figures);
  void RemoveJob(const std::string& job_id, const std::string& session);
  void SetEngine(const engine::Counters& counters, size_t stacks_bytes, uint64_t untracked);
  void SetJobs(const std::map<api::JobState, int>& by_state);
  void SetCost(const guard::Cost& cost);
  void SetPublisher(const publish::PublisherStats& stats);
  void SetApi(const kube::RestStats& requests, bool watch_connected, bool is_protected, int64_t clock_offset_ns);
  void SetTables(const unwind::Tables::Stats& stats);
  // late: addresses that were published before their names had come.
  void SetNames(const naming::Names::Stats& stats, uint64_t late);
  void SetUnknownContainers(uint64_t total);
  // All findings about the kernel, also those that harm nobody.
  void SetKernel(const engine::KernelReport& report);
  // `watched`: its log is followed while jobs run.
  void SetKernelWatch(bool watched, uint64_t missed, bool is_unsafe);

 private:
  // What a job had brought when it was last looked at, so that the totals grow by the difference.
  struct Seen {
    std::map<std::string, double> samples;  // by outcome
    std::map<std::string, double> lost_seconds, truncated;
    double used_seconds = 0, sampled_seconds = 0, lost_all_seconds = 0;
  };
  void Grow(metrics::Family& family, const std::string& label, const std::string& value, double now, double& seen);

  metrics::Family &samples_, &session_samples_, &lost_, &session_lost_, &truncated_, &cpu_accounted_, &coverage_, &session_coverage_;
  metrics::Family &own_cpu_, &session_cpu_, &resident_, &maps_, &stacks_, &runs_, &walks_;
  metrics::Family &jobs_, &requests_, &throttled_, &connected_, &protected_, &offset_, &pushes_, &queue_, &unknown_containers_;
  metrics::Family &names_, &names_waiting_, &names_cpu_, &names_peak_;
  metrics::Family &tables_, &table_bytes_, &table_files_, &untracked_;
  metrics::Family &kernel_findings_, &kernel_unsafe_, &kernel_watched_, &kernel_log_missed_;
  std::map<std::string, Seen> seen_;
  double used_total_ = 0, covered_total_ = 0;
};

}  // namespace borescope::agent
