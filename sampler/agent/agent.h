// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/kube/config.h"
#include "common/metrics/metrics.h"
#include "sampler/agent/api_link.h"
#include "sampler/agent/job_figures.h"
#include "sampler/agent/job_machine.h"
#include "sampler/agent/metrics.h"
#include "sampler/engine/engine.h"
#include "sampler/guard/guard.h"
#include "sampler/guard/kernel_watch.h"
#include "sampler/naming/names.h"
#include "sampler/publish/introductions.h"
#include "sampler/publish/publisher.h"
#include "sampler/publish/samples_file.h"
#include "sampler/stacks/aggregator.h"
#include "sampler/targets/containers.h"
#include "sampler/targets/cpu_usage.h"
#include "sampler/unwind/tables.h"

namespace borescope::agent {

struct AgentOptions {
  engine::Options engine;
  kube::Config kube;
  std::string node;  // empty: the token's
  std::vector<publish::Sink> sinks;
  std::string samples_file;  // empty: none
  std::string unwind_cache;  // folder for unwind tables; empty: they are not kept
  size_t unwind_bytes = 64 << 20;  // of unwind tables in the kernel's memory
  std::string kernel_log = "/dev/kmsg";
  std::string version;
  metrics::Registry* registry = nullptr;
};

// The sampler of one node: carries out the jobs of its NodeSampler and reports on them. All of it runs on the thread that calls
// Run, but for what talks to the API server and to the sinks.
class Agent {
 public:
  static Result<std::unique_ptr<Agent>> Create(AgentOptions options);
  ~Agent();

  // Until stop_fd is readable; then publishes what is there, within about 5 s, and reports for the last time.
  void Run(int stop_fd);

  // Why no job could be taken just now; empty: ready. Any thread.
  std::string NotReady() const;
  // Brings what is not counted as it happens up to date, before a scrape. Any thread.
  void RefreshMetrics();

 private:
  class Fan;  // the engine's observer: containers, then stacks

  // What is there of a job beside its record in the machine.
  struct Runtime {
    Runtime(std::string profile_name, const api::JobReport* before) : figures(std::move(profile_name), before) {}
    JobFigures figures;
    std::string session;  // namespace/name
    std::map<std::string, api::NodePod> pods;  // by cgroup uid
    engine::JobId engine_id = -1;              // -1: not armed (any more)
    std::set<uint64_t> excluded;               // cgroups
    int arming = 0;                            // how many jobs this incarnation has armed, this one included
    int64_t armed_boot_ns = 0;
    int frequency_hz = 0;
    int64_t grid_mono_ns = 0, grid_real_ns = 0;  // one instant on both clocks, from which the windows are counted
    int64_t RealTime(int64_t mono_ns) const { return grid_real_ns + (mono_ns - grid_mono_ns); }
    int64_t next_window_mono_ns = 0;           // end of the window that is open
    bool window_cpu_read = false;              // the pods' CPU time at that end has been read
    int64_t resumed_real_ns = 0;               // an earlier incarnation had the job until some time before this
    int64_t used_before_ns = 0;                // engine's used_ns when the window began
    bool begun = false;
    int64_t used_at_end_ns = -1;               // engine's used_ns when the deadline passed
    int64_t next_progress_boot_ns = INT64_MAX;
    engine::JobCounters kernel;
    stacks::JobStats user;
    std::vector<stacks::Window> held;  // whose container is not named yet
  };

  explicit Agent(AgentOptions options);
  Status OpenEngine();
  // On the watch's thread.
  void OnKernelFault(const guard::KernelFault& fault);
  // After it, on our own: ends the jobs, tells it, takes the engine down for good.
  void Quarantine(Now now);
  // The kernel's log is followed while a job is armed.
  void WatchKernel();
  Status OpenTables(engine::Engine& engine);

  Now GetNow() const;
  static int64_t BootToMono(int64_t boot_ns);
  void Wait(int stop_fd);
  void Drain();
  bool TakeInbox(Now now);  // true: there was something
  void ApplySpec(Now now);
  void Apply(const std::vector<Action>& actions, Now now);
  void Arm(const std::string& job_id, Now now);
  void Finish(const std::string& job_id, Now now);
  void Settle(const std::string& job_id, Now now);
  void Forget(const std::string& job_id);
  void FollowPods(Runtime& runtime, const JobRecord& job);
  std::optional<int64_t> ReadPodsCpu(const Runtime& runtime);
  void WantPods();
  // A container of a job has got its name: in or out?
  void Choose(const std::string& job_id, uint64_t cgroup_id, Now now);
  // Takes a cgroup out of a job; returns the CPU time that had been sampled of it in the windows that are open.
  int64_t Exclude(Runtime& runtime, uint64_t cgroup_id);
  void OnNewContainer(const engine::Cgroup& event);
  // Begins the windows of a job anew; what they held is dropped.
  void RestartGrid(Runtime& runtime, int64_t start_mono_ns, int64_t start_real_ns);
  void OnNamedSample(const stacks::NamedSample& sample);
  void CloseWindows(Now now);
  void Publish(const std::string& job_id, Runtime& runtime, stacks::Window window);
  void FollowPublishing(Now now);
  void UpdateFigures(Now now);
  void Report(Now now);
  void SendReport();
  api::JobReport Compose(const JobRecord& job) const;
  void UpdateStatus();
  void AccountCost();
  void Shutdown();

  const AgentOptions options_;
  const std::string incarnation_, boot_id_;
  UniqueFd wake_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<unwind::Tables> tables_;  // these four come with the engine
  std::unique_ptr<naming::Names> names_;
  std::unique_ptr<stacks::Aggregator> aggregator_;
  std::unique_ptr<Fan> fan_;
  std::unique_ptr<publish::Publisher> publisher_;
  std::unique_ptr<publish::Introductions> introductions_;
  std::unique_ptr<publish::SamplesFile> samples_;
  std::unique_ptr<ApiLink> link_;
  targets::Containers containers_;
  targets::CpuUsage cpu_usage_;
  guard::Ledger ledger_;
  Metrics metrics_;
  JobMachine machine_;

  api::NodeSamplerSpec spec_;
  bool have_spec_ = false, have_report_ = false;
  std::map<std::string, Runtime> runtimes_;
  std::map<engine::JobId, std::string> job_of_engine_id_;
  int armings_ = 0;
  api::NodeSamplerReportStatus report_;
  api::NodeSamplerStatus status_;
  int64_t observed_generation_ = 0;
  int64_t next_account_mono_ns_ = 0, next_status_boot_ns_ = 0;
  std::string missing_;  // capabilities, and what is worse without them
  std::atomic<bool> publishing_changed_{false};

  mutable std::mutex shared_mutex_;  // what other threads read, or write
  std::optional<guard::KernelFault> kernel_fault_;
  bool quarantined_ = false;  // it has been acted upon
  std::atomic<bool> fault_seen_{false};
  std::string kernel_unwatched_;  // why the kernel's log is not followed
  Error engine_error_{};
  bool engine_ok_ = false;
  std::optional<bool> protected_;
  std::string unprotected_why_;
  engine::Counters engine_counters_;
  int64_t bare_tick_ns_ = 0;  // 0: could not be told
  int64_t children_ns_ = 0;

  std::unique_ptr<guard::KernelWatch> kernel_watch_;  // last: its thread uses the engine
};

}  // namespace borescope::agent
