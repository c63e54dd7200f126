// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/profile/profile.h"

namespace borescope::codec {

struct HtmlPage {
  std::string title = {};               // "deploy/checkout"
  std::vector<std::string> facts = {};  // short ones, beside the title
  std::vector<std::string> notes = {};  // below the table, line breaks kept
  double wall_seconds = 0;         // length of the window, for cores; 0: not shown
  size_t max_bytes = 2 << 20;      // at least 64 KiB
  size_t table_rows = 200;
};

// One file that is a whole page: the flame graph of values[value_index] with zoom and search, and the table of functions. It asks for
// nothing from anywhere, and its policy forbids it to. Names may hold anything. When it would be larger than max_bytes, the smallest
// frames are left out, and the page says how many and how much of the time they are.
std::string EncodeHtml(const profile::Profile& profile, size_t value_index, const HtmlPage& page);

}  // namespace borescope::codec
