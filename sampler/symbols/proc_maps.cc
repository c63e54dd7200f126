// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/proc_maps.h"

#include <climits>

#include "common/base/strings.h"

namespace borescope::symbols {
namespace {

// The next word of line, which loses it; words are separated by blanks.
std::string_view NextWord(std::string_view& line) {
  size_t begin = line.find_first_not_of(' ');
  if (begin == std::string_view::npos) {
    line = {};
    return {};
  }
  size_t end = line.find(' ', begin);
  std::string_view word = line.substr(begin, end == std::string_view::npos ? std::string_view::npos : end - begin);
  line = end == std::string_view::npos ? std::string_view() : line.substr(end);
  return word;
}

// Two numbers with a separator between them: "a-b", "08:01".
std::optional<std::pair<uint64_t, uint64_t>> Pair(std::string_view word, char separator) {
  size_t at = word.find(separator);
  if (at == std::string_view::npos) return std::nullopt;
  auto a = ParseUint(word.substr(0, at), 16), b = ParseUint(word.substr(at + 1), 16);
  if (!a || !b) return std::nullopt;
  return std::pair(*a, *b);
}

std::string Unescape(std::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '\\' && i + 3 < path.size()) {
      auto value = ParseUint(path.substr(i + 1, 3), 8);
      if (value && *value <= 0xff) {
        out += static_cast<char>(*value);
        i += 3;
        continue;
      }
    }
    out += path[i];
  }
  return out;
}

}  // namespace

std::optional<MapsLine> ParseMapsLine(std::string_view line) {
  MapsLine m;
  auto range = Pair(NextWord(line), '-');
  std::string_view flags = NextWord(line);
  auto offset = ParseUint(NextWord(line), 16);
  auto device = Pair(NextWord(line), ':');
  auto inode = ParseUint(NextWord(line));
  if (!range || range->first >= range->second || flags.size() < 3 || !offset || !device || !inode) return std::nullopt;
  if (device->first > UINT32_MAX || device->second > UINT32_MAX) return std::nullopt;
  m.start = range->first;
  m.end = range->second;
  m.offset = *offset;
  m.device_major = static_cast<uint32_t>(device->first);
  m.device_minor = static_cast<uint32_t>(device->second);
  m.inode = *inode;
  m.executable = flags[2] == 'x';
  size_t begin = line.find_first_not_of(' ');
  std::string_view path = begin == std::string_view::npos ? std::string_view() : line.substr(begin);
  constexpr std::string_view kDeleted = " (deleted)";
  if (path.ends_with(kDeleted)) {
    m.deleted = true;
    path.remove_suffix(kDeleted.size());
  }
  if (path.size() > 4 * PATH_MAX) return std::nullopt;
  m.path = Unescape(path);
  return m;
}

std::vector<MapsLine> ParseMaps(std::string_view text, size_t max_mappings) {
  std::vector<MapsLine> maps;
  while (!text.empty() && maps.size() < max_mappings) {
    size_t end = text.find('\n');
    auto line = ParseMapsLine(text.substr(0, end));
    if (line && line->executable) maps.push_back(std::move(*line));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return maps;
}

int ParseInnermostPid(std::string_view status) {
  constexpr std::string_view kKey = "\nNSpid:";
  size_t at = status.find(kKey);
  if (at == std::string_view::npos) return 0;
  std::string_view line = status.substr(at + kKey.size());
  line = line.substr(0, line.find('\n'));
  size_t last = line.find_last_of(" \t");
  auto pid = ParseUint(last == std::string_view::npos ? line : line.substr(last + 1));
  return pid && *pid <= INT_MAX ? static_cast<int>(*pid) : 0;
}

}  // namespace borescope::symbols
