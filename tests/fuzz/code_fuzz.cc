// SPDX-License-Identifier: Apache-2.0
#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "sampler/unwind/code.h"
#include "sampler/unwind/x86_instruction.h"

using namespace borescope;

namespace {

// What may not happen whatever the bytes are.
void Check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

// The input is code at a fixed address in a file without sections. First byte: how many of the next are places where functions start; its
// top bit: there is no entry point, its next: the code is named .plt, the one after: it comes in two ranges, and the next: it is aarch64's.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 1 << 12) return 0;
  constexpr uint64_t kBase = 0x1000;
  size_t count = std::min<size_t>(data[0] & 7, size - 1);
  std::span<const uint8_t> code(data + 1 + count, size - 1 - count);
  for (size_t at = 0; at < code.size();) {
    std::vector<uint8_t> exact(code.begin() + static_cast<ptrdiff_t>(at), code.begin() + static_cast<ptrdiff_t>(std::min(code.size(), at + unwind::x86::kMaxInstruction)));
    auto in = unwind::x86::Decode(exact);
    Check(in.length <= exact.size());
    at += in.length > 0 ? in.length : 1;
  }

  static constexpr char kNames[] = "\0.plt.sec\0.shstrtab";
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  const bool arm64 = data[0] & 0x10;
  header.e_machine = arm64 ? EM_AARCH64 : EM_X86_64;
  Elf64_Phdr segment = {};
  Elf64_Shdr sections[3] = {};
  uint64_t body = (sizeof(header) + sizeof(segment) + sizeof(sections) + sizeof(kNames) + 15) & ~uint64_t{15};
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(segment);
  header.e_phnum = 1;
  if (!(data[0] & 0x80)) header.e_entry = kBase;
  if (data[0] & 0x40) {
    header.e_shoff = sizeof(header) + sizeof(segment);
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 3;
    header.e_shstrndx = 2;
  }
  segment.p_type = PT_LOAD;
  segment.p_flags = PF_X;
  segment.p_offset = body;
  segment.p_vaddr = kBase;
  segment.p_filesz = segment.p_memsz = code.size();
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_flags = SHF_EXECINSTR;
  sections[1].sh_addr = kBase;
  sections[1].sh_offset = body;
  sections[1].sh_size = code.size();
  sections[2].sh_name = 10;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = sizeof(header) + sizeof(segment) + sizeof(sections);
  sections[2].sh_size = sizeof(kNames);
  std::string file;
  file.append(reinterpret_cast<const char*>(&header), sizeof(header));
  file.append(reinterpret_cast<const char*>(&segment), sizeof(segment));
  file.append(reinterpret_cast<const char*>(sections), sizeof(sections));
  file.append(kNames, sizeof(kNames));
  file.resize(body);
  file.append(reinterpret_cast<const char*>(code.data()), code.size());
  auto elf = symbols::ElfFile::Parse(symbols::MemorySource(std::move(file)));
  if (!elf.ok()) std::abort();

  unwind::CodeOptions options;
  options.base_instructions = 1 << 11;  // many runs rather than long ones
  options.instructions_per_byte = 2;
  for (size_t i = 0; i < count; ++i) options.starts.push_back(kBase + data[1 + i] * 8u);
  unwind::Rules rules;
  unwind::CodeStats stats;
  // In two ranges: the gap between them belongs to others.
  std::vector<unwind::CodeRange> ranges = {{body, body + code.size()}};
  if (code.size() > 64 && (data[0] & 0x20)) ranges = {{body, body + code.size() / 2}, {body + code.size() / 2 + 16, body + code.size()}};
  auto rows = unwind::RulesFromCode(**elf, nullptr, ranges, &rules, options, &stats);
  Check(stats.instructions <= options.base_instructions + stats.bytes * options.instructions_per_byte);
  for (size_t i = 0; i < rows.size(); ++i) {
    Check(rows[i].start < rows[i].end && rows[i].rule < rules.all().size());
    Check(i == 0 || rows[i - 1].end <= rows[i].start);
    Check(rows[i].start >= body && rows[i].end <= body + code.size());
    const unwind_rule& rule = rules.all()[rows[i].rule];
    Check(rule.cfa_reg < (arm64 ? 32 : 16) && rule.kind != UNWIND_RULE_UNSUPPORTED);
  }
  return 0;
}
