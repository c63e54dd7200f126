// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sampler/symbols/demangle.h"
#include "sampler/symbols/eh_frame.h"
#include "sampler/symbols/elf_file.h"
#include "sampler/symbols/go_table.h"

using namespace borescope;

// An executable file of a tenant: headers, notes, symbols, frame information, Go's table.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto elf = symbols::ElfFile::Parse(symbols::MemorySource(std::string(reinterpret_cast<const char*>(data), size)));
  if (!elf.ok()) return 0;
  symbols::ElfFile& file = **elf;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (size_t offset = 0; offset < size; offset += 1 + size / 64) {
    auto vaddr = file.OffsetToVaddr(offset);
    if (!vaddr) continue;
    if (auto symbol = file.FindSymbol(*vaddr)) {
      if (*vaddr < symbol->start || *vaddr >= symbol->end) std::abort();
      if (symbols::DisplayName(symbol->name).size() > 256) std::abort();
    }
    if (auto* frames = file.eh_frame()) {
      auto function = frames->Find(*vaddr);
      if (function && (*vaddr < function->start || *vaddr >= function->end)) std::abort();
    }
    file.go_table();
    file.main_address();
  }
  if (symbols::LanguageName(file.language()).empty() || file.memory_bytes() < sizeof(file)) std::abort();
  return 0;
}
