// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace borescope::engine {

struct KernelVersion {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const KernelVersion&) const = default;
};

// The upstream version of the running kernel. Distributions hide it: Debian's release says "6.1.0-35-amd64" and uname's version
// "… Debian 6.1.137-1"; Ubuntu's is the last word of /proc/version_signature (empty elsewhere).
std::optional<KernelVersion> ParseKernelVersion(std::string_view release, std::string_view version, std::string_view signature);

struct KernelFacts {
  std::optional<KernelVersion> version;
  std::string release;           // as uname says it, for messages
  bool hardened_usercopy = true; // unless the kernel's configuration says otherwise
  int max_sample_rate = 0;       // kernel.perf_event_max_sample_rate
  bool has_btf = false;
};

KernelFacts ReadKernelFacts(const std::string& proc_root);

// kUnsupported, with the reason, for a kernel that lacks what we need or on which sampling is known to do harm.
Status CheckKernel(const KernelFacts& facts);

}  // namespace borescope::engine
