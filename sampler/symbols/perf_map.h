// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace borescope::symbols {

// Names of code that a runtime made at run time: lines "START SIZE NAME", hexadecimal, as perf reads them. A later line replaces what
// it overlaps. Bounded: lines beyond the limits are counted and left out.
class PerfMap {
 public:
  static constexpr size_t kMaxEntries = 1 << 18;
  static constexpr size_t kMaxBytes = 32 << 20;  // of the file, and so of the pool
  static constexpr size_t kMaxName = 1024;

  struct Found {
    uint64_t start = 0, end = 0;
    std::string_view name;  // valid until the next Add
  };

  // Adds the whole lines of text (the file's next part); returns how many bytes were taken: a last line without "\n" stays.
  size_t Add(std::string_view text);
  std::optional<Found> Find(uint64_t address);

  size_t size() const { return entries_.size(); }
  uint64_t dropped() const { return dropped_; }
  size_t memory_bytes() const { return entries_.capacity() * sizeof(Entry) + pool_.capacity(); }

 private:
  struct Entry {
    uint64_t start, end;
    uint32_t name, length;
  };
  void Settle();

  std::vector<Entry> entries_;  // the first settled_ ones are sorted and do not overlap; newer ones follow in file order
  size_t settled_ = 0;
  std::string pool_;
  uint64_t dropped_ = 0;
};

}  // namespace borescope::symbols
