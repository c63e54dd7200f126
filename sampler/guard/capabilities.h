// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace borescope::guard {

// One of the six capabilities that the sampler runs with, and what is worse without it.
struct Capability {
  int number;
  std::string_view name;         // "CAP_SYSLOG"
  std::string_view consequence;  // operation and what follows
};

// Those that the effective set of a /proc/PID/status text lacks.
std::vector<Capability> MissingCapabilities(std::string_view proc_status);
// "CAP_SYSLOG is missing: …; add it …" for all of them; empty when there are none.
std::string DescribeMissing(const std::vector<Capability>& missing);

}  // namespace borescope::guard
