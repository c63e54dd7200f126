// SPDX-License-Identifier: Apache-2.0
#include "sampler/guard/capabilities.h"

#include <array>
#include <cstdint>
#include <optional>

#include "common/base/strings.h"

namespace borescope::guard {
namespace {

constexpr std::array<Capability, 6> kSix = {{
    {39, "CAP_BPF", "bpf() fails with EPERM, nothing can be sampled"},
    {38, "CAP_PERFMON", "perf_event_open() and tracing programs fail with EACCES or EPERM, nothing can be sampled"},
    {19, "CAP_SYS_PTRACE", "opening /proc/PID/maps, /proc/PID/root and reading memory of other users' processes fails with EACCES or EPERM, "
                           "their frames stay without names and containers may stay unknown"},
    {40, "CAP_CHECKPOINT_RESTORE", "opening /proc/PID/map_files fails with EPERM, frames in files that were deleted or replaced stay without names"},
    {2, "CAP_DAC_READ_SEARCH", "opening files that belong to other users fails with EACCES, frames in them stay without names"},
    {34, "CAP_SYSLOG", "/proc/kallsyms reads as zero addresses, kernel frames stay without addresses"},
}};

}  // namespace

std::vector<Capability> MissingCapabilities(std::string_view proc_status) {
  constexpr std::string_view kKey = "CapEff:";
  std::vector<Capability> missing;
  for (std::string_view line : Split(proc_status, '\n')) {
    if (!line.starts_with(kKey)) continue;
    std::optional<uint64_t> effective = ParseUint(Trim(line.substr(kKey.size())), 16);
    if (!effective) break;
    for (const Capability& capability : kSix) {
      if ((*effective >> capability.number & 1) == 0) missing.push_back(capability);
    }
    break;
  }
  return missing;
}

std::string DescribeMissing(const std::vector<Capability>& missing) {
  std::string text;
  for (const Capability& capability : missing) {
    if (!text.empty()) text += "; ";
    text += std::string(capability.name) + " is missing: " + std::string(capability.consequence);
  }
  return text.empty() ? text : text + "; add it to the capabilities of the sampler's container";
}

}  // namespace borescope::guard
