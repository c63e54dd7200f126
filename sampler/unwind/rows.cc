// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace borescope::unwind {
namespace {

constexpr uint64_t kMaxPadding = 15;  // between functions; nobody runs there
constexpr uint64_t kPageSize = uint64_t{1} << UNWIND_PAGE_BITS;
constexpr size_t kRecent = 1024;

// Rows in order; those that change nothing are left out.
class Out {
 public:
  explicit Out(size_t expected) { rows_.reserve(expected); }
  void Add(uint64_t offset, uint16_t rule) {
    if (!rows_.empty() && RowOffset(rows_.back()) == offset) rows_.pop_back();
    if (rule != (rows_.empty() ? kNoRule : RowRule(rows_.back()))) rows_.push_back(MakeRow(offset, rule));
  }
  std::vector<Row> Take() { return std::move(rows_); }

 private:
  std::vector<Row> rows_;
};

}  // namespace

Rules::Rules() : recent_(kRecent) {
  unwind_rule rule = {};
  Index(rule);
  rule.kind = UNWIND_RULE_UNSUPPORTED;
  Index(rule);
}

uint16_t Rules::Index(const unwind_rule& rule) {
  Key key;
  std::memcpy(&key, &rule, sizeof(key));
  uint64_t hash = (key[0] ^ std::rotl(key[1], 29)) * 0x9e3779b97f4a7c15;
  static_assert(kRecent == 1 << 10);
  Slot& slot = recent_[hash >> 54];
  if (slot.key == key && !all_.empty()) return slot.index;
  auto it = index_.find(key);
  if (it == index_.end()) {
    if (all_.size() == UNWIND_MAX_RULES) return kUnsupported;
    it = index_.emplace(key, static_cast<uint16_t>(all_.size())).first;
    all_.push_back(rule);
  }
  slot = {key, it->second};
  return slot.index;
}

void MissingRules::Count(const std::string& what, uint64_t file_offset) {
  ++rows_;
  auto it = found_.find(what);
  if (it == found_.end()) {
    const std::string& name = found_.size() + 1 < CompiledTable::kMaxMissing ? what : "others";
    it = found_.try_emplace(name, MissingRule{name, 0, file_offset}).first;
  }
  ++it->second.rows;
}

std::vector<MissingRule> MissingRules::Take() {
  std::vector<MissingRule> all;
  for (auto& [what, rule] : found_) all.push_back(std::move(rule));
  found_.clear();
  std::stable_sort(all.begin(), all.end(), [](const MissingRule& a, const MissingRule& b) { return a.rows > b.rows; });
  return all;
}

void Layer::Begin(uint64_t start, uint64_t end) {
  stretches_.push_back({start, end, static_cast<uint32_t>(rows_.size()), 0, static_cast<uint32_t>(stretches_.size())});
}

void Layer::Add(uint64_t offset, uint16_t rule) {
  Stretch& stretch = stretches_.back();
  if (stretch.count > 0 && RowRule(rows_.back()) == rule) return;
  if (stretch.count > 0 && RowOffset(rows_.back()) == offset) {
    rows_.back() = MakeRow(offset, rule);
    return;
  }
  rows_.push_back(MakeRow(offset, rule));
  ++stretch.count;
}

std::vector<Row> Layer::Flatten() {
  auto less = [](const Stretch& a, const Stretch& b) { return a.start != b.start ? a.start < b.start : a.order > b.order; };
  if (!std::is_sorted(stretches_.begin(), stretches_.end(), less)) std::sort(stretches_.begin(), stretches_.end(), less);
  Out out(rows_.size() + stretches_.size());
  std::vector<Stretch> open;  // the last one wins; `first` moves on with what was written of it
  uint64_t at = 0;
  auto write_until = [&](uint64_t limit) {
    while (at < limit && !open.empty()) {
      Stretch& top = open.back();
      uint64_t end = std::min(limit, top.end);
      if (at < end) {
        while (top.count > 1 && RowOffset(rows_[top.first + 1]) <= at) ++top.first, --top.count;
        out.Add(at, RowRule(rows_[top.first]));
        while (top.count > 1 && RowOffset(rows_[top.first + 1]) < end) {
          ++top.first, --top.count;
          out.Add(RowOffset(rows_[top.first]), RowRule(rows_[top.first]));
        }
      }
      at = std::max(at, end);
      if (top.end <= at) open.pop_back();
    }
    if (at < limit) {
      out.Add(at, kNoRule);
      at = limit;
    }
  };
  for (const Stretch& stretch : stretches_) {
    if (stretch.count == 0) continue;
    write_until(stretch.start);
    open.push_back(stretch);
  }
  write_until(kMaxFileOffset);
  return out.Take();
}

std::vector<Row> Underlay(const std::vector<Row>& upper, const std::vector<Row>& lower) {
  Out out(upper.size() + lower.size());
  size_t below = 0;  // the first row of lower that is not yet in force
  auto add_gap = [&](uint64_t begin, uint64_t end) {
    while (below < lower.size() && RowOffset(lower[below]) <= begin) ++below;
    out.Add(begin, below == 0 ? kNoRule : RowRule(lower[below - 1]));
    for (; below < lower.size() && RowOffset(lower[below]) < end; ++below) out.Add(RowOffset(lower[below]), RowRule(lower[below]));
  };
  if (upper.empty()) return lower;
  if (RowOffset(upper[0]) > 0) add_gap(0, RowOffset(upper[0]));
  for (size_t i = 0; i < upper.size(); ++i) {
    if (RowRule(upper[i]) != kNoRule) {
      out.Add(RowOffset(upper[i]), RowRule(upper[i]));
    } else {
      add_gap(RowOffset(upper[i]), i + 1 < upper.size() ? RowOffset(upper[i + 1]) : kMaxFileOffset);
    }
  }
  return out.Take();
}

Status Paginate(const std::vector<Row>& rows, CompiledTable* table) {
  table->first_page = 0;
  table->page_rows.clear();
  table->rows.clear();
  if (rows.empty()) return OkStatus();
  uint64_t first = RowOffset(rows.front()) >> UNWIND_PAGE_BITS, last = RowOffset(rows.back()) >> UNWIND_PAGE_BITS;
  if (last - first >= CompiledTable::kMaxPages || last > UINT32_MAX) {
    return Error{ErrorCode::kExhausted, "code from file offset " + std::to_string(RowOffset(rows.front())) + " to " +
                                            std::to_string(RowOffset(rows.back())) + " is more than a table can tell of"};
  }
  table->first_page = static_cast<uint32_t>(first);
  table->rows.reserve(rows.size() + static_cast<size_t>(last - first) + 1);
  uint16_t rule = kNoRule;  // in force
  uint64_t page = first;    // the page begun last
  table->page_rows.push_back(0);
  auto begin_pages = [&](uint64_t offset, bool at_begin) {  // all up to that of offset; at_begin: a row of its own follows there
    while (page < offset >> UNWIND_PAGE_BITS) {
      ++page;
      table->page_rows.push_back(static_cast<uint32_t>(table->rows.size()));
      bool last_one = page == offset >> UNWIND_PAGE_BITS;
      if (rule != kNoRule && !(last_one && at_begin)) table->rows.push_back(UNWIND_ROW(0, rule));
    }
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    uint64_t offset = RowOffset(rows[i]);
    uint16_t next = RowRule(rows[i]);
    if (next == kNoRule && i + 1 < rows.size() && RowOffset(rows[i + 1]) - offset <= kMaxPadding) continue;
    if (next == rule) continue;
    begin_pages(offset, (offset & (kPageSize - 1)) == 0);
    bool page_is_empty = table->page_rows.back() == table->rows.size();
    if (page_is_empty && (offset & (kPageSize - 1)) != 0) table->rows.push_back(UNWIND_ROW(0, rule));
    if (next != kNoRule || !page_is_empty || (offset & (kPageSize - 1)) != 0) table->rows.push_back(UNWIND_ROW(offset, next));
    rule = next;
  }
  table->page_rows.push_back(static_cast<uint32_t>(table->rows.size()));
  // A table that ends at the begin of a page says nothing of it.
  while (table->page_count() > 0 && table->page_rows[table->page_rows.size() - 2] == table->rows.size()) table->page_rows.pop_back();
  return OkStatus();
}

}  // namespace borescope::unwind
