// SPDX-License-Identifier: Apache-2.0
#include "common/codec/flamebearer.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <unordered_map>
#include <vector>

#include "common/base/log.h"

namespace borescope::codec {
namespace {

struct Node {
  uint32_t name = 0;
  int64_t total = 0, self = 0;
  std::map<uint32_t, uint32_t> children;  // name to node
};

}  // namespace

std::string EncodeFlamebearer(const profile::Profile& profile, size_t value_index, std::string_view title) {
  std::vector<std::string> names{"total"};
  std::unordered_map<std::string, uint32_t> name_index{{"total", 0}};
  std::vector<std::vector<uint32_t>> names_of;  // of each location, outermost line first
  names_of.reserve(profile.locations().size());
  for (const profile::Location& location : profile.locations()) {
    std::vector<uint32_t>& mine = names_of.emplace_back();
    for (size_t line = location.lines.empty() ? 1 : location.lines.size(); line-- > 0;) {
      auto [it, inserted] = name_index.try_emplace(profile::FrameName(profile, location, line), static_cast<uint32_t>(names.size()));
      if (inserted) names.push_back(it->first);
      mine.push_back(it->second);
    }
  }

  std::vector<Node> nodes(1);
  for (const profile::Sample& sample : profile.samples()) {
    int64_t value = sample.values[value_index];
    if (value <= 0) continue;  // no width
    uint32_t at = 0;
    auto add_total = [&] { nodes[at].total = profile::SaturatingAdd(nodes[at].total, value); };
    add_total();
    for (uint32_t location : std::views::reverse(sample.locations)) {
      for (uint32_t name : names_of[location]) {
        auto [it, inserted] = nodes[at].children.try_emplace(name, static_cast<uint32_t>(nodes.size()));
        at = it->second;
        if (inserted) nodes.push_back({name, 0, 0, {}});  // invalidates `it`
        add_total();
      }
    }
    nodes[at].self = profile::SaturatingAdd(nodes[at].self, value);
  }

  int64_t max_self = 0;
  std::string levels;
  struct Bar {
    uint32_t node;
    int64_t x;
  };
  for (std::vector<Bar> level{{0, 0}}, next; !level.empty(); level = std::move(next)) {
    next.clear();
    levels += levels.empty() ? "[" : ",[";
    int64_t end = 0;
    for (const Bar& bar : level) {
      const Node& node = nodes[bar.node];
      if (levels.back() != '[') levels += ',';
      levels += std::to_string(bar.x - end) + ',' + std::to_string(node.total) + ',' + std::to_string(node.self) + ',' +
                std::to_string(node.name);
      end = profile::SaturatingAdd(bar.x, node.total);
      max_self = std::max(max_self, node.self);
      std::vector<uint32_t> children;
      for (const auto& [name, child] : node.children) children.push_back(child);
      std::ranges::sort(children, [&](uint32_t a, uint32_t b) { return names[nodes[a].name] < names[nodes[b].name]; });
      int64_t x = bar.x;
      for (uint32_t child : children) {
        next.push_back({child, x});
        x = profile::SaturatingAdd(x, nodes[child].total);
      }
    }
    levels += ']';
  }

  std::string out = "{\"version\":1,\"flamebearer\":{\"names\":[";
  for (size_t i = 0; i < names.size(); ++i) out += (i == 0 ? "" : ",") + JsonQuote(names[i]);
  const profile::ValueType& type = profile.sample_types[value_index];
  // Readers of this format take CPU nanoseconds for samples at a rate of 1e9 a second.
  bool nanoseconds = type.unit == "nanoseconds";
  out += "],\"levels\":[" + levels + "],\"numTicks\":" + std::to_string(nodes[0].total) +
         ",\"maxSelf\":" + std::to_string(max_self) + "},\"metadata\":{\"format\":\"single\",\"spyName\":\"borescope\",\"sampleRate\":" +
         (nanoseconds ? "1000000000" : "100") + ",\"units\":" + JsonQuote(nanoseconds ? "samples" : type.unit) +
         ",\"name\":" + JsonQuote(title) + "}}";
  return out;
}

}  // namespace borescope::codec
