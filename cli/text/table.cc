// SPDX-License-Identifier: Apache-2.0
#include "cli/text/table.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "common/api/types.h"
#include "common/base/strings.h"

namespace borescope::cli {

size_t Characters(std::string_view text) {
  size_t characters = 0;
  for (unsigned char c : text) characters += (c & 0xc0) != 0x80;
  return characters;
}

std::string Fit(const std::string& text, size_t width) {
  size_t characters = Characters(text);
  if (characters <= width) return text + std::string(width - characters, ' ');
  // The tail of a qualified name tells more than its head: cut the middle.
  std::string cut = text;
  size_t bytes = text.size();
  while (characters > width && bytes > 4) {
    --bytes;
    cut = SanitizeName(text, bytes);
    characters = Characters(cut);
  }
  return cut + std::string(width > characters ? width - characters : 0, ' ');
}

std::string Wrap(std::string_view text, size_t width, const std::string& indent) {
  std::string out, line = indent;
  for (std::string_view word : Split(text, ' ')) {
    if (Characters(line) + 1 + Characters(word) > width && line.size() > indent.size()) {
      out += line + "\n";
      line = indent;
    }
    if (line.size() > indent.size()) line += ' ';
    line += word;
  }
  return out + line + "\n";
}

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

std::string FormatAge(int64_t seconds) {
  if (seconds < 0) seconds = 0;
  if (seconds < 120) return fmt::format("{}s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{}m", seconds / 60);
  if (seconds < 2 * 86400) return fmt::format("{}h", seconds / 3600);
  return fmt::format("{}d", seconds / 86400);
}

size_t TerminalWidth() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return std::min<size_t>(size.ws_col, 120);
  return 80;
}

std::string RenderTop(const std::vector<TopLine>& lines, size_t width) {
  width = std::max<size_t>(width, 60);
  constexpr size_t kNumbers = 6 + 2 + 4 + 2 + 6 + 2 + 6 + 2;
  size_t longest_location = 8;
  for (const TopLine& line : lines) longest_location = std::max(longest_location, Characters(line.location));
  const size_t location_width = std::min<size_t>(longest_location, (width - kNumbers) / 3);
  const size_t function_width = width - kNumbers - location_width - 2;

  std::string out = fmt::format("{:>6}  {:>4}  {:>6}  {:>6}  {}  LOCATION\n", "OWN", "±", "TOTAL", "CORES", Fit("FUNCTION", function_width));
  for (const TopLine& row : lines) {
    std::string line = fmt::format("{:>5.1f}%  {:>4.1f}  {:>5.1f}%  {:>6}  {}  {}", row.own * 100, row.error * 100, row.total * 100, FormatCores(row.cores),
                                   Fit(row.function, function_width), Fit(row.location, location_width));
    while (line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string RenderTable(const TableInput& input) {
  std::vector<TopLine> lines;
  for (const auto& row : input.rows) {
    if (input.total_ns <= 0) break;
    const double own = static_cast<double>(row.own) / static_cast<double>(input.total_ns);
    lines.push_back({.own = own,
                     .error = api::ShareError(own, input.effective_samples),
                     .total = static_cast<double>(row.total) / static_cast<double>(input.total_ns),
                     .cores = input.wall_seconds > 0 ? static_cast<double>(row.own) / 1e9 / input.wall_seconds : 0,
                     .function = profile::TopFunctionName(row),
                     .location = profile::TopLocation(row)});
  }
  return RenderTop(lines, input.width);
}

std::string RenderColumns(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows, size_t width, size_t flexible) {
  constexpr size_t kLeast = 12;
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (const std::string& heading : headings) {
    right.push_back(heading.starts_with('>'));
    widths.push_back(Characters(heading) - (right.back() ? 1 : 0));
  }
  size_t columns = headings.size();
  for (const auto& row : rows) {
    for (size_t i = 0; i < columns; ++i) widths[i] = std::max(widths[i], Characters(row[i]));
  }
  auto sum = [&] {
    size_t all = columns > 0 ? 2 * (columns - 1) : 0;
    for (size_t i = 0; i < columns; ++i) all += widths[i];
    return all;
  };
  if (size_t all = sum(); all > width) widths[flexible] = std::max(std::min(kLeast, widths[flexible]), widths[flexible] - std::min(widths[flexible], all - width));
  while (columns > flexible + 1 && columns > 1 && sum() > width) --columns;
  std::string out;
  auto add = [&](auto&& cell) {
    std::string line;
    for (size_t i = 0; i < columns; ++i) {
      std::string text = cell(i);
      if (i > 0) line += "  ";
      line += right[i] && Characters(text) < widths[i] ? std::string(widths[i] - Characters(text), ' ') + text : Fit(text, widths[i]);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  };
  add([&](size_t i) { return headings[i].substr(right[i] ? 1 : 0); });
  for (const auto& row : rows) add([&](size_t i) { return row[i]; });
  return out;
}

}  // namespace borescope::cli
