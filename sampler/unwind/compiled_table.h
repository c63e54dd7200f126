// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpf/abi/unwind.h"
#include "common/base/result.h"

namespace borescope::unwind {

// Why rows are UNWIND_RULE_UNSUPPORTED, for people and tests: at most kMaxMissing different ones are kept.
struct MissingRule {
  std::string what;     // e.g. "CFA expression 77 10 06 …", "frame pointer in register r12"
  uint64_t rows = 0;
  uint64_t first_offset = 0;  // file offset of the first
};

// Unwind rules of one file by file offset, sorted and merged; what bpf/abi/unwind.h tells is made from it.
struct CompiledTable {
  static constexpr size_t kMaxMissing = 64;
  static constexpr size_t kMaxPages = (UNWIND_CHUNK_BYTES - sizeof(unwind_table)) / sizeof(unwind_page) - 1;  // its head lies in one chunk

  uint32_t first_page = 0;
  std::vector<uint32_t> page_rows;  // index in rows of each page's first row; one more than there are pages
  std::vector<uint32_t> rows;       // UNWIND_ROW
  std::vector<unwind_rule> rules;   // [0] is UNWIND_RULE_NONE
  std::vector<MissingRule> missing;
  uint64_t unsupported_rows = 0, table_rows = 0;  // before merging, of the file's own tables
  std::string sources;              // "eh_frame", "eh_frame+code", "gopclntab", … for --explain

  // The rule in force at a file offset; UNWIND_RULE_NONE outside.
  const unwind_rule& Find(uint64_t file_offset) const;
  size_t page_count() const { return page_rows.empty() ? 0 : page_rows.size() - 1; }
  size_t memory_bytes() const;
};

// For the pipe from the compiler's process and for the cache on disk. Parse believes nothing: what it accepts is safe to look up in.
std::string Serialize(const CompiledTable& table);
Result<CompiledTable> Parse(std::string_view bytes);

}  // namespace borescope::unwind
