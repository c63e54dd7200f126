// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/types.h"
#include "operator/session/pod.h"

namespace borescope::op {

// A question to the API server that a plan needs answered: a workload named by a session, or the
// controller of a pod's controller.
struct Lookup {
  std::string namespace_name;
  std::string kind;
  std::string name;
  std::string uid;  // of a controller; empty for a workload that a session names
  auto operator<=>(const Lookup&) const = default;
};

// The answer.
struct Workload {
  bool found = false;
  std::string uid;
  api::LabelSelector selector;           // of its pods
  std::optional<Controller> controller;  // what it belongs to in turn (Deployment, CronJob)
  std::string error;                     // why there is no answer; then nothing above holds
  int64_t checked_at = 0;
};

struct PodNamespace {
  std::map<std::string, Pod> pods;   // by uid: only those that some unfinished session selects
  int64_t total = 0;                 // all pods there are, for messages
  std::set<std::string> listed_for;  // uids of the sessions whose pods are complete in `pods`
  std::string error;                 // why the list fails
};

// What is kept of a finished session: enough to stamp a later generation on it and to delete it in
// time.
struct FinishedSession {
  api::ObjectMeta metadata;
  int64_t observed_generation = 0;
  int64_t completion_time = 0;
  std::optional<int> ttl_seconds;
};

// What may be forgotten at a restart: it only delays.
struct SessionMemory {
  int64_t first_seen = 0;
  std::map<std::string, int64_t> given_at;  // node -> when the job was first seen in its spec
  int64_t progress_written = 0;             // when figures were last written
  std::string progress;                     // which figures those were
};

// All that the operator knows. Sessions by "namespace/name", the others by node.
struct World {
  std::map<std::string, api::ProfilingSession> sessions;  // unfinished ones
  std::map<std::string, FinishedSession> finished;
  std::map<std::string, api::NodeSampler> samplers;  // changed by SetSampler and RemoveSampler only
  std::map<std::string, std::set<std::string>> nodes_of;  // job id -> nodes whose spec holds it
  std::map<std::string, api::NodeSamplerReport> reports;
  std::map<std::string, PodNamespace> namespaces;
  std::map<Lookup, Workload> workloads;
  std::map<std::string, std::set<std::string>>
      refused;  // node -> ids of jobs that did not fit into its spec
  std::map<std::string, SessionMemory> memory;  // by uid of the session
  int64_t listening_since = 0;                  // since when nothing has been missed
  std::string cluster;                          // label
  std::string store_url;                        // for results; empty: as the samplers report it

  void SetSampler(api::NodeSampler sampler);
  void RemoveSampler(const std::string& node);
  const api::Job* FindJob(const std::string& node, std::string_view job_id) const;
  const api::NodePod* FindPod(const std::string& node, std::string_view uid) const;
  // The report of a job that this node was given; a report on any other is not believed.
  const api::JobReport* FindReport(const std::string& node, const std::string& job_id) const;
};

std::string SessionKey(const api::ObjectMeta& metadata);
std::string SessionKey(const api::SessionRef& session);
std::string JobIdOf(const api::ProfilingSession& session);

}  // namespace borescope::op
