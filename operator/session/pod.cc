// SPDX-License-Identifier: Apache-2.0
#include "operator/session/pod.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/strings.h"

namespace borescope::op {
namespace {

using nlohmann::json;

constexpr std::string_view kConfigHash = "kubernetes.io/config.hash";
// The three families of annotations that people already set, OpenTelemetry's own first.
constexpr std::string_view kServiceNameAnnotations[] = {"resource.opentelemetry.io/service.name",
                                                        "profiles.grafana.com/service_name",
                                                        "pyroscope.io/service_name"};
constexpr std::string_view kVersionLabel = "app.kubernetes.io/version";

// The value at a key, or a null value when the object has none or is no object.
const json& Child(const json& object, std::string_view key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

std::string Text(const json& object, std::string_view key) {
  const json& value = Child(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

void AddContainers(const json& containers, std::vector<PodContainerState>& out) {
  if (!containers.is_array()) return;
  for (const json& container : containers) {
    std::string name = Text(container, "name");
    if (!name.empty()) out.push_back({.name = std::move(name), .image = Text(container, "image")});
  }
}

void AddStates(const json& statuses, std::vector<PodContainerState>& containers) {
  if (!statuses.is_array()) return;
  for (const json& status : statuses) {
    std::string name = Text(status, "name");
    auto it = std::find_if(containers.begin(), containers.end(),
                           [&](const auto& c) { return c.name == name; });
    if (it == containers.end()) continue;
    const json& state = Child(status, "state");
    it->running = Child(state, "running").is_object();
    it->started = it->running || Child(state, "terminated").is_object() ||
                  Child(Child(status, "lastState"), "terminated").is_object();
  }
}

std::string EscapeDots(std::string_view key) {
  std::string out;
  for (char c : key) {
    if (c == '.') out += '\\';
    out += c;
  }
  return out;
}

// Bounds of NodeSampler.spec.pods[]: one text beyond them and the API server refuses the whole spec
// of the node, other sessions' jobs included.
constexpr size_t kMaxLabelBytes = 253;
constexpr size_t kMaxPodLabelBytes = 63;
constexpr size_t kMaxImageBytes = 1024;
constexpr size_t kMaxVersionBytes = 128;
constexpr size_t kMaxContainers = 64;

// The uid in the cgroups of a static pod. The annotation counts on nothing but a mirror pod, which
// its Node owns, and is an MD5 there.
std::string StaticPodUid(const Pod& pod) {
  if (!pod.controller || pod.controller->kind != "Node" || pod.config_hash == pod.uid) return {};
  constexpr size_t kMd5Digits = 32;
  bool hash =
      pod.config_hash.size() == kMd5Digits &&
      pod.config_hash.find_first_not_of("0123456789abcdef") == std::string::npos;
  // The pod's author writes that annotation, and a cgroup is found by its digits alone: what has the form of a uid that the API
  // server gives (UUID version 4) could name another tenant's pod. One real hash in 64 has that form too; its pod is not sampled.
  bool uid_form = hash && pod.config_hash[12] == '4' && std::string_view("89ab").find(pod.config_hash[16]) != std::string_view::npos;
  return hash && !uid_form ? pod.config_hash : std::string();
}

std::string Label(const std::map<std::string, std::string>& labels, std::string_view key) {
  auto it = labels.find(std::string(key));
  return it == labels.end() ? std::string() : it->second;
}

}  // namespace

const std::vector<std::string>& PodPaths() {
  static const std::vector<std::string> kPaths = [] {
    std::vector<std::string> paths = {"metadata.creationTimestamp",
                                      "metadata.deletionTimestamp",
                                      "metadata.labels",
                                      "metadata.ownerReferences",
                                      "spec.nodeName",
                                      "status.phase"};
    for (const char* list : {"containers", "initContainers", "ephemeralContainers"}) {
      paths.push_back("spec." + std::string(list) + ".name");
      paths.push_back("spec." + std::string(list) + ".image");
    }
    for (const char* list :
         {"containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"}) {
      paths.push_back("status." + std::string(list) + ".name");
      paths.push_back("status." + std::string(list) + ".state");
      paths.push_back("status." + std::string(list) + ".lastState");
    }
    paths.push_back("metadata.annotations." + EscapeDots(kConfigHash));
    for (std::string_view key : kServiceNameAnnotations)
      paths.push_back("metadata.annotations." + EscapeDots(key));
    return paths;
  }();
  return kPaths;
}

Result<Pod> ParsePod(const json& object) {
  const json& metadata = Child(object, "metadata");
  const json& spec = Child(object, "spec");
  const json& status = Child(object, "status");
  Pod pod;
  pod.namespace_name = Text(metadata, "namespace");
  pod.name = Text(metadata, "name");
  pod.uid = Text(metadata, "uid");
  if (pod.name.empty() || pod.uid.empty()) {
    return Error{ErrorCode::kInvalid, "a pod without metadata.name or metadata.uid"};
  }
  pod.resource_version = ParseUint(Text(metadata, "resourceVersion")).value_or(0);
  if (auto created = ParseTime(Text(metadata, "creationTimestamp")); created.ok())
    pod.creation_time = *created;
  pod.deleting = Child(metadata, "deletionTimestamp").is_string();
  const json& annotations = Child(metadata, "annotations");
  pod.config_hash = Text(annotations, kConfigHash);
  for (std::string_view key : kServiceNameAnnotations) {
    if (pod.service_name.empty()) pod.service_name = Text(annotations, key);
  }
  if (const json& labels = Child(metadata, "labels"); labels.is_object()) {
    for (const auto& [key, value] : labels.items()) {
      if (value.is_string()) pod.labels[key] = value.get<std::string>();
    }
  }
  if (const json& owners = Child(metadata, "ownerReferences"); owners.is_array()) {
    for (const json& owner : owners) {
      const json& controller = Child(owner, "controller");
      if (controller.is_boolean() && controller.get<bool>()) {
        pod.controller = Controller{Text(owner, "kind"), Text(owner, "name"), Text(owner, "uid")};
      }
    }
  }
  pod.node = Text(spec, "nodeName");
  std::string phase = Text(status, "phase");
  pod.finished = phase == "Succeeded" || phase == "Failed";
  for (const char* list : {"initContainers", "containers", "ephemeralContainers"}) {
    AddContainers(Child(spec, list), pod.containers);
  }
  for (const char* list :
       {"initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"}) {
    AddStates(Child(status, list), pod.containers);
  }
  return pod;
}

std::string ImageVersion(std::string_view image) {
  std::string_view digest;
  if (size_t at = image.find('@'); at != std::string_view::npos) {
    digest = image.substr(at + 1);
    image = image.substr(0, at);
  }
  std::string_view last =
      image.substr(image.rfind('/') + 1);  // a colon before the last slash is a registry's port
  if (size_t colon = last.find(':'); colon != std::string_view::npos)
    return std::string(last.substr(colon + 1));
  if (size_t colon = digest.find(':'); colon != std::string_view::npos)
    return std::string(digest.substr(colon + 1, 12));
  return {};
}

api::NodePod MakeNodePod(const Pod& pod, const Controller& workload, std::string_view cluster,
                         const std::vector<std::string>& pod_labels) {
  api::NodePod out;
  out.uid = pod.uid;
  out.cgroup_uid = StaticPodUid(pod);
  out.namespace_name = pod.namespace_name;
  out.name = pod.name;

  std::string service = pod.service_name;
  if (service.empty()) service = Label(pod.labels, "app.kubernetes.io/instance");
  if (service.empty()) service = Label(pod.labels, "app.kubernetes.io/name");
  if (service.empty()) service = workload.name;
  out.labels = {{"service_name", service},   {"namespace", pod.namespace_name},
                {"pod", pod.name},           {"node", pod.node},
                {"workload", workload.name}, {"workload_kind", workload.kind}};
  if (!cluster.empty()) out.labels["cluster"] = cluster;
  std::string version = Label(pod.labels, kVersionLabel);
  if (!version.empty()) out.labels["version"] = version;
  for (auto& [key, value] : out.labels) value = SanitizeName(value, kMaxLabelBytes);

  std::vector<PodContainerState> containers = pod.containers;
  // Those that run are what there is to sample.
  if (containers.size() > kMaxContainers) {
    std::stable_partition(containers.begin(), containers.end(),
                          [](const PodContainerState& c) { return c.running; });
    containers.resize(kMaxContainers);
  }
  for (const PodContainerState& container : containers) {
    out.containers.push_back(
        {container.name, SanitizeName(container.image, kMaxImageBytes),
         SanitizeName(version.empty() ? ImageVersion(container.image) : version,
                      kMaxVersionBytes)});
  }
  for (const std::string& key : pod_labels) {
    if (auto it = pod.labels.find(key); it != pod.labels.end())
      out.pod_labels[key] = SanitizeName(it->second, kMaxPodLabelBytes);
  }
  return out;
}

}  // namespace borescope::op
