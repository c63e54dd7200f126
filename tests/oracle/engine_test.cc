// SPDX-License-Identifier: Apache-2.0
// The engine against the kernel: needs root and BPF. Truth is the kernel's own accounting of CPU time, and the children's clocks.
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "support.h"

namespace borescope::oracle {
namespace {

// The bound on |sampled + lost - used|: 1 % + what the hypervisor took + 5 sigma of taking `used` in samples of one period.
double Tolerance(int64_t used_ns, int frequency_hz, double utilization, double steal) {
  double used = static_cast<double>(used_ns), period = 1e9 / frequency_hz;
  return used * (0.01 + steal) + 5 * std::sqrt(used * period * std::max(0.02, 1 - utilization));
}

int64_t LostNs(const engine::JobCounters& c) {
  int64_t ns = 0;
  for (const auto& l : c.loss) ns += l.ns;
  return ns;
}

// 2 to 9 ms of work and rest by turns, of random length.
[[noreturn]] void WorkAndRest(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (;;) {
    Spin(static_cast<int64_t>(2'000'000 + random() % 7'000'000));
    usleep(static_cast<useconds_t>(2'000 + random() % 7'000));
  }
}

// Runs body in a child with its own engine and pid numbers; what body returns is the child's exit status.
int InChild(const std::function<int()>& body) {
  Child child([&] { _exit(body()); });
  child.Go();
  return child.Wait();
}

struct Coverage {
  int64_t used, sampled, lost, engine_used;
  double steal, utilization;
  uint64_t samples;
};

// Two children of `load` in one container for `ms`; the container's own CPU accounting is the truth.
Coverage Cover(engine::Engine& e, int frequency_hz, int64_t ms, const std::function<void(uint64_t)>& load) {
  Pod pod;
  std::string container = pod.AddContainer();
  uint64_t seeds[] = {Random()(), Random()()};
  Child a([&] { load(seeds[0]); }), b([&] { load(seeds[1]); });
  pod.Join(container, a.pid());
  pod.Join(container, b.pid());
  a.Go();
  b.Go();
  StealMeter steal;
  engine::Job job = JobFor(frequency_hz, ms + 10'000);
  auto id = e.AddJob(job);
  EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().ToString());
  if (!id.ok()) return {};
  int64_t begin = pod.CpuNs(container);
  EXPECT_TRUE(e.SetPods(*id, {pod.uid()}).ok());
  Recorder r;
  DrainFor(e, r, ms);
  a.Kill();
  b.Kill();
  SleepMs(50);
  EXPECT_TRUE(e.Drain(r).ok());
  int64_t used = pod.CpuNs(container) - begin;
  auto c = e.counters(*id);
  e.RemoveJob(*id);
  double utilization = static_cast<double>(used) / (static_cast<double>(ms) * 1e6 * static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)));
  return {used, c.sampled_ns, LostNs(c), c.used_ns, steal.share(), utilization, c.samples};
}

void ExpectCovered(const Coverage& c, int frequency_hz) {
  std::cerr << frequency_hz << " Hz: sampled/used " << static_cast<double>(c.sampled) / static_cast<double>(c.used) << ", engine's used/used "
            << static_cast<double>(c.engine_used) / static_cast<double>(c.used) << ", lost " << c.lost << " ns, steal " << c.steal << ", utilization "
            << c.utilization << ", samples " << c.samples << "\n";
  EXPECT_NEAR(static_cast<double>(c.sampled + c.lost), static_cast<double>(c.used), Tolerance(c.used, frequency_hz, c.utilization, c.steal));
  EXPECT_LE(static_cast<double>(c.lost), 0.005 * static_cast<double>(c.used));
  // Our own sum over threads against the cgroup's: the scheduler brings running threads up to date once a tick.
  EXPECT_NEAR(static_cast<double>(c.engine_used), static_cast<double>(c.used), 0.005 * static_cast<double>(c.used) + 20e6);
}

TEST(EngineTest, SamplesOneProcessAndNothingElse) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child spinner(SpinForever), neighbour(SpinForever);
  spinner.Go();
  neighbour.Go();
  auto job = e->AddJob(JobFor(199, 60'000));
  ASSERT_TRUE(job.ok()) << job.error().ToString();
  auto status = e->AddProcess(*job, spinner.pid());
  ASSERT_TRUE(status.ok()) << status.error().ToString();
  Recorder r;
  DrainUntil(*e, r, [&] { return r.samples.size() > 100; });
  // It rests: what is walked after the last drain would be no sample of ours yet.
  ASSERT_EQ(kill(spinner.pid(), SIGSTOP), 0);
  DrainFor(*e, r, 50);
  auto total = e->counters();
  ASSERT_GT(r.samples.size(), 100u);
  for (const auto& s : r.samples) {
    EXPECT_EQ(s.tgid, spinner.pid());
    EXPECT_EQ(s.cgroup_id, 0u);
    EXPECT_FALSE(s.user.empty());
    EXPECT_GE(s.weight_ns, 1'000'000'000 / 199 * 3 / 4);
    EXPECT_LE(s.weight_ns, 1'000'000'000 / 199 * 5 / 4 + 1'000'000);
  }
  ASSERT_EQ(r.found.size(), 1u);
  EXPECT_EQ(r.found[0].tgid, spinner.pid());
  EXPECT_EQ(r.order_errors, 0);
  EXPECT_EQ(total.stack_walks, r.samples.size());
  EXPECT_GT(total.map_bytes, 8u << 20);
  EXPECT_GT(total.bpf_ns, 0);
  EXPECT_EQ(e->AddProcess(*job, 4'000'000).error().code, ErrorCode::kNotFound);
}

// Nothing of ours is in the kernel while there is no job.
TEST(EngineTest, IdleHoldsNoLinkAndNoEvent) {
  auto count = [] {
    int n = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code ignored;
      std::string target = std::filesystem::read_symlink(entry.path(), ignored);
      if (target.find("perf_event") != std::string::npos || target.find("bpf_link") != std::string::npos || target.find("bpf-link") != std::string::npos) ++n;
    }
    return n;
  };
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  EXPECT_EQ(count(), 0);
  auto a = e->AddJob(JobFor(49, 1000)), b = e->AddJob(JobFor(99, 1000));
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_GT(count(), 8);
  e->RemoveJob(*a);
  EXPECT_GT(count(), 8);
  e->RemoveJob(*b);
  EXPECT_EQ(count(), 0);
}

TEST(EngineTest, CoverageOfAContainer) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  std::vector<int> rates = {199};
  if (const char* is_long = getenv("BORESCOPE_LONG"); is_long != nullptr && *is_long != '\0') rates = {49, 99, 199};
  for (int hz : rates) {
    ExpectCovered(Cover(*e, hz, 8000, WorkAndRest), hz);
    ExpectCovered(Cover(*e, hz, 5000, [](uint64_t) { SpinForever(); }), hz);
  }
}

// Short processes: their run time is counted up to their very end, and after they are gone.
TEST(EngineTest, CoverageOfShortLivedProcesses) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  auto load = [](uint64_t) {
    for (;;) {
      pid_t pid = fork();
      if (pid == 0) {
        Spin(4'000'000);
        _exit(0);
      }
      waitpid(pid, nullptr, 0);
    }
  };
  ExpectCovered(Cover(*e, 499, 5000, load), 499);
}

// Busy for 30 % of a period of exactly 1 / rate, in step with the clock; returns never.
[[noreturn]] void Lockstep(int64_t period_ns, int64_t first_ns) {
  AllCapabilities all;
  sched_param fifo{.sched_priority = 10};
  sched_setscheduler(0, SCHED_FIFO, &fifo);
  for (int64_t at = first_ns;; at += period_ns) {
    timespec t{at / 1'000'000'000, at % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr);
    while (MonoNs() < at + period_ns * 3 / 10) {
    }
  }
}

// sampled / used of lockstep loads, one on each of two CPUs, that rest whenever a clock of fixed period ticks there.
//
// Not at the highest rate: some 15 us at each end of a burst were seen to be out of a cpu-clock's reach in a virtual machine (a tick
// that comes late meets the task that runs next), also with a period that is not in step: 5 % of bursts of 0.3 ms.
double LockstepRatio(bool fixed_period, int64_t ms, uint64_t* samples, double* tolerance) {
  constexpr int kHz = 333;
  constexpr int64_t kPeriod = 1'000'000'000 / kHz;
  auto e = OpenEngine({.fixed_period = fixed_period});
  auto job = e->AddJob(JobFor(kHz, ms + 20'000));
  EXPECT_TRUE(job.ok());
  int cpus = std::min(2, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  // The phase of each clock, from a process that always runs.
  std::vector<int64_t> ticks;
  for (int cpu = 0; cpu < cpus; ++cpu) {
    Child spinner([=] {
      AllCapabilities all;
      sched_param fifo{.sched_priority = 10};
      sched_setscheduler(0, SCHED_FIFO, &fifo);
      Pin(cpu);
      SpinForever();
    });
    spinner.Go();
    EXPECT_TRUE(e->AddProcess(*job, spinner.pid()).ok());
    Recorder r;
    DrainFor(*e, r, 200);
    EXPECT_FALSE(r.samples.empty());
    ticks.push_back(r.samples.empty() ? MonoNs() : r.samples.back().time_ns);
  }
  auto before = e->counters(*job);
  Pod pod;
  std::string container = pod.AddContainer();
  std::vector<std::unique_ptr<Child>> loads;
  for (int cpu = 0; cpu < cpus; ++cpu) {
    int64_t tick = ticks[static_cast<size_t>(cpu)];
    int64_t first = tick + ((MonoNs() - tick) / kPeriod + 100) * kPeriod + kPeriod * 35 / 100;
    loads.push_back(std::make_unique<Child>([=] {
      Pin(cpu);
      Lockstep(kPeriod, first);
    }));
    pod.Join(container, loads.back()->pid());
  }
  StealMeter steal;
  EXPECT_TRUE(e->SetPods(*job, {pod.uid()}).ok());
  for (auto& load : loads) load->Go();
  Recorder r;
  DrainFor(*e, r, ms);
  loads.clear();
  SleepMs(20);
  EXPECT_TRUE(e->Drain(r).ok());
  auto c = e->counters(*job);
  int64_t used = pod.CpuNs(container);
  *samples = c.samples - before.samples;
  *tolerance = Tolerance(used, kHz, 0.3, steal.share()) / static_cast<double>(used);
  double ratio = static_cast<double>(c.sampled_ns - before.sampled_ns + LostNs(c)) / static_cast<double>(used);
  std::cerr << "lockstep, " << (fixed_period ? "fixed" : "jittered") << " period: sampled/used " << ratio << ", " << *samples << " samples, tolerance " << *tolerance << "\n";
  return ratio;
}

TEST(EngineTest, LockstepIsCoveredBecauseOfJitter) {
  uint64_t samples = 0;
  double tolerance = 0, ratio = LockstepRatio(false, 28'000, &samples, &tolerance);
  EXPECT_NEAR(ratio, 1, tolerance);
  EXPECT_GE(samples, 5000u);
}

TEST(EngineTest, LockstepIsMissedWithoutJitter) {
  uint64_t samples = 0;
  double tolerance = 0, ratio = LockstepRatio(true, 4'000, &samples, &tolerance);
  EXPECT_TRUE(ratio < 0.5 || ratio > 1.5) << ratio;
}

// A sample's value is the period that ended with it, not the one with which the event was opened: between two ticks that hit a process
// which never rests lies that much time.
TEST(EngineTest, TheValueIsTheTimeSinceTheTickBefore) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child spinner([] {
    AllCapabilities all;
    sched_param fifo{.sched_priority = 10};
    sched_setscheduler(0, SCHED_FIFO, &fifo);
    Pin(0);
    SpinForever();
  });
  spinner.Go();
  auto job = e->AddJob(JobFor(199, 60'000));
  ASSERT_TRUE(job.ok() && e->AddProcess(*job, spinner.pid()).ok());
  Recorder r;
  DrainUntil(*e, r, [&] { return r.samples.size() > 1000; });
  ASSERT_GT(r.samples.size(), 1000u);
  size_t close = 0;
  std::set<int64_t> values;
  for (size_t i = 1; i < r.samples.size(); ++i) {
    double gap = static_cast<double>(r.samples[i].time_ns - r.samples[i - 1].time_ns), weight = static_cast<double>(r.samples[i].weight_ns);
    close += std::abs(gap - weight) < 0.03 * weight;
    values.insert(r.samples[i].weight_ns);
  }
  std::cerr << close << " of " << r.samples.size() - 1 << " values are within 3 % of the time since the tick before, " << values.size() << " different ones\n";
  EXPECT_GT(close, r.samples.size() * 8 / 10);  // the rest: new periods, and what the hypervisor and the limit on real-time processes take
}

TEST(EngineTest, NeighbourAndMovedProcessGiveNothing) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Pod wanted, other;
  std::string container = wanted.AddContainer(), busy = other.AddContainer();
  Child stays(SpinForever), leaves(SpinForever), neighbour(SpinForever), outside(SpinForever);
  wanted.Join(container, stays.pid());
  wanted.Join(container, leaves.pid());
  other.Join(busy, neighbour.pid());
  for (Child* c : {&stays, &leaves, &neighbour, &outside}) c->Go();
  auto job = e->AddJob(JobFor(999, 3000));
  ASSERT_TRUE(job.ok());
  auto walks_before = e->counters().stack_walks;
  ASSERT_TRUE(e->SetPods(*job, {wanted.uid()}).ok());
  Recorder r;
  DrainFor(*e, r, 1000);
  LeaveCgroups(leaves.pid());
  int64_t left = MonoNs();
  DrainFor(*e, r, 2100);
  size_t of_leaver = 0;
  for (const auto& s : r.samples) {
    EXPECT_TRUE(s.tgid == stays.pid() || s.tgid == leaves.pid()) << s.tgid;
    EXPECT_TRUE(wanted.CgroupIds(container).contains(s.cgroup_id));
    if (s.tgid == leaves.pid()) {
      ++of_leaver;
      EXPECT_LT(s.time_ns, left);
    }
  }
  EXPECT_GT(of_leaver, 50u);
  EXPECT_GT(r.samples.size(), of_leaver + 50u);
  auto c = e->counters(*job);
  EXPECT_EQ(e->counters().stack_walks - walks_before, r.samples.size() + c.loss[LOSS_RING_FULL].count);
  EXPECT_EQ(r.found.size(), 2u);
  ASSERT_EQ(r.cgroups.size(), 1u);
  EXPECT_EQ(r.cgroups[0].name, container);
  EXPECT_EQ(r.cgroups[0].pod_uid, wanted.uid());
}

// Containers made in the window: below a pod that has a cgroup already, and of a pod that has none yet.
TEST(EngineTest, ContainerMadeInTheWindowIsSampledFromItsStart) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Pod pod;
  auto job = e->AddJob(JobFor(499, 5000));
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(e->SetPods(*job, {pod.uid()}).ok());
  Recorder r;
  DrainFor(*e, r, 100);
  EXPECT_TRUE(r.cgroups.empty());
  std::string container = pod.AddContainer();
  auto ids = pod.CgroupIds(container);
  Child child(SpinForever);
  pod.Join(container, child.pid());
  int64_t started = MonoNs();
  child.Go();
  // Below it: what a container makes for itself is the container's.
  pod.MakeBelow(container, "inner");
  DrainFor(*e, r, 400);
  ASSERT_FALSE(r.samples.empty());
  EXPECT_LT(r.samples.front().time_ns - started, 100'000'000);
  size_t before = r.samples.size();
  pod.Join(container + "/inner", child.pid());
  DrainFor(*e, r, 400);
  EXPECT_GT(r.samples.size(), before + 20);
  for (const auto& s : r.samples) ASSERT_TRUE(ids.contains(s.cgroup_id));
  uint64_t container_id = r.samples.front().cgroup_id;
  ASSERT_EQ(r.cgroups.size(), 1u);
  EXPECT_EQ(r.cgroups[0].name, container);
  EXPECT_EQ(r.cgroups[0].cgroup.cgroup_id, container_id);

  // Left out by name: nothing more, and used stands still.
  e->ExcludeCgroup(*job, container_id);
  DrainFor(*e, r, 100);
  before = r.samples.size();
  auto used = e->counters(*job).used_ns;
  DrainFor(*e, r, 300);
  EXPECT_EQ(r.samples.size(), before);
  EXPECT_EQ(e->counters(*job).used_ns, used);

  child.Kill();
  pod.RemoveContainer(container + "/inner");
  pod.RemoveContainer(container);
  DrainFor(*e, r, 100);
  ASSERT_EQ(r.cgroups.size(), 2u);
  EXPECT_TRUE(r.cgroups[1].cgroup.removed);
}

// A container of which nobody has read when its job ends: the next job gets the same bit, and none of its samples.
TEST(EngineTest, AContainerMadeAsItsJobEndsIsNotTheNextJobs) {
  for (bool another_runs : {false, true}) {
    auto e = OpenEngine();
    ASSERT_TRUE(e);
    Pod first, second, third;
    Child resident([] { pause(); }), child(SpinForever);  // the resident tells both jobs the same hierarchy
    third.Join(third.AddContainer(), resident.pid());
    child.Go();
    Recorder r;
    if (another_runs) {
      auto other = e->AddJob(JobFor(199, 5000));
      ASSERT_TRUE(other.ok() && e->SetPods(*other, {third.uid()}).ok());
    }
    auto job = e->AddJob(JobFor(499, 5000));
    ASSERT_TRUE(job.ok() && e->SetPods(*job, {first.uid()}).ok());
    DrainFor(*e, r, 50);
    std::string container = first.AddContainer();
    first.Join(container, child.pid());
    e->RemoveJob(*job);
    usleep(30'000);  // the scheduler brings the sum of the run time up to date at its own ticks only
    r.samples.clear();
    auto walks = e->counters().stack_walks;
    auto next = e->AddJob(JobFor(499, 5000));
    ASSERT_TRUE(next.ok() && e->SetPods(*next, {second.uid()}).ok());
    EXPECT_EQ(*next, *job);
    DrainFor(*e, r, 400);
    EXPECT_TRUE(r.samples.empty()) << r.samples.size() << " samples, another job " << another_runs;
    EXPECT_EQ(e->counters().stack_walks, walks);
    EXPECT_EQ(e->counters(*next).used_ns, 0);
    child.Kill();
  }
}

// Tells the engine that no file of this program (and of what it forks) has an unwind table: stacks go by frame pointers, nothing is missing.
void PutNoTables(engine::Engine& e) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    size_t path = line.find('/');
    struct stat st;
    if (line.find("r-xp") == std::string::npos || path == std::string::npos || stat(line.substr(path).c_str(), &st) != 0) continue;
    unwind_file_key key{.inode = st.st_ino,
                        .size = static_cast<uint64_t>(st.st_size),
                        .mtime_sec = st.st_mtim.tv_sec,
                        .device = major(st.st_dev) << 20 | minor(st.st_dev),
                        .pad = 0};
    EXPECT_TRUE(e.table_memory().PutFile(key, 0).ok());
  }
}

TEST(EngineTest, WakesForANewContainer) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  PutNoTables(*e);  // a sample that asks for a table wakes, too
  Child busy(SpinForever);
  busy.Go();
  Pod pod;
  auto job = e->AddJob(JobFor(199, 5000));
  ASSERT_TRUE(job.ok() && e->SetPods(*job, {pod.uid()}).ok() && e->AddProcess(*job, busy.pid()).ok());
  fd_set set;
  auto readable = [&](int ms) {
    timeval t{ms / 1000, ms % 1000 * 1000};
    FD_ZERO(&set);
    FD_SET(e->wake_fd(), &set);
    return select(e->wake_fd() + 1, &set, nullptr, nullptr, &t) == 1;
  };
  Recorder r;
  ASSERT_TRUE(e->Drain(r).ok());
  EXPECT_FALSE(readable(200));  // samples do not wake
  pod.AddContainer();
  EXPECT_TRUE(readable(1000));
  ASSERT_TRUE(e->Drain(r).ok());
  EXPECT_EQ(r.cgroups.size(), 1u);
  EXPECT_FALSE(readable(200));
}

// The deadline is kept in the kernel: the process that owns the engine is stopped across it.
TEST(EngineTest, DeadlineHoldsWhileUserSpaceIsStopped) {
  Child spinner(SpinForever);
  spinner.Go();
  int out[2];
  ASSERT_EQ(pipe(out), 0);
  Child owner([&] {
    auto e = OpenEngine();
    engine::Job job = JobFor(499, 800);
    auto id = e->AddJob(job);
    if (!id.ok() || !e->AddProcess(*id, spinner.pid()).ok()) _exit(1);
    Recorder r;
    DrainFor(*e, r, 2000);
    int64_t boot_minus_mono = BootNs() - MonoNs();
    int64_t result[2] = {static_cast<int64_t>(r.samples.size()), r.samples.empty() ? 0 : r.samples.back().time_ns + boot_minus_mono - job.deadline_boot_ns};
    _exit(write(out[1], result, sizeof(result)) == sizeof(result) ? 0 : 1);
  });
  owner.Go();
  SleepMs(600);
  kill(owner.pid(), SIGSTOP);
  SleepMs(1200);
  kill(owner.pid(), SIGCONT);
  EXPECT_EQ(owner.Wait(), 0);
  int64_t result[2] = {};
  ASSERT_EQ(read(out[0], result, sizeof(result)), static_cast<ssize_t>(sizeof(result)));
  EXPECT_GT(result[0], 50);
  EXPECT_LE(result[1], 100'000'000) << "the last sample came so many ns after the deadline";
  EXPECT_GE(result[1], -200'000'000) << "sampling went on while the owner was stopped";
  close(out[0]);
  close(out[1]);
}

TEST(EngineTest, TwoJobsHaveTheirOwnTotals) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Pod pod;
  std::string container = pod.AddContainer();
  Child a(SpinForever), b(SpinForever);
  pod.Join(container, a.pid());
  pod.Join(container, b.pid());
  a.Go();
  b.Go();
  StealMeter steal;
  engine::Job slow_job = JobFor(49, 8000);
  auto slow = e->AddJob(slow_job);
  ASSERT_TRUE(slow.ok() && e->SetPods(*slow, {pod.uid()}).ok());
  int64_t slow_begin = pod.CpuNs(container);
  Recorder r;
  DrainFor(*e, r, 2000);
  engine::Job fast_job = JobFor(199, 4000);
  auto fast = e->AddJob(fast_job);
  ASSERT_TRUE(fast.ok() && e->SetPods(*fast, {pod.uid()}).ok());
  int64_t fast_begin = pod.CpuNs(container);
  // The truth at each job's deadline.
  auto cpu_at = [&](int64_t boot_ns) {
    DrainFor(*e, r, (boot_ns - BootNs()) / 1'000'000 - 60);
    usleep(static_cast<useconds_t>((boot_ns - BootNs()) / 1000));
    return pod.CpuNs(container);
  };
  int64_t fast_end = cpu_at(fast_job.deadline_boot_ns);
  int64_t slow_end = cpu_at(slow_job.deadline_boot_ns);
  DrainFor(*e, r, 200);
  double cpus = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  for (auto [id, hz, used, wall] : {std::tuple{*slow, 49, slow_end - slow_begin, 8.0}, {*fast, 199, fast_end - fast_begin, 4.0}}) {
    auto c = e->counters(id);
    std::cerr << hz << " Hz: sampled " << c.sampled_ns << " used " << c.used_ns << " cgroup " << used << "\n";
    EXPECT_NEAR(static_cast<double>(c.sampled_ns + LostNs(c)), static_cast<double>(used), Tolerance(used, hz, static_cast<double>(used) / 1e9 / wall / cpus, steal.share()));
    EXPECT_NEAR(static_cast<double>(c.used_ns), static_cast<double>(used), 0.005 * static_cast<double>(used) + 20e6);
  }
  // Both jobs saw both processes; a job's samples carry its bit alone (two clocks).
  for (const auto& s : r.samples) EXPECT_TRUE(s.job_mask == 1ull << *slow || s.job_mask == 1ull << *fast);
}

TEST(EngineTest, FifthRateIsThinnedOutOfTheNextHigher) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child spinner(SpinForever);
  std::vector<std::pair<int, engine::JobId>> jobs;
  spinner.Go();
  StealMeter steal;
  for (int hz : {49, 99, 199, 499, 333, 777}) {
    auto id = e->AddJob(JobFor(hz, 60'000));
    ASSERT_TRUE(id.ok()) << id.error().ToString();
    ASSERT_TRUE(e->AddProcess(*id, spinner.pid()).ok());
    jobs.emplace_back(hz, *id);
  }
  Recorder r;
  auto before = jobs;
  std::vector<engine::JobCounters> at_start;
  for (auto [hz, id] : jobs) at_start.push_back(e->counters(id));
  DrainFor(*e, r, 5000);
  spinner.Kill();
  DrainFor(*e, r, 50);
  for (size_t i = 0; i < jobs.size(); ++i) {
    auto [hz, id] = jobs[i];
    auto c = e->counters(id);
    double sampled = static_cast<double>(c.sampled_ns), used = static_cast<double>(c.used_ns);
    std::cerr << hz << " Hz: sampled/used " << sampled / used << ", " << c.samples << " samples\n";
    EXPECT_NEAR(sampled, used, used * (0.01 + steal.share()) + 5 * std::sqrt(used * 1e9 / hz) + 0.02e9);
    EXPECT_NEAR(static_cast<double>(c.samples), used / 1e9 * hz, 5 * std::sqrt(used / 1e9 * hz) + 0.02 * used / 1e9 * hz);
  }
}

TEST(EngineTest, KernelStacksOnlyForJobsThatWantThem) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child reader([] {
    int fd = open("/dev/zero", O_RDONLY);
    static char buffer[1 << 20];
    while (read(fd, buffer, sizeof(buffer)) > 0) {
    }
  });
  reader.Go();
  engine::Job without = JobFor(499, 60'000);
  without.kernel_stacks = false;
  auto a = e->AddJob(JobFor(499, 60'000)), b = e->AddJob(without);
  ASSERT_TRUE(a.ok() && b.ok() && e->AddProcess(*a, reader.pid()).ok() && e->AddProcess(*b, reader.pid()).ok());
  Recorder r;
  DrainUntil(*e, r, [&] { return std::ranges::count(r.samples, true, &RecordedSample::in_kernel) > 300; });
  size_t in_kernel = 0;
  for (const auto& s : r.samples) {
    if (s.job_mask == 1ull << *b) {
      EXPECT_TRUE(s.kernel.empty());
      continue;
    }
    if (!s.in_kernel) continue;
    ++in_kernel;
    EXPECT_FALSE(s.kernel.empty());
    for (uint64_t pc : s.kernel) EXPECT_GT(pc, 1ull << 63);
    EXPECT_FALSE(s.user.empty());  // where it entered the kernel
  }
  EXPECT_GT(in_kernel, 50u);
  EXPECT_NEAR(static_cast<double>(e->counters(*a).sampled_ns), static_cast<double>(e->counters(*b).sampled_ns), 0.1e9);
}

// A program that lives a few milliseconds is fully described after its death, in order: exec, its mappings with build ids, exit.
TEST(EngineTest, ShortLivedProgramIsDescribed) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child parent([] {
    for (int i = 0; i < 20; ++i) {
      pid_t pid = fork();
      if (pid == 0) {
        execl("/bin/true", "true", nullptr);
        _exit(1);
      }
      waitpid(pid, nullptr, 0);
      SleepMs(5);
    }
  });
  auto job = e->AddJob(JobFor(99, 60'000));
  ASSERT_TRUE(job.ok() && e->AddProcess(*job, parent.pid()).ok());
  parent.Go();
  Recorder r;
  DrainUntil(*e, r, [&] { return std::ranges::count(r.exits, true, &engine::Exit::group_dead) == 21; });
  ASSERT_EQ(r.forks.size(), 20u);
  ASSERT_EQ(r.execs.size(), 20u);
  for (size_t i = 0; i < r.execs.size(); ++i) {
    const auto& exec = r.execs[i];
    EXPECT_EQ(r.forks[i].tgid, exec.tgid);
    EXPECT_EQ(r.forks[i].parent_tgid, parent.pid());
    EXPECT_EQ(r.forks[i].space, exec.old_space);
    EXPECT_NE(exec.space, exec.old_space);
    auto exit = std::ranges::find_if(r.exits, [&](const auto& x) { return x.tgid == exec.tgid && x.group_dead; });
    ASSERT_NE(exit, r.exits.end());
    EXPECT_EQ(exit->space, exec.space);
    EXPECT_GT(exit->time_ns, exec.time_ns);
    bool program = false, libc = false;
    for (const auto& m : r.mmaps) {
      if (m.mmap.tgid != exec.tgid) continue;
      EXPECT_GT(m.mmap.time_ns, exec.time_ns);
      EXPECT_LT(m.mmap.time_ns, exit->time_ns);
      program |= m.path.ends_with("/true") && m.build_id.size() == 20;
      libc |= m.path.find("libc.so") != std::string::npos && m.build_id.size() == 20;
    }
    EXPECT_TRUE(program && libc);
  }
  EXPECT_EQ(r.order_errors, 0);
}

// A process with several threads, one of which ends, one of which execs.
TEST(EngineTest, ThreadsAreFollowed) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child child([] {
    std::thread spinner(SpinForever);
    std::thread ends([] { Spin(300'000'000); });
    ends.join();
    std::thread([] { execl("/bin/sh", "sh", "-c", "while :; do :; done", nullptr); }).join();
    SleepMs(100'000);
  });
  auto job = e->AddJob(JobFor(499, 60'000));
  ASSERT_TRUE(job.ok() && e->AddProcess(*job, child.pid()).ok());
  child.Go();
  Recorder r;
  DrainUntil(*e, r, [&] { return !r.execs.empty(); });
  ASSERT_EQ(r.execs.size(), 1u);
  DrainUntil(*e, r, [&] { return std::ranges::count(r.samples, r.execs[0].space, &RecordedSample::space) > 50; });
  std::set<pid_t> threads;
  size_t after = 0;
  for (const auto& s : r.samples) {
    EXPECT_EQ(s.tgid, child.pid());
    threads.insert(s.tid);
    if (s.space == r.execs[0].space) {
      ++after;
      EXPECT_EQ(s.tid, child.pid());  // the thread that called exec is the leader now
      EXPECT_EQ(s.comm, "sh");
    }
  }
  EXPECT_GE(threads.size(), 3u);
  EXPECT_GT(after, 20u);
  EXPECT_TRUE(std::ranges::any_of(r.exits, [&](const auto& x) { return x.tid != child.pid() && !x.group_dead; }));
  auto c = e->counters(*job);
  EXPECT_NEAR(static_cast<double>(c.sampled_ns), static_cast<double>(c.used_ns), 0.01 * static_cast<double>(c.used_ns) + 5 * std::sqrt(static_cast<double>(c.used_ns) * 2e6));
}

// A ring that is too small: what finds no room is counted, and the sum still holds.
TEST(EngineTest, WhatTheRingCannotTakeIsCountedAsLost) {
  auto e = OpenEngine({.ring_bytes = 4096});
  ASSERT_TRUE(e);
  // Its short-lived children fill the ring to the last byte, so that its own exit finds no room for certain.
  Child spinner([] {
    for (int64_t end = MonoNs() + 1'000'000'000; MonoNs() < end;) {
    }
    for (int i = 0; i < 100; ++i) {
      pid_t child = fork();
      if (child == 0) _exit(0);
      waitpid(child, nullptr, 0);
    }
    SpinForever();
  });
  spinner.Go();
  StealMeter steal;
  auto job = e->AddJob(JobFor(999, 60'000));
  ASSERT_TRUE(job.ok() && e->AddProcess(*job, spinner.pid()).ok());
  SleepMs(2000);
  pid_t pid = spinner.pid();
  spinner.Kill();
  Recorder r;
  auto gone = [&] { return std::ranges::any_of(r.exits, [&](const auto& x) { return x.group_dead && x.tgid == pid; }); };
  DrainUntil(*e, r, gone);
  auto c = e->counters(*job);
  EXPECT_GT(c.loss[LOSS_RING_FULL].count, 100u);
  EXPECT_EQ(c.samples, r.samples.size());
  EXPECT_NEAR(static_cast<double>(c.sampled_ns + LostNs(c)), static_cast<double>(c.used_ns), Tolerance(c.used_ns, 999, 0, steal.share()));
  // Its exit record was lost, too: it is found to be gone.
  EXPECT_TRUE(gone());
}

// Without shrink-wrapping: its innermost call has a frame as well.
__attribute__((noinline, optimize("no-shrink-wrap"))) void Recurse(int depth) {
  static volatile bool for_ever = true;
  if (depth == 0) {
    while (for_ever) asm volatile("" ::: "memory");
  } else {
    Recurse(depth - 1);
  }
  asm volatile("" ::: "memory");  // no tail call
}

// A stack of known depth is whole by frame pointers, and cheap.
TEST(EngineTest, StackOfKnownDepthAndItsPrice) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  PutNoTables(*e);
  std::vector<std::unique_ptr<Child>> children;
  int depth = 10 + static_cast<int>(Random()() % 40);
  for (int cpu = 0; cpu < sysconf(_SC_NPROCESSORS_ONLN); ++cpu) {
    children.push_back(std::make_unique<Child>([=] {
      Pin(cpu);
      Recurse(depth);
    }));
  }
  auto job = e->AddJob(JobFor(99, 60'000));
  ASSERT_TRUE(job.ok());
  for (auto& c : children) {
    ASSERT_TRUE(e->AddProcess(*job, c->pid()).ok());
    c->Go();
  }
  Recorder warm, r;
  DrainFor(*e, warm, 500);
  auto before = e->counters();
  DrainUntil(*e, r, [&] { return r.samples.size() > 400; });
  auto after = e->counters();
  ASSERT_GT(r.samples.size(), 400u);
  size_t whole = 0;
  for (const auto& s : r.samples) {
    std::map<uint64_t, int> times;
    int most = 0;
    for (uint64_t pc : s.user) most = std::max(most, ++times[pc]);
    whole += most == depth;  // the return address into Recurse
  }
  EXPECT_EQ(whole, r.samples.size());
  double us = static_cast<double>(after.bpf_ns - before.bpf_ns) / 1e3 / static_cast<double>(after.stack_walks - before.stack_walks);
  std::cerr << "user frames " << r.samples.back().user.size() << ": " << us << " us in BPF a sample, " << after.runs - before.runs << " ticks, "
            << after.stack_walks - before.stack_walks << " samples\n";
  EXPECT_LT(us, 50);
}

TEST(EngineTest, AllProcesses) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child a([] { WorkAndRest(1); }), b(SpinForever);
  a.Go();
  b.Go();
  auto job = e->AddJob(JobFor(199, 3000));
  StealMeter steal;
  ASSERT_TRUE(job.ok() && e->AddAllProcesses(*job).ok());
  Recorder r;
  DrainFor(*e, r, 3100);
  std::set<pid_t> seen, found;
  for (const auto& s : r.samples) seen.insert(s.tgid);
  for (const auto& f : r.found) found.insert(f.tgid);
  EXPECT_TRUE(seen.contains(a.pid()) && seen.contains(b.pid()));
  EXPECT_TRUE(found.contains(a.pid()) && found.contains(b.pid()) && found.contains(getpid()));
  EXPECT_FALSE(seen.contains(0));
  auto c = e->counters(*job);
  std::cerr << "all: sampled/used " << static_cast<double>(c.sampled_ns) / static_cast<double>(c.used_ns) << "\n";
  EXPECT_NEAR(static_cast<double>(c.sampled_ns), static_cast<double>(c.used_ns), static_cast<double>(c.used_ns) * (0.03 + steal.share()) + 5 * std::sqrt(static_cast<double>(c.used_ns) * 5e6));
}

// The node lives in a PID namespace, as in kind: all numbers are those of the engine's own namespace.
TEST(EngineTest, PidsAreThoseOfOurNamespace) {
  int status = InChild([] {
    {
      AllCapabilities all;
      if (unshare(CLONE_NEWPID) != 0) return 10;
    }
    return InChild([] {
      if (getpid() != 1) return 11;
      Child spinner(SpinForever);
      spinner.Go();
      auto e = OpenEngine();
      if (!e) return 12;
      auto job = e->AddJob(JobFor(499, 2000));
      if (!job.ok()) return 13;
      if (!e->AddProcess(*job, spinner.pid()).ok()) return 14;
      Recorder r;
      DrainFor(*e, r, 500);
      if (r.samples.empty() || r.found.size() != 1) return 15;
      for (const auto& s : r.samples) {
        if (s.tgid != spinner.pid() || s.tid != spinner.pid()) return 16;
      }
      // Processes outside the namespace have no number in it: they are not among "all".
      auto all = e->AddJob(JobFor(499, 2000));
      if (!all.ok() || !e->AddAllProcesses(*all).ok()) return 17;
      DrainFor(*e, r, 500);
      for (const auto& s : r.samples) {
        if (s.tgid == 0) return 18;
      }
      return 0;
    });
  });
  EXPECT_EQ(status, 0);
}

TEST(EngineTest, WorksWithExactlySixCapabilities) {
  Pod pod;
  std::string container = pod.AddContainer();
  Child spinner(SpinForever);
  pod.Join(container, spinner.pid());
  spinner.Go();
  EXPECT_EQ(InChild([&] {
    if (!KeepSixBut(-1)) return 10;
    auto e = OpenEngine();
    if (!e) return 11;
    auto job = e->AddJob(JobFor(499, 60'000));
    if (!job.ok() || !e->SetPods(*job, {pod.uid()}).ok()) return 12;
    Recorder r;
    DrainUntil(*e, r, [&] { return r.samples.size() >= 20; });
    if (r.samples.size() < 20 || r.cgroups.size() != 1 || r.found.size() != 1) return 13;
    return 0;
  }), 0);
}

// One removed: either the engine does not need it, or it says what failed, why, and what to add. Never a crash.
TEST(EngineTest, EachMissingCapabilityIsNamed) {
  for (auto [cap, name] : {std::pair{CAP_BPF, "CAP_BPF"}, {CAP_PERFMON, "CAP_PERFMON"}, {CAP_SYS_PTRACE, ""}, {CAP_CHECKPOINT_RESTORE, ""}, {CAP_DAC_READ_SEARCH, ""}, {CAP_SYSLOG, ""}}) {
    int out[2];
    ASSERT_EQ(pipe(out), 0);
    int status = InChild([&, cap = cap] {
      if (!KeepSixBut(cap)) return 10;
      auto e = engine::Engine::Open({});
      std::string text = e.ok() ? "" : e.error().ToString();
      if (e.ok()) {
        auto job = (*e)->AddJob(JobFor(99, 100));
        if (!job.ok()) text = job.error().ToString();
      } else if (e.error().code != ErrorCode::kDenied) {
        text += " (wrong code)";
      }
      return write(out[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 11;
    });
    EXPECT_EQ(status, 0);
    close(out[1]);
    char text[2000] = {};
    ssize_t n = read(out[0], text, sizeof(text) - 1);
    close(out[0]);
    std::string said(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    std::cerr << "without capability " << cap << ": " << (said.empty() ? "works" : said) << "\n";
    if (*name == '\0') {
      EXPECT_EQ(said, "");
    } else {
      EXPECT_NE(said.find(name), std::string::npos);
      EXPECT_NE(said.find("Operation not permitted"), std::string::npos);
      EXPECT_EQ(said.find("wrong code"), std::string::npos);
    }
  }
}

// The kernel's limit is lowered while two jobs run: the fast one is sampled at half of it, the slow one goes on, both still cover
// all CPU time. The limit is the real one.
TEST(EngineTest, FollowsALoweredSampleRateLimit) {
  const std::string path = "/proc/sys/kernel/perf_event_max_sample_rate";
  auto before = ReadFile(path, 64);
  ASSERT_TRUE(before.ok());
  struct Restore {
    std::string path, text;
    ~Restore() { std::ofstream(path) << text; }
  } restore{path, *before};
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  Child child([] { WorkAndRest(1); });
  auto fast = e->AddJob(JobFor(999, 60'000)), slow = e->AddJob(JobFor(49, 60'000));
  ASSERT_TRUE(fast.ok() && slow.ok());
  ASSERT_TRUE(e->AddProcess(*fast, child.pid()).ok());
  ASSERT_TRUE(e->AddProcess(*slow, child.pid()).ok());
  child.Go();
  Recorder seen;
  auto run = [&](int ms) {
    for (int64_t end = NowNs(CLOCK_MONOTONIC) + ms * 1'000'000LL; NowNs(CLOCK_MONOTONIC) < end; usleep(50'000)) ASSERT_TRUE(e->Drain(seen).ok());
  };
  run(1000);
  EXPECT_EQ(e->counters(*fast).lowest_hz, 999);
  std::ofstream(path) << "1000";
  if (auto now = ReadFile(path, 64); !now.ok() || *now != "1000\n") GTEST_SKIP() << "the limit cannot be set here";
  run(2500);  // it is looked at every 2 s
  EXPECT_EQ(e->counters(*fast).lowest_hz, 500);
  EXPECT_EQ(e->counters(*slow).lowest_hz, 49);
  StealMeter steal;
  auto begin = e->counters(*fast);
  run(3000);
  auto end = e->counters(*fast);
  double used = static_cast<double>(end.used_ns - begin.used_ns), sampled = static_cast<double>(end.sampled_ns - begin.sampled_ns);
  double ns_per_sample = sampled / static_cast<double>(end.samples - begin.samples);
  EXPECT_NEAR(ns_per_sample, 1e9 / 500, 1e9 / 500 * 0.1);
  std::cerr << "sampled / used " << sampled / used << " of " << used / 1e9 << " s\n";
  EXPECT_NEAR(sampled / used, 1, Tolerance(static_cast<int64_t>(used), 500, 0.5, steal.share()) / used);
  // A new job is told at once; one at which nothing is left is refused.
  auto third = e->AddJob(JobFor(999, 1000));
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(e->counters(*third).lowest_hz, 500);
  std::ofstream(path) << "1";
  auto none = e->AddJob(JobFor(99, 1000));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  std::ofstream(path) << *before;
  run(2500);
  EXPECT_EQ(e->counters(*fast).lowest_hz, 500) << "it stays told";
}

// A CPU goes and comes back, as /sys says: a file of ours, for taking a CPU of this machine away would disturb all others on it.
TEST(EngineTest, FollowsCpusThatComeAndGo) {
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "one CPU";
  char folder[] = "/tmp/borescope-sys.XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  std::filesystem::create_directories(std::string(folder) + "/devices/system/cpu");
  std::filesystem::create_symlink("/sys/kernel", std::string(folder) + "/kernel");
  auto online = [&](const char* cpus) { std::ofstream(std::string(folder) + "/devices/system/cpu/online") << cpus << "\n"; };
  online("0-1");
  engine::Options options;
  options.sys_root = folder;
  auto e = engine::Engine::Open(options);
  ASSERT_TRUE(e.ok()) << e.error().message;
  Child child([] {
    Pin(1);
    SpinForever();
  });
  auto job = (*e)->AddJob(JobFor(199, 60'000));
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE((*e)->AddProcess(*job, child.pid()).ok());
  child.Go();
  Recorder seen;
  auto samples = [&](int ms) {
    uint64_t before = (*e)->counters(*job).samples;
    for (int64_t end = NowNs(CLOCK_MONOTONIC) + ms * 1'000'000LL; NowNs(CLOCK_MONOTONIC) < end; usleep(50'000)) EXPECT_TRUE((*e)->Drain(seen).ok());
    return (*e)->counters(*job).samples - before;
  };
  EXPECT_GT(samples(1000), 20u);
  online("0");
  samples(2500);  // it is looked at every 2 s
  EXPECT_EQ(samples(1000), 0u);
  online("0-1");
  samples(2500);
  EXPECT_GT(samples(1000), 20u);
  std::filesystem::remove_all(folder);
}

TEST(EngineTest, ABareTickTakesMicroseconds) {
  int64_t tick = engine::MeasureBareTick();
  std::cerr << "bare tick " << tick << " ns\n";
  EXPECT_GT(tick, 300);
  EXPECT_LT(tick, 50'000);
}

// Truth: /proc/kallsyms.
TEST(EngineTest, NamesKernelFunctions) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  std::ifstream file("/proc/kallsyms");
  std::map<uint64_t, std::set<std::string>> names;  // aliases share an address
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string address, type, name;
    fields >> address >> type >> name;
    if (name == "_etext") break;  // data follow, and modules that come and go
    names[std::stoull(address, nullptr, 16)].insert(name);
  }
  ASSERT_GT(names.size(), 1000u) << "kallsyms hides addresses";
  std::vector<uint64_t> starts;
  for (const auto& [address, aliases] : names) starts.push_back(address);
  std::mt19937_64 random(Seed());
  int asked = 0;
  for (int i = 0; i < 2000; ++i) {
    size_t at = random() % (starts.size() - 1);
    uint64_t size = starts[at + 1] - starts[at];
    if (size > 1 << 16) continue;  // the last of its section
    auto name = e->NameKernel(starts[at] + random() % size);
    ASSERT_TRUE(name.ok()) << name.error().message;
    EXPECT_TRUE(names[starts[at]].contains(*name)) << std::hex << starts[at] << " is not " << *name;
    ++asked;
  }
  EXPECT_GT(asked, 1500);
  EXPECT_EQ(*e->NameKernel(0x1000), "");
  // Our own programs are there, attached or not.
  std::ifstream again("/proc/kallsyms");
  for (std::string line; std::getline(again, line);) {
    size_t at = line.find(" t bpf_prog_");
    if (at == std::string::npos || !line.ends_with("_name_kernel\t[bpf]")) continue;
    auto name = e->NameKernel(std::stoull(line, nullptr, 16));
    ASSERT_TRUE(name.ok());
    if (name->empty()) continue;  // another engine's, gone by now
    EXPECT_EQ(*name, line.substr(at + 3, line.find('\t') - at - 3) + " [bpf]");
    return;
  }
  FAIL() << "no bpf_prog_…_name_kernel in /proc/kallsyms";
}

TEST(EngineTest, BadInputIsRefused) {
  auto e = OpenEngine();
  ASSERT_TRUE(e);
  EXPECT_EQ(e->AddJob(JobFor(0, 100)).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(e->AddJob(JobFor(1000, 100)).error().code, ErrorCode::kInvalid);
  auto job = e->AddJob(JobFor(99, 100));
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(e->SetPods(*job, {"not-a-uid"}).error().code, ErrorCode::kInvalid);
  for (int i = 1; i < 64; ++i) ASSERT_TRUE(e->AddJob(JobFor(99, 100)).ok());
  EXPECT_EQ(e->AddJob(JobFor(99, 100)).error().code, ErrorCode::kExhausted);
}

}  // namespace
}  // namespace borescope::oracle
