// SPDX-License-Identifier: Apache-2.0
#include "operator/fleet/node_spec.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/api/json.h"

namespace borescope::op {
namespace {

size_t JobBytes(const api::Job& job) {
  api::NodeSamplerSpec spec;
  spec.jobs.push_back(job);
  return api::ToJson(spec).dump().size();
}
size_t PodBytes(const api::NodePod& pod) {
  api::NodeSamplerSpec spec;
  spec.pods.push_back(pod);
  return api::ToJson(spec).dump().size();
}

// A spec that grows by whole assignments, or not at all.
class Room {
 public:
  explicit Room(const api::NodeSamplerSpec& current) {
    for (const api::NodePod& pod : current.pods) known_[pod.uid] = &pod;
  }

  bool Add(const Assignment& assignment) {
    std::map<std::string, api::NodePod> changed;
    // Each piece is measured with the braces of a spec around it: the sum is a little too much,
    // never too little.
    size_t added = JobBytes(assignment.job), removed = 0, new_pods = 0;
    auto before = jobs_.find(assignment.job.id);
    if (before != jobs_.end()) removed += JobBytes(before->second);
    for (const api::NodePod& pod : assignment.pods) {
      auto it = pods_.find(pod.uid);
      api::NodePod merged = it != pods_.end() ? it->second : pod;
      if (it == pods_.end()) {
        if (auto first = known_.find(pod.uid); first != known_.end())
          merged.labels = first->second->labels;
        ++new_pods;
      } else {
        merged.pod_labels.insert(pod.pod_labels.begin(), pod.pod_labels.end());
        if (merged.pod_labels.size() > kMaxPodLabels) return false;
        removed += PodBytes(it->second);
      }
      added += PodBytes(merged);
      changed[pod.uid] = std::move(merged);
    }
    if (bytes_ + added - removed > api::kMaxNodeSamplerSpecBytes ||
        (before == jobs_.end() && jobs_.size() >= api::kMaxJobsPerNode) ||
        pods_.size() + new_pods > api::kMaxPodsPerNode) {
      return false;
    }
    bytes_ += added - removed;
    for (auto& [uid, pod] : changed) pods_.insert_or_assign(uid, std::move(pod));
    jobs_[assignment.job.id] = assignment.job;
    return true;
  }

  api::NodeSamplerSpec Spec() && {
    api::NodeSamplerSpec spec;
    for (auto& [id, job] : jobs_) spec.jobs.push_back(std::move(job));
    for (auto& [uid, pod] : pods_) spec.pods.push_back(std::move(pod));
    return spec;
  }

 private:
  std::map<std::string, const api::NodePod*> known_;
  std::map<std::string, api::NodePod> pods_;
  std::map<std::string, api::Job> jobs_;
  size_t bytes_ = 0;
};

// The same with only those pods that the job has now.
Assignment Shrunk(const Assignment& assignment, const api::Job& given) {
  std::set<std::string> keep(given.pod_uids.begin(), given.pod_uids.end());
  Assignment out = assignment;
  std::erase_if(out.job.pod_uids, [&](const std::string& uid) { return !keep.contains(uid); });
  std::erase_if(out.pods, [&](const api::NodePod& pod) { return !keep.contains(pod.uid); });
  return out;
}

}  // namespace

NodePlan ComposeNodeSpec(const std::vector<const Assignment*>& wanted,
                         const api::NodeSamplerSpec& current) {
  std::map<std::string, const api::Job*> given;
  for (const api::Job& job : current.jobs) given[job.id] = &job;
  std::vector<const Assignment*> order = wanted;
  std::sort(order.begin(), order.end(), [&](const Assignment* a, const Assignment* b) {
    bool a_new = !given.contains(a->job.id), b_new = !given.contains(b->job.id);
    return a_new != b_new ? b_new : a->job.id < b->job.id;
  });
  NodePlan plan;
  Room room(current);
  // What stands there now comes first in full, so that a newcomer, or a pod too many, can't push it
  // out.
  std::vector<const Assignment*> growing;
  for (const Assignment* assignment : order) {
    auto it = given.find(assignment->job.id);
    if (it != given.end()) {
      Assignment kept = Shrunk(*assignment, *it->second);
      if (!room.Add(kept)) plan.refused.insert(assignment->job.id);
      if (kept == *assignment) continue;
    }
    growing.push_back(assignment);
  }
  for (const Assignment* assignment : growing) {
    if (!room.Add(*assignment)) plan.refused.insert(assignment->job.id);
  }
  plan.spec = std::move(room).Spec();
  return plan;
}

}  // namespace borescope::op
