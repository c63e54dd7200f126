// SPDX-License-Identifier: Apache-2.0
// The aggregator with the events that the kernel would send, about this very process.
#include "sampler/stacks/aggregator.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "sampler/symbols/proc_maps.h"

namespace borescope::stacks {
namespace {

constexpr pid_t kGone = 0x3fffffff;  // no process has this number

struct Walked {
  std::vector<uint64_t> pcs;
  uint64_t sp, bp;
};

__attribute__((noinline)) Walked WalkHere() {
  Walked w;
  auto* frame = static_cast<uint64_t*>(__builtin_frame_address(0));
  w.pcs.push_back(reinterpret_cast<uint64_t>(&&here));
here:
  w.bp = reinterpret_cast<uint64_t>(frame);
  w.sp = w.bp - 64;
  while (frame && w.pcs.size() < 100) {
    w.pcs.push_back(frame[1]);
    auto* next = reinterpret_cast<uint64_t*>(frame[0]);
    if (next <= frame || next > frame + (1 << 17)) break;
    frame = next;
  }
  return w;
}

extern "C" __attribute__((noinline)) void borescope_test_inner(Walked* w) {
  *w = WalkHere();
  asm volatile("" ::: "memory");
}
extern "C" __attribute__((noinline)) void borescope_test_outer(Walked* w) {
  borescope_test_inner(w);
  asm volatile("" ::: "memory");
}

class AggregatorTest : public ::testing::Test {
 protected:
  void Start(size_t max_stacks = 1000, bool split = false) {
    Options options;
    options.max_stacks = max_stacks;
    options.on_sample = [this](const NamedSample& s) {
      names_.clear();
      for (const auto& f : *s.frames) names_.push_back(f.name);
      reason_ = s.end_reason;
    };
    aggregator_ = Aggregator::Create(options);
    JobOptions job;
    job.start_mono_ns = 1000;
    job.window_ns = 100;
    job.frequency_hz = 100;
    job.split_by_process = split;
    aggregator_->StartJob(3, job);
  }
  engine::Sample Make(int64_t time, const std::vector<uint64_t>& user, const std::vector<uint64_t>& kernel = {}) {
    engine::Sample s;
    s.time_ns = time;
    s.tgid = s.tid = getpid();
    s.space = 1;
    s.cgroup_id = 7;
    s.weight_ns = 10;
    s.job_mask = 1 << 3;
    kept_.push_back(std::make_unique<std::vector<uint64_t>>(user));
    s.user_pcs = *kept_.back();
    kept_.push_back(std::make_unique<std::vector<uint64_t>>(kernel));
    s.kernel_pcs = *kept_.back();
    s.comm = "thread";
    return s;
  }

  std::vector<std::unique_ptr<std::vector<uint64_t>>> kept_;  // what samples point to
  std::unique_ptr<Aggregator> aggregator_;
  std::vector<std::string> names_;
  borescope_loss reason_ = LOSS_NONE;
};

TEST_F(AggregatorTest, NamesOurOwnStackUpToMain) {
  Start();
  Walked w;
  borescope_test_outer(&w);
  engine::Sample s = Make(1010, w.pcs);
  s.user_sp = w.sp;
  s.user_bp = w.bp;
  s.end_reason = LOSS_BAD_FRAME_POINTER;  // what lies behind main
  aggregator_->OnSample(s);
  ASSERT_GE(names_.size(), 3u);
  EXPECT_EQ(names_[0], "borescope::stacks::(anonymous namespace)::WalkHere");
  EXPECT_EQ(names_[1], "borescope_test_inner");
  EXPECT_EQ(names_[2], "borescope_test_outer");
  EXPECT_NE(names_.back(), "");
  JobStats stats = aggregator_->stats(3);
  EXPECT_EQ(stats.collected, 1u);
  EXPECT_EQ(stats.unsymbolized, 0u);
}

TEST_F(AggregatorTest, WindowsAreAlignedAndSumUp) {
  Start();
  std::vector<uint64_t> kernel{0xffffffff81000500, 0xffffffff81000600};
  for (int64_t t : {1000, 1099, 1100, 1250}) aggregator_->OnSample(Make(t, {}, kernel));
  auto other = Make(1050, {}, kernel);
  other.cgroup_id = 8;
  aggregator_->OnSample(other);
  aggregator_->Exclude(3, 9);
  other.cgroup_id = 9;
  aggregator_->OnSample(other);
  other.cgroup_id = 8;
  other.job_mask = 1 << 4;  // nobody's
  aggregator_->OnSample(other);

  auto closed = aggregator_->CloseWindows(3, 1199, false);
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_EQ(closed[0].start_mono_ns, 1000);
  EXPECT_EQ(closed[0].end_mono_ns, 1100);
  EXPECT_EQ(closed[0].cgroup_id, 7u);
  EXPECT_EQ(closed[0].profile.Total(0), 2);
  EXPECT_EQ(closed[0].profile.Total(1), 20);
  EXPECT_EQ(closed[0].profile.samples().size(), 1u);
  EXPECT_EQ(closed[0].profile.period, 10'000'000);
  EXPECT_EQ(closed[0].profile.default_sample_type, "cpu");
  EXPECT_EQ(closed[1].cgroup_id, 8u);
  aggregator_->OnSample(Make(1001, {}, kernel));  // late: its window is closed, it goes into the oldest open one
  closed = aggregator_->CloseWindows(3, 1270, true);
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_EQ(closed[0].start_mono_ns, 1100);
  EXPECT_EQ(closed[0].profile.Total(0), 2);
  EXPECT_EQ(closed[1].end_mono_ns, 1270);
  EXPECT_EQ(closed[1].profile.duration_ns, 70);
  EXPECT_EQ(aggregator_->stats(3).collected, 6u);
  for (const auto& location : closed[0].profile.locations()) EXPECT_LT(location.address, uint64_t{1} << 40);  // not where the kernel lies
}

TEST_F(AggregatorTest, SplitsByProcess) {
  Start(1000, true);
  aggregator_->OnSample(Make(1001, {}, {0xffffffff81000500}));
  auto other = Make(1002, {}, {0xffffffff81000500});
  other.tgid = kGone;
  other.comm = "gone";
  aggregator_->OnSample(other);
  auto closed = aggregator_->CloseWindows(3, 2000, false);
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_EQ(closed[0].tgid, getpid());
  EXPECT_EQ(closed[1].tgid, kGone);
  EXPECT_EQ(closed[1].comm, "gone");
}

// A mapping of our own program, told of a process that has ended before we hear of it.
TEST_F(AggregatorTest, AProcessIsNamedAfterItsDeath) {
  Start();
  auto maps = symbols::ParseMaps(*ReadFile("/proc/self/maps"), 1000);
  auto pc = reinterpret_cast<uint64_t>(&borescope_test_outer);
  engine::Mmap mmap;
  for (const auto& m : maps) {
    if (pc < m.start || pc >= m.end) continue;
    mmap.start = m.start + 0x10000000;
    mmap.length = m.end - m.start;
    mmap.file_offset = m.offset;
    mmap.device_major = m.device_major;
    mmap.device_minor = m.device_minor;
    mmap.inode = m.inode;
    mmap.path = m.path;
    mmap.tgid = mmap.tid = kGone;
    mmap.time_ns = 1001;
    aggregator_->OnFork({1000, getpid(), kGone, 1, 0});
    aggregator_->OnExec({1000, kGone, 2, 1, 0, "short"});
    aggregator_->OnMmap(mmap);
    aggregator_->OnExit({1002, kGone, kGone, 2, 0, true});
    auto s = Make(1002, {pc + 0x10000000 + 1});
    s.tgid = kGone;
    s.space = 2;
    s.cgroup_id = 0;
    aggregator_->OnSample(s);
  }
  ASSERT_FALSE(names_.empty());
  EXPECT_EQ(names_[0], "borescope_test_outer");
  auto closed = aggregator_->CloseWindows(3, 2000, false);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].comm, "short");
  EXPECT_EQ(closed[0].language, "cpp");
  ASSERT_FALSE(closed[0].profile.mappings().empty());
  EXPECT_EQ(closed[0].profile.mappings()[0].filename, mmap.path);
}

TEST_F(AggregatorTest, ForkSharesAndExecReplaces) {
  Start();
  auto pc = reinterpret_cast<uint64_t>(&borescope_test_outer) + 1;
  aggregator_->OnFound({1000, getpid(), 1, 7, "me"});
  aggregator_->OnFork({1001, getpid(), kGone, 1, 7});
  auto s = Make(1002, {pc});
  s.tgid = kGone;
  aggregator_->OnSample(s);
  ASSERT_FALSE(names_.empty());
  EXPECT_EQ(names_[0], "borescope_test_outer");
  aggregator_->OnExec({1003, kGone, 2, 1, 7, "other"});
  s = Make(1004, {pc});
  s.tgid = kGone;
  s.space = 2;
  aggregator_->OnSample(s);
  EXPECT_TRUE(names_[0].starts_with("[unknown]+0x")) << names_[0];
  EXPECT_EQ(aggregator_->stats(3).unsymbolized, 1u);
}

// What is mapped over something gives its addresses another meaning.
TEST_F(AggregatorTest, ANewMappingReplacesTheOld) {
  Start();
  auto pc = reinterpret_cast<uint64_t>(&borescope_test_outer) + 1;
  aggregator_->OnSample(Make(1001, {pc}));
  EXPECT_EQ(names_[0], "borescope_test_outer");
  engine::Mmap mmap;
  mmap.time_ns = 1002;
  mmap.tgid = getpid();
  mmap.start = pc & ~0xfffull;
  mmap.length = 0x1000;
  mmap.path = "//anon";
  aggregator_->OnMmap(mmap);
  aggregator_->OnSample(Make(1003, {pc}));
  EXPECT_TRUE(names_[0].starts_with("[anonymous]+0x")) << names_[0];
}

TEST_F(AggregatorTest, AFullTableIsALossAndMakesRoomLater) {
  Start(8);
  for (uint64_t i = 0; i < 20; ++i) aggregator_->OnSample(Make(1001, {}, {0xffffffff81000500 + i}));
  JobStats stats = aggregator_->stats(3);
  EXPECT_EQ(stats.collected, 8u);
  EXPECT_EQ(stats.loss[LOSS_STACK_TABLE_FULL].count, 12u);
  EXPECT_EQ(stats.loss[LOSS_STACK_TABLE_FULL].ns, 120);
  auto closed = aggregator_->CloseWindows(3, 1100, false);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].profile.Total(0), 8);
  for (uint64_t i = 0; i < 8; ++i) aggregator_->OnSample(Make(5'000'000'000, {}, {0xffffffff81100500 + i}));
  EXPECT_EQ(aggregator_->stats(3).collected, 16u);
  EXPECT_EQ(aggregator_->CloseWindows(3, 6'000'000'000, true)[0].profile.samples().size(), 8u);
}

TEST_F(AggregatorTest, FramesBeyondTheLimitAreALoss) {
  Start(1 << 17);
  constexpr uint64_t kEach = 1024;
  std::vector<uint64_t> kernel(kEach);
  uint64_t at = 0xffffffff81000500;
  for (int i = 0; i < 300; ++i) {
    for (uint64_t& pc : kernel) pc = at += 16;
    aggregator_->OnSample(Make(1001, {}, kernel));
  }
  auto stats = aggregator_->stats(3);
  EXPECT_GE(stats.collected, 256u);
  EXPECT_LE(stats.collected, 257u);
  EXPECT_EQ(stats.loss[LOSS_STACK_TABLE_FULL].count, 300 - stats.collected);
  auto unknown = Make(1002, {0x1000});  // a new leaf has no room either
  aggregator_->OnSample(unknown);
  EXPECT_EQ(aggregator_->stats(3).loss[LOSS_STACK_TABLE_FULL].count, 301 - stats.collected);
  aggregator_->CloseWindows(3, 1100, false);
  unknown.time_ns = 5'000'000'000;
  aggregator_->OnSample(unknown);
  EXPECT_EQ(aggregator_->stats(3).collected, stats.collected + 1);
}

TEST_F(AggregatorTest, ACutHasAFrameAtTheRoot) {
  Start();
  auto s = Make(1001, {}, {0xffffffff81000500});
  s.end_reason = LOSS_NO_USER_REGS;
  aggregator_->OnSample(s);
  EXPECT_EQ(names_.back(), "[truncated: user registers not available]");
  EXPECT_EQ(aggregator_->stats(3).loss[LOSS_NO_USER_REGS].count, 1u);
  EXPECT_EQ(aggregator_->stats(3).truncated, 1u);
  auto profile = aggregator_->CloseWindows(3, 2000, false)[0].profile;
  ASSERT_EQ(profile.samples().size(), 1u);
  const auto& root = profile.locations()[profile.samples()[0].locations.back()];
  EXPECT_EQ(root.mapping, profile::kNone);
  EXPECT_EQ(profile.functions()[root.lines[0].function].name, "[truncated: user registers not available]");
}

TEST_F(AggregatorTest, PerfMapsNameCodeMadeAtRunTime) {
  std::string path = "/tmp/perf-" + std::to_string(symbols::ParseInnermostPid(*ReadFile("/proc/self/status"))) + ".map";
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  memcpy(page, "\x55\x48\x89\xe5\x90\x90\x90\xc3", 8);
  auto base = reinterpret_cast<uint64_t>(page);
  auto line = [&](uint64_t at, const char* name) {
    char text[128];
    snprintf(text, sizeof(text), "%lx 40 %s\n", at, name);
    std::ofstream(path, std::ios::app) << text;
  };
  line(base, "jit_first");
  Start();
  aggregator_->OnSample(Make(1001, {base + 5}));
  EXPECT_EQ(names_[0], "jit_first");
  aggregator_->OnSample(Make(1002, {base + 0x85}));
  EXPECT_TRUE(names_[0].starts_with("[anonymous]+0x")) << names_[0];
  line(base + 0x80, "jit_second");
  aggregator_->OnSample(Make(2'000'001'002, {base + 0x86}));
  EXPECT_EQ(names_[0], "jit_second");
  aggregator_->OnSample(Make(2'000'001'003, {base + 0x85}));  // what had no name is looked up again
  EXPECT_EQ(names_[0], "jit_second");
  unlink(path.c_str());
  munmap(page, 4096);
}

// A tenant may write what he likes into his perf map: a line without end is not read again, and forks share what was read.
TEST_F(AggregatorTest, PerfMapsAreBounded) {
  std::string path = "/tmp/perf-" + std::to_string(symbols::ParseInnermostPid(*ReadFile("/proc/self/status"))) + ".map";
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto base = reinterpret_cast<uint64_t>(page);
  char line[128];
  {
    std::ofstream file(path);
    file << std::string(1 << 20, 'x');  // four parts without a line
    snprintf(line, sizeof(line), "\n%lx 40 jit_first\n", base);
    file << line;
    for (int i = 0; i < 100000; ++i) {
      snprintf(line, sizeof(line), "%x 10 some_name_that_takes_room\n", 0x1000 + 16 * i);
      file << line;
    }
  }
  Start();
  aggregator_->OnSample(Make(1001, {base + 5}));
  EXPECT_EQ(names_[0], "jit_first");
  size_t before = aggregator_->memory_bytes();
  EXPECT_GT(before, 4'000'000u);
  for (pid_t child = kGone; child < kGone + 20; ++child) {
    aggregator_->OnFork({1002, getpid(), child, 1, 7});
    engine::Mmap mmap;  // its space is its own from here on
    mmap.time_ns = 1003;
    mmap.tgid = child;
    mmap.start = base + (1ull << 40);
    mmap.length = 0x1000;
    mmap.path = "//anon";
    aggregator_->OnMmap(mmap);
    auto s = Make(1004, {base + 6});
    s.tgid = child;
    aggregator_->OnSample(s);
    EXPECT_EQ(names_[0], "jit_first");
  }
  EXPECT_LT(aggregator_->memory_bytes(), before + 1'000'000);
  unlink(path.c_str());
  munmap(page, 4096);
}

TEST_F(AggregatorTest, IdleGivesItsMemoryBack) {
  Start();
  size_t empty = aggregator_->memory_bytes();
  for (uint64_t i = 0; i < 500; ++i) aggregator_->OnSample(Make(1001, {}, {0xffffffff81000500 + i}));
  EXPECT_GT(aggregator_->memory_bytes(), empty + 10000);
  aggregator_->StopJob(3);
  EXPECT_LE(aggregator_->memory_bytes(), empty + 100);
  aggregator_->OnSample(Make(1001, {}, {0xffffffff81000500}));
  EXPECT_EQ(aggregator_->stats(3).collected, 0u);
}

}  // namespace
}  // namespace borescope::stacks
