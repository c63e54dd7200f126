// SPDX-License-Identifier: Apache-2.0
#include "operator/session/targets.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace borescope::op {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// A workload that is not there is asked for again while a session waits for it.
constexpr int64_t kLookAgain = 2 * kSecond;

std::string DescribeSelector(const api::LabelSelector& selector) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : ",") + part; };
  for (const auto& [key, value] : selector.match_labels) add(key + "=" + value);
  for (const api::LabelRequirement& r : selector.match_expressions) {
    if (r.op == "Exists" || r.op == "DoesNotExist") {
      add((r.op == "Exists" ? "" : "!") + r.key);
      continue;
    }
    std::string values;
    for (const std::string& value : r.values) values += (values.empty() ? "" : ",") + value;
    add(r.key + (r.op == "In" ? " in (" : " notin (") + values + ")");
  }
  return text;
}

Lookup WorkloadLookup(const api::ProfilingSession& session) {
  return {session.metadata.namespace_name, session.spec.target.workload_ref->kind,
          session.spec.target.workload_ref->name, ""};
}

// FNV-1a: the choice must be the same in every build.
uint64_t Hash(const std::string& a, const std::string& b) {
  uint64_t hash = 14695981039346656037u;
  for (const std::string* s : {&a, &b}) {
    for (unsigned char c : *s) hash = (hash ^ c) * 1099511628211u;
  }
  return hash;
}

}  // namespace

std::string DescribeTarget(const api::Target& target) {
  if (target.workload_ref)
    return target.workload_ref->kind + " '" + target.workload_ref->name + "'";
  if (target.pod_selector) return "podSelector '" + DescribeSelector(*target.pod_selector) + "'";
  return "pod '" + target.pod_name + "'";
}

bool Interesting(const World& world, const api::ProfilingSession& session, const Pod& pod) {
  const api::Target& target = session.spec.target;
  if (pod.namespace_name != session.metadata.namespace_name) return false;
  if (target.pod_selector) return api::Matches(*target.pod_selector, pod.labels);
  if (!target.workload_ref) return pod.name == target.pod_name;
  auto workload = world.workloads.find(WorkloadLookup(session));
  return workload != world.workloads.end() && workload->second.found &&
         api::Matches(workload->second.selector, pod.labels);
}

std::optional<Controller> TopController(const World& world, const Pod& pod,
                                        std::vector<Lookup>* lookups) {
  // A static pod "belongs" to its Node.
  if (!pod.controller || pod.controller->kind == "Node")
    return Controller{"Pod", pod.name, pod.uid};
  if (pod.controller->kind != "ReplicaSet" && pod.controller->kind != "Job") return pod.controller;
  Lookup lookup{pod.namespace_name, pod.controller->kind, pod.controller->name,
                pod.controller->uid};
  auto it = world.workloads.find(lookup);
  if (it == world.workloads.end()) {
    if (lookups != nullptr && std::find(lookups->begin(), lookups->end(), lookup) == lookups->end())
      lookups->push_back(lookup);
    return std::nullopt;
  }
  return it->second.controller ? it->second.controller : pod.controller;
}

Match MatchPods(const World& world, const api::ProfilingSession& session, int64_t now) {
  const api::Target& target = session.spec.target;
  Match match;
  const Workload* workload = nullptr;
  if (target.workload_ref) {
    Lookup lookup = WorkloadLookup(session);
    auto it = world.workloads.find(lookup);
    // An answer from before the session was there may be of a workload that is gone or made anew.
    auto memory = world.memory.find(session.metadata.uid);
    int64_t first_seen = memory == world.memory.end() ? now : memory->second.first_seen;
    bool known = it != world.workloads.end() && it->second.checked_at >= first_seen;
    bool stale = known && !it->second.found && now >= it->second.checked_at + kLookAgain;
    if (!known || stale) match.lookups.push_back(lookup);
    if (!known) return match;
    workload = &it->second;
    if (!workload->error.empty()) {
      match.error = workload->error;
      return match;
    }
    if (!workload->found) {
      match.known = true;
      match.missing =
          "namespace '" + session.metadata.namespace_name + "' has no " + DescribeTarget(target);
      return match;
    }
  }
  auto ns = world.namespaces.find(session.metadata.namespace_name);
  if (ns == world.namespaces.end() || !ns->second.listed_for.contains(session.metadata.uid)) {
    match.list_pods = true;
    if (ns != world.namespaces.end()) match.error = ns->second.error;
    return match;
  }
  for (const auto& [uid, pod] : ns->second.pods) {
    if (!Interesting(world, session, pod)) continue;
    if (!pod.live()) {
      ++match.ended;
      continue;
    }
    // The label of each profile needs the top controller, so a pod whose chain is unknown waits for
    // the answer.
    std::optional<Controller> top = TopController(world, pod, &match.lookups);
    if (!top) continue;
    if (workload != nullptr && !(pod.controller && pod.controller->uid == workload->uid) &&
        top->uid != workload->uid)
      continue;
    match.pods.push_back(&pod);
  }
  std::sort(match.pods.begin(), match.pods.end(), [](const Pod* a, const Pod* b) {
    return std::tie(a->name, a->uid) < std::tie(b->name, b->uid);
  });
  match.known = match.lookups.empty();
  return match;
}

std::string PodVersion(const Pod& pod) {
  auto label = pod.labels.find("app.kubernetes.io/version");
  if (label != pod.labels.end()) return label->second;
  return pod.containers.empty() ? "" : pod.containers.front().image;
}

std::vector<const Pod*> ChoosePods(std::vector<const Pod*> candidates,
                                   const std::vector<const Pod*>& already, size_t slots,
                                   const std::string& session_uid) {
  if (candidates.size() <= slots) return candidates;
  std::map<std::string, size_t> on_node, of_version;
  for (const Pod* pod : already) {
    ++on_node[pod->node];
    ++of_version[PodVersion(*pod)];
  }
  std::vector<const Pod*> chosen;
  while (chosen.size() < slots) {
    auto best =
        std::min_element(candidates.begin(), candidates.end(), [&](const Pod* a, const Pod* b) {
          auto rank = [&](const Pod* p) {
            return std::tuple(on_node[p->node], of_version[PodVersion(*p)],
                              Hash(session_uid, p->uid), p->uid);
          };
          return rank(a) < rank(b);
        });
    ++on_node[(*best)->node];
    ++of_version[PodVersion(**best)];
    chosen.push_back(*best);
    candidates.erase(best);
  }
  return chosen;
}

}  // namespace borescope::op
