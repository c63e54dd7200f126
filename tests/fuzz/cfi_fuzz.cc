// SPDX-License-Identifier: Apache-2.0
#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sampler/symbols/eh_frame.h"
#include "sampler/symbols/elf_file.h"

using namespace borescope;

// The input is a .eh_frame section at a fixed address, in a file that is otherwise well-formed. First byte: with or without a search
// table (the input's first bytes are then read as the table too).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 1 << 16) return 0;
  constexpr uint64_t kBase = 0x1000;
  static constexpr char kNames[] = "\0.eh_frame\0.shstrtab";
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = EM_X86_64;
  Elf64_Phdr segments[2] = {};
  Elf64_Shdr sections[3] = {};
  uint64_t body = sizeof(header) + sizeof(segments) + sizeof(sections) + sizeof(kNames);
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = data[0] & 1 ? 2 : 1;
  header.e_shoff = sizeof(header) + sizeof(segments);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shstrndx = 2;
  segments[0].p_type = PT_LOAD;
  segments[0].p_flags = PF_X;
  segments[0].p_vaddr = kBase;
  segments[0].p_filesz = segments[0].p_memsz = body + size - 1;
  segments[1].p_type = PT_GNU_EH_FRAME;
  segments[1].p_vaddr = kBase + body;
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_addr = kBase + body;
  sections[1].sh_offset = body;
  sections[1].sh_size = size - 1;
  sections[2].sh_name = 11;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = body - sizeof(kNames);
  sections[2].sh_size = sizeof(kNames);
  std::string file;
  file.append(reinterpret_cast<const char*>(&header), sizeof(header));
  file.append(reinterpret_cast<const char*>(segments), sizeof(segments));
  file.append(reinterpret_cast<const char*>(sections), sizeof(sections));
  file.append(kNames, sizeof(kNames));
  file.append(reinterpret_cast<const char*>(data + 1), size - 1);
  auto elf = symbols::ElfFile::Parse(symbols::MemorySource(std::move(file)));
  if (!elf.ok()) std::abort();
  const symbols::EhFrame* frames = (*elf)->eh_frame();
  if (!frames) return 0;
  for (uint64_t pc = 0; pc < 0x4000; pc += 61) {
    auto row = frames->Find(pc);
    if (row && (pc < row->start || pc >= row->end)) std::abort();
    if (row && row->cfa == symbols::Row::Cfa::kFramePointer && !row->has_frame_pointer) std::abort();
  }
  return 0;
}
