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
  std::vector<TopRow> rows = Top(p, 1, 0, 10);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].function, "f");
  EXPECT_EQ(rows[0].own, 100);
  EXPECT_EQ(rows[0].total, 110);
  EXPECT_EQ(rows[0].total_samples, 3);
  EXPECT_EQ(rows[0].location, "app");
  EXPECT_EQ(rows[1].function, "g");
  EXPECT_EQ(rows[2].function, "app+0x1123");
  EXPECT_EQ(rows[3].function, "main");
  EXPECT_EQ(rows[3].total, 111);
  EXPECT_EQ(Top(p, 1, 0, 2).size(), 2u);
}

TEST(ProfileTest, InlinedFramesAreRowsOfTheirOwn) {
  Profile p = CpuProfile();
  uint32_t inner = p.AddFunction({"inner", "", "/src/hash.go", 41}), outer = p.AddFunction({"outer", "", "/src/hash.go", 10});
  uint32_t location = p.AddLocation({kNone, 9, {{inner, 42}, {outer, 12}}});
  Add(p, {location}, 1, 5);
  std::vector<TopRow> rows = Top(p, 1, 0, 10);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].function, "inner");
  EXPECT_EQ(rows[0].location, "hash.go:41");
  EXPECT_EQ(rows[1].own, 0);
  EXPECT_EQ(rows[1].total, 5);
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
