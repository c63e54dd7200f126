// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace borescope::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(ParseTargetTest, TakesKubectlsWords) {
  for (const char* word : {"deploy", "deployment", "deployments", "deployment.apps"}) {
    auto target = ParseTarget(std::string(word) + "/checkout");
    ASSERT_TRUE(target.ok()) << word;
    EXPECT_EQ(target->workload_ref->kind + "/" + target->workload_ref->name, "Deployment/checkout");
    EXPECT_EQ(DescribeTarget(*target), "deploy/checkout");
  }
  EXPECT_EQ(ParseTarget("po/web-0")->pod_name, "web-0");
  EXPECT_EQ(ParseTarget("sts/db")->workload_ref->kind, "StatefulSet");
  EXPECT_EQ(ParseTarget("ds/agent")->workload_ref->kind, "DaemonSet");
  EXPECT_EQ(ParseTarget("job/import")->workload_ref->kind, "Job");
  for (const char* bad : {"", "/", "checkout", "deploy/", "/x", "service/x", "deploy/X", "pod/a/b", "pod/a b", "pod/$(x)"}) {
    auto target = ParseTarget(bad);
    ASSERT_FALSE(target.ok()) << bad;
    EXPECT_THAT(target.error().message, HasSubstr("/NAME"));
  }
}

TEST(NewSessionNameTest, IsShortAndReplacesWhatItOnceAdded) {
  EXPECT_THAT(NewSessionName("checkout"), MatchesRegex("checkout-[0-9a-f]{5}"));
  EXPECT_THAT(NewSessionName("checkout-5f2a1"), MatchesRegex("checkout-[0-9a-f]{5}"));
  EXPECT_THAT(NewSessionName("checkout-canary"), MatchesRegex("checkout-canary-[0-9a-f]{5}"));
  EXPECT_NE(NewSessionName("checkout"), NewSessionName("checkout"));
  const std::string longest = NewSessionName(std::string(56, 'a') + ".-bcdef" + std::string(40, 'c'));
  EXPECT_THAT(longest, MatchesRegex("a{56}-[0-9a-f]{5}"));
  EXPECT_LE(NewSessionName(std::string(253, 'a')).size(), 63u);
}

}  // namespace
}  // namespace borescope::cli
