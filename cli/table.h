// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/profile/profile.h"

namespace borescope::cli {

// What a table of top functions says beside the rows.
struct TableInput {
  std::vector<profile::TopRow> rows;  // values in nanoseconds
  int64_t total_ns = 0;               // of the whole profile
  double effective_samples = 0;       // profile::EffectiveSamples
  double wall_seconds = 0;            // length of the run, for cores
  size_t width = 80;                  // columns of the terminal
};

// Rows: OWN ±, TOTAL, CORES, FUNCTION, LOCATION. ± is api::ShareError of OWN, in points of per cent.
// Ends with a newline; no line is longer than width (at least 60).
std::string RenderTable(const TableInput& input);

// "1.25 cores" -> "1250m", as Kubernetes writes CPU.
std::string FormatCores(double cores);
// 43000000 -> "41Mi".
std::string FormatBytes(uint64_t bytes);
// 61.24 s as "61.2 s", 0.0123 s as "12 ms".
std::string FormatSeconds(double seconds);

}  // namespace borescope::cli
