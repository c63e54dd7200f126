// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/cluster/access.h"
#include "common/api/types.h"

// Pods and samplers as the person at hand may see them.
namespace borescope::cli {

struct PodInfo {
  std::string name = {}, node = {};  // node: empty while it is not bound
  std::vector<std::string> containers = {};  // init containers first
};
struct PodsFound {
  std::vector<PodInfo> pods = {};  // by name; those that have ended or go are left out
  size_t ended = 0;
  std::string how = {};  // how they were found: "pods of ReplicaSet checkout-6c9f, which Deployment checkout owns"
};
// As the operator finds them: by owner, or by name. kNotFound: no such workload or pod.
Result<PodsFound> FindPods(Cluster& cluster, const api::Target& target);

struct SamplersFound {
  std::map<std::string, api::NodeSampler> of_node = {};
  std::string unreadable = {};  // why they are not known; empty: they are
};
SamplersFound FindSamplers(Cluster& cluster);

// Why profiles of `kind` cannot be taken on that node, and what mends it; "": they can. Only with samplers that are known.
std::string NodeTrouble(const SamplersFound& samplers, const std::string& node, std::string_view kind);

}  // namespace borescope::cli
