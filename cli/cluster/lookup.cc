// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/lookup.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/cluster/target.h"
#include "common/api/json.h"
#include "common/base/strings.h"

namespace borescope::cli {
namespace {

using nlohmann::json;

const kube::Resource kPods{"", "v1", "pods"};
const kube::Resource kReplicaSets{"apps", "v1", "replicasets"};

const json& Member(const json& object, std::string_view key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  auto it = object.find(key);
  return it != object.end() ? *it : kNull;
}
std::string Text(const json& object, std::string_view key) {
  const json& value = Member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::string OwnerUid(const json& object) {
  const json& owners = Member(Member(object, "metadata"), "ownerReferences");
  if (!owners.is_array()) return "";
  for (const json& owner : owners) {
    if (Member(owner, "controller") == true) return Text(owner, "uid");
  }
  return "";
}

Result<json> Get(Cluster& cluster, const kube::Resource& resource, const std::string& name, const std::string& what) {
  kube::KubeError details;
  auto got = cluster.api().Get(resource, cluster.ns(), name, {.error = &details, .max_tries = 2});
  if (got.ok()) return got;
  if (details.http_status == 404) {
    return Error{ErrorCode::kNotFound, "there is no " + what + " in namespace " + cluster.ns() + ": see kubectl get " + resource.plural + " -n " + cluster.ns()};
  }
  return cluster.Explain(got.error(), details, {.verb = "get", .resource = resource.plural, .ns = cluster.ns(), .name = name, .role = "view"});
}

Result<std::vector<json>> List(Cluster& cluster, const kube::Resource& resource) {
  kube::KubeError details;
  auto found = cluster.api().List(resource,
                                  {.ns = cluster.ns(),
                                   .projection = {"metadata.name", "metadata.uid", "metadata.ownerReferences", "metadata.deletionTimestamp", "spec.nodeName",
                                                  "spec.containers.name", "spec.initContainers.name", "status.phase"}},
                                  {.error = &details, .max_tries = 2});
  if (!found.ok()) return cluster.Explain(found.error(), details, {.verb = "list", .resource = resource.plural, .ns = cluster.ns(), .role = "view"});
  return std::move(found->items);
}

void AddPod(const json& pod, PodsFound* out) {
  const std::string phase = Text(Member(pod, "status"), "phase");
  if (phase == "Succeeded" || phase == "Failed" || !Text(Member(pod, "metadata"), "deletionTimestamp").empty()) {
    ++out->ended;
    return;
  }
  PodInfo info{.name = Text(Member(pod, "metadata"), "name"), .node = Text(Member(pod, "spec"), "nodeName"), .containers = {}};
  for (const char* list : {"initContainers", "containers"}) {
    const json& containers = Member(Member(pod, "spec"), list);
    if (!containers.is_array()) continue;
    for (const json& container : containers) info.containers.push_back(Text(container, "name"));
  }
  out->pods.push_back(std::move(info));
}

}  // namespace

Result<PodsFound> FindPods(Cluster& cluster, const api::Target& target) {
  PodsFound out;
  if (!target.pod_name.empty()) {
    ASSIGN_OR_RETURN(json pod, Get(cluster, kPods, target.pod_name, "pod \"" + target.pod_name + "\""));
    AddPod(pod, &out);
    out.how = "by its name";
    return out;
  }
  if (!target.workload_ref) return Error{ErrorCode::kUnsupported, "pods by their labels are not looked up here: see kubectl get pods -l"};
  const auto& [kind, name] = *target.workload_ref;
  std::string plural = kind + "s";
  for (char& c : plural) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  ASSIGN_OR_RETURN(json workload, Get(cluster, {kind == "Job" ? "batch" : "apps", "v1", plural}, name, kind + " \"" + name + "\""));
  std::set<std::string> owners{Text(Member(workload, "metadata"), "uid")};
  out.how = "owned by " + kind + " " + name;
  if (kind == "Deployment") {
    ASSIGN_OR_RETURN(auto sets, List(cluster, kReplicaSets));
    std::set<std::string> uids;
    for (const json& set : sets) {
      if (owners.contains(OwnerUid(set))) uids.insert(Text(Member(set, "metadata"), "uid"));
    }
    owners = std::move(uids);
    out.how = "owned by the ReplicaSets of Deployment " + name;
  }
  ASSIGN_OR_RETURN(auto pods, List(cluster, kPods));
  for (const json& pod : pods) {
    if (std::string owner = OwnerUid(pod); !owner.empty() && owners.contains(owner)) AddPod(pod, &out);
  }
  std::ranges::sort(out.pods, {}, &PodInfo::name);
  return out;
}

SamplersFound FindSamplers(Cluster& cluster) {
  SamplersFound out;
  kube::KubeError details;
  auto found = cluster.api().List({std::string(api::kGroup), std::string(api::kVersion), std::string(api::kNodeSamplers)}, {.projection = {"metadata", "status"}},
                                  {.error = &details, .max_tries = 2});
  if (!found.ok()) {
    out.unreadable = cluster.Explain(found.error(), details, {.verb = "list", .resource = "nodesamplers", .role = "borescope-node-viewer"}).message;
    return out;
  }
  for (const json& item : found->items) {
    if (auto sampler = api::ParseNodeSampler(item); sampler.ok()) out.of_node[sampler->metadata.name] = *std::move(sampler);
  }
  return out;
}

std::string NodeTrouble(const SamplersFound& samplers, const std::string& node, std::string_view kind) {
  auto it = samplers.of_node.find(node);
  if (it == samplers.of_node.end()) return "no sampler: is its pod running there? See kubectl get pods -A -o wide --field-selector spec.nodeName=" + node;
  const api::NodeSamplerStatus& status = it->second.status;
  for (const char* type : {"Protected", "Ready"}) {
    const api::Condition* condition = api::FindCondition(status.conditions, type);
    if (condition == nullptr || condition->status != "True") {
      return std::string("its sampler is not ") + type + (condition == nullptr ? " yet" : " (" + condition->reason + "): " + SanitizeName(condition->message, 512));
    }
  }
  if (std::ranges::find(status.kinds, kind) == status.kinds.end()) return "its sampler takes no profiles of kind " + std::string(kind) + ": it is of an older Borescope";
  return "";
}

}  // namespace borescope::cli
