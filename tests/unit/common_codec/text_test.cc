// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "common/codec/collapsed.h"
#include "common/codec/flamebearer.h"
#include "random_profile.h"

namespace borescope::codec {
namespace {

using profile::Profile;

Profile Small() {
  Profile p;
  p.sample_types = {{"cpu", "nanoseconds"}};
  auto frame = [&](const char* name, uint64_t address) {
    return p.AddLocation({profile::kNone, address, {{p.AddFunction({name, "", "", 0}), 0}}});
  };
  uint32_t main = frame("main", 1), f = frame("a;b\n", 2), f2 = frame("a;b\n", 3), g = frame("g", 4);
  auto add = [&](std::vector<uint32_t> stack, int64_t value) { p.AddSample(stack, std::vector<int64_t>{value}); };
  add({f, main}, 10);
  add({f2, main}, 5);  // the same function at another address
  add({g, f, main}, 7);
  add({main}, 1);
  add({}, 2);
  return p;
}

TEST(CollapsedTest, RootFirstEqualNamesTogetherSeparatorsReplaced) {
  EXPECT_EQ(EncodeCollapsed(Small(), 0), "[no stack] 2\nmain 1\nmain;a:b  15\nmain;a:b ;g 7\n");
}

TEST(CollapsedTest, SumIsTheProfilesTotal) {
  std::mt19937_64 random(testing::Seed());
  Profile p = testing::RandomProfile(random, 500);
  std::istringstream in(EncodeCollapsed(p, 1));
  int64_t sum = 0;
  for (std::string line; std::getline(in, line);) sum += std::stoll(line.substr(line.rfind(' ') + 1));
  EXPECT_EQ(sum, p.Total(1));
}

TEST(FlamebearerTest, BarsLieInsideTheirParents) {
  std::mt19937_64 random(testing::Seed());
  Profile p = testing::RandomProfile(random, 500);
  auto json = nlohmann::json::parse(EncodeFlamebearer(p, 1, "process_cpu"), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  const auto& flame = json["flamebearer"];
  EXPECT_EQ(flame["names"][0], "total");
  EXPECT_EQ(flame["numTicks"], p.Total(1));
  EXPECT_EQ(flame["levels"][0], nlohmann::json({0, p.Total(1), 0, 0}));
  EXPECT_EQ(json["metadata"]["format"], "single");
  std::vector<std::pair<int64_t, int64_t>> above{{0, p.Total(1)}};
  int64_t self = 0, max_self = 0;
  for (const auto& level : flame["levels"]) {
    ASSERT_EQ(level.size() % 4, 0u);
    std::vector<std::pair<int64_t, int64_t>> bars;
    int64_t x = 0;
    for (size_t i = 0; i < level.size(); i += 4) {
      x += level[i].get<int64_t>();
      int64_t total = level[i + 1];
      self += level[i + 2].get<int64_t>();
      max_self = std::max(max_self, level[i + 2].get<int64_t>());
      bool inside = std::ranges::any_of(above, [&](auto& bar) { return bar.first <= x && x + total <= bar.second; });
      EXPECT_TRUE(inside);
      bars.emplace_back(x, x + total);
      x += total;
    }
    above = bars;
  }
  EXPECT_EQ(self, p.Total(1));
  EXPECT_EQ(flame["maxSelf"], max_self);
}

}  // namespace
}  // namespace borescope::codec
