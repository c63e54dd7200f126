// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "common/base/result.h"
#include "sampler/symbols/elf_file.h"
#include "sampler/unwind/rows.h"

namespace borescope::unwind {

// Where the code at a linked address lies in its file: executable segments only.
class CodeOffsets {
 public:
  struct Piece {
    uint64_t vaddr, offset, size;
  };
  explicit CodeOffsets(const symbols::ElfFile& elf);
  // The piece that begins with vaddr, as far as it lies in one segment's file part, at most size bytes.
  std::optional<Piece> Find(uint64_t vaddr, uint64_t size) const;

 private:
  std::vector<Piece> segments_;
};

struct CfiSection {
  std::span<const uint8_t> bytes;
  uint64_t vaddr = 0;      // of bytes[0], where it is loaded; .debug_frame: 0
  bool debug_frame = false;
  bool to_terminator = false;  // its size is not known: it ends where a length of 0 stands
  symbols::Machine machine = symbols::kOwnMachine;
};

struct CfiResult {
  uint64_t functions = 0, rows = 0, unsupported_rows = 0;
  uint64_t outside = 0;  // functions that lie in no executable segment: left over from what the linker dropped
};

// Runs the call frame instructions of each function that a section describes; rows go to `layer`. Bytes are hostile: time and memory
// are bounded by the section's size and max_rows (kExhausted). What is broken or cannot be expressed is counted in `missing`.
Result<CfiResult> ReadCfi(const CfiSection& section, const CodeOffsets& code, size_t max_rows, Rules* rules, Layer* layer, MissingRules* missing);

}  // namespace borescope::unwind
