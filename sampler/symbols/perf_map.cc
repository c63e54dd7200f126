// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/perf_map.h"

#include <algorithm>

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

// Makes one sorted list without overlaps; where entries overlap, the newer one stays whole and the older ones go (their code was
// thrown away). Entries before settled_ are older than the rest.
void PerfMap::Settle() {
  if (settled_ == entries_.size()) return;
  struct Ranked {
    Entry entry;
    size_t age;
  };
  std::vector<Ranked> sorted;
  sorted.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) sorted.push_back({entries_[i], i < settled_ ? 0 : i - settled_ + 1});
  std::sort(sorted.begin(), sorted.end(), [](const Ranked& a, const Ranked& b) {
    return a.entry.start != b.entry.start ? a.entry.start < b.entry.start : a.age < b.age;
  });
  std::vector<Ranked> kept;
  for (const Ranked& next : sorted) {
    bool wins = true;
    while (!kept.empty() && kept.back().entry.end > next.entry.start) {
      if (kept.back().age > next.age) {
        wins = false;
        break;
      }
      kept.pop_back();
    }
    if (wins) kept.push_back(next);
  }
  entries_.clear();
  for (const Ranked& r : kept) entries_.push_back(r.entry);
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
