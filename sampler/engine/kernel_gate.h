// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace borescope::engine {

// Whether sampling may run on this kernel: first by what it offers (probed, for distributions put new BPF into old versions), then by what its
// version is known to do wrong, then by what the administrator allows all the same.

struct KernelVersion {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const KernelVersion&) const = default;
};

// The upstream version of the running kernel. Distributions hide it: Debian's release says "6.1.0-35-amd64" and uname's version
// "… Debian 6.1.137-1"; Ubuntu's is the last word of /proc/version_signature (empty elsewhere).
std::optional<KernelVersion> ParseKernelVersion(std::string_view release, std::string_view version, std::string_view signature);

// What our programs cannot be loaded or attached without.
enum class Feature {
  kTypes,
  kRingBuffer,
  kReadKernel,
  kReadUser,
  kBootClock,
  kKernelStack,
  kCurrentTask,
  kTaskStorage,
  kFormat,
  kAttachCookies,
  kTaskRegisters,
  kSyscallPrograms,
  kTaskIterator,
  kTracepoints,
  kMappings,
  kFileTimes,
  kTaskFields,
};
inline constexpr size_t kFeatureCount = static_cast<size_t>(Feature::kTaskFields) + 1;

enum class Answer { kUnknown, kYes, kNo };  // kUnknown: could not be asked, for want of a capability; loading the programs will tell

struct KernelFacts {
  std::string release, build;  // as uname says them: release, version
  std::string machine;         // likewise: "x86_64"
  std::optional<KernelVersion> version;  // upstream's
  std::array<Answer, kFeatureCount> features{};
  Answer& feature(Feature f) { return features[static_cast<size_t>(f)]; }
  Answer feature(Feature f) const { return features[static_cast<size_t>(f)]; }
  Answer jit = Answer::kUnknown;
  bool hardened_usercopy = true;  // unless the kernel's configuration or command line says otherwise
  bool preempt_rt = false;
  std::string lockdown;           // "none", "integrity", "confidentiality"; empty: not known
  int max_sample_rate = 0;        // kernel.perf_event_max_sample_rate
  int kptr_restrict = 0;
  int perf_event_paranoid = 0;
  std::string missing_capabilities;  // of those needed to load and attach: "CAP_BPF, CAP_PERFMON"
  std::string refusal;               // what the kernel says for want of them: "loading a BPF program: Operation not permitted"
};

// Asks the kernel: loads some twenty programs of two or three instructions, reads its type information.
KernelFacts ReadKernelFacts(const std::string& proc_root, const std::string& sys_root);

// "CAP_BPF, CAP_PERFMON": those needed to load and attach that this process does not have; CAP_SYS_ADMIN stands for both.
std::string MissingCapabilities(const std::string& proc_root);

enum class Verdict {
  kRefused,     // nothing is sampled
  kOverridden,  // would be refused, but for the administrator's word
  kWarned,      // sampled; something is worse, or may become so
  kAvoided,     // the kernel has a fault in what we do not use
};
std::string_view VerdictName(Verdict verdict);  // "Refused" …

struct KernelFinding {
  std::string name;  // of the row, e.g. "hardened-usercopy"
  Verdict verdict = Verdict::kWarned;
  std::string message;  // what is wrong and what to do
  bool capability = false;  // it is not the kernel, but a capability that is missing
};

struct KernelReport {
  std::vector<KernelFinding> findings;
  // kUnsupported (kDenied: for want of capabilities only) with the message of each refusal.
  Status Allowed() const;
};

// `overrides`: names out of KernelOverrides().
KernelReport JudgeKernel(const KernelFacts& facts, const std::set<std::string>& overrides);

// The refusals that an administrator can override, and the stop after a kernel fault. Features that are missing are not among them.
inline constexpr std::string_view kKernelFault = "kernel-fault";
std::vector<std::string> KernelOverrides();
// kInvalid: a name that is none of these.
Status CheckOverrides(const std::set<std::string>& overrides);

// Below it, a kernel with the fault "cpu-clock-throttle" hangs: the kernel must never throttle our clocks.
inline constexpr int kSafeSampleRate = 4000;  // four ticks for each that may come, at 999 Hz

}  // namespace borescope::engine
