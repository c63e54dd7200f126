// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "sampler/symbols/dwarf_unit.h"

namespace borescope::symbols {

// The line table of a unit, version 2 to 5. Its rows are not kept: its program is run again from a mark near the address.
class DwarfLine {
 public:
  struct Row {
    uint64_t file = 0;  // as FileName takes it
    uint32_t line = 0;
  };

  // is_code: whether an address may be one of this file; sequences of code that the linker dropped begin elsewhere. max_bytes: of marks and
  // names, beyond which it is kExhausted.
  static Result<std::unique_ptr<DwarfLine>> Read(DwarfFile* file, uint64_t offset, const std::string& comp_dir,
                                                 const std::function<bool(uint64_t)>& is_code, size_t max_bytes, DwarfBudget& budget);
  std::optional<Row> Find(uint64_t address, DwarfBudget& budget) const;
  // With its directories, as far as they are known; empty: there is no such file.
  std::string FileName(uint64_t file) const;
  size_t memory_bytes() const;

 private:
  struct Name {
    DwarfValue name;
    uint64_t directory = 0;
  };
  struct State {
    uint64_t address = 0;
    uint32_t file = 1, line = 1;
    uint8_t op_index = 0;
  };
  struct Mark {  // behind an instruction that made a row
    uint64_t at;
    State state;
  };
  struct Sequence {
    uint64_t low, high;
    uint32_t first, count;  // marks
  };
  enum class Made { kNothing, kRow, kEnd };

  Status ReadHeader(uint64_t offset, size_t max_bytes, DwarfBudget& budget);
  Status ReadOldNames(DwarfReader& reader, size_t max_bytes, DwarfBudget& budget);
  Status ReadNames(DwarfReader& reader, std::vector<Name>& into, size_t max_bytes, DwarfBudget& budget);
  Status Run(const std::function<bool(uint64_t)>& is_code, size_t max_bytes, DwarfBudget& budget);
  Made Step(DwarfReader& reader, State& state) const;
  void Advance(State& state, uint64_t operations) const;
  std::string Text(const DwarfValue& value) const;

  DwarfFile* file_ = nullptr;
  std::string comp_dir_;
  uint64_t program_ = 0, end_ = 0;
  uint16_t version_ = 0;
  int address_bytes_ = 8, offset_bytes_ = 4;
  uint8_t min_length_ = 1, max_operations_ = 1, line_range_ = 1, opcode_base_ = 1;
  int8_t line_base_ = 0;
  std::vector<uint8_t> operands_;  // of the standard opcodes
  std::vector<Name> directories_, files_;
  std::vector<Sequence> sequences_;
  std::vector<Mark> marks_;
};

}  // namespace borescope::symbols
