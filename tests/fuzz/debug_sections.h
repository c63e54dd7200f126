// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <elf.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace borescope::fuzz {

// ELF files made of the sections that an input gives: it is spent on what stands in them.
constexpr uint64_t kText = 0x1000, kTextSize = 0x2000;
constexpr std::string_view kNames[] = {
    ".debug_info",    ".debug_abbrev",      ".debug_str",     ".debug_line",      ".debug_line_str",   ".debug_ranges",   ".debug_rnglists",   ".debug_addr",
    ".debug_str_offsets", ".debug_aranges", ".debug_cu_index", ".gnu_debugaltlink", ".debug_info.dwo", ".debug_abbrev.dwo", ".debug_str.dwo",
    ".debug_str_offsets.dwo", ".debug_rnglists.dwo", ".gnu_debuglink", ".note.gnu.build-id"};

struct Part {
  std::string_view name, bytes;
  int packing;  // 1: zlib by us, 2: zstd by us, 3: the input has a compression header
};

inline std::string Packed(std::string_view bytes, int packing) {
  if (packing == 0 || packing == 3) return std::string(bytes);
  Elf64_Chdr header = {packing == 1 ? 1u : 2u, 0, bytes.size(), 1};
  std::string out(packing == 1 ? compressBound(bytes.size()) : ZSTD_compressBound(bytes.size()), '\0');
  uLongf size = out.size();
  if (packing == 1) {
    compress2(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), 1);
  } else {
    size = ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 1);
  }
  out.resize(size);
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + out;
}

inline std::string Image(const std::vector<Part>& parts) {
  std::string names(1, '\0'), body;
  std::vector<Elf64_Shdr> sections(1);
  uint64_t at = sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr);
  for (const Part& part : parts) {
    std::string bytes = Packed(part.bytes, part.packing);
    Elf64_Shdr section = {};
    section.sh_name = static_cast<Elf64_Word>(names.size());
    section.sh_type = part.name.starts_with(".note") ? SHT_NOTE : SHT_PROGBITS;
    section.sh_flags = part.packing ? SHF_COMPRESSED : 0;
    section.sh_offset = at + body.size();
    section.sh_size = bytes.size();
    names += std::string(part.name) + '\0';
    body += bytes;
    sections.push_back(section);
  }
  Elf64_Shdr strings = {};
  strings.sh_type = SHT_STRTAB;
  strings.sh_offset = at + body.size();
  strings.sh_size = names.size();
  sections.push_back(strings);
  body += names;
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = EM_X86_64;
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  header.e_shoff = at + body.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<Elf64_Half>(sections.size());
  header.e_shstrndx = static_cast<Elf64_Half>(sections.size() - 1);
  Elf64_Phdr segment = {PT_LOAD, PF_X | PF_R, 0, kText, 0, kTextSize, kTextSize, 1};
  std::string file(reinterpret_cast<const char*>(&header), sizeof(header));
  file.append(reinterpret_cast<const char*>(&segment), sizeof(segment));
  file += body;
  file.append(reinterpret_cast<const char*>(sections.data()), sections.size() * sizeof(Elf64_Shdr));
  return file;
}

// The sections of up to `files` files, each as (which, packing, length of 16 bits, bytes).
inline std::vector<std::vector<Part>> Parts(std::string_view rest, size_t files) {
  std::vector<std::vector<Part>> parts(files);
  for (int i = 0; i < 64 && rest.size() >= 4; ++i) {
    auto byte = [&](size_t at) { return static_cast<uint8_t>(rest[at]); };
    size_t length = std::min<size_t>(byte(2) | byte(3) << 8, rest.size() - 4);
    parts[byte(0) / std::size(kNames) % files].push_back({kNames[byte(0) % std::size(kNames)], rest.substr(4, length), byte(1) % 4});
    rest.remove_prefix(4 + length);
  }
  return parts;
}

}  // namespace borescope::fuzz

