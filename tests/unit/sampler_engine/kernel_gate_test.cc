// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/kernel_gate.h"

#include <gtest/gtest.h>

namespace borescope::engine {
namespace {

TEST(KernelGateTest, UpstreamVersionBehindDistributionNames) {
  EXPECT_EQ(ParseKernelVersion("6.18.44-fc-v669", "#1 SMP PREEMPT_DYNAMIC @0", ""), (KernelVersion{6, 18, 44}));
  EXPECT_EQ(ParseKernelVersion("6.1.0-35-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.137-1 (2025-05-07)", ""), (KernelVersion{6, 1, 137}));
  EXPECT_EQ(ParseKernelVersion("6.2.0-39-generic", "#40-Ubuntu SMP", "Ubuntu 6.2.0-39.40-generic 6.2.16\n"), (KernelVersion{6, 2, 16}));
  EXPECT_EQ(ParseKernelVersion("6.7", "", ""), (KernelVersion{6, 7, 0}));
  EXPECT_EQ(ParseKernelVersion("6.19-rc1", "", ""), (KernelVersion{6, 19, 0}));
  EXPECT_EQ(ParseKernelVersion("strange", "", ""), std::nullopt);
  EXPECT_EQ(ParseKernelVersion("", "", "Ubuntu"), std::nullopt);
  EXPECT_EQ(ParseKernelVersion("99999999999999999999.1", "", ""), std::nullopt);
}

Status Check(KernelVersion version, bool hardened = true, int max_rate = 100000, bool btf = true) {
  return CheckKernel({version, "x", hardened, max_rate, btf});
}

TEST(KernelGateTest, UnsafeKernelsAreRefused) {
  for (KernelVersion v : {KernelVersion{5, 19, 0}, {6, 0, 19}, {6, 1, 35}, {6, 2, 0}, {6, 2, 16}, {6, 3, 9}, {5, 14, 0}}) {
    auto s = Check(v);
    ASSERT_FALSE(s.ok()) << v.major << "." << v.minor << "." << v.patch;
    EXPECT_EQ(s.error().code, ErrorCode::kUnsupported);
  }
  for (KernelVersion v : {KernelVersion{5, 15, 0}, {5, 18, 19}, {6, 1, 36}, {6, 1, 137}, {6, 3, 10}, {6, 4, 0}, {6, 12, 1}, {6, 18, 44}}) {
    EXPECT_TRUE(Check(v).ok()) << v.major << "." << v.minor << "." << v.patch;
  }
  EXPECT_TRUE(Check({6, 2, 0}, false).ok());  // not affected without HARDENED_USERCOPY
}

TEST(KernelGateTest, ThrottlingIsDangerousOnSomeKernels) {
  EXPECT_FALSE(Check({6, 16, 3}, true, 1000).ok());
  EXPECT_FALSE(Check({6, 17, 99}, true, 3999).ok());
  EXPECT_TRUE(Check({6, 16, 3}, true, 100000).ok());
  EXPECT_TRUE(Check({6, 18, 0}, true, 1000).ok());
}

TEST(KernelGateTest, NoTypeInformation) {
  auto s = Check({6, 18, 0}, true, 100000, false);
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(s.error().message.find("CONFIG_DEBUG_INFO_BTF"), std::string::npos);
}

TEST(KernelGateTest, ThisMachine) { EXPECT_TRUE(ReadKernelFacts("/proc").version.has_value()); }

}  // namespace
}  // namespace borescope::engine
