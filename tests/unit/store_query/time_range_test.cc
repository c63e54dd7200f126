// SPDX-License-Identifier: Apache-2.0
#include "store/query/time_range.h"

#include <gtest/gtest.h>

namespace borescope::store {
namespace {

TEST(TimeRangeTest, UnitsByDigitsAndRelativeTimes) {
  constexpr int64_t kNow = 1'790'000'000'000'000'000;
  for (const char* same : {"1790000000", "1790000000000", "1790000000000000", "1790000000000000000", "now", "now-0s"}) {
    EXPECT_EQ(*ParseQueryTime(same, kNow), kNow) << same;
  }
  EXPECT_EQ(*ParseQueryTime("now-90s", kNow), kNow - 90'000'000'000);
  EXPECT_EQ(*ParseQueryTime("now-2m", kNow), kNow - 120'000'000'000);
  EXPECT_EQ(*ParseQueryTime("now-1h", kNow), kNow - 3'600'000'000'000);
  EXPECT_EQ(*ParseQueryTime("now-1w", kNow), kNow - 604'800'000'000'000);
  EXPECT_EQ(*ParseQueryTime("now-9999w", kNow), 0);
  EXPECT_EQ(*ParseQueryTime("0", kNow), 0);
  EXPECT_EQ(*ParseQueryTime("1970-01-01T00:00:01Z", kNow), 1'000'000'000);
}

TEST(TimeRangeTest, RefusesTheRest) {
  for (const char* bad : {"", "-1", "now-", "now-1", "now-h", "now-1y", "now+1h", "now-99999999999999999999h", "now-9999999999999w", "yesterday",
                          "18446744073709551615", "99999999999999999999", "1.5"}) {
    auto time = ParseQueryTime(bad, 1);
    ASSERT_FALSE(time.ok()) << bad;
    EXPECT_NE(time.error().message.find("now-1h"), std::string::npos);
  }
}

}  // namespace
}  // namespace borescope::store
