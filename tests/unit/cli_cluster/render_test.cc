// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/text/table.h"
#include "common/base/clock.h"
#include "common/base/strings.h"

namespace borescope::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;

api::ProfilingSession Session() {
  api::ProfilingSession s;
  s.metadata.namespace_name = "shop";
  s.metadata.name = "checkout-5f2a1";
  s.metadata.creation_time = 1000 * kSecond;
  s.spec.target.workload_ref = api::WorkloadRef{"Deployment", "checkout"};
  s.spec.duration_seconds = 30;
  s.status.phase = api::Phase::kSampling;
  s.status.start_time = 1000 * kSecond;
  s.status.end_time = 1030 * kSecond;
  s.status.targets = {.matched = 3, .selected = 3, .sampling = 2};
  s.status.cpu = {.used_ns = 61'200'000'000, .sampled_ns = 60'900'000'000, .lost_ns = 200'000'000, .unexplained_ns = 100'000'000};
  s.status.lost_ns = {{"ring_full", 200'000'000}, {"time_stop", 5}};
  s.status.samples = {.collected = 6012, .truncated = 18};
  s.status.overhead = {.peak_cpu_millis = 38, .average_cpu_millis = 11, .peak_memory_bytes = 91 << 20, .tick_millis = 5};
  s.status.top = {{"cpu", "Pricing::discount", "pricing.cc:41", "C++", 600, 470, 940, 20}, {"cpu", std::string(200, 'f'), std::string(90, 'l'), "C++", 300, 250, 500, 18}};
  s.status.target_details = {{"checkout-a", "node1", "app", "C++", "Sampling", "", ""},
                             {"checkout-b", "node2", "app", "C++", "Succeeded", "", ""},
                             {"checkout-c", "node3", "", "", "Failed", "NoSamplerOnNode", "no sampler there, and a long text about it that goes on and on"}};
  return s;
}

void ExpectNarrow(const std::string& text, size_t width) {
  for (auto line : Split(text, '\n')) EXPECT_LE(Characters(line), width) << line;
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(RenderSessionTest, TheAnswerFirstThenWhatItIsWorth) {
  const std::string text = RenderSession(Session(), 80, 15);
  ExpectNarrow(text, 80);
  EXPECT_TRUE(text.starts_with("   OWN     ±   TOTAL   CORES  FUNCTION")) << text;
  EXPECT_THAT(text, HasSubstr(" 47.0%   2.0   60.0%    940m  Pricing::discount"));
  EXPECT_THAT(text, HasSubstr("deploy/checkout in shop: 2/3 pods on 3 nodes, 30.0 s of cpu at 99 Hz, session"));
  EXPECT_THAT(text, HasSubstr("Sampled 60.9 s of 61.2 s CPU time used, 0.2 s lost (0.2 s ring buffer full)"));
  EXPECT_THAT(text, HasSubstr("Whole stacks: 99.70 % of 6012."));
  EXPECT_THAT(text, HasSubstr("11m of CPU (peak 38m), 91Mi of memory"));
  // One row when one is asked for.
  EXPECT_THAT(RenderSession(Session(), 80, 1), Not(HasSubstr("fff")));
  // What is wrong is said.
  auto degraded = Session();
  degraded.status.conditions = {{"Degraded", "True", "SomeTargetsFailed", "pod 'checkout-c': no sampler", 0, 0}};
  EXPECT_THAT(RenderSession(degraded, 80, 15), HasSubstr("Degraded (SomeTargetsFailed): pod 'checkout-c'"));
  // Never "100 %" of what is not whole.
  auto nearly = Session();
  nearly.status.samples = {.collected = 1'000'000, .truncated = 1};
  EXPECT_THAT(RenderSession(nearly, 80, 15), HasSubstr("99.99 %"));
}

TEST(RenderProgressTest, ABarForEachTarget) {
  auto lines = RenderProgress(Session(), 1015 * kSecond, 79);
  ASSERT_EQ(lines.size(), 4u);
  for (const auto& line : lines) ExpectNarrow(line, 79);
  EXPECT_THAT(lines[0], HasSubstr("checkout-5f2a1  Sampling  15 of 30 s  2/3 pods  cost 11m  lost 0.2 s"));
  auto full = [](const std::string& line) {
    size_t n = 0;
    for (size_t at = line.find("█"); at != line.npos; at = line.find("█", at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(full(lines[1]), 12u);
  EXPECT_EQ(full(lines[2]), 24u);
  EXPECT_THAT(lines[3], HasSubstr("checkout-c  NoSamplerOnNode: no sampler"));
  auto many = Session();
  many.status.target_details.resize(30, many.status.target_details[0]);
  lines = RenderProgress(many, 1015 * kSecond, 79);
  EXPECT_EQ(lines.size(), 10u);
  EXPECT_EQ(lines.back(), "  and 22 more");
  // Before anybody has answered, and after the end.
  api::ProfilingSession fresh;
  fresh.metadata.name = "n";
  EXPECT_EQ(RenderProgress(fresh, 5, 79), std::vector<std::string>{"n  New"});
  EXPECT_THAT(RenderProgress(Session(), 2000 * kSecond, 79)[0], HasSubstr("30 of 30 s"));
}

TEST(RenderListTest, NewestFirstAndNarrow) {
  auto failed = Session();
  failed.metadata.name = "older";
  failed.metadata.creation_time = 500 * kSecond;
  failed.status = {};
  failed.status.phase = api::Phase::kFailed;
  failed.status.conditions = {{"Failed", "True", "NoMatchingPods", "none", 0, 0}};
  const std::string text = RenderList({failed, Session()}, 1100 * kSecond, false, 80);
  ExpectNarrow(text, 80);
  auto lines = Split(text, '\n');
  EXPECT_TRUE(lines[0].starts_with("NAME            PHASE     PODS  TOP (own time)")) << text;
  EXPECT_THAT(std::string(lines[1]), HasSubstr("checkout-5f2a1  Sampling   2/3  Pricing::disco"));
  EXPECT_TRUE(lines[1].ends_with("100s")) << text;
  EXPECT_THAT(std::string(lines[2]), HasSubstr("NoMatchingPods"));
  const std::string wide = RenderList({Session()}, 1100 * kSecond, true, 80);
  ExpectNarrow(wide, 80);
  EXPECT_TRUE(wide.starts_with("NAMESPACE  NAME")) << wide;
}

TEST(RenderShareTest, FiveLinesWhateverTheNames) {
  auto session = Session();
  session.status.top[1].function = "a`b\n**bold** <@here>";
  const std::string text = RenderShare(session, "kubectl borescope open checkout-5f2a1 -n shop");
  EXPECT_EQ(Split(text, '\n').size(), 6u) << text;  // five lines and their last end
  EXPECT_THAT(text, HasSubstr("**cpu at 99 Hz of `deploy/checkout`** in `shop`: 2/3 pods, 30.0 s from 1970-01-01T00:16:40Z"));
  EXPECT_THAT(text, HasSubstr("1. **47.0 %** ±2.0 (940m) `Pricing::discount` `pricing.cc:41`"));
  EXPECT_THAT(text, HasSubstr("`a'b"));
  EXPECT_THAT(text, HasSubstr("Flame graph: `kubectl borescope open checkout-5f2a1 -n shop`"));
  session.status.top.clear();
  EXPECT_EQ(Split(RenderShare(session, "x"), '\n').size(), 6u);
}

}  // namespace
}  // namespace borescope::cli
