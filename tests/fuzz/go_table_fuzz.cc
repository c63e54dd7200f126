// SPDX-License-Identifier: Apache-2.0
#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sampler/symbols/go_table.h"
#include "sampler/unwind/compile.h"

using namespace borescope;

namespace {

constexpr uint64_t kBase = 0x400000, kText = 512;  // the input's first bytes are code, linked at kBase + kTextAt
constexpr uint64_t kTextAt = 0x400;

// A program with .text and .gopclntab; merged: the table stands in .data.rel.ro, where it has to be searched.
std::string Program(const std::string& code, const std::string& table, bool merged) {
  static constexpr char kNames[] = "\0.text\0.gopclntab\0.data.rel.ro\0.go.buildinfo";
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = EM_X86_64;
  header.e_entry = kBase + kTextAt;
  Elf64_Phdr segment = {};
  Elf64_Shdr sections[5] = {};
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(segment);
  header.e_phnum = 1;
  header.e_shoff = sizeof(header) + sizeof(segment);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 5;
  header.e_shstrndx = 3;
  segment = {PT_LOAD, PF_X | PF_R, 0, kBase, 0, kTextAt + kText, kTextAt + kText, 1};
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_flags = SHF_ALLOC | SHF_EXECINSTR;
  sections[1].sh_addr = kBase + kTextAt;
  sections[1].sh_offset = kTextAt;
  sections[1].sh_size = kText;
  sections[2].sh_name = merged ? 18 : 7;
  sections[2].sh_type = SHT_PROGBITS;
  sections[2].sh_addr = kBase + 0x10000;
  sections[2].sh_offset = kTextAt + kText;
  sections[2].sh_size = table.size();
  sections[3].sh_type = SHT_STRTAB;
  sections[3].sh_offset = sizeof(header) + sizeof(segment) + sizeof(sections);
  sections[3].sh_size = sizeof(kNames);
  sections[4].sh_name = 31;
  sections[4].sh_type = SHT_PROGBITS;
  std::string file;
  file.append(reinterpret_cast<const char*>(&header), sizeof(header));
  file.append(reinterpret_cast<const char*>(&segment), sizeof(segment));
  file.append(reinterpret_cast<const char*>(sections), sizeof(sections));
  file.append(kNames, sizeof(kNames));
  file.resize(kTextAt);
  return file + code + table;
}

}  // namespace

// First byte: 1: the table has no section of its own. Then kText bytes of code, then the table.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 + kText || size > 1 << 16) return 0;
  std::string code(reinterpret_cast<const char*>(data + 1), kText), bytes(reinterpret_cast<const char*>(data + 1 + kText), size - 1 - kText);
  auto source = symbols::MemorySource(bytes);
  if (auto table = symbols::GoTable::Parse(*source, 0, bytes.size(), kBase + kTextAt)) {
    for (uint64_t pc = table->text() - 16; pc < table->text() + 0x2000; pc += 7) {
      auto function = table->Find(pc);
      if (function && (pc < function->start || pc >= function->end)) std::abort();
    }
    for (uint64_t i = 0; i < std::min<uint64_t>(table->size(), 64); ++i) {
      auto function = table->At(i);
      uint64_t at = function ? function->start : 0;
      table->StackSteps(i, [&](uint64_t begin, uint64_t end, uint32_t) {
        if (!function || begin < at || begin >= end || end > function->end) std::abort();
        at = end;
        return true;
      });
    }
  }
  auto elf = symbols::ElfFile::Parse(symbols::MemorySource(Program(code, bytes, data[0] & 1)));
  if (!elf.ok()) std::abort();
  unwind::CompileLimits limits;
  limits.max_rows = 4096;
  auto table = unwind::Compile(**elf, nullptr, limits);
  if (table.ok() && !unwind::Parse(unwind::Serialize(*table)).ok()) std::abort();
  return 0;
}
