// SPDX-License-Identifier: Apache-2.0
// Whole and true stacks, from the kernel to names: needs root and BPF. The truth is which function can call which.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "sampler/engine/engine.h"
#include "sampler/stacks/aggregator.h"
#include "sampler/unwind/tables.h"

namespace borescope::stacks {
namespace {

struct Counts {
  int samples = 0, whole = 0;
  int early = 0, early_whole = 0;  // in the first 100 ms
  int not_ready = 0, late_not_ready = 0;  // cut because the tables were still being made and no more raw samples allowed; after a second
  int wrong = 0;
  std::map<std::string, int> wrong_pairs, leaves, reasons;
  std::vector<std::string> examples;
};

using Grammar = std::map<std::string, std::set<std::string>>;  // callee: its possible callers

// Passes everything on, and measures.
class Meter : public engine::Observer {
 public:
  explicit Meter(Aggregator& to) : to_(to) {}
  void OnSample(const engine::Sample& s) override {
    size_t before = to_.memory_bytes();
    int64_t begin = NowNs(CLOCK_THREAD_CPUTIME_ID);
    to_.OnSample(s);
    int64_t ns = NowNs(CLOCK_THREAD_CPUTIME_ID) - begin;
    bool fresh = to_.memory_bytes() != before;
    (fresh ? fresh_ns : repeat_ns) += ns;
    ++(fresh ? fresh_count : repeat_count);
  }
  void OnMmap(const engine::Mmap& e) override { to_.OnMmap(e); }
  void OnFork(const engine::Fork& e) override { to_.OnFork(e); }
  void OnExec(const engine::Exec& e) override { to_.OnExec(e); }
  void OnExit(const engine::Exit& e) override { to_.OnExit(e); }
  void OnFound(const engine::Found& e) override { to_.OnFound(e); }
  void OnCgroup(const engine::Cgroup& e) override { to_.OnCgroup(e); }
  int64_t fresh_ns = 0, repeat_ns = 0, fresh_count = 0, repeat_count = 0;

 private:
  Aggregator& to_;
};

struct Outcome {
  Counts counts;
  std::vector<Window> windows;
  JobStats stats;
  std::vector<Cut> cuts;
};

// Samples a program for `ms`, or until it ends.
Outcome Sample(const std::vector<std::string>& command, int ms, const Grammar& grammar, bool end_of_its_own = false) {
  Outcome run;
  pid_t pid = fork();
  if (pid == 0) {
    raise(SIGSTOP);
    std::vector<char*> args;
    for (const auto& c : command) args.push_back(const_cast<char*>(c.c_str()));
    args.push_back(nullptr);
    execv(args[0], args.data());
    _exit(127);
  }
  waitpid(pid, nullptr, WUNTRACED);
  auto engine = engine::Engine::Open({});
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  if (!engine.ok()) return run;
  auto tables = unwind::Tables::Create({.memory = &(*engine)->table_memory(), .compiler = STACKS_COMPILER, .cache_directory = ""});
  EXPECT_TRUE(tables.ok()) << (tables.ok() ? "" : tables.error().message);
  if (!tables.ok()) return run;
  int64_t start_ns = NowNs(CLOCK_MONOTONIC);
  Options options;
  auto names = naming::Names::Create({.program = STACKS_NAMES});
  EXPECT_TRUE(names.ok()) << (names.ok() ? "" : names.error().message);
  if (!names.ok()) return run;
  options.tables = tables->get();
  options.names = names->get();
  options.kernel_names = [&](uint64_t address) { return (*engine)->NameKernel(address); };
  Counts& counts = run.counts;
  options.on_sample = [&](const NamedSample& s) {
    if (s.raw->user_pcs.empty()) return;
    ++counts.samples;
    counts.whole += s.end_reason == LOSS_NONE;
    bool early = s.raw->time_ns < start_ns + 100'000'000;
    counts.early += early;
    counts.not_ready += s.end_reason == LOSS_TABLES_NOT_READY;
    counts.late_not_ready += s.end_reason == LOSS_TABLES_NOT_READY && s.raw->time_ns > start_ns + 2'000'000'000;
    counts.early_whole += early && s.end_reason == LOSS_NONE;
    // What really called: without what the compiler put into it.
    std::vector<NamedFrame> frames;
    for (const NamedFrame& frame : *s.frames) {
      if (!frame.inlined) frames.push_back(frame);
    }
    size_t user = s.raw->kernel_pcs.size();
    ++counts.leaves[frames[user].name];
    std::string text;
    for (size_t i = user; i < frames.size(); ++i) text += frames[i].name + " <- ";
    if (s.end_reason != LOSS_NONE) ++counts.reasons[frames.back().name];
    if (s.end_reason != LOSS_NONE && counts.examples.size() < 5) counts.examples.push_back(text);
    for (size_t i = user; i < frames.size(); ++i) {
      const NamedFrame& f = frames[i];
      if (f.name.starts_with("[truncated") || i + 1 >= frames.size()) continue;
      const NamedFrame& caller = frames[i + 1];
      if (caller.name.starts_with("[truncated")) continue;
      auto it = grammar.find(f.name);
      if (it != grammar.end() && !it->second.contains(caller.name) && !it->second.contains(caller.location)) {
        ++counts.wrong;
        ++counts.wrong_pairs[f.name + " <- " + caller.name];
      }
    }
  };
  auto aggregator = Aggregator::Create(options);
  engine::Job job;
  job.frequency_hz = 999;
  job.start_boot_ns = NowNs(CLOCK_BOOTTIME);
  job.deadline_boot_ns = job.start_boot_ns + 60'000'000'000;
  auto id = (*engine)->AddJob(job);
  EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
  if (!id.ok()) return run;
  JobOptions job_options;
  job_options.start_mono_ns = NowNs(CLOCK_MONOTONIC);
  job_options.frequency_hz = 999;
  job_options.split_by_process = true;
  aggregator->StartJob(*id, job_options);
  EXPECT_TRUE((*engine)->AddProcess(*id, pid).ok());
  kill(pid, SIGCONT);
  Meter meter(*aggregator);
  int64_t end = NowNs(CLOCK_MONOTONIC) + int64_t{ms} * 1'000'000;
  bool running = true;
  while (running && NowNs(CLOCK_MONOTONIC) < end) {
    pollfd wake[] = {{(*engine)->wake_fd(), POLLIN, 0}, {(*tables)->wake_fd(), POLLIN, 0}, {(*names)->wake_fd(), POLLIN, 0}};
    poll(wake, 3, 100);
    EXPECT_TRUE((*engine)->Drain(meter).ok());
    aggregator->Poll(NowNs(CLOCK_MONOTONIC));
    if (end_of_its_own) running = waitpid(pid, nullptr, WNOHANG) == 0;
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_TRUE((*engine)->Drain(meter).ok());
  for (int i = 0; i < 50 && (aggregator->held(*id) > 0 || aggregator->AwaitsNames(*id, INT64_MAX, true)); ++i) {
    usleep(100'000);
    aggregator->Poll(NowNs(CLOCK_MONOTONIC));
  }
  run.windows = aggregator->CloseWindows(*id, NowNs(CLOCK_MONOTONIC), true);
  run.stats = aggregator->stats(*id);
  run.cuts = aggregator->cuts(*id);
  printf("%s: %d samples, %d whole; of the first 100 ms %d, whole %d; wrong %d\n", command[0].c_str(), counts.samples, counts.whole, counts.early,
         counts.early_whole, counts.wrong);
  printf("new stacks: %ld, %.1f us each; repeats: %ld, %.2f us each; memory %zu KiB\n", meter.fresh_count,
         static_cast<double>(meter.fresh_ns) / 1e3 / static_cast<double>(std::max<int64_t>(1, meter.fresh_count)), meter.repeat_count,
         static_cast<double>(meter.repeat_ns) / 1e3 / static_cast<double>(std::max<int64_t>(1, meter.repeat_count)),
         aggregator->memory_bytes() >> 10);
  for (const auto& [pair, n] : counts.wrong_pairs) printf("  wrong %5d %s\n", n, pair.c_str());
  for (const auto& [reason, n] : counts.reasons) printf("  %s: %d\n", reason.c_str(), n);
  for (const auto& text : counts.examples) printf("  not whole: %s\n", text.c_str());
  return run;
}

const Grammar kNative = {
    {"leaf_spin", {"level3", "level2"}},
    {"level3", {"level2"}},
    {"level2", {"level1"}},
    {"level1", {"round_of_work", "short_spin"}},
    {"compare_work", {"compare"}},
    {"compare", {"libc.so.6", "msort_with_tmp", "msort_with_tmp.part.0", "__qsort_r", "qsort_r"}},  // with libc's debug file it has names
    {"do_sort", {"round_of_work"}},
    {"do_copy", {"round_of_work"}},
    {"round_of_work", {"main", "thread_body"}},
    {"short_spin", {"main"}},
    {"main", {"libc.so.6", "__libc_start_call_main"}},
};

TEST(Stacks, NativeThreadsQsortAndMemcpy) {
  Outcome run = Sample({STACKS_WORKLOAD}, 3000, kNative);
  EXPECT_GT(run.counts.samples, 400);
  EXPECT_EQ(run.counts.wrong, 0);
  EXPECT_GE((run.counts.whole + run.counts.not_ready) * 1000, run.counts.samples * 995);
  EXPECT_EQ(run.counts.late_not_ready, 0);
  // With nothing compiled before: the first samples waited for their tables.
  EXPECT_GT(run.counts.early, 5);
  EXPECT_GE(run.counts.early_whole, run.counts.early - 1);
  EXPECT_LT(run.stats.unsymbolized * 10, run.stats.collected);  // memcpy of a stripped libc has no name
  ASSERT_EQ(run.windows.size(), 1u);
  const Window& w = run.windows[0];
  EXPECT_EQ(w.language, "cpp");
  EXPECT_EQ(w.comm, "stacks_workload");
  ASSERT_FALSE(w.profile.mappings().empty());
  EXPECT_TRUE(w.profile.mappings()[0].filename.ends_with("/stacks_workload"));
  EXPECT_FALSE(w.profile.mappings()[0].build_id.empty());
  EXPECT_EQ(w.profile.Total(0), static_cast<int64_t>(run.stats.collected));
  EXPECT_EQ(w.profile.Total(1), run.stats.sampled_ns);
}

TEST(Stacks, ProcessesOfFiveMillisecondsHaveNames) {
  Outcome run = Sample({STACKS_WORKLOAD, "forks", "200"}, 20000, kNative, true);
  EXPECT_EQ(run.counts.wrong, 0);
  int named = run.counts.leaves["leaf_spin"] + run.counts.leaves["level3"];
  EXPECT_GT(named, 500);  // 200 processes of 5 ms at 999 Hz
  EXPECT_GE(run.counts.whole * 100, run.counts.samples * 98);  // the dynamic loader's lazy binding keeps its CFA in rbx
  int processes = 0, with_program = 0;
  for (const Window& w : run.windows) {
    if (w.profile.Total(0) < 3) continue;
    ++processes;
    with_program += !w.profile.mappings().empty() && w.profile.mappings()[0].filename.ends_with("/stacks_workload");
  }
  EXPECT_GT(processes, 100);
  EXPECT_GE(with_program, processes * 95 / 100);
}

TEST(Stacks, GoReachesTheGoroutinesStart) {
  if (access(STACKS_WORKLOAD_GO, X_OK) != 0) GTEST_SKIP() << "no Go here";
  Grammar go = {
      {"main.leafSpin", {"main.level3", "main.level2"}},
      {"main.level3", {"main.level2"}},
      {"main.level2", {"main.level1"}},
      {"main.level1", {"main.round"}},
      {"main.round", {"main.worker"}},
      {"main.doSort", {"main.round"}},
      {"main.worker", {"main.main", "main.main.gowrap1", "runtime.goexit.abi0"}},
      {"main.main", {"runtime.main"}},
      {"runtime.main", {"runtime.goexit.abi0"}},
  };
  Outcome run = Sample({STACKS_WORKLOAD_GO}, 3000, go);
  EXPECT_GT(run.counts.samples, 400);
  EXPECT_EQ(run.counts.wrong, 0);
  EXPECT_GE((run.counts.whole + run.counts.not_ready) * 100, run.counts.samples * 98);
  ASSERT_FALSE(run.windows.empty());
  EXPECT_EQ(run.windows[0].language, "go");
}

}  // namespace
}  // namespace borescope::stacks
