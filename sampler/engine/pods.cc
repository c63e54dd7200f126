// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/pods.h"

#include <functional>

namespace borescope::engine {
namespace {

constexpr int kUidDigits = 32;
constexpr size_t kContainerIdDigits = 64;

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The 32 digits at the front, with '-' and '_' between them; they must end there.
std::optional<PodKey> ParseDigits(std::string_view text) {
  PodKey key;
  int digits = 0;
  for (char c : text) {
    if (int value = HexValue(c); value >= 0) {
      key.high = key.high << 4 | key.low >> 60;
      key.low = key.low << 4 | static_cast<uint64_t>(value);
      ++digits;
    } else if (c != '-' && c != '_') {
      break;
    }
  }
  if (digits != kUidDigits) return std::nullopt;
  return key;
}

}  // namespace

std::optional<PodKey> ParsePodUid(std::string_view uid) {
  if (uid.find_first_not_of("0123456789abcdef-") != std::string_view::npos) return std::nullopt;
  return ParseDigits(uid);
}

std::optional<PodKey> PodInCgroupName(std::string_view name) {
  constexpr std::string_view kPod = "pod";
  for (size_t at = name.find(kPod); at != std::string_view::npos; at = name.find(kPod, at + 1)) {
    if (auto key = ParseDigits(name.substr(at + kPod.size()))) return key;
  }
  return std::nullopt;
}

bool HasContainerId(std::string_view name) {
  size_t run = 0;
  for (char c : name) {
    run = HexValue(c) >= 0 ? run + 1 : 0;
    if (run == kContainerIdDigits) return true;
  }
  return false;
}

std::vector<PodCgroup> FindPodCgroups(const CgroupTree& tree, const std::map<PodKey, std::string>& wanted) {
  std::map<uint64_t, std::optional<PodCgroup>> decided;
  std::vector<PodCgroup> found;
  // Ancestors first: the topmost wanted pod owns what lies below it, as the hook in the kernel decides.
  std::function<std::optional<PodCgroup>(uint64_t, int)> decide = [&](uint64_t id, int depth) -> std::optional<PodCgroup> {
    auto node = tree.find(id);
    if (node == tree.end() || depth > 64) return std::nullopt;
    if (auto it = decided.find(id); it != decided.end()) return it->second;
    std::optional<PodCgroup> result;
    auto above = decide(node->second.parent_id, depth + 1);
    if (above) {
      result = PodCgroup{id, node->second.parent_id, above->container != 0 ? above->container : id, above->pod, node->second.name};
    } else if (auto key = PodInCgroupName(node->second.name); key && wanted.contains(*key)) {
      result = PodCgroup{id, node->second.parent_id, 0, *key, node->second.name};
    }
    if (result) found.push_back(*result);
    decided[id] = result;
    return result;
  };
  for (const auto& [id, node] : tree) decide(id, 0);
  return found;
}

bool NamesContainers(const CgroupTree& tree) {
  for (const auto& [id, node] : tree) {
    if (HasContainerId(node.name) || PodInCgroupName(node.name)) return true;
  }
  return false;
}

}  // namespace borescope::engine
