// SPDX-License-Identifier: Apache-2.0
#include "common/kube/clock_offset.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace borescope::kube {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

int64_t Seed() {
  const char* given = std::getenv("SEED");
  int64_t seed = given != nullptr ? std::atoll(given) : static_cast<int64_t>(std::random_device{}());
  printf("SEED=%lld\n", static_cast<long long>(seed));
  return seed;
}

TEST(ClockOffset, KnowsNothingAtFirst) { EXPECT_FALSE(ClockOffset().estimate().known); }

TEST(ClockOffset, IsFarMoreExactThanASecondAfterSomeAnswers) {
  std::mt19937_64 random(static_cast<uint64_t>(Seed()));
  std::uniform_int_distribution<int64_t> offsets(-3600 * kSecond, 3600 * kSecond), gaps(0, 3 * kSecond), trips(1'000'000, 30'000'000);
  for (int round = 0; round < 50; ++round) {
    int64_t offset = offsets(random), now = 1'700'000'000 * kSecond + gaps(random);
    ClockOffset clock;
    for (int i = 0; i < 60; ++i) {
      int64_t sent = now += gaps(random);
      int64_t served = sent + trips(random);
      int64_t received = now = served + trips(random);
      clock.Observe((served + offset) / kSecond, sent, received);
      auto e = clock.estimate();
      ASSERT_LE(std::llabs(e.offset_ns - offset), e.error_ns) << "round " << round << " answer " << i;
    }
    EXPECT_LT(clock.estimate().error_ns, 300'000'000) << "round " << round;
  }
}

TEST(ClockOffset, LeavesClocksThatMayAgreeAlone) {
  ClockOffset clock;
  clock.Observe(1000, 1000 * kSecond + 900'000'000, 1000 * kSecond + 950'000'000);
  EXPECT_TRUE(clock.estimate().known);
  EXPECT_EQ(clock.estimate().offset_ns, 0);
  EXPECT_EQ(clock.estimate().error_ns, 950'000'000);
}

TEST(ClockOffset, StartsAnewWhenAClockIsSet) {
  ClockOffset clock;
  clock.Observe(1000, 1000 * kSecond, 1000 * kSecond + 1000);
  clock.Observe(2000, 1001 * kSecond, 1001 * kSecond + 1000);
  EXPECT_NEAR(static_cast<double>(clock.estimate().offset_ns), 999e9, 1e6);
  clock.Observe(5, 10 * kSecond, 9 * kSecond);  // received before it was sent: ignored
  EXPECT_NEAR(static_cast<double>(clock.estimate().offset_ns), 999e9, 1e6);
}

}  // namespace
}  // namespace borescope::kube
