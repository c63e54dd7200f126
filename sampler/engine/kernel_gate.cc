// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/kernel_gate.h"

#include <sys/utsname.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cstdio>

#include "common/base/fd.h"
#include "common/base/strings.h"

namespace borescope::engine {
namespace {

// "6.1.137-1" -> 6.1.137; at least two numbers.
std::optional<KernelVersion> ParseNumbers(std::string_view text) {
  std::array<int, 3> numbers{};
  size_t count = 0;
  while (count < numbers.size()) {
    size_t digits = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
    auto value = ParseUint(text.substr(0, digits));
    if (!value || *value > 100000) break;
    numbers[count++] = static_cast<int>(*value);
    text.remove_prefix(digits);
    if (text.empty() || text[0] != '.') break;
    text.remove_prefix(1);
  }
  if (count < 2) return std::nullopt;
  return KernelVersion{numbers[0], numbers[1], numbers[2]};
}

// Versions from `first` up to, not including, `fixed`.
struct UnsafeRange {
  KernelVersion first, fixed;
};

// bpf_probe_read_user in an interrupt takes a lock of vmalloc through check_object_size: the whole node hangs.
constexpr UnsafeRange kUsercopyLockup[] = {{{5, 19, 0}, {6, 1, 36}}, {{6, 2, 0}, {6, 3, 10}}};
// A throttled cpu-clock event is stopped from inside its own timer: the machine hangs. Safe while it is never throttled.
constexpr UnsafeRange kThrottleHang = {{6, 16, 0}, {6, 18, 0}};
constexpr int kSafeSampleRate = 4000;  // at least 4 ticks for each of ours before the kernel throttles

bool In(const UnsafeRange& range, const KernelVersion& v) { return v >= range.first && v < range.fixed; }

std::string GunzipFile(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return "";
  std::string text;
  std::array<char, 16384> buffer;
  int n = 0;
  while (text.size() < (4u << 20) && (n = gzread(file, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  gzclose(file);
  return text;
}

}  // namespace

std::optional<KernelVersion> ParseKernelVersion(std::string_view release, std::string_view version, std::string_view signature) {
  signature = Trim(signature);
  if (size_t space = signature.rfind(' '); space != std::string_view::npos) {
    if (auto v = ParseNumbers(signature.substr(space + 1))) return v;
  }
  constexpr std::string_view kDebian = "Debian ";
  if (size_t at = version.find(kDebian); at != std::string_view::npos) {
    if (auto v = ParseNumbers(version.substr(at + kDebian.size()))) return v;
  }
  return ParseNumbers(release);
}

KernelFacts ReadKernelFacts(const std::string& proc_root) {
  KernelFacts facts;
  utsname names{};
  uname(&names);
  facts.release = names.release;
  auto signature = ReadFile(proc_root + "/version_signature", 4096);
  facts.version = ParseKernelVersion(names.release, names.version, signature.ok() ? *signature : "");
  std::string config = GunzipFile(proc_root + "/config.gz");
  if (config.empty()) config = GunzipFile(std::string("/boot/config-") + names.release);  // reads plain files as well
  if (config.find("# CONFIG_HARDENED_USERCOPY is not set") != std::string::npos) facts.hardened_usercopy = false;
  if (auto rate = ReadFile(proc_root + "/sys/kernel/perf_event_max_sample_rate", 64); rate.ok()) {
    facts.max_sample_rate = static_cast<int>(ParseUint(Trim(*rate)).value_or(0));
  }
  facts.has_btf = access("/sys/kernel/btf/vmlinux", R_OK) == 0;
  return facts;
}

Status CheckKernel(const KernelFacts& facts) {
  std::string kernel = "kernel " + facts.release;
  if (!facts.has_btf) {
    return Error{ErrorCode::kUnsupported, kernel + " offers no readable type information (/sys/kernel/btf/vmlinux): use a kernel built with "
                                                   "CONFIG_DEBUG_INFO_BTF=y, and make /sys visible to the sampler"};
  }
  if (!facts.version) return OkStatus();
  if (*facts.version < KernelVersion{5, 15, 0}) {
    return Error{ErrorCode::kUnsupported, kernel + " is older than 5.15, the first with attach cookies and task registers for BPF: use a newer one"};
  }
  for (const UnsafeRange& range : kUsercopyLockup) {
    if (facts.hardened_usercopy && In(range, *facts.version)) {
      return Error{ErrorCode::kUnsupported, kernel + " can lock up when a BPF program reads user memory in an interrupt (fixed in 6.1.36, 6.3.10 "
                                                     "and 6.4; affects CONFIG_HARDENED_USERCOPY): update the kernel"};
    }
  }
  if (In(kThrottleHang, *facts.version) && facts.max_sample_rate < kSafeSampleRate) {
    return Error{ErrorCode::kUnsupported, kernel + " can hang when a cpu-clock event is throttled, and kernel.perf_event_max_sample_rate is " +
                                              std::to_string(facts.max_sample_rate) + ": raise it to 4000 or more, or use 6.18"};
  }
  return OkStatus();
}

}  // namespace borescope::engine
