// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sampler/engine/engine.h"

namespace borescope::oracle {

// SEED= repeats a run; printed once.
uint64_t Seed();
std::mt19937_64& Random();

// The whole test program runs with exactly the sampler's six capabilities in effect; while one of these lives, with all that it
// was started with: for what the tests themselves do (make cgroups, real-time priority, namespaces).
class AllCapabilities {
 public:
  AllCapabilities();
  ~AllCapabilities();
};
// Exactly the six, but for one (-1: all six), for good; false when the kernel refuses.
bool KeepSixBut(int removed);

// A forked child that runs `body` from Go() on, until it is killed (on destruction at the latest).
class Child {
 public:
  explicit Child(const std::function<void()>& body);
  void Go();
  Child(const Child&) = delete;
  ~Child() { Kill(); }
  pid_t pid() const { return pid_; }
  void Kill();
  // Waits for its end; exit status.
  int Wait();

 private:
  pid_t pid_ = -1;
};

// The calling process on one CPU only.
void Pin(int cpu);
// Spins for that much CPU time of the calling thread.
void Spin(int64_t cpu_ns);
[[noreturn]] void SpinForever();
void SleepMs(int64_t ms);

// A made-up pod: its cgroup and containers in the hierarchies in which the engine may look, and in cpuacct for the truth.
class Pod {
 public:
  Pod();
  ~Pod();
  const std::string& uid() const { return uid_; }
  // Makes a container's cgroup; returns its name (64 hexadecimal digits).
  std::string AddContainer();
  void RemoveContainer(const std::string& container);
  // container may have a path below it; "" is the pod itself.
  void MakeBelow(const std::string& container, const std::string& child);
  void Join(const std::string& container, pid_t pid);
  // CPU time of all that ever ran in it, by the kernel's own accounting.
  int64_t CpuNs(const std::string& container) const;
  std::set<uint64_t> CgroupIds(const std::string& container) const;  // one for each hierarchy

 private:
  std::string uid_, path_;
  std::vector<std::string> made_;
};

// Moves a process to the root of all hierarchies.
void LeaveCgroups(pid_t pid);

// The share of all CPUs' time that the hypervisor took, between construction and now.
class StealMeter {
 public:
  StealMeter();
  double share() const;

 private:
  std::pair<uint64_t, uint64_t> start_;
};

struct RecordedSample {
  int64_t time_ns;
  pid_t tgid, tid;
  uint64_t space, cgroup_id;
  int64_t weight_ns;
  uint64_t job_mask;
  std::vector<uint64_t> kernel, user;
  borescope_loss end_reason;
  bool in_kernel;
  std::string comm;
};

struct RecordedMmap {
  engine::Mmap mmap;
  std::string build_id, path;
};

struct RecordedCgroup {
  engine::Cgroup cgroup;
  std::string name, pod_uid;
};

// Keeps everything; order_errors counts what came before something older.
class Recorder : public engine::Observer {
 public:
  void OnSample(const engine::Sample& s) override;
  void OnMmap(const engine::Mmap& m) override;
  void OnFork(const engine::Fork& f) override;
  void OnExec(const engine::Exec& e) override;
  void OnExit(const engine::Exit& e) override;
  void OnFound(const engine::Found& f) override;
  void OnCgroup(const engine::Cgroup& c) override;

  std::vector<RecordedSample> samples;
  std::vector<RecordedMmap> mmaps;
  std::vector<engine::Fork> forks;
  std::vector<engine::Exec> execs;
  std::vector<engine::Exit> exits;
  std::vector<engine::Found> found;
  std::vector<RecordedCgroup> cgroups;
  int64_t last_time_ns = 0;
  int order_errors = 0;

 private:
  void Order(int64_t time_ns);
};

// Drains every 50 ms until the time is over.
void DrainFor(engine::Engine& e, Recorder& r, int64_t ms);
// Drains until there is what the test waits for: 30 s at most, so that a busy machine only makes it slower.
void DrainUntil(engine::Engine& e, Recorder& r, const std::function<bool()>& enough);
int64_t BootNs();
int64_t MonoNs();

// An engine, or the test fails.
std::unique_ptr<engine::Engine> OpenEngine(engine::Options options = {});
// A job with a window from now on.
engine::Job JobFor(int frequency_hz, int64_t duration_ms);

}  // namespace borescope::oracle
