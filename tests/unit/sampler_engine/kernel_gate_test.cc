// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/kernel_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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

// A kernel that has all there is, and no row of the table but those of every kernel.
KernelFacts Good(KernelVersion version = {6, 18, 44}) {
  KernelFacts facts;
  facts.release = std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.patch) + "-test";
  facts.build = "#1 SMP PREEMPT_DYNAMIC";
  facts.machine = "x86_64";
  facts.version = version;
  facts.features.fill(Answer::kYes);
  facts.jit = Answer::kYes;
  facts.lockdown = "none";
  facts.max_sample_rate = 100000;
  facts.kptr_restrict = 1;
  facts.perf_event_paranoid = 2;
  return facts;
}

const KernelFinding* Find(const KernelReport& report, std::string_view name) {
  auto it = std::ranges::find(report.findings, name, &KernelFinding::name);
  return it == report.findings.end() ? nullptr : &*it;
}

// The row is found with that verdict, and nothing else is refused.
void Expect(const KernelFacts& facts, std::string_view row, Verdict verdict, std::string_view word) {
  SCOPED_TRACE(facts.release);
  KernelReport report = JudgeKernel(facts, {});
  const KernelFinding* found = Find(report, row);
  ASSERT_NE(found, nullptr) << row;
  EXPECT_EQ(VerdictName(found->verdict), VerdictName(verdict)) << row;
  EXPECT_NE(found->message.find(word), std::string::npos) << found->message;
  EXPECT_NE(found->message.find(facts.release), std::string::npos) << found->message;
  for (const KernelFinding& f : report.findings) EXPECT_TRUE(f.name == row || f.verdict != Verdict::kRefused) << f.name;
  Status allowed = report.Allowed();
  EXPECT_EQ(allowed.ok(), verdict != Verdict::kRefused);
  if (!allowed.ok()) {
    EXPECT_EQ(allowed.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(allowed.error().message, found->message);
  }
}

void ExpectNone(const KernelFacts& facts, std::string_view row) {
  EXPECT_EQ(Find(JudgeKernel(facts, {}), row), nullptr) << facts.release << " " << row;
}

// A version within the range of one row, drawn: from the first up to, not including, the end.
KernelVersion Within(KernelVersion first, KernelVersion end) {
  static std::mt19937 random = [] {
    const char* given = getenv("SEED");
    auto seed = given != nullptr ? static_cast<unsigned>(atoll(given)) : std::random_device{}();
    printf("SEED=%u\n", seed);
    return std::mt19937(seed);
  }();
  std::vector<KernelVersion> candidates = {first};
  for (int minor = first.minor; minor <= end.minor; ++minor) {
    for (int patch = 0; patch < 120; ++patch) {
      KernelVersion v{first.major, minor, patch};
      if (v > first && v < end) candidates.push_back(v);
    }
  }
  return candidates[random() % candidates.size()];
}

TEST(KernelGateTest, AGoodKernelIsTaken) {
  EXPECT_TRUE(JudgeKernel(Good(), {}).Allowed().ok());
  for (const KernelFinding& f : JudgeKernel(Good(), {}).findings) EXPECT_EQ(f.verdict, Verdict::kAvoided) << f.name;
  KernelFacts unknown = Good();  // what could not be asked is for the loading to tell
  unknown.features.fill(Answer::kUnknown);
  unknown.jit = Answer::kUnknown;
  unknown.version.reset();
  unknown.lockdown.clear();
  EXPECT_TRUE(JudgeKernel(unknown, {}).Allowed().ok());
}

TEST(KernelGateTest, Row1HardenedUsercopy) {
  for (KernelVersion v : {KernelVersion{5, 19, 0}, {6, 0, 19}, {6, 1, 35}, {6, 2, 0}, {6, 2, 16}, {6, 3, 9}, Within({5, 19, 0}, {6, 1, 36}), Within({6, 2, 0}, {6, 3, 10})}) {
    Expect(Good(v), "hardened-usercopy", Verdict::kRefused, "6.1.36");
  }
  for (KernelVersion v : {KernelVersion{5, 15, 0}, {5, 18, 19}, {6, 1, 36}, {6, 1, 137}, {6, 3, 10}, {6, 4, 0}, {6, 12, 1}}) ExpectNone(Good(v), "hardened-usercopy");
  KernelFacts facts = Good({6, 2, 0});
  facts.hardened_usercopy = false;
  ExpectNone(facts, "hardened-usercopy");
}

TEST(KernelGateTest, Row2UserCallchainBesideUprobes) {
  Expect(Good(Within({6, 11, 0}, {6, 13, 0})), "uprobe-callchain", Verdict::kAvoided, "6.13");
  Expect(Good(Within({6, 6, 0}, {6, 7, 0})), "uprobe-callchain", Verdict::kAvoided, "never ask");
  ExpectNone(Good({6, 13, 0}), "uprobe-callchain");
}

TEST(KernelGateTest, Row3ReturnProbesAndSeccomp) {
  Expect(Good(Within({6, 11, 0}, {6, 14, 0})), "uretprobe-seccomp", Verdict::kAvoided, "seccomp");
  ExpectNone(Good({6, 14, 0}), "uretprobe-seccomp");
  KernelFacts arm = Good({6, 12, 0});
  arm.machine = "aarch64";
  ExpectNone(arm, "uretprobe-seccomp");
}

TEST(KernelGateTest, Row4ThrottledClockHangs) {
  KernelFacts facts = Good(Within({6, 16, 0}, {6, 18, 0}));
  facts.max_sample_rate = kSafeSampleRate - 1;
  Expect(facts, "cpu-clock-throttle", Verdict::kRefused, "perf_event_max_sample_rate");
  facts.max_sample_rate = kSafeSampleRate;
  Expect(facts, "cpu-clock-throttle", Verdict::kAvoided, "999 Hz");
  for (KernelVersion v : {KernelVersion{6, 15, 11}, {6, 18, 0}}) {
    KernelFacts other = Good(v);
    other.max_sample_rate = 1000;
    ExpectNone(other, "cpu-clock-throttle");
  }
}

TEST(KernelGateTest, Row5ClockCountsNothing) {
  Expect(Good(Within({6, 16, 0}, {6, 18, 0})), "cpu-clock-count", Verdict::kAvoided, "count 0");
  ExpectNone(Good({6, 18, 0}), "cpu-clock-count");
}

TEST(KernelGateTest, Row6EventsOfCgroups) {
  for (KernelVersion v : {Within({6, 15, 0}, {6, 16, 0}), KernelVersion{6, 16, 0}, KernelVersion{6, 6, 100}}) {
    Expect(Good(v), "perf-cgroup", Verdict::kAvoided, "dangling");
  }
  ExpectNone(Good({6, 16, 1}), "perf-cgroup");
}

TEST(KernelGateTest, Row7TaskStorageAllocation) {
  Expect(Good({5, 15, 0}), "task-storage-allocation", Verdict::kAvoided, "6.4");
  Expect(Good({6, 1, 137}), "task-storage-allocation", Verdict::kAvoided, "created at fork");
  ExpectNone(Good({6, 4, 0}), "task-storage-allocation");
}

TEST(KernelGateTest, Row8TaskStorageFree) {
  Expect(Good(Within({7, 0, 0}, {7, 1, 0})), "task-storage-free", Verdict::kWarned, "kworker");
  ExpectNone(Good({7, 1, 0}), "task-storage-free");
  ExpectNone(Good({6, 19, 9}), "task-storage-free");
}

TEST(KernelGateTest, Row9MappingIterators) {
  for (KernelVersion v : {KernelVersion{6, 1, 137}, {6, 18, 44}, {7, 3, 4}}) Expect(Good(v), "vma-iterator", Verdict::kAvoided, "bpf_find_vma");
}

TEST(KernelGateTest, Row10RedHatLockups) {
  KernelFacts facts = Good({5, 14, 0});
  facts.release = "5.14.0-427.13.1.el9_4.x86_64";
  Expect(facts, "rhel-nmi-lockup", Verdict::kWarned, "hardware events");  // taken for its features: a version below 5.15 is no reason
  facts.release = "5.14.0-503.11.1.el9_5.x86_64";
  ExpectNone(facts, "rhel-nmi-lockup");
}

TEST(KernelGateTest, Row11RealTime) {
  KernelFacts facts = Good();
  facts.preempt_rt = true;
  Expect(facts, "preempt-rt", Verdict::kRefused, "PREEMPT_RT");
}

TEST(KernelGateTest, Row11Lockdown) {
  KernelFacts facts = Good();
  facts.lockdown = "integrity";
  EXPECT_TRUE(JudgeKernel(facts, {}).Allowed().ok());
  facts.lockdown = "confidentiality";
  Expect(facts, "lockdown", Verdict::kRefused, "lockdown=integrity");
}

TEST(KernelGateTest, Row11HiddenAddresses) {
  KernelFacts facts = Good();
  facts.kptr_restrict = 2;
  Expect(facts, "kptr-restrict", Verdict::kWarned, "kernel.kptr_restrict");
}

TEST(KernelGateTest, Row11Paranoid) {
  KernelFacts facts = Good();
  facts.perf_event_paranoid = 3;
  EXPECT_TRUE(JudgeKernel(facts, {}).Allowed().ok());  // with the capability it does not matter
  facts.missing_capabilities = "CAP_PERFMON";
  Status allowed = JudgeKernel(facts, {}).Allowed();
  ASSERT_FALSE(allowed.ok());
  EXPECT_EQ(allowed.error().code, ErrorCode::kDenied);
  for (const char* part : {"CAP_PERFMON", "perf_event_paranoid is 3"}) EXPECT_NE(allowed.error().message.find(part), std::string::npos) << allowed.error().message;
  facts.feature(Feature::kAttachCookies) = Answer::kNo;  // then the capability alone would not help
  EXPECT_EQ(JudgeKernel(facts, {}).Allowed().error().code, ErrorCode::kUnsupported);
}

TEST(KernelGateTest, Row11Interpreter) {
  KernelFacts facts = Good();
  facts.jit = Answer::kNo;
  Expect(facts, "jit-off", Verdict::kRefused, "bpf_jit_enable");
}

TEST(KernelGateTest, Row11Features) {
  struct {
    Feature feature;
    const char *name, *word;
  } const kAll[] = {
      {Feature::kTypes, "btf", "CONFIG_DEBUG_INFO_BTF"},
      {Feature::kRingBuffer, "ring-buffer", "bpf_ringbuf_output"},
      {Feature::kReadKernel, "read-kernel", "bpf_probe_read_kernel"},
      {Feature::kReadUser, "read-user", "bpf_probe_read_user"},
      {Feature::kBootClock, "boot-clock", "bpf_ktime_get_boot_ns"},
      {Feature::kKernelStack, "kernel-stack", "bpf_get_stack"},
      {Feature::kCurrentTask, "current-task", "bpf_get_current_task_btf"},
      {Feature::kTaskStorage, "task-storage", "bpf_task_storage_get"},
      {Feature::kFormat, "format", "bpf_snprintf"},
      {Feature::kAttachCookies, "attach-cookies", "bpf_get_attach_cookie"},
      {Feature::kTaskRegisters, "task-registers", "bpf_task_pt_regs"},
      {Feature::kSyscallPrograms, "syscall-programs", "BPF_PROG_TYPE_SYSCALL"},
      {Feature::kTaskIterator, "task-iterator", "iter/task"},
      {Feature::kTracepoints, "tracepoints", "tp_btf"},
      {Feature::kMappings, "mappings", "mm_mt"},
      {Feature::kFileTimes, "file-times", "i_mtime"},
      {Feature::kTaskFields, "task-fields", "thread_pid"},
  };
  static_assert(std::size(kAll) == kFeatureCount);
  for (const auto& row : kAll) {
    KernelFacts facts = Good();
    facts.feature(row.feature) = Answer::kNo;
    Expect(facts, row.name, Verdict::kRefused, row.word);
  }
}

TEST(KernelGateTest, Row12HardwareEvents) {
  Expect(Good({5, 15, 170}), "pmu-nmi", Verdict::kAvoided, "software clock");
  ExpectNone(Good({6, 1, 0}), "pmu-nmi");
}

TEST(KernelGateTest, FeaturesComeBeforeTheVersion) {
  // What a 5.10 lacks, as far as we need it: each is named, though no row names that version.
  KernelFacts old = Good({5, 10, 251});
  for (Feature f : {Feature::kCurrentTask, Feature::kTaskStorage, Feature::kFormat, Feature::kAttachCookies, Feature::kTaskRegisters, Feature::kSyscallPrograms}) {
    old.feature(f) = Answer::kNo;
  }
  Status allowed = JudgeKernel(old, {}).Allowed();
  ASSERT_FALSE(allowed.ok());
  for (const char* part : {"bpf_get_attach_cookie", "bpf_task_pt_regs", "bpf_snprintf", "5.10.251-test"}) {
    EXPECT_NE(allowed.error().message.find(part), std::string::npos) << allowed.error().message;
  }
  EXPECT_TRUE(JudgeKernel(Good({5, 10, 251}), {}).Allowed().ok());  // the same version with all of it put in
}

TEST(KernelGateTest, OnlyAFaultCanBeOverridden) {
  KernelFacts facts = Good({6, 2, 0});
  facts.preempt_rt = true;
  KernelReport report = JudgeKernel(facts, {"hardened-usercopy"});
  EXPECT_EQ(Find(report, "hardened-usercopy")->verdict, Verdict::kOverridden);
  EXPECT_NE(Find(report, "hardened-usercopy")->message.find("--kernel-override"), std::string::npos);
  EXPECT_FALSE(report.Allowed().ok());  // the other one stands
  EXPECT_NE(report.Allowed().error().message.find("--kernel-override preempt-rt"), std::string::npos);
  EXPECT_TRUE(JudgeKernel(facts, {"hardened-usercopy", "preempt-rt"}).Allowed().ok());
  EXPECT_EQ(Find(JudgeKernel(Good(), {"hardened-usercopy"}), "hardened-usercopy"), nullptr);  // what is not there is not overridden

  facts = Good();
  facts.feature(Feature::kAttachCookies) = Answer::kNo;
  EXPECT_FALSE(JudgeKernel(facts, {"attach-cookies"}).Allowed().ok());
  facts = Good();
  facts.lockdown = "confidentiality";
  EXPECT_FALSE(JudgeKernel(facts, {"lockdown"}).Allowed().ok());

  EXPECT_TRUE(CheckOverrides({}).ok());
  for (const std::string& name : KernelOverrides()) EXPECT_TRUE(CheckOverrides({name}).ok()) << name;
  for (const char* name : {"lockdown", "attach-cookies", "uprobe-callchain", ""}) {
    Status status = CheckOverrides({name});
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_NE(status.error().message.find("hardened-usercopy, cpu-clock-throttle, preempt-rt, jit-off, kernel-fault"), std::string::npos) << status.error().message;
  }
}

TEST(KernelGateTest, ThisMachine) {
  KernelFacts facts = ReadKernelFacts("/proc", "/sys");
  EXPECT_TRUE(facts.version.has_value());
  EXPECT_FALSE(facts.machine.empty());
  if (facts.feature(Feature::kTypes) == Answer::kYes) {
    EXPECT_NE(facts.feature(Feature::kTaskFields), Answer::kUnknown);
  }
  // Where no program may be loaded nothing is said about helpers; else everything.
  if (facts.jit != Answer::kUnknown) {
    for (size_t i = 0; i < kFeatureCount; ++i) EXPECT_NE(facts.features[i], Answer::kUnknown) << i;
  } else {
    for (size_t i = 0; i < kFeatureCount; ++i) EXPECT_TRUE(facts.features[i] != Answer::kNo || facts.feature(Feature::kTypes) == Answer::kNo) << i;
  }
  EXPECT_EQ(ReadKernelFacts("/proc", "/nowhere").feature(Feature::kTypes), Answer::kNo);
}

}  // namespace
}  // namespace borescope::engine
