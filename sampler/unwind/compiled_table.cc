// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/compiled_table.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace borescope::unwind {
namespace {

constexpr char kMagic[8] = {'B', 'S', 'U', 'N', 'W', '0', '0', '1'};
constexpr size_t kMaxRows = 64u << 20, kMaxText = 1024;

struct Header {
  char magic[8];
  uint32_t first_page, page_starts, rows, rules, missing, sources_bytes;
  uint64_t unsupported_rows, table_rows;
};

template <typename T>
void Put(std::string* out, const T* values, size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  out->append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

// False when that many are not there.
template <typename T>
bool Take(std::string_view* in, std::vector<T>* values, size_t count) {
  if (count > in->size() / sizeof(T)) return false;
  values->resize(count);
  if (count > 0) std::memcpy(values->data(), in->data(), count * sizeof(T));
  in->remove_prefix(count * sizeof(T));
  return true;
}

bool TakeText(std::string_view* in, std::string* text, size_t size) {
  if (size > kMaxText || size > in->size()) return false;
  text->assign(in->substr(0, size));
  in->remove_prefix(size);
  return true;
}

bool Valid(const unwind_rule& rule) {
  return rule.kind <= UNWIND_RULE_SWITCH && rule.cfa_reg < UNWIND_REGISTERS && rule.cfa_deref <= 1 && rule.fp <= UNWIND_FP_UNKNOWN &&
         rule.ra <= UNWIND_RA_IN_REG && (rule.ra != UNWIND_RA_IN_REG || (rule.ra_offset >= 0 && rule.ra_offset < UNWIND_REGISTERS)) && rule.pad == 0;
}

// Whether pages, rows and rules fit each other.
bool Valid(const CompiledTable& table) {
  constexpr unwind_rule kNone = {};
  if (table.rules.empty() || table.rules.size() > UNWIND_MAX_RULES || std::memcmp(&table.rules[0], &kNone, sizeof(kNone)) != 0) return false;
  if (!std::all_of(table.rules.begin(), table.rules.end(), [](const unwind_rule& rule) { return Valid(rule); })) return false;
  if (table.page_rows.empty()) return table.rows.empty();
  if (table.page_count() > CompiledTable::kMaxPages || table.first_page > UINT32_MAX - table.page_count()) return false;
  if (table.page_rows.front() != 0 || table.page_rows.back() != table.rows.size()) return false;
  for (size_t page = 0; page < table.page_count(); ++page) {
    uint32_t begin = table.page_rows[page], end = table.page_rows[page + 1];
    if (begin > end || end > table.rows.size()) return false;
    if (begin < end && UNWIND_ROW_OFFSET(table.rows[begin]) != 0) return false;
    for (uint32_t i = begin; i < end; ++i) {
      if (UNWIND_ROW_RULE(table.rows[i]) >= table.rules.size()) return false;
      if (i > begin && UNWIND_ROW_OFFSET(table.rows[i]) <= UNWIND_ROW_OFFSET(table.rows[i - 1])) return false;
    }
  }
  return true;
}

}  // namespace

const unwind_rule& CompiledTable::Find(uint64_t file_offset) const {
  static constexpr unwind_rule kNone = {};
  uint64_t page = (file_offset >> UNWIND_PAGE_BITS) - first_page;
  if (file_offset >> UNWIND_PAGE_BITS < first_page || page >= page_count()) return kNone;
  auto begin = rows.begin() + page_rows[page], end = rows.begin() + page_rows[page + 1];
  auto above = std::upper_bound(begin, end, UNWIND_ROW(file_offset, UINT16_MAX));
  return above == begin ? kNone : rules[UNWIND_ROW_RULE(above[-1])];
}

size_t CompiledTable::memory_bytes() const {
  size_t bytes = sizeof(*this) + page_rows.capacity() * sizeof(page_rows[0]) + rows.capacity() * sizeof(rows[0]) +
                 rules.capacity() * sizeof(rules[0]) + missing.capacity() * sizeof(missing[0]) + sources.capacity();
  for (const MissingRule& rule : missing) bytes += rule.what.capacity();
  return bytes;
}

std::string Serialize(const CompiledTable& table) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.first_page = table.first_page;
  header.page_starts = static_cast<uint32_t>(table.page_rows.size());
  header.rows = static_cast<uint32_t>(table.rows.size());
  header.rules = static_cast<uint32_t>(table.rules.size());
  header.missing = static_cast<uint32_t>(table.missing.size());
  header.sources_bytes = static_cast<uint32_t>(table.sources.size());
  header.unsupported_rows = table.unsupported_rows;
  header.table_rows = table.table_rows;
  std::string out;
  out.reserve(sizeof(header) + table.page_rows.size() * 4 + table.rows.size() * 4 + table.rules.size() * sizeof(unwind_rule) + 4096);
  Put(&out, &header, 1);
  Put(&out, table.page_rows.data(), table.page_rows.size());
  Put(&out, table.rows.data(), table.rows.size());
  Put(&out, table.rules.data(), table.rules.size());
  out += table.sources;
  for (const MissingRule& rule : table.missing) {
    uint64_t numbers[3] = {rule.what.size(), rule.rows, rule.first_offset};
    Put(&out, numbers, 3);
    out += rule.what;
  }
  return out;
}

Result<CompiledTable> Parse(std::string_view bytes) {
  auto broken = [](const char* what) { return Error{ErrorCode::kInvalid, std::string("an unwind table whose ") + what}; };
  Header header;
  if (bytes.size() < sizeof(header)) return broken("header is cut off");
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes.remove_prefix(sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return broken("format is another one");
  if (header.rows > kMaxRows || header.missing > CompiledTable::kMaxMissing) return broken("counts are beyond all bounds");
  CompiledTable table;
  table.first_page = header.first_page;
  table.unsupported_rows = header.unsupported_rows;
  table.table_rows = header.table_rows;
  if (!Take(&bytes, &table.page_rows, header.page_starts) || !Take(&bytes, &table.rows, header.rows) ||
      !Take(&bytes, &table.rules, header.rules) || !TakeText(&bytes, &table.sources, header.sources_bytes)) {
    return broken("end is cut off");
  }
  for (uint32_t i = 0; i < header.missing; ++i) {
    std::vector<uint64_t> numbers;
    MissingRule rule;
    if (!Take(&bytes, &numbers, 3) || !TakeText(&bytes, &rule.what, numbers[0])) return broken("end is cut off");
    rule.rows = numbers[1];
    rule.first_offset = numbers[2];
    table.missing.push_back(std::move(rule));
  }
  if (!bytes.empty()) return broken("end has bytes too many");
  if (!Valid(table)) return broken("rows and rules do not fit each other");
  return table;
}

}  // namespace borescope::unwind
