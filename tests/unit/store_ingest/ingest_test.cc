// SPDX-License-Identifier: Apache-2.0
// The refusals themselves are tested from outside, on the running program: tests/store/store_test.py.
#include "store/ingest/ingest.h"

#include <gtest/gtest.h>

#include "random_profile.h"
#include "temporary_directory.h"

namespace borescope::store {
namespace {

constexpr int64_t kNow = 1'790'000'000'000'000'000;

class FixedClock : public Clock {
 public:
  int64_t RealtimeNs() const override { return kNow; }
};

std::string Body(const profile::Profile& p, const Labels& more = {}, const std::string& id = "") {
  Labels labels = {{"service_name", "shop"}, {"__name__", "process_cpu"}, {"__delta__", "false"}};
  labels.insert(labels.end(), more.begin(), more.end());
  return codec::EncodePush({{labels, {{codec::EncodePprofGzip(p), id}}}});
}

TEST(DecodeWindowsTest, SortsLabelsDropsThoseOfTheProtocolAndEmptyOnes) {
  std::mt19937_64 random(testing::Seed());
  profile::Profile p = testing::RandomProfile(random, 50);
  auto windows = DecodeWindows(Body(p, {{"pod", "a"}, {"__session_id__", "s"}, {"__type__", "x"}, {"empty", ""}}, "id-1"), kNow);
  ASSERT_TRUE(windows.ok()) << windows.error().message;
  ASSERT_EQ(windows->size(), 1u);
  const Window& window = (*windows)[0];
  EXPECT_EQ(window.series.labels,
            (Labels{{"__name__", "process_cpu"}, {"__session_id__", "s"}, {"pod", "a"}, {"service_name", "shop"}}));
  EXPECT_EQ(window.series.sample_types, p.sample_types);
  EXPECT_EQ(window.id, "id-1");
  EXPECT_EQ(window.start_ns, p.time_ns);
  EXPECT_EQ(window.end_ns, p.time_ns + p.duration_ns);
  EXPECT_EQ(codec::DecodePprof(window.pprof)->Total(1), p.Total(1));
  EXPECT_FALSE(DecodeWindows(Body(p, {{"pod", "a"}, {"pod", "b"}}), kNow).ok());
}

TEST(DecodeWindowsTest, TimeLimitsToTheNanosecond) {
  std::mt19937_64 random(testing::Seed());
  profile::Profile p = testing::RandomProfile(random, 5);
  constexpr int64_t kHour = 3'600'000'000'000, kTenMinutes = 600'000'000'000;
  for (auto [offset, ok] : {std::pair{-kHour, true}, {-kHour - 1, false}, {kTenMinutes, true}, {kTenMinutes + 1, false}}) {
    p.time_ns = kNow + offset;
    EXPECT_EQ(DecodeWindows(Body(p), kNow).ok(), ok) << offset;
  }
  p.time_ns = 0;
  EXPECT_EQ((*DecodeWindows(Body(p), kNow))[0].start_ns, kNow);
}

TEST(IngesterTest, AnIdIsStoredOnceAcrossRestarts) {
  testing::TemporaryDirectory directory;
  std::mt19937_64 random(testing::Seed());
  FixedClock clock;
  http::Request request;
  request.headers["content-type"] = "application/proto; charset=utf-8";
  request.body = Body(testing::RandomProfile(random, 50), {}, "0192");
  for (int run = 0; run < 3; ++run) {
    auto database = Database::Open(directory.path());
    ASSERT_TRUE(database.ok()) << database.error().message;
    metrics::Registry registry;
    Ingester ingester(database->get(), &registry, &clock);
    EXPECT_EQ(ingester.Push(request).status, 200);
    EXPECT_EQ(ingester.Push(request).status, 200);
    EXPECT_EQ((*database)->GetUsage()->windows, 1);
  }
}

}  // namespace
}  // namespace borescope::store
