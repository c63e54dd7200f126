// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "sampler/symbols/elf_file.h"
#include "sampler/unwind/compile.h"

using namespace borescope;

namespace {

constexpr uint64_t kCode = 0x1000, kCodeSize = 0x20000, kFrames = 0x40000;  // file offsets; linked at 0x400000 more
constexpr uint64_t kBase = 0x400000, kText = 0x20;

// A file whose code is one byte again and again.
class Sparse final : public symbols::ByteSource {
 public:
  explicit Sparse(std::string head, std::string frames) : head_(std::move(head)), frames_(std::move(frames)) {}
  uint64_t size() const override { return kFrames + frames_.size(); }
  bool Read(uint64_t offset, void* into, size_t n) const override {
    if (offset > size() || n > size() - offset) return false;
    auto* out = static_cast<char*>(into);
    while (n > 0) {
      size_t some = n;
      if (offset >= kFrames) {
        std::memcpy(out, frames_.data() + (offset - kFrames), some);
      } else if (offset < head_.size()) {
        some = std::min<uint64_t>(n, head_.size() - offset);
        std::memcpy(out, head_.data() + offset, some);
      } else {
        some = std::min(n, kFrames - offset);
        std::memset(out, 0xc3, some);
      }
      out += some;
      offset += some;
      n -= some;
    }
    return true;
  }

 private:
  std::string head_, frames_;
};

std::unique_ptr<symbols::ElfFile> File(bool with_sections, const char* name, uint64_t flags, std::string bytes) {
  static constexpr char kSearchTable[] = "\1\x1b\xff\xff\x0c\0\0";  // no table, only where .eh_frame is: 12 bytes after that number
  std::string names = std::string("\0.text\0", 7) + name + '\0';
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = EM_X86_64;
  Elf64_Phdr segments[3] = {};
  Elf64_Shdr sections[4] = {};
  uint64_t size = bytes.size();
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = with_sections ? 2 : 3;
  header.e_shoff = sizeof(header) + sizeof(segments);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = with_sections ? 4 : 0;
  header.e_shstrndx = 3;
  segments[0] = {PT_LOAD, PF_X | PF_R, kCode, kBase + kCode, 0, kCodeSize, kCodeSize, 1};
  segments[1] = {PT_LOAD, PF_R, kFrames, kBase + kFrames, 0, size, size, 1};
  if (!with_sections) {
    std::string table(kSearchTable, 8);
    table.resize(16);
    bytes = table + bytes;
    segments[1].p_filesz = segments[1].p_memsz = bytes.size();
    segments[0].p_filesz = segments[0].p_memsz = kText;  // without sections all of it is looked at for functions
    segments[2] = {PT_GNU_EH_FRAME, PF_R, kFrames, kBase + kFrames, 0, 16, 16, 1};
  }
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_flags = SHF_ALLOC | SHF_EXECINSTR;
  sections[1].sh_addr = kBase + kCode;
  sections[1].sh_offset = kCode;
  sections[1].sh_size = kText;
  sections[2].sh_name = 7;
  sections[2].sh_type = SHT_PROGBITS;
  sections[2].sh_flags = flags;
  sections[2].sh_addr = kBase + kFrames;
  sections[2].sh_offset = kFrames;
  sections[2].sh_size = size;
  sections[3].sh_type = SHT_STRTAB;
  sections[3].sh_offset = sizeof(header) + sizeof(segments) + sizeof(sections);
  sections[3].sh_size = names.size();
  std::string head;
  head.append(reinterpret_cast<const char*>(&header), sizeof(header));
  head.append(reinterpret_cast<const char*>(segments), sizeof(segments));
  head.append(reinterpret_cast<const char*>(sections), sizeof(sections));
  head += names;
  auto elf = symbols::ElfFile::Parse(std::make_unique<Sparse>(std::move(head), std::move(bytes)));
  if (!elf.ok()) std::abort();
  return *std::move(elf);
}

std::string Compressed(std::string_view bytes, bool zlib) {
  Elf64_Chdr header = {zlib ? 1u : 2u, 0, bytes.size(), 1};
  std::string out(zlib ? compressBound(bytes.size()) : ZSTD_compressBound(bytes.size()), '\0');
  uLongf size = out.size();
  if (zlib) {
    compress2(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), 1);
  } else {
    size = ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 1);
  }
  out.resize(size);
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + out;
}

// What the rows of its page say, read one by one.
uint32_t RuleAt(const unwind::CompiledTable& table, uint64_t offset) {
  uint64_t page = offset >> UNWIND_PAGE_BITS;
  if (page < table.first_page || page - table.first_page >= table.page_count()) return 0;
  page -= table.first_page;
  uint32_t rule = 0;
  for (uint32_t i = table.page_rows[page]; i < table.page_rows[page + 1]; ++i) {
    if (UNWIND_ROW_OFFSET(table.rows[i]) <= (offset & 0xffff)) rule = UNWIND_ROW_RULE(table.rows[i]);
  }
  return rule;
}

void Check(const unwind::CompiledTable& table) {
  std::string bytes = unwind::Serialize(table);
  auto again = unwind::Parse(bytes);
  if (!again.ok() || unwind::Serialize(*again) != bytes) std::abort();
  uint64_t base = static_cast<uint64_t>(table.first_page) << UNWIND_PAGE_BITS;
  for (uint64_t offset = base; offset < base + kCodeSize + kCode; offset += 1 + offset % 997) {
    const unwind_rule& rule = again->Find(offset);
    if (std::memcmp(&rule, &again->rules[RuleAt(*again, offset)], sizeof(rule)) != 0) std::abort();
  }
}

}  // namespace

// The first byte says what the rest is: .eh_frame with or without section headers, .debug_frame as it is, compressed by us or by the
// input, of the file or of its debug file, or a serialised table.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 1 << 16) return 0;
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  std::unique_ptr<symbols::ElfFile> file, debug;
  switch (data[0] % 8) {
    case 0: file = File(true, ".eh_frame", SHF_ALLOC, bytes); break;
    case 1: file = File(false, ".eh_frame", SHF_ALLOC, bytes); break;
    case 2: file = File(true, ".debug_frame", 0, bytes); break;
    case 3: file = File(true, ".debug_frame", SHF_COMPRESSED, Compressed(bytes, true)); break;
    case 4: file = File(true, ".debug_frame", SHF_COMPRESSED, Compressed(bytes, false)); break;
    case 5: file = File(true, ".debug_frame", SHF_COMPRESSED, bytes); break;
    case 6:
      file = File(true, ".eh_frame", SHF_ALLOC, bytes);
      debug = File(true, ".debug_frame", 0, bytes);
      break;
    case 7: {
      auto table = unwind::Parse(bytes);
      if (table.ok()) Check(*table);
      return 0;
    }
  }
  unwind::CompileLimits limits;
  limits.max_rows = 4096;
  auto table = unwind::Compile(*file, debug.get(), limits);
  if (table.ok()) Check(*table);
  return 0;
}
