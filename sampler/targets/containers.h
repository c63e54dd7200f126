// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/engine/engine.h"

namespace borescope::targets {

enum class Naming {
  kPending,  // no process of it was read yet, or its mounts were not made yet
  kNamed,
  kUnknown,  // its processes were read and do not say, or say a name that the pod does not have
  kSandbox,  // holds the pod's namespaces only ("pause"): not a container
};

struct Container {
  std::string pod_uid;       // as in the cgroup's name (the config hash of a static pod)
  std::string container_id;  // 64 hex digits
  std::string name;          // of the container; "unknown" unless kNamed
  Naming naming = Naming::kPending;
  int64_t made_mono_ns = 0;  // when the cgroup was made, or found
  bool gone = false;         // its cgroup was removed; kept, for what is still to be published
};

// Which container a cgroup is, learnt from the kernel's events and from the mounts of the processes in it, and remembered after
// its death. Not thread-safe: the engine's thread.
class Containers {
 public:
  explicit Containers(std::string proc_root = "/proc");

  // The pods that some job wants, by cgroup uid, each with the names that its containers can have. What belongs to others is
  // forgotten.
  void SetPods(std::map<std::string, std::set<std::string>> names_by_pod);

  // Returns true when it is a container that was not known.
  bool OnCgroup(const engine::Cgroup& event);
  // A process was found or forked, ran exec or was hit in this cgroup: a candidate to read.
  void OnProcess(uint64_t cgroup_id, pid_t tgid);
  // It has run, whoever ran in it: bounds how long it stays pending.
  void HasRun(uint64_t cgroup_id, int64_t now_mono_ns);
  // Reads candidates of pending containers. Returns the cgroups that are no longer pending since the last call.
  std::vector<uint64_t> Resolve(int64_t now_mono_ns);

  // Nothing when that cgroup is no container of a wanted pod.
  const Container* Find(uint64_t cgroup_id) const;
  const std::map<uint64_t, Container>& all() const { return containers_; }
  uint64_t unknown_total() const { return unknown_total_; }

 private:
  struct Evidence {
    std::vector<pid_t> processes;  // candidates, newest last, bounded
    int64_t seen_ns = 0;           // when it was first known that something runs or has run in it
  };

  // Settles the naming when this process says enough.
  void Read(uint64_t cgroup_id, pid_t tgid);
  void Settle(uint64_t cgroup_id, Naming naming, std::string name);

  const std::string proc_root_;
  std::map<std::string, std::set<std::string>> names_by_pod_;
  std::map<uint64_t, Container> containers_;
  std::map<uint64_t, Evidence> pending_;
  std::vector<uint64_t> settled_;
  uint64_t unknown_total_ = 0;
};

// "cri-containerd-<64 hex>.scope", "crio-<64 hex>.scope", "docker-<64 hex>.scope", "<64 hex>" -> the 64 digits; else empty (also
// for "crio-conmon-…", which is the runtime's own).
std::string_view ContainerIdOf(std::string_view cgroup_name);

}  // namespace borescope::targets
