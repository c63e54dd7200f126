// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/types.h"
#include "common/base/result.h"

namespace borescope::op {

// The object that a pod, or a ReplicaSet, belongs to: the ownerReference with controller: true.
struct Controller {
  std::string kind;
  std::string name;
  std::string uid;
  bool operator==(const Controller&) const = default;
};

struct PodContainerState {
  std::string name;
  std::string image;
  bool running = false;
  bool started = false;  // runs, or has run
};

// A pod as the operator keeps it: about 1 KiB.
struct Pod {
  std::string namespace_name;
  std::string name;
  std::string uid;
  uint64_t resource_version = 0;
  int64_t creation_time = 0;
  std::string
      config_hash;  // annotation kubernetes.io/config.hash: the uid in the cgroup of a static pod
  std::string
      service_name;       // from the annotations that name it, in the order of their rank; or empty
  std::string node;       // empty: not bound yet
  bool finished = false;  // phase Succeeded or Failed
  bool deleting = false;
  std::map<std::string, std::string> labels;
  std::optional<Controller> controller;
  std::vector<PodContainerState> containers;  // init and ephemeral ones too

  bool live() const { return !finished && !deleting; }
};

// The paths of a pod that ParsePod reads, for the projection of a list and watch.
const std::vector<std::string>& PodPaths();
// kInvalid: no uid or name.
Result<Pod> ParsePod(const nlohmann::json& object);

// "registry/app:v1.2@sha256:…" -> "v1.2"; a digest without a tag -> its first 12 digits; neither ->
// "".
std::string ImageVersion(std::string_view image);

// What stands in a NodeSampler for the pod: identity labels (design §2), containers with their
// versions and, of the pod's labels, those asked for. `workload` is the top controller, or the pod
// itself. Texts are cut to the bounds of the NodeSampler, and of more than 64 containers those that
// run come first.
api::NodePod MakeNodePod(const Pod& pod, const Controller& workload, std::string_view cluster,
                         const std::vector<std::string>& pod_labels);

}  // namespace borescope::op
