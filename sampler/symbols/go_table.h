// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "sampler/symbols/byte_source.h"

namespace borescope::symbols {

struct GoFunction {
  uint64_t start = 0, end = 0;
  std::string name;
  bool top_frame = false;  // the outermost function of a stack: runtime.goexit, mstart, rt0_go …
  bool writes_sp = false;  // other than by a constant: systemstack, asmcgocall, calls into the vDSO
};

// The function table (.gopclntab) of Go 1.18 and newer: present in stripped programs too. Read from the file at each look-up.
class GoTable {
 public:
  // offset, size: the section in source. text: address of runtime.text, for tables that do not hold it. Null when not understood.
  static std::unique_ptr<GoTable> Parse(const ByteSource& source, uint64_t offset, uint64_t size, uint64_t text);

  uint64_t text() const { return text_; }                // address of runtime.text
  bool knows_text() const { return knows_text_; }        // the table itself holds it
  uint64_t offset() const { return offset_; }            // of the table in its source
  uint64_t bytes() const { return size_; }
  uint64_t size() const { return count_; }               // functions
  std::optional<GoFunction> Find(uint64_t vaddr) const;
  // The index-th function in the order of addresses; its name only when it is one of few: of a flag that is set, which assembly has.
  std::optional<GoFunction> At(uint64_t index) const;
  // For [begin, end) of a function the return address stands at [sp + delta]; false: enough.
  using Step = std::function<bool(uint64_t begin, uint64_t end, uint32_t delta)>;
  // All steps of the index-th function, in order. False: the table does not say, or not to the function's end.
  bool StackSteps(uint64_t index, const Step& step) const;

 private:
  struct Function {
    uint64_t start, end, record;  // record: offset in the source
  };
  explicit GoTable(const ByteSource& source) : source_(source) {}
  std::optional<Function> Search(uint64_t vaddr) const;
  std::optional<Function> Entry(uint64_t index) const;
  std::optional<GoFunction> Read(const Function& function, bool always_name) const;

  const ByteSource& source_;
  uint64_t offset_ = 0, size_ = 0, text_ = 0;
  uint64_t count_ = 0, names_ = 0, pctab_ = 0, functions_ = 0;
  uint8_t quantum_ = 1;
  bool has_start_line_ = false, knows_text_ = false;
};

}  // namespace borescope::symbols
