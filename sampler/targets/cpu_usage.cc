// SPDX-License-Identifier: Apache-2.0
#include "sampler/targets/cpu_usage.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "common/base/fd.h"
#include "common/base/strings.h"

namespace borescope::targets {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 6;               // kubepods.slice/kubepods-burstable.slice/…pod<uid>.slice, below a node's own root
constexpr size_t kMaxFoldersSeen = 20'000;

// "kubepods-burstable-pod6f1c_….slice" and "pod6f1c-…".
bool IsPodFolder(std::string_view name, std::string_view uid) {
  if (name.ends_with(".slice")) name.remove_suffix(6);
  if (name.size() < uid.size() + 3 || !name.substr(0, name.size() - uid.size()).ends_with("pod")) return false;
  name.remove_prefix(name.size() - uid.size());
  return std::equal(name.begin(), name.end(), uid.begin(), [](char a, char b) { return a == b || (a == '_' && b == '-'); });
}

std::optional<int64_t> ReadUsage(const std::string& folder, bool unified) {
  Result<std::string> text = ReadFile(folder + (unified ? "/cpu.stat" : "/cpuacct.usage"), 64 << 10);
  if (!text.ok()) return std::nullopt;
  if (!unified) {
    std::optional<uint64_t> ns = ParseUint(Trim(*text));
    return ns ? std::optional<int64_t>(static_cast<int64_t>(*ns)) : std::nullopt;
  }
  for (std::string_view line : Split(*text, '\n')) {
    constexpr std::string_view kKey = "usage_usec ";
    if (!line.starts_with(kKey)) continue;
    std::optional<uint64_t> us = ParseUint(Trim(line.substr(kKey.size())));
    return us ? std::optional<int64_t>(static_cast<int64_t>(*us) * 1000) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::vector<CgroupMount> FindCgroupMounts(std::string_view mountinfo) {
  std::vector<CgroupMount> mounts;
  for (std::string_view line : Split(mountinfo, '\n')) {
    size_t separator = line.find(" - ");
    if (separator == std::string_view::npos) continue;
    std::vector<std::string_view> before = Split(line.substr(0, separator), ' ');
    std::vector<std::string_view> after = Split(line.substr(separator + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    if (after[0] == "cgroup2") {
      mounts.push_back({std::string(before[4]), true});
    } else if (after[0] == "cgroup") {
      std::vector<std::string_view> controllers = Split(after[2], ',');
      if (std::find(controllers.begin(), controllers.end(), "cpuacct") != controllers.end()) {
        mounts.insert(mounts.begin(), {std::string(before[4]), false});
      }
    }
  }
  return mounts;
}

CpuUsage::CpuUsage(std::string proc_root) {
  Result<std::string> mountinfo = ReadFile(proc_root + "/self/mountinfo", 4 << 20);
  if (!mountinfo.ok()) return;
  std::vector<CgroupMount> mounts = FindCgroupMounts(*mountinfo);
  if (mounts.empty()) return;
  unified_ = mounts.front().unified;
  for (const CgroupMount& mount : mounts) {
    if (mount.unified == unified_) roots_.push_back(mount.path);
  }
}

std::optional<std::string> CpuUsage::FindPod(const std::string& uid) const {
  size_t seen = 0;
  for (const std::string& root : roots_) {
    std::error_code error;
    fs::recursive_directory_iterator it(root, fs::directory_options::skip_permission_denied, error), end;
    for (; !error && it != end && seen < kMaxFoldersSeen; it.increment(error)) {
      std::error_code ignored;
      if (!it->is_directory(ignored)) continue;
      ++seen;
      if (IsPodFolder(it->path().filename().native(), uid)) return it->path().native();
      if (it.depth() >= kMaxDepth) it.disable_recursion_pending();
    }
  }
  return std::nullopt;
}

std::optional<int64_t> CpuUsage::Read(const std::vector<std::string>& pod_uids) {
  int64_t sum = 0;
  for (const std::string& uid : pod_uids) {
    auto known = std::find_if(found_.begin(), found_.end(), [&](const auto& entry) { return entry.first == uid; });
    std::optional<int64_t> usage;
    if (known != found_.end()) {
      usage = ReadUsage(known->second, unified_);
      if (!usage) found_.erase(known);
    } else if (std::optional<std::string> folder = FindPod(uid)) {
      usage = ReadUsage(*folder, unified_);
      if (usage) found_.emplace_back(uid, *folder);
    }
    if (!usage) return std::nullopt;
    sum += *usage;
  }
  return sum;
}

}  // namespace borescope::targets
