// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace borescope::targets {

// Reads how much CPU time whole pods have used, from the cgroup file system (v1 cpuacct, or v2). It outlives us, so it tells what
// was used while no sampler ran. Found paths are remembered.
class CpuUsage {
 public:
  explicit CpuUsage(std::string proc_root = "/proc");

  // Nanoseconds since the pods were made, their ended containers included; nothing when one of them has no cgroup (any more).
  std::optional<int64_t> Read(const std::vector<std::string>& pod_uids);

 private:
  std::optional<std::string> FindPod(const std::string& uid) const;

  std::vector<std::string> roots_;  // where the hierarchy that counts is mounted
  bool unified_ = false;
  std::vector<std::pair<std::string, std::string>> found_;  // uid, folder
};

// Where the CPU-counting cgroup hierarchy is mounted, from a mountinfo text; v1 cpuacct first.
struct CgroupMount {
  std::string path;
  bool unified = false;
};
std::vector<CgroupMount> FindCgroupMounts(std::string_view mountinfo);

}  // namespace borescope::targets
