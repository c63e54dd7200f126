// SPDX-License-Identifier: Apache-2.0
#include "common/api/types.h"

#include <gtest/gtest.h>

#include "common/api/quantity.h"

namespace borescope::api {
namespace {

TEST(ConditionTest, TransitionTimeMovesOnlyWithTheStatus) {
  std::vector<Condition> conditions;
  EXPECT_TRUE(SetCondition(conditions, {"Ready", "False", "Starting", "", 1, 0}, 10));
  EXPECT_TRUE(SetCondition(conditions, {"Ready", "False", "StillStarting", "text", 2, 99}, 20));
  EXPECT_EQ(FindCondition(conditions, "Ready")->last_transition_time, 10);
  EXPECT_EQ(FindCondition(conditions, "Ready")->reason, "StillStarting");
  EXPECT_FALSE(SetCondition(conditions, {"Ready", "False", "StillStarting", "text", 2, 0}, 30));
  EXPECT_FALSE(IsTrue(conditions, "Ready"));
  EXPECT_TRUE(SetCondition(conditions, {"Ready", "True", "Up", "", 2, 0}, 40));
  EXPECT_EQ(FindCondition(conditions, "Ready")->last_transition_time, 40);
  EXPECT_TRUE(IsTrue(conditions, "Ready"));
  EXPECT_EQ(FindCondition(conditions, "Other"), nullptr);
  EXPECT_EQ(conditions.size(), 1u);
}

TEST(SelectorTest, SelectsAsKubernetesDoes) {
  LabelSelector selector;
  selector.match_labels = {{"app", "web"}};
  EXPECT_TRUE(Matches(selector, {{"app", "web"}, {"tier", "x"}}));
  EXPECT_FALSE(Matches(selector, {{"app", "db"}}));
  EXPECT_FALSE(Matches(selector, {}));
  struct {
    LabelRequirement requirement;
    bool missing, listed, other;
  } cases[] = {
      {{"tier", "In", {"a", "b"}}, false, true, false},
      {{"tier", "NotIn", {"a", "b"}}, true, false, true},
      {{"tier", "Exists", {}}, false, true, true},
      {{"tier", "DoesNotExist", {}}, true, false, false},
      {{"tier", "Gt", {"a"}}, false, false, false},
  };
  for (const auto& c : cases) {
    LabelSelector one;
    one.match_expressions = {c.requirement};
    EXPECT_EQ(Matches(one, {}), c.missing) << c.requirement.op;
    EXPECT_EQ(Matches(one, {{"tier", "b"}}), c.listed) << c.requirement.op;
    EXPECT_EQ(Matches(one, {{"tier", "z"}}), c.other) << c.requirement.op;
  }
}

TEST(LabelTest, ReservedAlsoWhenItBecomesSo) {
  for (const char* key : {"service_name", "service.name", "workload-kind", "pod", "__name__", "__x", ".-x", "profiling/session", "restart"}) {
    EXPECT_TRUE(ReservedLabel(key)) << key;
  }
  for (const char* key : {"tier", "pods", "app.kubernetes.io/name", "_x", "servicename", "Pod"}) EXPECT_FALSE(ReservedLabel(key)) << key;
  EXPECT_EQ(ProfileLabelName("app.kubernetes.io/name"), "app_kubernetes_io_name");
}

TEST(NamesTest, JobIdFitsItsBound) {
  EXPECT_EQ(JobId("shop", "checkout-1", "6f1c"), "shop/checkout-1/6f1c");
  EXPECT_EQ(JobId(std::string(63, 'n'), std::string(63, 's'), std::string(36, 'u')).size(), kMaxJobIdBytes);
  for (size_t i = 0; i < kProfileKindNames.size(); ++i) {
    EXPECT_EQ(ProfileKindFromName(kProfileKindNames[i]), static_cast<ProfileKind>(i));
  }
  EXPECT_FALSE(ProfileKindFromName("gpu").has_value());
}

TEST(TopTest, OneShortLine) {
  EXPECT_EQ(TopDisplay({"cpu", "Pricing::discount", "pricing.cc:41", "C++", 900, 474, 0, 12}), "Pricing::discount  pricing.cc:41  47% ±2");
  EXPECT_EQ(TopDisplay({"cpu", "main", "", "", 1000, 1000, 0, 0}), "main  100%");
  TopFunction hostile{"cpu", std::string(10000, 'x') + "\n\x1b[31m", std::string(10000, 'y'), "", 0, 0, 0, 0};
  EXPECT_LE(TopDisplay(hostile).size(), 80u);
}

TEST(QuantityTest, RoundTripsAndRefusals) {
  struct {
    const char* text;
    int64_t value;
    const char* canonical;
  } cpus[] = {{"100m", 100, "100m"}, {"2", 2000, "2"}, {"0.5", 500, "500m"}, {"1.25", 1250, "1250m"}, {"2000m", 2000, "2"}, {"0", 0, "0"}};
  for (const auto& c : cpus) {
    EXPECT_EQ(ParseCpu(c.text), c.value) << c.text;
    EXPECT_EQ(FormatCpu(c.value), c.canonical);
  }
  for (const char* bad : {"", "m", "-1", "1.2345", "1.", ".5", "1e3", "100 m", "1m5", "9999", "01", "9999999m"}) {
    EXPECT_FALSE(ParseCpu(bad).has_value()) << bad;
  }
  struct {
    const char* text;
    int64_t value;
    const char* canonical;
  } memories[] = {{"256Mi", 256 << 20, "256Mi"},     {"1Gi", 1 << 30, "1Gi"},          {"1048576", 1 << 20, "1Mi"},
                  {"64M", 64'000'000, "62500Ki"},    {"1000", 1000, "1000"},           {"3k", 3000, "3000"},
                  {"1T", 1'000'000'000'000, "976562500Ki"}};
  for (const auto& m : memories) {
    EXPECT_EQ(ParseMemory(m.text), m.value) << m.text;
    EXPECT_EQ(FormatMemory(m.value), m.canonical);
  }
  for (const char* bad : {"", "Mi", "1.5Gi", "-1", "1Pi", "1mi", "9999999Ti", "1 Mi", "01"}) EXPECT_FALSE(ParseMemory(bad).has_value()) << bad;
  EXPECT_EQ(FormatMemoryRounded((90 << 20) + 1), "91Mi");
  EXPECT_EQ(FormatMemoryRounded(1), "1Ki");
  EXPECT_EQ(FormatMemoryRounded(0), "0");
  EXPECT_EQ(FormatSeconds(61'200'000'000), "61.2s");
  EXPECT_EQ(FormatSeconds(0), "0s");
  EXPECT_EQ(FormatSeconds(-100'000'000), "-0.1s");
  EXPECT_EQ(FormatSeconds(1'499'999), "0.001s");
  EXPECT_EQ(FormatSeconds(-1'500'000), "-0.002s");
  EXPECT_EQ(FormatSeconds(INT64_MAX), "9223372036.855s");
  for (int64_t ms : {int64_t{0}, int64_t{1}, int64_t{10}, int64_t{100}, int64_t{61234}, int64_t{-5}, int64_t{86'400'000}}) {
    EXPECT_EQ(ParseSeconds(FormatSeconds(ms * 1'000'000)), ms * 1'000'000);
  }
  for (const char* bad : {"", "s", "1", "1.2345s", "--1s", "1 s", "99999999999999999999s"}) EXPECT_FALSE(ParseSeconds(bad).has_value()) << bad;
}

}  // namespace
}  // namespace borescope::api
