// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace borescope::engine {

// A pod's uid (or a static pod's config hash) as its 32 hexadecimal digits.
struct PodKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const PodKey&) const = default;
};

// "6f1c…-…" or 32 digits without dashes; nothing for any other form.
std::optional<PodKey> ParsePodUid(std::string_view uid);

// The pod whose cgroup has this name: "pod<uid>", "kubepods-burstable-pod<uid with _>.slice". The same rule as in BPF.
std::optional<PodKey> PodInCgroupName(std::string_view name);

// Does the name hold a container's id: 64 hexadecimal digits?
bool HasContainerId(std::string_view name);

// One cgroup of one hierarchy.
struct CgroupNode {
  uint64_t parent_id = 0;
  std::string name;
};
using CgroupTree = std::map<uint64_t, CgroupNode>;  // by id

// A cgroup that lies in a pod.
struct PodCgroup {
  uint64_t id = 0, parent_id = 0;
  uint64_t container = 0;  // the pod cgroup's child that it is or lies in; 0: the pod's own
  PodKey pod;
  std::string name;
};

// All cgroups in and below those of the pods in `wanted` (key to uid); parents before their children.
std::vector<PodCgroup> FindPodCgroups(const CgroupTree& tree, const std::map<PodKey, std::string>& wanted);

// Do containers stand in this hierarchy, by the names of its cgroups?
bool NamesContainers(const CgroupTree& tree);

}  // namespace borescope::engine
