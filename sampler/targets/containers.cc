// SPDX-License-Identifier: Apache-2.0
#include "sampler/targets/containers.h"

#include <algorithm>
#include <utility>

#include "common/base/fd.h"
#include "common/base/log.h"
#include "sampler/targets/mountinfo.h"

namespace borescope::targets {
namespace {

constexpr size_t kMaxContainers = 8192;  // a node runs a few hundred pods; crash loops make new ones
constexpr size_t kMaxCandidates = 16;    // processes remembered for a pending container
constexpr size_t kMaxMountinfoBytes = 4 << 20;
// How long the processes of a container may keep silent, or be gone before they are read: the runtime makes the mounts before it runs the program, so this only
// covers a runtime that is slow between the two.
constexpr int64_t kPatienceNs = 2'000'000'000;
constexpr std::string_view kUnknownName = "unknown";

}  // namespace

std::string_view ContainerIdOf(std::string_view cgroup_name) {
  constexpr size_t kDigits = 64;
  if (cgroup_name.find("conmon") != std::string_view::npos) return {};
  if (cgroup_name.ends_with(".scope")) cgroup_name.remove_suffix(6);
  if (cgroup_name.size() < kDigits) return {};
  std::string_view id = cgroup_name.substr(cgroup_name.size() - kDigits);
  std::string_view prefix = cgroup_name.substr(0, cgroup_name.size() - kDigits);
  if (!prefix.empty() && prefix.back() != '-' && prefix.back() != ':') return {};
  bool hex = std::all_of(id.begin(), id.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  return hex ? id : std::string_view();
}

Containers::Containers(std::string proc_root) : proc_root_(std::move(proc_root)) {}

void Containers::SetPods(std::map<std::string, std::set<std::string>> names_by_pod) {
  names_by_pod_ = std::move(names_by_pod);
  std::erase_if(containers_, [&](const auto& entry) { return !names_by_pod_.contains(entry.second.pod_uid); });
  std::erase_if(pending_, [&](const auto& entry) { return !containers_.contains(entry.first); });
}

bool Containers::OnCgroup(const engine::Cgroup& event) {
  if (auto it = containers_.find(event.cgroup_id); it != containers_.end()) {
    it->second.gone = event.removed;
    if (event.removed && it->second.naming == Naming::kPending) Settle(event.cgroup_id, Naming::kUnknown, "");
    return false;
  }
  std::string_view id = ContainerIdOf(event.name);
  // A container that runs inside a container is a part of it: the engine charges it to the outer one.
  if (id.empty() || event.removed || containers_.contains(event.parent_id)) return false;
  if (!names_by_pod_.contains(std::string(event.pod_uid))) return false;
  if (containers_.size() >= kMaxContainers) {
    auto dead = std::find_if(containers_.begin(), containers_.end(), [](const auto& entry) { return entry.second.gone; });
    if (dead == containers_.end()) return false;
    pending_.erase(dead->first);
    containers_.erase(dead);
  }
  containers_[event.cgroup_id] = {.pod_uid = std::string(event.pod_uid),
                                  .container_id = std::string(id),
                                  .name = std::string(kUnknownName),
                                  .naming = Naming::kPending,
                                  .made_mono_ns = event.time_ns,
                                  .gone = false};
  pending_[event.cgroup_id];
  return true;
}

void Containers::OnProcess(uint64_t cgroup_id, pid_t tgid) {
  auto it = pending_.find(cgroup_id);
  if (it == pending_.end() || tgid <= 0) return;
  std::vector<pid_t>& processes = it->second.processes;
  if (std::find(processes.begin(), processes.end(), tgid) != processes.end()) return;
  // The second oldest goes, never the first: that is the container's own program, those below it may have other mounts.
  if (processes.size() >= kMaxCandidates) processes.erase(processes.begin() + 1);
  processes.push_back(tgid);
}

void Containers::HasRun(uint64_t cgroup_id, int64_t now_mono_ns) {
  auto it = pending_.find(cgroup_id);
  if (it != pending_.end() && it->second.seen_ns == 0) it->second.seen_ns = now_mono_ns;
}

std::vector<uint64_t> Containers::Resolve(int64_t now_mono_ns) {
  std::vector<uint64_t> ids;
  for (const auto& [id, evidence] : pending_) ids.push_back(id);
  for (uint64_t id : ids) {
    Evidence evidence = pending_[id];
    for (pid_t tgid : evidence.processes) {
      Read(id, tgid);
      if (containers_[id].naming != Naming::kPending) break;
    }
    if (containers_[id].naming != Naming::kPending || (evidence.processes.empty() && evidence.seen_ns == 0)) continue;
    if (evidence.seen_ns == 0) {
      pending_[id].seen_ns = now_mono_ns;
    } else if (now_mono_ns - evidence.seen_ns > kPatienceNs) {
      Settle(id, Naming::kUnknown, "");
    }
  }
  return std::exchange(settled_, {});
}

void Containers::Read(uint64_t cgroup_id, pid_t tgid) {
  std::string folder = proc_root_ + "/" + std::to_string(tgid);
  Result<std::string> text = ReadFile(folder + "/mountinfo", kMaxMountinfoBytes);
  if (!text.ok() || text->empty()) return;
  const Container& container = containers_[cgroup_id];
  ContainerMount mount = FindContainerMount(*text, container.pod_uid);
  if (!mount.name.empty()) {
    // The pod's own list is the operator's word; a name that is not on it is somebody else's claim.
    bool listed = names_by_pod_[container.pod_uid].contains(mount.name);
    if (!listed) {
      Log(LogLevel::kWarning, "a container's mounts name a container that its pod does not have",
          {{"pod_uid", container.pod_uid}, {"container", mount.name}, {"container_id", container.container_id}});
    }
    Settle(cgroup_id, listed ? Naming::kNamed : Naming::kUnknown, mount.name);
    return;
  }
  if (mount.pod_seen) return;
  Result<std::string> comm = ReadFile(folder + "/comm", 256);
  if (comm.ok() && *comm == "pause\n") Settle(cgroup_id, Naming::kSandbox, "");
}

void Containers::Settle(uint64_t cgroup_id, Naming naming, std::string name) {
  Container& container = containers_[cgroup_id];
  container.naming = naming;
  container.name = naming == Naming::kNamed ? std::move(name) : std::string(kUnknownName);
  if (naming == Naming::kUnknown) ++unknown_total_;
  pending_.erase(cgroup_id);
  settled_.push_back(cgroup_id);
}

const Container* Containers::Find(uint64_t cgroup_id) const {
  auto it = containers_.find(cgroup_id);
  return it == containers_.end() ? nullptr : &it->second;
}

}  // namespace borescope::targets
