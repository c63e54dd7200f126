// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/backoff.h"
#include "operator/controller/api_server.h"
#include "operator/fleet/node_spec.h"
#include "operator/session/world.h"

namespace borescope::op {

struct LoopStats {
  uint64_t plans = 0;
  std::map<std::pair<std::string, std::string>, uint64_t>
      writes;  // {status|spec|delete, ok|conflict|error}
  uint64_t events = 0;
};

// Keeps the world up to date and carries out the plans: one thread, a set of sessions and one of
// nodes that need another look. All calls come from that thread. After a start, OnSamplers comes
// before OnSessions (a job whose session is not in a list made later is an orphan), and RunOnce
// only after all three lists.
class Loop {
 public:
  Loop(ApiServer* server, std::string cluster, std::string store_url);

  // Complete lists: what is not in them is gone.
  void OnSamplers(std::vector<api::NodeSampler> samplers, int64_t now);
  void OnSessions(std::vector<api::ProfilingSession> sessions, int64_t now);
  void OnReports(std::vector<api::NodeSamplerReport> reports, int64_t now);
  void OnPods(const std::string& ns, std::vector<Pod> pods);
  // Single changes. What is older than what is known is ignored.
  void OnSampler(api::NodeSampler sampler, int64_t now);
  void OnSamplerGone(const std::string& node);
  void OnSession(api::ProfilingSession session);
  void OnSessionGone(const api::ObjectMeta& session, int64_t now);
  void OnReport(api::NodeSamplerReport report);
  void OnReportGone(const std::string& node);
  void OnPod(const std::string& ns, Pod pod, bool added);
  void OnPodGone(const std::string& ns, const std::string& uid);
  void OnPodError(const std::string& ns, std::string error);
  // Something may have been missed: samplers get their grace anew.
  void OnReconnect(int64_t now);

  // Does all that is due. Returns when to call again if nothing happens before; 0 = only then.
  int64_t RunOnce(int64_t now);

  const World& world() const { return world_; }
  const LoopStats& stats() const { return stats_; }

 private:
  struct Retry {
    Backoff backoff{std::chrono::milliseconds(200), std::chrono::milliseconds(30'000)};
  };

  void Plan(const std::string& key, int64_t now);
  void PlanFinishedSession(const FinishedSession& session, int64_t now);
  void WriteStatus(const api::ProfilingSession& before, SessionPlan& plan, int64_t now);
  void MakeReader(const api::ObjectMeta& session);
  void Answer(const Lookup& lookup, const std::string& key, int64_t now);
  void ListPods(const api::ProfilingSession& session, const std::string& key, int64_t now);
  void WriteNode(const std::string& node, int64_t now);
  void SetAssignments(const std::string& key, std::map<std::string, Assignment> assignments,
                      int64_t now);
  void Forget(const std::string& key, const std::string& uid, int64_t now);
  void ReadAgain(const std::string& ns, const std::string& name, int64_t now);

  bool SomebodyWants(const Pod& pod) const;
  void DirtyNode(const std::string& node, int64_t now);
  void DirtyNamespace(const std::string& ns);
  void DirtySessionsOf(const std::string& node);
  void At(const std::string& key, int64_t time);
  void BackOff(const std::string& what, int64_t now, const Error& error);
  void Count(std::string_view kind, const Status& status);

  ApiServer* const server_;
  World world_;
  LoopStats stats_;

  std::set<std::string> dirty_sessions_;        // "namespace/name"
  std::map<std::string, int64_t> dirty_nodes_;  // node -> when its spec is written at the earliest
  std::set<std::pair<int64_t, std::string>> timers_;
  std::map<std::string, int64_t> timer_of_;  // session -> its time in timers_
  std::map<std::string, Retry> retries_;     // "s/KEY" or "n/NODE"
  std::set<std::string> read_;               // uids of sessions for which the reader was made

  std::map<std::string, std::map<std::string, Assignment>> assignments_;  // session -> node -> job
  std::map<std::string, std::set<std::string>> sessions_on_;              // node -> sessions
  std::map<std::string, std::map<std::string, std::string>>
      interest_;  // namespace -> session -> uid
};

}  // namespace borescope::op
