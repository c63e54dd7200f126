// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "common/api/types.h"
#include "sampler/engine/engine.h"
#include "sampler/publish/publisher.h"
#include "sampler/stacks/aggregator.h"

namespace borescope::agent {

// The name of a row of the loss table, and whether its samples are gone (not only cut).
std::string_view LossName(int reason);
bool IsLost(int reason);

// Who a window's container is, for the report.
struct ContainerRef {
  std::string pod_uid, pod, container;
  auto operator<=>(const ContainerRef&) const = default;
};

// Adds up what one job has brought, and writes it as the job's report entry.
class JobFigures {
 public:
  // `before`: the entry of an earlier incarnation, whose sums are carried on; may be null.
  JobFigures(std::string profile_name, const api::JobReport* before);

  void OnWindow(const ContainerRef& container, const stacks::Window& window);
  void AddLost(std::string_view reason, int64_t ns);
  // A window that is not published though its samples were counted. lost: nobody can tell whose it is; else it is of a container
  // that was not chosen, and its time is taken back.
  void DropWindow(const stacks::Window& window, bool lost);

  // What the engine and the stacks have counted since this incarnation armed the job; used_ns is subtracted by used_before_ns.
  void SetCounters(const engine::JobCounters& kernel, const stacks::JobStats& user, int64_t used_before_ns);
  void SetSinks(const std::map<std::string, publish::SinkProgress>& progress, const std::vector<std::string>& sink_names,
                const std::map<std::string, std::string>& urls);

  // The pods' cgroup CPU time when the job was armed, and at the end of a window; what was read at the last stored one is
  // reported, so that a later incarnation can tell what the gap has cost.
  void SetCpuAtArm(std::optional<int64_t> ns);
  void SetCpuAtWindow(int64_t window_start_real_ns, std::optional<int64_t> ns);

  // The gap between the last window that an earlier incarnation has stored and `resume_real_ns`, in CPU nanoseconds of the chosen
  // containers; what that incarnation sampled after it counts as lost. From the pods' cgroups (`cpu_now`): what they have used since
  // then, scaled by the chosen containers' part of the pods when only some are chosen, and by time when the window ended before
  // `resume`. Without readings: the mean rate so far times the length of the gap.
  void CountRestartGap(std::optional<int64_t> cpu_now, bool all_containers, int64_t start_real_ns, int64_t now_real_ns,
                       int64_t resume_real_ns);

  // open: what has been sampled and is in no closed window yet, so that there is an answer within seconds.
  void Fill(api::JobReport& report, const std::vector<stacks::Window>& open) const;

  const api::CpuAccount& cpu() const { return cpu_; }
  const api::SampleCounts& samples() const { return samples_; }
  // Of samples that are gone. The report's rows have those with a cut stack too.
  const std::map<std::string, int64_t>& lost_ns() const { return lost_ns_; }

 private:
  // The functions of a set of samples.
  struct Functions {
    using Key = std::tuple<std::string, std::string, std::string>;  // name, file, language
    struct Times {
      int64_t total = 0, own = 0;
      std::map<int64_t, int64_t> lines;  // own time at those that were a part's busiest
    };
    void Add(const profile::Profile& profile, const std::string& language);
    std::map<Key, Times> times;
    int64_t ns = 0;      // of all samples
    double squares = 0;  // sum of their squared weights
  };
  void KeepOnly(int64_t most_ns);
  void Recount();

  const std::string profile_name_;
  api::JobReport before_;  // sums of an earlier incarnation
  bool resumed_ = false;

  Functions functions_;
  std::map<ContainerRef, api::ReportedContainer> containers_;
  std::vector<api::ReportedSink> sinks_;
  api::Windows windows_;
  engine::JobCounters kernel_;
  stacks::JobStats user_;
  int64_t used_before_ns_ = 0;
  std::map<std::string, int64_t> added_lost_ns_;
  int64_t publish_lost_ns_ = 0;
  // Of windows that were sampled and then dropped.
  int64_t dropped_ns_ = 0, dropped_samples_ = 0, dropped_lost_samples_ = 0, foreign_ns_ = 0;
  int64_t cpu_at_arm_ns_ = 0, cpu_at_last_window_ns_ = 0;
  std::deque<std::pair<int64_t, int64_t>> cpu_at_window_;  // window start, reading; not stored yet

  api::CpuAccount cpu_;
  api::SampleCounts samples_;
  std::map<std::string, int64_t> lost_ns_;
  std::map<std::string, int64_t> cut_ns_;  // of samples that are there, with a cut stack
};

// Makes the whole report at most max_bytes of JSON: the top tables are cut evenly and marked, then lists of containers and long
// messages shrink; states, sums and losses stay.
void FitReport(api::NodeSamplerReportStatus& status, size_t max_bytes = api::kMaxReportBytes);

}  // namespace borescope::agent
