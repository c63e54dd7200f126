// SPDX-License-Identifier: Apache-2.0
#include "common/codec/html.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <ranges>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/profile/library.h"
#include "page.inc"  // kPageHtml, kPageStyle, kPageScript: the files of page/

namespace borescope::codec {
namespace {

// Who can change a function, as the page colours it: digits of `kinds`.
enum class Kind : char { kApplication = '0', kLibrary = '1', kKernel = '2', kCut = '3' };

struct Node {
  uint32_t name = 0, parent = 0, depth = 0;
  int64_t total = 0, children = 0;  // children: the time of all of them
};

struct Tree {
  std::vector<std::string> names{"\"all\""};  // in JSON
  std::vector<Kind> kinds{Kind::kCut};
  std::vector<Node> nodes{Node{}};
};

Kind KindOf(const profile::Profile& profile, const profile::Location& location, size_t line) {
  profile::FrameText text;
  if (line < location.lines.size()) {
    const profile::Function& function = profile.functions()[location.lines[line].function];
    text.name = function.name;
    text.system_name = function.system_name;
    text.source = function.filename;
  }
  if (location.mapping != profile::kNone) text.mapping = profile.mappings()[location.mapping].filename;
  if (text.mapping.starts_with("[kernel")) return Kind::kKernel;
  switch (profile::Classify(text)) {
    case profile::FrameKind::kApplication: return Kind::kApplication;
    case profile::FrameKind::kCut: return Kind::kCut;
    default: return Kind::kLibrary;
  }
}

Tree Build(const profile::Profile& profile, size_t value_index) {
  Tree tree;
  std::unordered_map<std::string, uint32_t> name_index;
  std::vector<std::vector<uint32_t>> names_of;  // of each location, outermost line first
  names_of.reserve(profile.locations().size());
  for (const profile::Location& location : profile.locations()) {
    std::vector<uint32_t>& mine = names_of.emplace_back();
    for (size_t line = location.lines.empty() ? 1 : location.lines.size(); line-- > 0;) {
      const Kind kind = KindOf(profile, location, line);
      const std::string name = profile::FrameName(profile, location, line);
      auto [it, inserted] = name_index.try_emplace(static_cast<char>(kind) + name, static_cast<uint32_t>(tree.names.size()));
      if (inserted) {
        tree.names.push_back(JsonQuote(SanitizeName(name, 512)));
        tree.kinds.push_back(kind);
      }
      mine.push_back(it->second);
    }
  }
  std::unordered_map<uint64_t, uint32_t> child_of;  // (parent, name)
  for (const profile::Sample& sample : profile.samples()) {
    const int64_t value = sample.values[value_index];
    if (value <= 0) continue;  // no width
    uint32_t at = 0;
    auto add = [&] { tree.nodes[at].total = profile::SaturatingAdd(tree.nodes[at].total, value); };
    add();
    for (uint32_t location : std::views::reverse(sample.locations)) {
      for (uint32_t name : names_of[location]) {
        tree.nodes[at].children = profile::SaturatingAdd(tree.nodes[at].children, value);
        auto [it, inserted] = child_of.try_emplace(uint64_t{at} << 32 | name, static_cast<uint32_t>(tree.nodes.size()));
        if (inserted) tree.nodes.push_back({.name = name, .parent = at, .depth = tree.nodes[at].depth + 1});
        at = it->second;
        add();
      }
    }
  }
  return tree;
}

// What `text` takes in the page, where "<", ">" and "&" are six characters.
size_t Bytes(std::string_view text) {
  size_t bytes = text.size();
  for (char c : text) bytes += c == '<' || c == '>' || c == '&' ? 5 : 0;
  return bytes;
}

// The nodes to keep, largest first, so that they and their names take at most `budget` bytes. A parent always comes before its children.
std::vector<uint32_t> Keep(const Tree& tree, size_t budget) {
  std::vector<uint32_t> order(tree.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](uint32_t a, uint32_t b) {
    const Node &x = tree.nodes[a], &y = tree.nodes[b];
    return x.total != y.total ? x.total > y.total : x.depth != y.depth ? x.depth < y.depth : a < b;
  });
  auto digits = [](int64_t value) { return std::to_string(value).size() + 1; };
  std::vector<bool> named(tree.names.size());
  size_t bytes = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Node& node = tree.nodes[order[i]];
    size_t cost = digits(node.depth) + digits(node.name) + digits(node.total) + digits(node.children);
    if (!named[node.name]) cost += Bytes(tree.names[node.name]) + 2;
    if (bytes + cost > budget && i > 0) {
      order.resize(i);
      break;
    }
    bytes += cost;
    named[node.name] = true;
  }
  return order;
}

// In the order in which the page reads them: a node, then its children, the largest first, each with all below it.
std::vector<uint32_t> Preorder(const Tree& tree, const std::vector<uint32_t>& kept) {
  std::vector<std::vector<uint32_t>> children(tree.nodes.size());
  for (uint32_t node : kept) {
    if (node != 0) children[tree.nodes[node].parent].push_back(node);  // `kept` is sorted: so are they
  }
  std::vector<uint32_t> out, stack{0};
  while (!stack.empty()) {
    const uint32_t node = stack.back();
    stack.pop_back();
    out.push_back(node);
    for (uint32_t child : std::views::reverse(children[node])) stack.push_back(child);
  }
  return out;
}

std::string Strings(const std::vector<std::string>& texts) {
  std::string out = "[";
  for (const std::string& text : texts) out += (out.size() > 1 ? "," : "") + JsonQuote(text);
  return out + "]";
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string Table(const profile::Profile& profile, size_t value_index, size_t rows) {
  std::string out = "[";
  for (const profile::TopRow& row : profile::Top(profile, value_index, rows)) {
    std::string location = profile::TopLocation(row);
    if (row.file == "[kernel.kallsyms]") location = "[kernel]";
    out += (out.size() > 1 ? ",[" : "[") + std::to_string(row.own) + "," + std::to_string(row.total) + "," + JsonQuote(SanitizeName(row.function)) + "," +
           JsonQuote(SanitizeName(location)) + "," + (row.library ? "1" : "0") + "]";
  }
  return out + "]";
}

// For the inside of a script element: nothing of it can end the element. Markup characters of JSON stand in its strings only.
std::string InScript(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (char c : json) {
    switch (c) {
      case '<': out += "\\u003c"; break;
      case '>': out += "\\u003e"; break;
      case '&': out += "\\u0026"; break;
      default: out += c;
    }
  }
  return out;
}

std::string InText(std::string_view text) {
  std::string out;
  for (char c : SanitizeName(text, 512)) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      default: out += c;
    }
  }
  return out;
}

// The template with what stands in {{…}}; what was put in is not looked at again.
std::string Fill(std::string_view page, std::initializer_list<std::pair<std::string_view, std::string_view>> parts) {
  std::string out;
  while (true) {
    const size_t begin = page.find("{{"), end = begin == page.npos ? page.npos : page.find("}}", begin);
    out += page.substr(0, begin);
    if (end == page.npos) return out;
    const std::string_view name = page.substr(begin + 2, end - begin - 2);
    for (const auto& [key, value] : parts) {
      if (key == name) out += value;
    }
    page.remove_prefix(end + 2);
  }
}

}  // namespace

std::string EncodeHtml(const profile::Profile& profile, size_t value_index, const HtmlPage& page) {
  const Tree tree = Build(profile, value_index);
  const profile::ValueType& type = profile.sample_types[value_index];
  std::string head = "{\"title\":" + JsonQuote(SanitizeName(page.title)) + ",\"facts\":" + Strings(page.facts) + ",\"notes\":" + Strings(page.notes) +
                     ",\"type\":" + JsonQuote(SanitizeName(type.type)) + ",\"unit\":" + JsonQuote(SanitizeName(type.unit)) +
                     ",\"seconds\":" + Number(page.wall_seconds) + ",\"effective\":" + Number(profile::EffectiveSamples(profile)) +
                     ",\"table\":" + Table(profile, value_index, page.table_rows);
  const size_t fixed = kPageHtml.size() + kPageStyle.size() + kPageScript.size() + Bytes(head) + 1024;
  const size_t most = std::max<size_t>(page.max_bytes, 64 << 10);
  const std::vector<uint32_t> kept = Keep(tree, most > fixed ? most - fixed : 0);
  const int64_t smallest = tree.nodes[kept.back()].total;
  // A frame is left out with all that it called: each such time counts once.
  std::vector<bool> is_kept(tree.nodes.size());
  for (uint32_t node : kept) is_kept[node] = true;
  int64_t left_out_time = 0;
  for (size_t i = 1; i < tree.nodes.size(); ++i) {
    if (!is_kept[i] && is_kept[tree.nodes[i].parent]) left_out_time = profile::SaturatingAdd(left_out_time, tree.nodes[i].total);
  }

  std::vector<uint32_t> name_of(tree.names.size(), UINT32_MAX);
  std::string names, kinds, nodes;
  uint32_t used = 0;
  for (uint32_t index : Preorder(tree, kept)) {
    const Node& node = tree.nodes[index];
    uint32_t& name = name_of[node.name];
    if (name == UINT32_MAX) {
      name = used++;
      names += (names.empty() ? "" : ",") + tree.names[node.name];
      kinds += static_cast<char>(tree.kinds[node.name]);
    }
    if (!nodes.empty()) nodes += ',';
    nodes += std::to_string(node.depth) + ',' + std::to_string(name) + ',' + std::to_string(node.total) + ',' + std::to_string(node.children);
  }
  std::string data = std::move(head) + ",\"leftOut\":" + std::to_string(tree.nodes.size() - kept.size()) + ",\"leftOutTime\":" + std::to_string(left_out_time) +
                     ",\"smallest\":" + std::to_string(smallest) + ",\"names\":[" + names + "],\"kinds\":\"" + kinds + "\",\"nodes\":[" + nodes + "]}";
  // Names come from strangers' programs: only what carries the file's own word is run.
  const std::string nonce = RandomHex(16);
  return Fill(kPageHtml, {{"NONCE", nonce}, {"TITLE", InText(page.title)}, {"STYLE", kPageStyle}, {"SCRIPT", kPageScript}, {"DATA", InScript(data)}});
}

}  // namespace borescope::codec
