// SPDX-License-Identifier: Apache-2.0
#include "sampler/guard/kernel_fault.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace borescope::guard {
namespace {

// What the kernel's own source prints, with the levels it prints them at: arch/x86/kernel/dumpstack.c, kernel/watchdog.c, kernel/rcu/tree_stall.h,
// arch/arm64/kernel/traps.c.
struct Line {
  int level;
  const char* text;
};

constexpr const char* kProgram = "bpf_prog_6deef7357e7b4530_tick";

std::optional<KernelFault> Feed(FaultDetector& detector, const std::vector<Line>& lines, uint64_t start_us = 1'000'000, uint64_t step_us = 50) {
  static int sequence = 100;
  std::optional<KernelFault> found;
  for (const Line& line : lines) {
    std::string record = std::to_string(line.level) + "," + std::to_string(sequence++) + "," + std::to_string(start_us) + ",-;" + line.text + "\n";
    start_us += step_us;
    if (auto fault = detector.Read(record)) {
      EXPECT_FALSE(found.has_value()) << "told twice";
      found = fault;
    }
  }
  return found;
}

std::optional<KernelFault> Feed(const std::vector<Line>& lines) {
  FaultDetector detector;
  return Feed(detector, lines);
}

TEST(KernelFaultTest, Oops) {
  auto fault = Feed({{1, "BUG: unable to handle page fault for address: ffffc90000a31000"},
                     {1, "#PF: supervisor read access in kernel mode"},
                     {4, "Oops: 0000 [#1] PREEMPT SMP NOPTI"},
                     {4, "CPU: 1 PID: 4711 Comm: app Not tainted 6.1.0-35-amd64 #1  Debian 6.1.137-1"},
                     {4, "RIP: 0010:bpf_prog_6deef7357e7b4530_tick+0x1c4/0x2f0"},
                     {4, "Code: 5b c9 c3 48 8b 5d c8"},
                     {4, "Call Trace:"},
                     {4, " <IRQ>"},
                     {4, " bpf_overflow_handler+0xb4/0x1a0"}});
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->program, kProgram);
  EXPECT_EQ(fault->headline, "BUG: unable to handle page fault for address: ffffc90000a31000");
}

TEST(KernelFaultTest, OopsFurtherUp) {
  auto fault = Feed({{4, "general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] SMP"},
                     {4, "RIP: 0010:htab_map_update_elem+0x91/0x3a0"},
                     {4, "Call Trace:"},
                     {4, " <TASK>"},
                     {4, " ? bpf_prog_0123456789abcdef+0x33/0x50"}});
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->program, "bpf_prog_0123456789abcdef");
  EXPECT_TRUE(Feed({{1, "BUG: kernel NULL pointer dereference, address: 0000000000000008"}, {4, " bpf_trampoline_6442+0x41/0x1000"}}).has_value());
  EXPECT_TRUE(Feed({{2, "kernel BUG at kernel/bpf/ringbuf.c:123!"}, {4, " bpf_prog_6deef7357e7b4530_tick+0x1/0x2"}}).has_value());
}

TEST(KernelFaultTest, OopsOnArm64) {
  auto fault = Feed({{1, "Unable to handle kernel paging request at virtual address ffff80000a5f1000"},
                     {0, "Internal error: Oops: 0000000096000007 [#1] SMP"},
                     {4, "pc : bpf_prog_6deef7357e7b4530_tick+0x6c/0x284"},
                     {4, "lr : bpf_overflow_handler+0x9c/0x150"}});
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->program, kProgram);
}

TEST(KernelFaultTest, SoftLockup) {
  auto fault = Feed({{0, "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [app:1234]"},
                     {4, "Modules linked in: nf_tables"},
                     {4, "CPU: 1 PID: 1234 Comm: app Not tainted 6.12.38 #1"},
                     {4, "RIP: 0010:native_queued_spin_lock_slowpath+0x2a/0x2c0"},
                     {4, " bpf_prog_6deef7357e7b4530_tick+0x1c4/0x2f0"}});
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->headline, "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [app:1234]");
  EXPECT_TRUE(Feed({{0, "watchdog: Watchdog detected hard LOCKUP on cpu 3"}, {4, " bpf_prog_6deef7357e7b4530_tick+0x1/0x2"}}).has_value());
}

TEST(KernelFaultTest, RcuStall) {
  for (const char* headline : {"rcu: INFO: rcu_preempt self-detected stall on CPU", "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
                               "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-.... } 21 jiffies s: 5 root: 0x2/.", "INFO: rcu_sched self-detected stall on CPU"}) {
    auto fault = Feed({{3, headline},
                       {3, "rcu: \t1-....: (20999 ticks this GP) idle=5b1c/1/0x4000000000000000 softirq=6742/6742 fqs=5250"},
                       {3, "rcu: \t(t=21000 jiffies g=16017 q=3051 ncpus=2)"},
                       {4, "NMI backtrace for cpu 1"},
                       {4, "RIP: 0010:bpf_prog_6deef7357e7b4530_tick+0x1c4/0x2f0"}});
    ASSERT_TRUE(fault.has_value()) << headline;
    EXPECT_EQ(fault->program, kProgram);
  }
}

TEST(KernelFaultTest, FaultsOfOthers) {
  EXPECT_FALSE(Feed({{1, "BUG: unable to handle page fault for address: ffffc90000a31000"}, {4, "RIP: 0010:ext4_readdir+0x1/0x2"}, {4, " iterate_dir+0x1/0x2"}}).has_value());
  // A stack without a fault before it: a warning, a hung task, somebody's request.
  EXPECT_FALSE(Feed({{4, "WARNING: CPU: 1 PID: 77 at kernel/events/core.c:5123 perf_event_foo+0x1/0x2"}, {4, " bpf_prog_6deef7357e7b4530_tick+0x1/0x2"}}).has_value());
  EXPECT_FALSE(Feed({{3, "INFO: task kworker/0:1:99 blocked for more than 120 seconds."}, {4, " bpf_prog_6deef7357e7b4530_tick+0x1/0x2"}}).has_value());
  EXPECT_FALSE(Feed({{6, "sysrq: Show backtrace of all active CPUs"}, {4, " bpf_prog_6deef7357e7b4530_tick+0x1/0x2"}}).has_value());
}

TEST(KernelFaultTest, AReportEnds) {
  FaultDetector detector;
  const std::vector<Line> fault = {{0, "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [app:1234]"}}, frame = {{4, " bpf_prog_6deef7357e7b4530_tick+0x1/0x2"}};
  EXPECT_FALSE(Feed(detector, fault, 1'000'000).has_value());
  EXPECT_FALSE(Feed(detector, frame, 12'000'000).has_value());  // 11 s later
  EXPECT_FALSE(Feed(detector, fault, 20'000'000).has_value());
  EXPECT_TRUE(Feed(detector, frame, 29'000'000).has_value());
  EXPECT_FALSE(Feed(detector, frame, 29'000'100).has_value());  // told once
  EXPECT_FALSE(Feed(detector, fault, 40'000'000).has_value());
  detector.Reset();
  EXPECT_FALSE(Feed(detector, frame, 40'000'100).has_value());
}

TEST(KernelFaultTest, WhatTenantsCanWriteIsNoFault) {
  const Line frame = {4, " bpf_prog_6deef7357e7b4530_tick+0x1/0x2"}, lockup = {0, "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [app:1234]"};
  // A process that is called "BUG: x" and crashes; a file with a telling name; an audit record.
  EXPECT_FALSE(Feed({{6, "BUG: x[4711]: segfault at 0 ip 000055d0 sp 00007ffc error 4 in BUG: soft lockup[55d0+1000]"}, frame}).has_value());
  EXPECT_FALSE(Feed({{5, "audit: type=1701 audit(1.2:3): exe=\"/tmp/BUG: soft lockup\""}, frame}).has_value());
  EXPECT_FALSE(Feed({lockup, {6, "x[4711]: segfault at 0 ip 000055d0 sp 00007ffc error 4 in bpf_prog_6deef7357e7b4530_tick+0x1[55d0+1000]"}}).has_value());
  EXPECT_FALSE(Feed({lockup, {6, "bpf_prog_6deef7[4711]: segfault at 0"}}).has_value());  // a process's name has 15 bytes
  EXPECT_FALSE(Feed({lockup, {6, "bpf_trampoline_[4711]: segfault at 0"}}).has_value());
  EXPECT_FALSE(Feed({lockup, {4, "CPU: 1 PID: 1234 Comm: bpf_trampoline_ Not tainted"}}).has_value());
  EXPECT_FALSE(Feed({{0, "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [bpf_trampoline_:1234]"}}).has_value());
}

TEST(KernelFaultTest, ThingsThatAreNoRecords) {
  FaultDetector detector;
  for (std::string_view text : {"", ";", ",,,;x", "1;BUG: x", "1,2;BUG: x", "1,2,3;BUG: x", "x,2,3,-;BUG: x", "1,2,3,-", "99999999999999999999999,2,3,-;BUG: x"}) {
    EXPECT_FALSE(detector.Read(text).has_value()) << text;
  }
  EXPECT_FALSE(Feed(detector, {{4, " bpf_prog_6deef7357e7b4530_tick+0x1/0x2"}}).has_value());
  // With the caller in the head (CONFIG_PRINTK_CALLER), properties after the text, bytes that are no UTF-8.
  EXPECT_FALSE(detector.Read("1,7,1000,-,caller=T1234;BUG: unable to handle \xff\x1b[31m\n SUBSYSTEM=cpu\n").has_value());
  auto fault = detector.Read("4,8,1001,-,caller=C1;RIP: 0010:bpf_prog_6deef7357e7b4530_tick+0x1/0x2\n");
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->headline.find('\x1b'), std::string::npos);
  // A record written by a process carries the facility too: 1 << 3 | 1.
  EXPECT_FALSE(detector.Read("9,9,2000,-;BUG: unable to handle page fault\n").has_value());
  EXPECT_TRUE(detector.Read("12,10,2001,-; bpf_prog_6deef7357e7b4530_tick+0x1/0x2\n").has_value());
}

}  // namespace
}  // namespace borescope::guard
