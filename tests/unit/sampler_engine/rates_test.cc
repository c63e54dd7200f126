// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/rates.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "bpf/abi/record.h"

namespace borescope::engine {
namespace {

TEST(RatesTest, FourRatesAreServedAsTheyAre) {
  auto plan = PlanRates({99, 49, 99, 199, 999});
  EXPECT_EQ(plan.rates_hz, (std::vector<int>{999, 199, 99, 49}));
  int expected[] = {99, 49, 99, 199, 999};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(plan.served[i].rate_hz, expected[i]);
    EXPECT_EQ(plan.served[i].keep, 1);
  }
}

TEST(RatesTest, AFifthIsThinnedOutOfTheNextHigher) {
  auto plan = PlanRates({10, 49, 99, 199, 999});
  EXPECT_EQ(plan.rates_hz, (std::vector<int>{999, 199, 99, 49}));
  EXPECT_EQ(plan.served[0].rate_hz, 49);
  EXPECT_DOUBLE_EQ(plan.served[0].keep, 10.0 / 49);
}

TEST(RatesTest, AnyMix) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 500; ++round) {
    std::vector<int> hz(1 + random() % 64);
    for (int& f : hz) f = 1 + static_cast<int>(random() % 999);
    auto plan = PlanRates(hz);
    EXPECT_LE(plan.rates_hz.size(), size_t{BORESCOPE_MAX_RATES});
    std::set<int> armed(plan.rates_hz.begin(), plan.rates_hz.end());
    ASSERT_EQ(plan.served.size(), hz.size());
    for (size_t i = 0; i < hz.size(); ++i) {
      EXPECT_EQ(plan.served[i].rate_hz, *armed.lower_bound(hz[i]));
      EXPECT_NEAR(plan.served[i].keep * plan.served[i].rate_hz, hz[i], 1e-9);
    }
  }
}

TEST(RatesTest, TheKernelsLimitLowersAFrequencyToItsHalf) {
  EXPECT_EQ(ClampFrequency(199, 100'000, 1), 199);
  EXPECT_EQ(ClampFrequency(199, 398, 1), 199);
  EXPECT_EQ(ClampFrequency(199, 397, 1), 198);
  EXPECT_EQ(ClampFrequency(199, 100, 1), 50);
  EXPECT_EQ(ClampFrequency(1, 2, 1), 1);
  EXPECT_EQ(ClampFrequency(199, 250, 250), 0) << "one sample a tick";
  EXPECT_EQ(ClampFrequency(199, 251, 250), 125);
  EXPECT_EQ(ClampFrequency(1, 1, 1), 0);
  EXPECT_EQ(ClampFrequency(999, 0, 1), 999);
}

}  // namespace
}  // namespace borescope::engine
