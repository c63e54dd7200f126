// SPDX-License-Identifier: Apache-2.0
#include "sampler/guard/guard.h"

#include <gtest/gtest.h>

#include "sampler/guard/capabilities.h"

namespace borescope::guard {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(MeasureCost, ReadsOurOwnThreadsAndMemory) {
  volatile uint64_t work = 0;
  for (int i = 0; i < 20'000'000; ++i) work = work + 1;
  Cost cost = MeasureCost({.runs = 1, .stack_walks = 1, .bpf_ns = 5, .map_bytes = 7}, 3);
  EXPECT_GT(cost.user_space_ns, 1'000'000);
  EXPECT_EQ(cost.bpf_ns, 5);
  EXPECT_EQ(cost.map_bytes, 7);
  EXPECT_GT(cost.resident_bytes, 1 << 20);
  int64_t threads = 0;
  for (const auto& [name, ns] : cost.by_thread) threads += ns;
  EXPECT_NEAR(static_cast<double>(threads), static_cast<double>(cost.user_space_ns), 0.2 * static_cast<double>(cost.user_space_ns) + 2e7);
}

TEST(Ledger, SharesTheCostByTheSamples) {
  Ledger ledger;
  Cost cost;
  cost.resident_bytes = 100;
  ledger.Account(cost, {{"a", 0}, {"b", 0}}, 0);
  cost.user_space_ns = kSecond / 10;
  ledger.Account(cost, {{"a", 300}, {"b", 100}}, kSecond);
  EXPECT_EQ(ledger.Of("a").cpu_ns, 75'000'000);
  EXPECT_EQ(ledger.Of("b").cpu_ns, 25'000'000);
  EXPECT_EQ(ledger.Of("a").peak_cpu_millis, 75);
  cost.bpf_ns = kSecond / 100;
  cost.resident_bytes = 90;
  ledger.Account(cost, {{"a", 300}}, 2 * kSecond);
  EXPECT_EQ(ledger.Of("a").cpu_ns, 85'000'000);
  EXPECT_EQ(ledger.Of("a").average_cpu_millis, 42);
  EXPECT_EQ(ledger.Of("a").peak_cpu_millis, 75);
  EXPECT_EQ(ledger.Of("a").peak_memory_bytes, 100);
  EXPECT_EQ(ledger.Of("c").cpu_ns, 0);
}

TEST(Ledger, TheBareTickStandsBeside) {
  Ledger ledger;
  Cost cost;
  cost.tick_ns = kSecond;  // of jobs before
  ledger.Account(cost, {{"a", 0}}, 0);
  cost.tick_ns += kSecond / 4000;
  ledger.Account(cost, {{"a", 10}}, kSecond);
  EXPECT_EQ(ledger.Of("a").cpu_ns, 0);
  EXPECT_EQ(ledger.Of("a").tick_ns, 250'000);
  EXPECT_EQ(ledger.Of("a").tick_millis, 1) << "rounded up";
  cost.tick_ns += kSecond / 100;
  ledger.Account(cost, {{"a", 20}}, 2 * kSecond);
  EXPECT_EQ(ledger.Of("a").tick_millis, 6);
}

TEST(Ledger, IdleTimeIsNobodys) {
  Ledger ledger;
  Cost cost;
  ledger.Account(cost, {}, 0);
  cost.user_space_ns = 50 * kSecond;
  ledger.Account(cost, {}, 1000 * kSecond);  // before the first job is armed
  cost.user_space_ns += kSecond / 10;
  ledger.Account(cost, {{"a", 10}}, 1001 * kSecond);
  EXPECT_EQ(ledger.Of("a").cpu_ns, kSecond / 10);
  EXPECT_EQ(ledger.Of("a").average_cpu_millis, 100);
}

TEST(Capabilities, NamesEachOfTheSixThatIsMissing) {
  EXPECT_TRUE(MissingCapabilities("Name:\tx\nCapEff:\t000001c400080004\n").empty());
  auto missing = MissingCapabilities("CapEff:\t000001c000080004\n");
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].name, "CAP_SYSLOG");
  EXPECT_EQ(DescribeMissing(missing).find("CAP_SYSLOG is missing: /proc/kallsyms"), 0u);
  EXPECT_EQ(MissingCapabilities("CapEff:\t0\n").size(), 6u);
  EXPECT_TRUE(MissingCapabilities("nothing").empty());
  EXPECT_EQ(DescribeMissing({}), "");
}

}  // namespace
}  // namespace borescope::guard
