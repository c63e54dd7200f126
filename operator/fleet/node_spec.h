// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "common/api/types.h"

namespace borescope::op {

// Of one pod, those that all jobs on it ask for.
inline constexpr size_t kMaxPodLabels = 64;

// What one session wants of one node.
struct Assignment {
  api::Job job;                    // pod_uids name exactly `pods`
  std::vector<api::NodePod> pods;  // pod_labels: those that this job asks for
  bool operator==(const Assignment&) const = default;
};

struct NodePlan {
  api::NodeSamplerSpec spec;      // jobs sorted by id, pods by uid
  std::set<std::string> refused;  // ids of jobs that did not fit: kMaxNodeSamplerSpecBytes,
                                  // kMaxJobsPerNode, kMaxPodsPerNode, kMaxPodLabels
};

// The NodeSampler.spec of a node: a function of what all sessions want there, and of what stands
// there now only in that jobs already given are never pushed out by new ones, and a pod's labels
// stay as they were first given (they name its series).
NodePlan ComposeNodeSpec(const std::vector<const Assignment*>& wanted,
                         const api::NodeSamplerSpec& current);

}  // namespace borescope::op
