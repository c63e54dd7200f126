// SPDX-License-Identifier: Apache-2.0
#include "operator/session/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

namespace borescope::op {
namespace {

using ::testing::HasSubstr;

// The nodes report what they rank first; the sum is judged against the whole truth that only the
// test has.
TEST(SumTop, TruthLiesWithinTheErrorOfEachRow) {
  const char* given = std::getenv("SEED");
  uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  api::ProfilingSessionSpec spec;
  for (int round = 0; round < 30; ++round) {
    std::vector<api::JobReport> reports(1 + random() % 5);
    std::map<std::string, int64_t> truth;
    int64_t whole = 0;
    for (api::JobReport& report : reports) {
      std::vector<std::pair<int64_t, std::string>> functions;
      int64_t node = 0;
      for (int f = 0; f < 40; ++f) {
        int64_t ns = static_cast<int64_t>(random() % 1'000'000'000) * (f % 7 == 0 ? 10 : 1);
        std::string name = "f" + std::to_string(f);
        functions.emplace_back(ns, name);
        truth[name] += ns;
        node += ns;
      }
      std::sort(functions.rbegin(), functions.rend());
      for (size_t i = 0; i < api::kMaxTopPerProfile; ++i) {
        report.top.push_back(
            {"cpu", functions[i].second, "", "Cpp", functions[i].first, functions[i].first});
      }
      report.sums["cpu"] = node;
      report.effective_samples["cpu"] = node / 10'000'000;
      whole += node;
    }
    std::vector<const api::JobReport*> pointers;
    for (const api::JobReport& report : reports) pointers.push_back(&report);
    std::vector<api::TopFunction> top = SumTop(pointers, spec, 1'000'000'000);
    ASSERT_EQ(top.size(), api::kMaxTopPerProfile);
    for (const api::TopFunction& row : top) {
      double share = 1000.0 * static_cast<double>(truth[row.function]) / static_cast<double>(whole);
      EXPECT_NEAR(static_cast<double>(row.own_per_mille), share,
                  static_cast<double>(row.error_per_mille) + 0.5)
          << row.function;
      EXPECT_LE(row.own_per_mille, row.total_per_mille);
    }
    EXPECT_TRUE(std::is_sorted(top.begin(), top.end(), [](const auto& a, const auto& b) {
      return a.own_per_mille > b.own_per_mille;
    }));
  }
}

TEST(SumTop, NothingIsHiddenByAListThatIsNotFull) {
  api::JobReport a, b;
  a.top = {{"cpu", "main.hot", "hot.go:1", "Go", 900, 800}};
  a.sums["cpu"] = 1000;
  b.top = {{"cpu", "main.cold", "", "Go", 500, 500}};
  b.sums["cpu"] = 1000;
  a.effective_samples["cpu"] = b.effective_samples["cpu"] = 10'000;
  std::vector<api::TopFunction> top = SumTop({&a, &b}, {}, 4000);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].function, "main.hot");
  EXPECT_EQ(top[0].own_per_mille, 400);
  EXPECT_EQ(top[0].total_per_mille, 450);
  EXPECT_EQ(top[0].cpu_millis, 200);
  EXPECT_EQ(top[0].error_per_mille, 11) << "3 * sqrt(0.4 * 0.6 / 20000)";
}

// The same function with another busiest line on each node is one row, with the line of most of its time.
TEST(SumTop, ARowIsAFunctionWhateverItsLine) {
  api::JobReport a, b, c;
  a.top = {{"cpu", "f", "f.cc:10", "cpp", 300, 300}};
  b.top = {{"cpu", "f", "f.cc:20", "cpp", 200, 200}, {"cpu", "f", "other.cc:10", "cpp", 50, 50}};
  c.top = {{"cpu", "f", "f.cc:20", "cpp", 250, 250}};
  for (api::JobReport* report : {&a, &b, &c}) {
    report->sums["cpu"] = 1000;
    report->effective_samples["cpu"] = 1000;
  }
  std::vector<api::TopFunction> top = SumTop({&a, &b, &c}, {}, 1000);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].own_per_mille, 250);
  EXPECT_EQ(top[0].location, "f.cc:20");
  EXPECT_EQ(top[1].location, "other.cc:10");
}

// Nodes with unequal weights: as if all samples had been taken together.
TEST(SumTop, EffectiveSamplesOfAllNodes) {
  api::JobReport fast, slow;
  fast.top = {{"cpu", "f", "", "cpp", 500, 500}};
  fast.sums["cpu"] = 1000;
  fast.effective_samples["cpu"] = 1000;  // of weight 1
  slow.top = {{"cpu", "f", "", "cpp", 500, 500}};
  slow.sums["cpu"] = 1000;
  slow.effective_samples["cpu"] = 10;  // of weight 100
  // 2000² / (1000 * 1² + 10 * 100²) = 39.6
  std::vector<api::TopFunction> top = SumTop({&fast, &slow}, {}, 1000);
  ASSERT_EQ(top.size(), 1u);
  EXPECT_EQ(top[0].error_per_mille, 239) << "3 * sqrt(0.5 * 0.5 / 39.6)";
}

TEST(SumReports, NodesThatLieDoNotOverflow) {
  api::JobReport report;
  report.cpu = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MIN};
  report.samples.collected = INT64_MAX;
  report.lost_ns["x"] = INT64_MAX;
  report.top = {{"cpu", "f", "", "", INT64_MAX, INT64_MAX},
                {"cpu", "g", "", "", INT64_MIN, INT64_MIN}};
  report.sums["cpu"] = INT64_MAX;
  api::ProfilingSessionStatus status;
  SumReports({&report, &report, &report}, {}, 1, status);
  EXPECT_EQ(status.cpu.used_ns, INT64_MAX);
  EXPECT_EQ(status.cpu.unexplained_ns, INT64_MIN);
  EXPECT_EQ(status.lost_ns["x"], INT64_MAX);
  for (const api::TopFunction& row : status.top) EXPECT_LE(row.own_per_mille, 1000);
}

TEST(SumReports, OverheadIsThatOfTheWorstNode) {
  api::JobReport a, b;
  a.overhead = {30, 10, 100, 2};
  b.overhead = {20, 15, 300, 1};
  api::ProfilingSessionStatus status;
  SumReports({&a, &b}, {}, 1, status);
  EXPECT_EQ(status.overhead, (api::Overhead{30, 15, 300, 2}));
}

TEST(MakeResults, TheCommandThatOpensIt) {
  api::ProfilingSession session;
  session.metadata.namespace_name = "shop";
  session.metadata.name = "checkout-1";
  session.status.start_time = 1'790'000'000'123'000'000;
  session.status.end_time = 1'790'000'060'123'000'001;
  api::JobReport report;
  report.state = api::JobState::kPublished;
  report.sinks = {{"default", "Published", "", "http://10.0.0.1:4040", 6, 0}};
  auto rows = MakeResults(session, session.status, {&report}, true, "");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].state, "Published");
  EXPECT_EQ(
      rows[0].query,
      R"(process_cpu:cpu:nanoseconds:cpu:nanoseconds{namespace="shop",profiling_session="checkout-1"})");
  EXPECT_EQ(
      rows[0].url,
      "curl -sSf -H \"Authorization: Bearer $BORESCOPE_TOKEN\" -o profile.pb.gz "
      "'http://10.0.0.1:4040/pyroscope/"
      "render?query=process_cpu%3Acpu%3Ananoseconds%3Acpu%3Ananoseconds%7Bnamespace%3D%22shop%22"
      "%2Cprofiling_session%3D%22checkout-1%22%7D&from=1790000000123&until=1790000060124&format="
      "pprof' && go tool pprof -http=: profile.pb.gz");
  EXPECT_THAT(
      MakeResults(session, session.status, {&report}, true, "https://store.example/")[0].url,
      HasSubstr("'https://store.example/pyroscope/render"));

  report.sinks[0].url = "http://x/'; rm -rf ~; '";
  EXPECT_EQ(MakeResults(session, session.status, {&report}, true, "")[0].url, "")
      << "a node's text does not get into a shell";
  report.sinks[0] = {"default", "Pending", "connection refused", "http://10.0.0.1:4040", 5, 1};
  rows = MakeResults(session, session.status, {&report}, true, "");
  EXPECT_EQ(rows[0].state, "Failed");
  EXPECT_EQ(rows[0].message, "connection refused");
  EXPECT_EQ(MakeResults(session, session.status, {&report}, false, "")[0].state, "Pending");
  EXPECT_EQ(MakeResults(session, session.status, {}, true, "")[0].state, "Failed");
}

}  // namespace
}  // namespace borescope::op
