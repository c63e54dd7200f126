// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/perf_map.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/strings.h"

namespace borescope::symbols {

size_t PerfMap::Add(std::string_view text) {
  size_t taken = 0;
  while (true) {
    size_t end = text.find('\n', taken);
    if (end == std::string_view::npos) return taken;
    std::string_view line = text.substr(taken, end - taken);
    taken = end + 1;
    size_t first = line.find(' ');
    size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
    if (second == std::string_view::npos) continue;
    auto number = [](std::string_view word) {
      if (word.starts_with("0x")) word.remove_prefix(2);
      return ParseUint(word, 16);
    };
    auto start = number(line.substr(0, first)), size = number(line.substr(first + 1, second - first - 1));
    std::string_view name = line.substr(second + 1, kMaxName);
    if (!start || !size || *size == 0 || *start + *size < *start || name.empty()) continue;
    if (entries_.size() >= kMaxEntries) Settle();  // what was replaced makes room
    if (entries_.size() >= kMaxEntries || pool_.size() + name.size() > kMaxBytes) {
      ++dropped_;
      continue;
    }
    entries_.push_back({*start, *start + *size, static_cast<uint32_t>(pool_.size()), static_cast<uint32_t>(name.size())});
    pool_ += name;
  }
}

// Makes one sorted list without overlaps: an entry stays if nothing newer touches it, whatever became of the newer one (the code was
// thrown away when that was written). Entries before settled_ are older than the rest.
void PerfMap::Settle() {
  if (settled_ == entries_.size()) return;
  std::map<uint64_t, uint64_t> claimed;  // union of what newer entries cover: start, end
  std::vector<Entry> kept;
  for (size_t i = entries_.size(); i-- > 0;) {
    const Entry& e = entries_[i];
    auto it = claimed.upper_bound(e.start);
    if (it != claimed.begin() && std::prev(it)->second > e.start) --it;
    bool touched = it != claimed.end() && it->first < e.end;
    if (!touched) kept.push_back(e);
    if (i < settled_) continue;  // these do not touch each other
    uint64_t start = e.start, end = e.end;
    for (; it != claimed.end() && it->first < end; it = claimed.erase(it)) {
      start = std::min(start, it->first);
      end = std::max(end, it->second);
    }
    claimed[start] = end;
  }
  std::sort(kept.begin(), kept.end(), [](const Entry& a, const Entry& b) { return a.start < b.start; });
  entries_ = std::move(kept);
  settled_ = entries_.size();
}

std::optional<PerfMap::Found> PerfMap::Find(uint64_t address) {
  Settle();
  auto it = std::upper_bound(entries_.begin(), entries_.end(), address, [](uint64_t a, const Entry& e) { return a < e.start; });
  if (it == entries_.begin()) return std::nullopt;
  --it;
  if (address >= it->end) return std::nullopt;
  return Found{it->start, it->end, std::string_view(pool_).substr(it->name, it->length)};
}

}  // namespace borescope::symbols
