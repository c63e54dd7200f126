// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bpf/abi/unwind.h"
#include "common/base/result.h"
#include "sampler/unwind/compiled_table.h"

namespace borescope::unwind {

// From a file offset on, a rule (its index). Packed, because there are millions: offset << 16 | rule. They sort as numbers.
using Row = uint64_t;
constexpr uint64_t kMaxFileOffset = (uint64_t{1} << 48) - 1;
constexpr Row MakeRow(uint64_t offset, uint16_t rule) { return offset << 16 | rule; }
constexpr uint64_t RowOffset(Row row) { return row >> 16; }
constexpr uint16_t RowRule(Row row) { return static_cast<uint16_t>(row); }
constexpr uint16_t kNoRule = 0, kUnsupported = 1;  // indices of UNWIND_RULE_NONE and UNWIND_RULE_UNSUPPORTED

// The different rules of one file, numbered.
class Rules {
 public:
  Rules();
  uint16_t Index(const unwind_rule& rule);  // kUnsupported when there are UNWIND_MAX_RULES others
  const std::vector<unwind_rule>& all() const { return all_; }
  std::vector<unwind_rule> Take() { return std::move(all_); }

 private:
  using Key = std::array<uint64_t, 2>;
  static_assert(sizeof(unwind_rule) == sizeof(Key));
  struct Slot {
    Key key{};
    uint16_t index = 0;
  };
  std::vector<unwind_rule> all_;
  std::map<Key, uint16_t> index_;  // hostile files cannot make it slow, as they could a hash table
  std::vector<Slot> recent_;       // and what is asked for again and again is here
};

// What could not be expressed, by its text.
class MissingRules {
 public:
  // One row more. The last of CompiledTable::kMaxMissing texts stands for all others.
  void Count(const std::string& what, uint64_t file_offset);
  std::vector<MissingRule> Take();  // the most frequent first
  uint64_t rows() const { return rows_; }

 private:
  std::map<std::string, MissingRule> found_;
  uint64_t rows_ = 0;
};

// The rows of one source (.eh_frame, say) of a file: functions may come in any order and overlap.
class Layer {
 public:
  // A stretch of code, [start, end) in file offsets; its rows follow in order, the first at start. Without a row it counts for nothing.
  void Begin(uint64_t start, uint64_t end);
  void Extend(uint64_t end) { stretches_.back().end = end; }
  void Add(uint64_t offset, uint16_t rule);
  size_t size() const { return rows_.size(); }
  bool empty() const { return stretches_.empty(); }

  // All rows in order, without an overlap, merged, with kNoRule where a stretch ends and none begins. Where stretches overlap, the one
  // that begins last wins as far as it reaches, of equal begins the one that was added first.
  std::vector<Row> Flatten();

 private:
  struct Stretch {
    uint64_t start, end;
    uint32_t first, count, order;
  };
  std::vector<Stretch> stretches_;
  std::vector<Row> rows_;
};

// `upper`, and `lower` where upper has no rule. Both as Flatten gives them.
std::vector<Row> Underlay(const std::vector<Row>& upper, const std::vector<Row>& lower);

// first_page, page_rows, rows from what Flatten or Underlay gave. Gaps of padding between functions take the rule before them.
// kExhausted: the file offsets are too far apart.
Status Paginate(const std::vector<Row>& rows, CompiledTable* table);

}  // namespace borescope::unwind
