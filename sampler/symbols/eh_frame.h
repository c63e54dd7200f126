// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace borescope::symbols {

class ElfFile;

// Where functions begin and end by .eh_frame, for code without a symbol: through the search table of .eh_frame_hdr, without it through an
// index made by one pass. Bytes are hostile. Holds no copy of the section.
class EhFrame {
 public:
  struct Function {
    uint64_t start, end;
  };
  // Null when the file has none.
  static std::unique_ptr<EhFrame> Create(const ElfFile& elf);
  std::optional<Function> Find(uint64_t vaddr) const;
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
