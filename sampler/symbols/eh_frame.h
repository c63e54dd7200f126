// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace borescope::symbols {

class ElfFile;

// How the frame of one instruction is described by .eh_frame (x86-64 register numbers), as far as frame pointers need it.
struct Row {
  enum class Cfa : uint8_t {
    kFramePointer,  // rbp + 16
    kRealigned,     // rbp is the frame pointer, the CFA is kept in memory below it (dynamic realignment)
    kStackPointer,  // rsp + cfa_offset
    kOther,
  };
  enum class Rbp : uint8_t { kSame, kSaved, kOther };
  Cfa cfa = Cfa::kOther;
  int64_t cfa_offset = 0;
  Rbp rbp = Rbp::kSame;        // kSaved: at CFA - 16, where a frame-pointer prologue pushes it; kRealigned: at [rbp]
  bool return_address = true;  // at CFA - 8
  bool outermost = false;      // the return address is undefined: _start, clone
  bool signal_frame = false;
  bool has_frame_pointer = false;  // some row of the same function has cfa kFramePointer or kRealigned
  uint64_t start = 0, end = 0;     // of the function (its FDE)
};

// Call frame information of one file: .eh_frame through the search table of .eh_frame_hdr, without it through an index made by one pass.
// Bytes are hostile. Holds no copy of the section.
class EhFrame {
 public:
  // Null when the file has none.
  static std::unique_ptr<EhFrame> Create(const ElfFile& elf);
  std::optional<Row> Find(uint64_t vaddr) const;
  size_t memory_bytes() const { return index_.capacity() * sizeof(Fde); }

 private:
  struct Fde {
    uint64_t start, vaddr;
  };
  explicit EhFrame(const ElfFile& elf) : elf_(elf) {}
  bool UseHeader(uint64_t header);
  void BuildIndex(uint64_t vaddr, uint64_t size);
  std::optional<uint64_t> FindFde(uint64_t vaddr) const;

  const ElfFile& elf_;
  uint64_t header_ = 0, table_ = 0, count_ = 0;
  std::vector<Fde> index_;
};

}  // namespace borescope::symbols
