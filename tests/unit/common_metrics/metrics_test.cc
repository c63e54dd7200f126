// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace borescope::metrics {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Metrics, ExposesCountersAndGaugesWithLabels) {
  Registry registry;
  Family& samples = registry.Counter("borescope_test_samples_total", "Samples");
  samples.Add({{"outcome", "ok"}}, 3);
  samples.Add({{"outcome", "ok"}});
  samples.Add({{"outcome", "a\"b\n"}});
  registry.Gauge("borescope_test_memory_bytes", "Memory").Set({}, 1.5);
  registry.Gauge("borescope_test_unused_bytes", "Unused");
  std::string text = registry.Expose();
  EXPECT_THAT(text, HasSubstr("# HELP borescope_test_samples_total Samples\n# TYPE borescope_test_samples_total counter\n"));
  EXPECT_THAT(text, HasSubstr("borescope_test_samples_total{outcome=\"ok\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("outcome=\"a\\\"b\\n\""));
  EXPECT_THAT(text, HasSubstr("borescope_test_memory_bytes 1.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("unused")));
}

TEST(Metrics, ACounterNeverGoesDownAGaugeDoes) {
  Registry registry;
  registry.Counter("borescope_test_total", "").Set({}, 5);
  registry.Counter("borescope_test_total", "").Set({}, 4);
  registry.Gauge("borescope_test_bytes", "").Set({}, 5);
  registry.Gauge("borescope_test_bytes", "").Set({}, 4);
  EXPECT_THAT(registry.Expose(), HasSubstr("borescope_test_total 5\n"));
  EXPECT_THAT(registry.Expose(), HasSubstr("borescope_test_bytes 4\n"));
}

TEST(Metrics, AnEndedSessionsSeriesGoAndTooManyAreCounted) {
  Registry registry;
  Family& family = registry.Counter("borescope_test_total", "");
  family.Add({{"session", "a"}, {"reason", "x"}});
  family.Add({{"session", "b"}, {"reason", "x"}});
  family.RemoveWhere("session", "a");
  EXPECT_THAT(registry.Expose(), Not(HasSubstr("session=\"a\"")));
  EXPECT_THAT(registry.Expose(), HasSubstr("session=\"b\""));
  for (size_t i = 0; i < Family::kMaxSeries + 9; ++i) family.Add({{"session", std::to_string(i)}});
  EXPECT_THAT(registry.Expose(), HasSubstr("borescope_metrics_dropped_series_total 10\n"));
}

}  // namespace
}  // namespace borescope::metrics
