// SPDX-License-Identifier: Apache-2.0
#include "operator/session/world.h"

#include <algorithm>
#include <utility>

namespace borescope::op {

void World::SetSampler(api::NodeSampler sampler) {
  std::string node = sampler.metadata.name;
  RemoveSampler(node);
  for (const api::Job& job : sampler.spec.jobs) nodes_of[job.id].insert(node);
  samplers[node] = std::move(sampler);
}

void World::RemoveSampler(const std::string& node) {
  auto it = samplers.find(node);
  if (it == samplers.end()) return;
  for (const api::Job& job : it->second.spec.jobs) {
    auto nodes = nodes_of.find(job.id);
    if (nodes == nodes_of.end()) continue;
    nodes->second.erase(node);
    if (nodes->second.empty()) nodes_of.erase(nodes);
  }
  samplers.erase(it);
}

const api::Job* World::FindJob(const std::string& node, std::string_view job_id) const {
  auto sampler = samplers.find(node);
  if (sampler == samplers.end()) return nullptr;
  const auto& jobs = sampler->second.spec.jobs;
  auto it =
      std::find_if(jobs.begin(), jobs.end(), [&](const api::Job& job) { return job.id == job_id; });
  return it == jobs.end() ? nullptr : &*it;
}

const api::NodePod* World::FindPod(const std::string& node, std::string_view uid) const {
  auto sampler = samplers.find(node);
  if (sampler == samplers.end()) return nullptr;
  const auto& pods = sampler->second.spec.pods;
  auto it = std::find_if(pods.begin(), pods.end(),
                         [&](const api::NodePod& pod) { return pod.uid == uid; });
  return it == pods.end() ? nullptr : &*it;
}

const api::JobReport* World::FindReport(const std::string& node, const std::string& job_id) const {
  if (FindJob(node, job_id) == nullptr) return nullptr;
  auto report = reports.find(node);
  if (report == reports.end()) return nullptr;
  auto it = report->second.status.jobs.find(job_id);
  return it == report->second.status.jobs.end() ? nullptr : &it->second;
}

std::string SessionKey(const api::ObjectMeta& metadata) {
  return metadata.namespace_name + "/" + metadata.name;
}
std::string SessionKey(const api::SessionRef& session) {
  return session.namespace_name + "/" + session.name;
}
std::string JobIdOf(const api::ProfilingSession& session) {
  return api::JobId(session.metadata.namespace_name, session.metadata.name, session.metadata.uid);
}

}  // namespace borescope::op
