// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace borescope::symbols {

struct MapsLine {
  uint64_t start = 0, end = 0, offset = 0;
  uint32_t device_major = 0, device_minor = 0;
  uint64_t inode = 0;
  bool executable = false;
  std::string path;  // octal escapes undone (\012); " (deleted)" kept off; "" for anonymous memory; "[vdso]" …
  bool deleted = false;
};

std::optional<MapsLine> ParseMapsLine(std::string_view line);
// The executable mappings of /proc/PID/maps, in address order, at most max_mappings.
std::vector<MapsLine> ParseMaps(std::string_view text, size_t max_mappings);

// Innermost pid of a process ("NSpid:" of /proc/PID/status), 0 when absent.
int ParseInnermostPid(std::string_view status);

}  // namespace borescope::symbols
