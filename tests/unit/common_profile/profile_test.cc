// SPDX-License-Identifier: Apache-2.0
#include "common/profile/profile.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <random>

#include "random_profile.h"

namespace borescope::profile {
namespace {

Profile CpuProfile() {
  Profile p;
  p.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
  p.period_type = {"cpu", "nanoseconds"};
  p.period = 10'101'010;
  p.default_sample_type = "cpu";
  return p;
}

uint32_t Frame(Profile& p, const std::string& name, uint64_t address = 0) {
  uint32_t mapping = p.AddMapping({0x400000, 0x500000, 0x1000, "/usr/bin/app", "abcd", true, false, false});
  uint32_t function = p.AddFunction({name, name, "", 0});
  return p.AddLocation({mapping, address, {{function, 0}}});
}

void Add(Profile& p, std::vector<uint32_t> stack, int64_t count, int64_t ns, std::map<std::string, std::string> labels = {}) {
  std::vector<int64_t> values{count, ns};
  p.AddSample(stack, values, labels);
}

TEST(ProfileTest, EqualStacksAndLabelsAddUpOthersStayApart) {
  Profile p = CpuProfile();
  uint32_t a = Frame(p, "a", 1), b = Frame(p, "b", 2);
  EXPECT_EQ(Frame(p, "a", 1), a);
  Add(p, {a, b}, 1, 100);
  Add(p, {a, b}, 2, 50);
  Add(p, {b, a}, 1, 7);
  Add(p, {a, b}, 1, 1, {{"thread", "x"}});
  ASSERT_EQ(p.samples().size(), 3u);
  EXPECT_EQ(p.samples()[0].values, (std::vector<int64_t>{3, 150}));
  EXPECT_EQ(p.Total(1), 158);
}

TEST(ProfileTest, SumsSaturate) {
  Profile p = CpuProfile();
  uint32_t a = Frame(p, "a");
  Add(p, {a}, 1, std::numeric_limits<int64_t>::max());
  Add(p, {a}, 1, 5);
  EXPECT_EQ(p.Total(1), std::numeric_limits<int64_t>::max());
}

TEST(ProfileTest, MergeTranslatesEveryIndexAndSpansBothWindows) {
  Profile left = CpuProfile(), right = CpuProfile();
  left.time_ns = 1000;
  left.duration_ns = 10;
  right.time_ns = 990;
  right.duration_ns = 5;
  Add(left, {Frame(left, "a", 1), Frame(left, "main", 2)}, 1, 10);
  uint32_t other_main = Frame(right, "main", 2);  // in another order than in left
  Add(right, {Frame(right, "b", 3), other_main}, 1, 20);
  Add(right, {Frame(right, "a", 1), other_main}, 1, 30);
  ASSERT_TRUE(left.Merge(right));
  EXPECT_EQ(left.functions().size(), 3u);
  EXPECT_EQ(left.samples().size(), 2u);
  EXPECT_EQ(left.samples()[0].values[1], 40);
  EXPECT_EQ(FrameName(left, left.locations()[left.samples()[1].locations[0]]), "b");
  EXPECT_EQ(left.time_ns, 990);
  EXPECT_EQ(left.duration_ns, 20);

  Profile empty;
  ASSERT_TRUE(empty.Merge(left));
  EXPECT_EQ(empty.Total(1), left.Total(1));
  EXPECT_EQ(empty.period, left.period);

  Profile wall;
  wall.sample_types = {{"wall", "nanoseconds"}};
  EXPECT_FALSE(left.Merge(wall));
  EXPECT_EQ(left.Total(1), 60);
}

TEST(ProfileTest, TopCountsRecursionOnceAndOwnTimeAtTheLeaf) {
  Profile p = CpuProfile();
  uint32_t f = Frame(p, "f", 1), g = Frame(p, "g", 2), main = Frame(p, "main", 3);
  Add(p, {f, f, f, main}, 1, 100);
  Add(p, {g, f, main}, 2, 10);
  uint32_t bare = p.AddLocation({0, 0x400123, {}});
  Add(p, {bare, main}, 1, 1);
  std::vector<TopRow> rows = Top(p, 1, 10);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].function, "f");
  EXPECT_EQ(rows[0].own, 100);
  EXPECT_EQ(rows[0].total, 110);
  EXPECT_EQ(TopLocation(rows[0]), "app");
  EXPECT_EQ(rows[1].function, "g");
  EXPECT_EQ(rows[2].function, "app+0x1123");
  EXPECT_EQ(rows[3].function, "main");
  EXPECT_EQ(rows[3].total, 111);
  EXPECT_EQ(Top(p, 1, 2).size(), 2u);
}

TEST(ProfileTest, CodeWithoutANameIsARowForEachFunction) {
  Profile p = CpuProfile();
  uint32_t app = p.AddMapping({0x400000, 0x500000, 0x1000, "/bin/stripped", "", false}), anon = p.AddMapping({0x700000, 0x800000, 0, "//anon", "", false});
  for (uint64_t address : {0x400240, 0x400250, 0x4002ff}) Add(p, {p.AddLocation({app, address, {}, 0x400240})}, 1, 10);
  Add(p, {p.AddLocation({app, 0x400300, {}, 0x400300})}, 1, 5);
  for (uint64_t address : {0x700001, 0x700002}) Add(p, {p.AddLocation({anon, address, {}})}, 1, 2);
  Add(p, {p.AddLocation({kNone, 9, {}})}, 1, 1);
  Profile merged;
  ASSERT_TRUE(merged.Merge(p));
  std::vector<TopRow> rows = Top(merged, 1, 10);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].function, "stripped+0x1240");
  EXPECT_EQ(rows[0].own, 30);
  EXPECT_EQ(rows[1].function, "stripped+0x1300");
  EXPECT_EQ(rows[2].function, "[anonymous]");
  EXPECT_EQ(rows[2].own, 4);
  EXPECT_EQ(rows[3].function, "[unknown]");
}

TEST(ProfileTest, InlinedFramesAreRowsOfTheirOwn) {
  Profile p = CpuProfile();
  uint32_t inner = p.AddFunction({"inner", "", "/src/hash.go", 41}), outer = p.AddFunction({"outer", "", "/src/hash.go", 10});
  uint32_t location = p.AddLocation({kNone, 9, {{inner, 42}, {outer, 12}}});
  Add(p, {location}, 1, 5);
  std::vector<TopRow> rows = Top(p, 1, 10);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].function, "inner");
  EXPECT_EQ(TopLocation(rows[0]), "hash.go:42");
  EXPECT_EQ(rows[1].own, 0);
  EXPECT_EQ(rows[1].total, 5);
  EXPECT_EQ(TopLocation(rows[1]), "hash.go:12");
}

// memcpy in libc, std::sort inlined and not, a system call: all is f's own time, at the lines that called.
TEST(ProfileTest, WhatLibrariesDoIsTheOwnTimeOfTheFunctionThatCalls) {
  Profile p = CpuProfile();
  uint32_t app = p.AddMapping({0x1000, 0x2000, 0, "/srv/app", "", true, true, true});
  uint32_t libc = p.AddMapping({0x3000, 0x4000, 0, "/lib/x86_64-linux-gnu/libc.so.6", "", true});
  uint32_t kernel = p.AddMapping({0, 1 << 20, 0, "[kernel.kallsyms]", "", true});
  auto function = [&](const char* name, const char* file) { return p.AddFunction({name, name, file, 1}); };
  uint32_t f = function("f", "/src/f.cc"), g = function("g", "/src/f.cc"), sort = function("std::sort<int*>", "/usr/include/c++/12/bits/stl_algo.h");
  uint32_t main = p.AddLocation({app, 0x1100, {{function("main", "/src/f.cc"), 90}}});
  uint32_t start = p.AddLocation({libc, 0x3100, {{function("__libc_start_main", ""), 0}}});
  auto in_f = [&](uint64_t address, int64_t line) { return p.AddLocation({app, address, {{f, line}}}); };
  uint32_t memcpy_leaf = p.AddLocation({libc, 0x3200, {{function("__memmove_avx_unaligned_erms", ""), 0}}});
  uint32_t sorting = p.AddLocation({app, 0x1200, {{sort, 1950}, {f, 30}}}), loop = p.AddLocation({app, 0x1300, {{function("std::__introsort_loop<int*>", ""), 0}}});
  uint32_t read = p.AddLocation({libc, 0x3300, {{function("read", ""), 0}}}), vfs = p.AddLocation({kernel, 0x99, {{function("vfs_read", ""), 0}}});
  Add(p, {memcpy_leaf, in_f(0x1010, 20), main, start}, 5, 500);
  Add(p, {sorting, main, start}, 1, 100);
  Add(p, {loop, in_f(0x1020, 30), main, start}, 3, 300);
  Add(p, {in_f(0x1030, 31), main, start}, 1, 50);
  Add(p, {vfs, read, p.AddLocation({app, 0x1400, {{g, 60}}}), main, start}, 2, 200);
  Add(p, {memcpy_leaf, start}, 1, 7);                                    // nobody's: the outermost that says something
  Add(p, {vfs, p.AddLocation({kernel, 0x77, {{function("kthread", ""), 0}}})}, 1, 3);
  std::vector<TopRow> rows = Top(p, 1, 100);
  ASSERT_GE(rows.size(), 4u);
  EXPECT_EQ(rows[0].function, "f");
  EXPECT_EQ(rows[0].own, 950);
  EXPECT_EQ(TopLocation(rows[0]), "f.cc:20");
  EXPECT_EQ(rows[1].function, "g");
  EXPECT_EQ(rows[1].own, 200);
  EXPECT_EQ(TopLocation(rows[1]), "f.cc:60");
  EXPECT_EQ(TopFunctionName(rows[2]), "__memmove_avx_unaligned_erms [library]");
  EXPECT_EQ(rows[2].own, 7);
  EXPECT_EQ(rows[2].total, 507);
  EXPECT_EQ(TopFunctionName(rows[3]), "vfs_read [library]");
  EXPECT_EQ(rows[3].own, 3);
  int64_t own = 0;
  for (const TopRow& row : rows) own += row.own;
  EXPECT_EQ(own, p.Total(1)) << "each nanosecond is somebody's own time";
}

// The squares of the single weights give the size, whatever was merged: checked against the weights themselves.
TEST(ProfileTest, EffectiveSamplesAreThoseOfTheSingleWeights) {
  std::mt19937_64 random(testing::Seed());
  Profile whole;
  double sum = 0, squares = 0;
  for (int part = 0; part < 3; ++part) {
    Profile p = CpuProfile();
    uint32_t f = Frame(p, "f", 1);
    for (int i = 0; i < 1000; ++i) {
      auto weight = static_cast<double>(1 + random() % 1'000'000);
      Add(p, {f}, 1, static_cast<int64_t>(weight));
      p.squares += weight * weight;
      sum += weight;
      squares += weight * weight;
    }
    ASSERT_TRUE(whole.Merge(p));
  }
  EXPECT_NEAR(EffectiveSamples(whole), sum * sum / squares, 1e-6 * sum * sum / squares);
  EXPECT_LT(EffectiveSamples(whole), 3000);
  Profile others = CpuProfile();  // of somebody who does not say
  Add(others, {Frame(others, "g", 2)}, 5, 50);
  ASSERT_TRUE(whole.Merge(others));
  EXPECT_EQ(EffectiveSamples(whole), 3005);
  EXPECT_EQ(EffectiveSamples(Profile()), 0);
}

TEST(ProfileTest, MergeOfManyRandomProfilesKeepsTheSums) {
  std::mt19937_64 random(testing::Seed());
  auto make = [&] {
    Profile p = CpuProfile();
    std::vector<uint32_t> frames;
    for (int i = 0; i < 2000; ++i) frames.push_back(Frame(p, "function_" + std::to_string(random() % 3000), random() % 4000));
    for (int i = 0; i < 10'000; ++i) {
      std::vector<uint32_t> stack;
      for (int depth = 0; depth < 20; ++depth) stack.push_back(frames[random() % frames.size()]);
      Add(p, stack, 1, static_cast<int64_t>(random() % 1000));
    }
    return p;
  };
  Profile a = make(), b = make();
  int64_t want = a.Total(1) + b.Total(1);
  auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(a.Merge(b));
  auto took = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  printf("merge of 10000 samples of 20 frames: %.1f ms\n", took);
  EXPECT_EQ(a.Total(1), want);
}

}  // namespace
}  // namespace borescope::profile
