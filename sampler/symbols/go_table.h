// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sampler/symbols/byte_source.h"

namespace borescope::symbols {

struct GoFunction {
  uint64_t start = 0, end = 0;
  std::string name;
  bool top_frame = false;  // the outermost function of a stack: runtime.goexit, mstart, rt0_go …
};

// The function table (.gopclntab) of Go 1.18 and newer: present in stripped programs too. Read from the file at each look-up.
class GoTable {
 public:
  // offset, size: the section in source. text: address of runtime.text, for tables that do not hold it. Null when not understood.
  static std::unique_ptr<GoTable> Parse(const ByteSource& source, uint64_t offset, uint64_t size, uint64_t text);

  std::optional<GoFunction> Find(uint64_t vaddr) const;
  // How far the stack pointer is below the return address's slot when the instruction at vaddr begins: [sp + delta] is the return
  // address. Nothing when the table does not say.
  std::optional<uint32_t> StackDelta(uint64_t vaddr) const;

 private:
  struct Function {
    uint64_t start, end, record;  // record: offset in the source
  };
  explicit GoTable(const ByteSource& source) : source_(source) {}
  std::optional<Function> Search(uint64_t vaddr) const;

  const ByteSource& source_;
  uint64_t offset_ = 0, size_ = 0, text_ = 0;
  uint64_t count_ = 0, names_ = 0, pctab_ = 0, functions_ = 0;
  uint8_t quantum_ = 1;
  bool has_start_line_ = false;
};

}  // namespace borescope::symbols
