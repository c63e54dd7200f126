// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operator/session/world.h"

namespace borescope::op {

// "Deployment 'checkout'", "podSelector 'app=web'", "pod 'web-0'".
std::string DescribeTarget(const api::Target& target);

// Whether the operator has to keep this pod for the session: it may be a target, by what is known
// of the workload so far.
bool Interesting(const World& world, const api::ProfilingSession& session, const Pod& pod);

// The pods that a session's target names, as far as it is known.
struct Match {
  bool known = false;  // false: `lookups` or the pods of the namespace are outstanding
  std::vector<Lookup> lookups;
  bool list_pods = false;        // list the namespace for this session
  std::string error;             // why what is outstanding does not come; empty: it is on its way
  std::string missing;           // the workload does not exist: the sentence that says so
  std::vector<const Pod*> pods;  // live ones, by name
  size_t ended = 0;              // named too, but finished or being deleted
};
Match MatchPods(const World& world, const api::ProfilingSession& session, int64_t now);

// The object that people know the pod by: the controller of its ReplicaSet or Job, else its
// controller, else itself. Nothing when that needs an answer first (then added to `lookups`).
std::optional<Controller> TopController(const World& world, const Pod& pod,
                                        std::vector<Lookup>* lookups);

// At most `slots` of the candidates, spread first over nodes, then over versions, counting
// `already`; ties go by a hash of session and pod, so that the same pods give the same choice in
// any order.
std::vector<const Pod*> ChoosePods(std::vector<const Pod*> candidates,
                                   const std::vector<const Pod*>& already, size_t slots,
                                   const std::string& session_uid);

// What pods of different releases differ in: the version label, else the image's version.
std::string PodVersion(const Pod& pod);

}  // namespace borescope::op
