// SPDX-License-Identifier: Apache-2.0
#include "common/codec/collapsed.h"

#include <map>
#include <ranges>
#include <vector>

namespace borescope::codec {

std::string EncodeCollapsed(const profile::Profile& profile, size_t value_index) {
  // Each location as text once, its outermost line first.
  std::vector<std::string> text_of;
  text_of.reserve(profile.locations().size());
  for (const profile::Location& location : profile.locations()) {
    std::string& text = text_of.emplace_back();
    for (size_t line = location.lines.empty() ? 1 : location.lines.size(); line-- > 0;) {
      std::string name = profile::FrameName(profile, location, line);
      for (char& c : name) {
        if (c == ';') c = ':';
        if (static_cast<unsigned char>(c) < 0x20) c = ' ';
      }
      if (!text.empty()) text += ';';
      text += name;
    }
  }
  std::map<std::string, int64_t> lines;
  for (const profile::Sample& sample : profile.samples()) {
    if (sample.values[value_index] == 0) continue;
    std::string stack;
    for (uint32_t location : std::views::reverse(sample.locations)) {
      if (!stack.empty()) stack += ';';
      stack += text_of[location];
    }
    if (stack.empty()) stack = "[no stack]";
    int64_t& sum = lines[stack];
    sum = profile::SaturatingAdd(sum, sample.values[value_index]);
  }
  std::string out;
  for (const auto& [stack, value] : lines) out += stack + ' ' + std::to_string(value) + '\n';
  return out;
}

}  // namespace borescope::codec
