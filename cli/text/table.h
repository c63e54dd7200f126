// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/profile/profile.h"

namespace borescope::cli {

// ---- What a person reads. Nothing here is longer than the columns given (at least 60), and nothing has colours. ----------------

// Characters, not bytes, of a valid UTF-8 text.
size_t Characters(std::string_view text);
// Cut (its middle leaves, marked with "…") or padded on the right to a number of characters.
std::string Fit(const std::string& text, size_t width);
// Words put into lines of at most `width` columns, each after `indent`.
std::string Wrap(std::string_view text, size_t width, const std::string& indent);

// One function of a top table; shares are 0 to 1.
struct TopLine {
  double own = 0, error = 0, total = 0, cores = 0;
  std::string function = {}, location = {};
};
// OWN ±, TOTAL, CORES, FUNCTION, LOCATION. Ends with a newline.
std::string RenderTop(const std::vector<TopLine>& lines, size_t width);

// What a table of top functions says beside the rows.
struct TableInput {
  std::vector<profile::TopRow> rows;  // values in nanoseconds
  int64_t total_ns = 0;               // of the whole profile
  double effective_samples = 0;       // profile::EffectiveSamples
  double wall_seconds = 0;            // length of the run, for cores
  size_t width = 80;                  // columns of the terminal
};
// RenderTop of these; ± is api::ShareError of OWN, in points of per cent.
std::string RenderTable(const TableInput& input);

// A table of texts. A heading that begins with ">" is right-aligned. Columns are as wide as their longest text; when that is too much, the
// one numbered `flexible` is cut, and when it has only 12 characters left, the last ones leave.
std::string RenderColumns(const std::vector<std::string>& headings, const std::vector<std::vector<std::string>>& rows, size_t width, size_t flexible);

// "1.25 cores" -> "1250m", as Kubernetes writes CPU.
std::string FormatCores(double cores);
// 43000000 -> "41Mi".
std::string FormatBytes(uint64_t bytes);
// 61.24 s as "61.2 s", 0.0123 s as "12 ms".
std::string FormatSeconds(double seconds);
// As kubectl writes an age: "8s", "5m", "3h", "12d".
std::string FormatAge(int64_t seconds);

// Columns of the terminal at standard output, at most 120; 80 when there is none.
size_t TerminalWidth();

}  // namespace borescope::cli
