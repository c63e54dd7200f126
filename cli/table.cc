// SPDX-License-Identifier: Apache-2.0
#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/api/types.h"
#include "common/base/strings.h"

namespace borescope::cli {
namespace {

// Cut or padded on the right to a number of characters (not bytes).
std::string Fit(const std::string& text, size_t width) {
  size_t characters = 0;
  for (unsigned char c : text) characters += (c & 0xc0) != 0x80;
  if (characters <= width) return text + std::string(width - characters, ' ');
  // The tail of a qualified name tells more than its head: cut the middle.
  std::string cut = text;
  size_t bytes = text.size();
  while (characters > width && bytes > 4) {
    --bytes;
    cut = SanitizeName(text, bytes);
    characters = 0;
    for (unsigned char c : cut) characters += (c & 0xc0) != 0x80;
  }
  return cut + std::string(width > characters ? width - characters : 0, ' ');
}

}  // namespace

std::string FormatCores(double cores) {
  double millis = cores * 1000;
  return millis > 0 && millis < 1 ? "<1m" : fmt::format("{:.0f}m", millis);
}

std::string FormatBytes(uint64_t bytes) {
  constexpr uint64_t kMi = 1 << 20;
  return bytes >= kMi ? fmt::format("{}Mi", (bytes + kMi / 2) / kMi) : fmt::format("{}Ki", (bytes + 512) / 1024);
}

std::string FormatSeconds(double seconds) {
  return std::abs(seconds) < 0.1 ? fmt::format("{:.0f} ms", seconds * 1e3) : fmt::format("{:.1f} s", seconds);
}

std::string RenderTable(const TableInput& input) {
  const size_t width = std::max<size_t>(input.width, 60);
  constexpr size_t kNumbers = 6 + 2 + 4 + 2 + 6 + 2 + 6 + 2;
  size_t longest_location = 8;
  for (const auto& row : input.rows) longest_location = std::max(longest_location, profile::TopLocation(row).size());
  const size_t location_width = std::min<size_t>(longest_location, (width - kNumbers) / 3);
  const size_t function_width = width - kNumbers - location_width - 2;

  std::string out = fmt::format("{:>6}  {:>4}  {:>6}  {:>6}  {}  LOCATION\n", "OWN", "±", "TOTAL", "CORES", Fit("FUNCTION", function_width));
  for (const auto& row : input.rows) {
    if (input.total_ns <= 0) break;
    const double own = static_cast<double>(row.own) / static_cast<double>(input.total_ns);
    const double total = static_cast<double>(row.total) / static_cast<double>(input.total_ns);
    const double error = api::ShareError(own, input.effective_samples);
    const double cores = input.wall_seconds > 0 ? static_cast<double>(row.own) / 1e9 / input.wall_seconds : 0;
    std::string line = fmt::format("{:>5.1f}%  {:>4.1f}  {:>5.1f}%  {:>6}  {}  {}", own * 100, error * 100, total * 100, FormatCores(cores),
                                   Fit(profile::TopFunctionName(row), function_width), Fit(profile::TopLocation(row), location_width));
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

}  // namespace borescope::cli
