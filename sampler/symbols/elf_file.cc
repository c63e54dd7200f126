// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/elf_file.h"

#include <elf.h>
#include <lzma.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "sampler/symbols/eh_frame.h"
#include "sampler/symbols/go_table.h"

namespace borescope::symbols {
namespace {

constexpr size_t kMaxSegments = 512, kMaxSections = 4096;
constexpr size_t kMaxSymbols = 1 << 21;  // of one file: 32 MiB
constexpr size_t kMaxSymbolName = 4096;
constexpr uint64_t kMaxNotes = 1 << 16;
// What is looked through for Go's table and for where its code begins: of a whole file, however many sections it says it has.
constexpr uint64_t kMaxGoTableSearched = 64 << 20, kMaxRelocations = (64 << 20) / sizeof(Elf64_Rela);
constexpr int kMaxGoTableTries = 1024;
constexpr uint32_t kDynamicName = 1u << 31;  // Entry::name is an offset in .dynstr
constexpr uint32_t kLabel = 1u << 30;        // a symbol without a type

// Which of two names for one address people know: write before __write and __libc_write; without regard for "_Z" and "_R", which are
// not underscores that somebody chose.
bool Nicer(std::string_view a, std::string_view b) {
  auto underscores = [](std::string_view n) {
    return n.starts_with("_Z") || n.starts_with("_R") ? 0 : std::min(n.find_first_not_of('_'), n.size());
  };
  if (underscores(a) != underscores(b)) return underscores(a) < underscores(b);
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

bool Contains(const ByteSource& source, uint64_t offset, uint64_t size, std::initializer_list<std::string_view> needles) {
  std::string text(std::min<uint64_t>(size, 1 << 20), '\0');
  if (!source.Read(offset, text.data(), text.size())) return false;
  return std::any_of(needles.begin(), needles.end(), [&](auto n) { return text.find(n) != std::string::npos; });
}

// An xz file within another; empty: it is broken, or larger than anybody makes them.
std::string Unpack(const ByteSource& source, uint64_t offset, uint64_t size) {
  constexpr uint64_t kMaxPacked = 16 << 20, kMaxUnpacked = 64 << 20, kMaxDecoder = 16 << 20;
  if (offset > source.size() || size > std::min(kMaxPacked, source.size() - offset)) return "";
  std::string in(size, '\0'), out;
  lzma_stream stream = LZMA_STREAM_INIT;
  if (!source.Read(offset, in.data(), in.size()) || lzma_stream_decoder(&stream, kMaxDecoder, 0) != LZMA_OK) return "";
  stream.next_in = reinterpret_cast<const uint8_t*>(in.data());
  stream.avail_in = in.size();
  lzma_ret code = LZMA_OK;
  while (code == LZMA_OK && out.size() < kMaxUnpacked) {
    size_t before = out.size();
    out.resize(std::min<size_t>(kMaxUnpacked, before + std::max<size_t>(before, 256 << 10)));
    stream.next_out = reinterpret_cast<uint8_t*>(out.data()) + before;
    stream.avail_out = out.size() - before;
    code = lzma_code(&stream, LZMA_FINISH);
    out.resize(out.size() - stream.avail_out);
  }
  lzma_end(&stream);
  return code == LZMA_STREAM_END ? out : "";
}

}  // namespace

std::string_view LanguageName(Language language) {
  switch (language) {
    case Language::kC: return "c";
    case Language::kCpp: return "cpp";
    case Language::kGo: return "go";
    case Language::kRust: return "rust";
    case Language::kPython: return "python";
    case Language::kJava: return "java";
    case Language::kNodejs: return "nodejs";
    case Language::kUnknown: break;
  }
  return "unknown";
}

ElfFile::ElfFile(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {}
ElfFile::~ElfFile() = default;

Result<std::unique_ptr<ElfFile>> ElfFile::Parse(std::unique_ptr<ByteSource> source) {
  std::unique_ptr<ElfFile> file(new ElfFile(std::move(source)));
  RETURN_IF_ERROR(file->ReadHeaders());
  file->GuessLanguage();
  return file;
}

Status ElfFile::ReadHeaders() {
  Elf64_Ehdr header;
  if (!source_->ReadValue(0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return Error{ErrorCode::kInvalid, "not an ELF file"};
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      (header.e_machine != EM_X86_64 && header.e_machine != EM_AARCH64)) {
    return Error{ErrorCode::kUnsupported, "an ELF file of another class, byte order or machine (e_machine " +
                                              std::to_string(header.e_machine) + ")"};
  }
  machine_ = header.e_machine == EM_AARCH64 ? Machine::kArm64 : Machine::kX86_64;
  entry_ = header.e_entry;
  if (header.e_phentsize == sizeof(Elf64_Phdr)) {
    size_t count = std::min<size_t>(header.e_phnum, kMaxSegments);
    for (size_t i = 0; i < count; ++i) {
      Elf64_Phdr p;
      if (header.e_phoff > source_->size() || !source_->ReadValue(header.e_phoff + i * sizeof(p), &p)) break;
      if (p.p_type == PT_LOAD && p.p_vaddr + p.p_memsz >= p.p_vaddr && p.p_offset + p.p_filesz >= p.p_offset) {
        segments_.push_back({p.p_offset, p.p_filesz, p.p_vaddr, p.p_memsz, (p.p_flags & PF_X) != 0});
      } else if (p.p_type == PT_NOTE && build_id_.empty()) {
        ReadNotes(p.p_offset, p.p_filesz);
      } else if (p.p_type == PT_GNU_EH_FRAME) {
        eh_frame_hdr_ = p.p_vaddr;
      }
    }
  }
  if (header.e_shentsize == sizeof(Elf64_Shdr) && header.e_shoff != 0 && header.e_shoff < source_->size()) {
    size_t count = std::min<size_t>(header.e_shnum, kMaxSections);
    std::vector<uint32_t> names;
    for (size_t i = 0; i < count; ++i) {
      Elf64_Shdr s;
      if (!source_->ReadValue(header.e_shoff + i * sizeof(s), &s)) break;
      sections_.push_back({"", s.sh_type, s.sh_link, s.sh_flags, s.sh_addr, s.sh_offset, s.sh_size, s.sh_entsize});
      names.push_back(s.sh_name);
    }
    if (header.e_shstrndx < sections_.size()) {
      const Section& strings = sections_[header.e_shstrndx];
      uint64_t begin = strings.offset, size = strings.size;
      for (size_t i = 0; i < sections_.size(); ++i) {
        if (names[i] < size && begin + names[i] >= begin) sections_[i].name = source_->ReadString(begin + names[i], 64);
      }
    }
    for (const Section& s : sections_) {
      if (build_id_.empty() && s.type == SHT_NOTE) ReadNotes(s.offset, s.size);
    }
  }
  // files of debug information only (.dwo, .dwp, what .gnu_debugaltlink names) are not for loading
  if (segments_.empty() && !FindSection(".debug_info") && !FindSection(".debug_info.dwo")) {
    return Error{ErrorCode::kInvalid, "an ELF file without a loadable segment"};
  }
  return OkStatus();
}

void ElfFile::ReadNotes(uint64_t offset, uint64_t size) {
  size = std::min(size, kMaxNotes);
  uint64_t at = 0;
  while (at + sizeof(Elf64_Nhdr) <= size) {
    Elf64_Nhdr note;
    if (!source_->ReadValue(offset + at, &note)) return;
    uint64_t name = at + sizeof(note), data = name + ((uint64_t{note.n_namesz} + 3) & ~uint64_t{3});
    if (data > size || note.n_descsz > size - data) return;
    char owner[4];
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz >= 4 && note.n_descsz <= 64 &&
        source_->ReadValue(offset + name, &owner) && std::memcmp(owner, "GNU", 4) == 0) {
      std::string id(note.n_descsz, '\0');
      if (source_->Read(offset + data, id.data(), id.size())) build_id_ = std::move(id);
      return;
    }
    at = data + ((uint64_t{note.n_descsz} + 3) & ~uint64_t{3});
  }
}

const ElfFile::Section* ElfFile::FindSection(std::string_view name) const {
  for (const Section& s : sections_) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

void ElfFile::GuessLanguage() {
  if (FindSection(".gopclntab") || FindSection(".data.rel.ro.gopclntab") || FindSection(".go.buildinfo")) {
    language_ = Language::kGo;
    return;
  }
  const Section* comment = FindSection(".comment");
  if (comment && Contains(*source_, comment->offset, std::min<uint64_t>(comment->size, 4096), {"rustc version"})) {
    language_ = Language::kRust;
    return;
  }
  const Section* names = FindSection(".dynstr");
  if (FindSection(".gcc_except_table") ||
      (names && Contains(*source_, names->offset, names->size, {"libstdc++.so", "libc++.so", "__gxx_personality"}))) {
    language_ = Language::kCpp;
  } else if (comment) {
    language_ = Language::kC;
  }
}

std::optional<uint64_t> ElfFile::OffsetToVaddr(uint64_t offset) const {
  for (const Segment& s : segments_) {
    if (s.executable && offset >= s.offset && offset - s.offset < s.file_size) return s.vaddr + (offset - s.offset);
  }
  // a mapping is made of whole pages: it may begin before and end behind its segment
  constexpr uint64_t kPage = 4096;
  for (const Segment& s : segments_) {
    if (s.executable && offset >= (s.offset & ~(kPage - 1)) && offset < s.offset + s.file_size + kPage) {
      return s.vaddr + offset - s.offset;
    }
  }
  return std::nullopt;
}

bool ElfFile::Read(uint64_t vaddr, void* into, size_t n) const {
  for (const Segment& s : segments_) {
    if (vaddr >= s.vaddr && vaddr - s.vaddr < s.file_size && n <= s.file_size - (vaddr - s.vaddr)) {
      return source_->Read(s.offset + (vaddr - s.vaddr), into, n);
    }
  }
  return false;
}

void ElfFile::BuildSymbols() {
  symbols_built_ = true;
  bool whole = false;
  for (const Section& s : sections_) {
    if (s.type == SHT_SYMTAB) {
      AddTable(s, 0);
      whole = true;
      break;
    }
  }
  if (const Section* packed = whole ? nullptr : FindSection(".gnu_debugdata")) {
    auto mini = Parse(MemorySource(Unpack(*source_, packed->offset, packed->size)));
    if (mini.ok() && !(*mini)->FindSection(".gnu_debugdata")) mini_ = *std::move(mini);
    if (mini_) mini_->BuildSymbols();
  }
  for (const Section& s : sections_) {  // in programs with both, .dynsym names again what .symtab has: the sort drops it
    if (s.type == SHT_DYNSYM) {
      AddTable(s, kDynamicName);
      break;
    }
  }
  // Sorted by address; entries are ranked by symbol kind in AddTable through `size`: of equal addresses the sized one stays, then the
  // nicer name.
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.start != b.start ? a.start < b.start : (a.size != 0) > (b.size != 0);
  });
  constexpr size_t kMaxAliases = 64;  // so many names of one address are compared
  size_t kept = 0;
  for (size_t i = 0; i < entries_.size();) {
    Entry best = entries_[i];
    std::string best_name;
    bool label = best.name & kLabel;
    size_t j = i + 1;
    for (; j < entries_.size() && entries_[j].start == best.start; ++j) {
      label = label && (entries_[j].name & kLabel);
      if (j - i >= kMaxAliases || (best.size != 0) != (entries_[j].size != 0)) continue;
      if (best_name.empty()) best_name = NameOf(best);
      std::string name = NameOf(entries_[j]);
      if (Nicer(name, best_name)) {
        best = entries_[j];
        best_name = std::move(name);
      }
    }
    best.name = label ? best.name | kLabel : best.name & ~kLabel;
    entries_[kept++] = best;
    i = j;
  }
  entries_.resize(kept);
  entries_.shrink_to_fit();
}

void ElfFile::AddTable(const Section& table, uint32_t name_bit) {
  if (table.entry_size != sizeof(Elf64_Sym) || table.link >= sections_.size()) return;
  const Section& strings = sections_[table.link];
  if (strings.type != SHT_STRTAB || strings.offset > source_->size()) return;
  int which = name_bit ? 1 : 0;
  strings_[which] = strings.offset;
  strings_size_[which] = std::min({strings.size, source_->size() - strings.offset, uint64_t{kLabel}});
  std::vector<Elf64_Sym> part(2048);
  if (table.offset > source_->size()) return;
  uint64_t count = std::min(table.size, source_->size() - table.offset) / sizeof(Elf64_Sym);
  for (uint64_t i = 0; i < count && entries_.size() < kMaxSymbols; i += part.size()) {
    size_t n = std::min<uint64_t>(part.size(), count - i);
    if (!source_->Read(table.offset + i * sizeof(Elf64_Sym), part.data(), n * sizeof(Elf64_Sym))) return;
    for (size_t k = 0; k < n; ++k) {
      const Elf64_Sym& s = part[k];
      int type = ELF64_ST_TYPE(s.st_info);
      if (s.st_shndx == SHN_UNDEF || s.st_shndx >= sections_.size() || s.st_name == 0 || s.st_name >= strings_size_[which]) continue;
      if (!(sections_[s.st_shndx].flags & SHF_EXECINSTR)) continue;
      uint32_t size = static_cast<uint32_t>(std::min<uint64_t>(s.st_size, UINT32_MAX));
      Entry entry{s.st_value, size, s.st_name | name_bit};
      if (type == STT_NOTYPE) {  // labels of assembly; mapping symbols and local labels are none
        std::string name = NameOf(entry);
        if (name.empty() || name[0] == '$' || name[0] == '.') continue;
        entry.name |= kLabel;
      } else if (type != STT_FUNC && type != STT_GNU_IFUNC) {
        continue;
      }
      if (entries_.size() >= kMaxSymbols) return;
      entries_.push_back(entry);
    }
  }
}

std::string ElfFile::NameOf(const Entry& entry) const {
  int which = entry.name & kDynamicName ? 1 : 0;
  uint64_t offset = entry.name & ~(kDynamicName | kLabel);
  if (offset >= strings_size_[which]) return "";
  std::string name = source_->ReadString(strings_[which] + offset, std::min<uint64_t>(kMaxSymbolName, strings_size_[which] - offset));
  if (size_t at = name.find('@'); at != std::string::npos && at > 0) name.resize(at);
  return name;
}

std::vector<uint64_t> ElfFile::FunctionStarts(uint64_t begin, uint64_t end) {
  if (!symbols_built_) BuildSymbols();
  std::vector<uint64_t> starts;
  auto it = std::lower_bound(entries_.begin(), entries_.end(), begin, [](const Entry& e, uint64_t a) { return e.start < a; });
  std::vector<const Entry*> functions;
  for (; it != entries_.end() && it->start < end; ++it) {
    if (!(it->name & kLabel)) functions.push_back(&*it);
  }
  // In the order of the string table: read back and forth, one of 100 MiB would be read thousands of times over.
  std::sort(functions.begin(), functions.end(), [](const Entry* a, const Entry* b) { return a->name < b->name; });
  for (const Entry* entry : functions) {
    std::string name = NameOf(*entry);
    bool cold = name.ends_with(".cold") || name.find(".cold.") != std::string::npos;
    if (!cold) starts.push_back(entry->start);
  }
  std::sort(starts.begin(), starts.end());
  if (mini_) {
    auto more = mini_->FunctionStarts(begin, end);
    starts.insert(starts.end(), more.begin(), more.end());
    std::sort(starts.begin(), starts.end());
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  }
  return starts;
}

std::optional<Symbol> ElfFile::FindInTables(uint64_t vaddr) const {
  auto above = std::upper_bound(entries_.begin(), entries_.end(), vaddr, [](uint64_t a, const Entry& e) { return a < e.start; });
  constexpr int kNesting = 8;  // a sized symbol may lie inside another: the one that covers vaddr is then a few steps back
  auto it = above;
  for (int step = 0; step < kNesting && it != entries_.begin(); ++step) {
    --it;
    uint64_t end = it->start + it->size;
    if (it->size == 0) {
      if (step > 0) continue;  // without a size it reaches to the next one at most
      end = above != entries_.end() ? above->start : UINT64_MAX;
      for (const Section& s : sections_) {  // and not beyond its section
        if ((s.flags & SHF_EXECINSTR) && it->start >= s.vaddr && it->start - s.vaddr < s.size) end = std::min(end, s.vaddr + s.size);
      }
    }
    if (vaddr < end) {
      std::string name = NameOf(*it);
      if (!name.empty()) return Symbol{it->start, end, std::move(name)};
    }
  }
  return std::nullopt;
}

std::optional<Symbol> ElfFile::FindSymbol(uint64_t vaddr) {
  if (!symbols_built_) BuildSymbols();
  auto found = FindInTables(vaddr), other = mini_ ? mini_->FindInTables(vaddr) : std::nullopt;
  if (other && (!found || other->start >= found->start)) found = std::move(other);  // the one in the other, or without a size, begins before
  if (found) return found;
  if (const GoTable* table = go_table()) {
    auto function = table->Find(vaddr);
    if (function && !function->name.empty()) return Symbol{function->start, function->end, std::move(function->name)};
  }
  if (uint64_t main = main_address(); main != 0 && vaddr >= main && eh_frame()) {
    auto function = eh_frame()->Find(vaddr);
    if (function && function->start == main) return Symbol{function->start, function->end, "main"};
  }
  return std::nullopt;
}

// Go's function table: a section of its own, or a part of one into which the C linker has merged it.
std::optional<ElfFile::Section> ElfFile::FindGoTable() const {
  for (const char* name : {".gopclntab", ".data.rel.ro.gopclntab"}) {
    if (const Section* section = FindSection(name)) return *section;
  }
  const Section* merged = FindSection(".data.rel.ro");
  if (language_ != Language::kGo || !merged) return std::nullopt;
  constexpr uint64_t kAlign = 8;
  int tries = 0;
  std::string block(64 << 10, '\0');
  uint64_t end = std::min({merged->size, kMaxGoTableSearched, source_->size() - std::min(source_->size(), merged->offset)});
  for (uint64_t at = 0; at < end; at += block.size()) {
    size_t n = std::min<uint64_t>(block.size(), end - at);
    if (!source_->Read(merged->offset + at, block.data(), n)) return std::nullopt;
    for (size_t i = 0; i + kAlign <= n; i += kAlign) {
      static constexpr char kBegin[] = "\xff\xff\xff\0\0";  // magic without its first byte; then size of instructions, of pointers
      if (std::memcmp(&block[i + 1], kBegin, 5) != 0 || block[i + 6] != (machine_ == Machine::kArm64 ? 4 : 1) || block[i + 7] != 8) continue;
      if (++tries > kMaxGoTableTries) return std::nullopt;
      uint64_t offset = at + i;
      Section found = *merged;
      found.vaddr += offset;
      found.offset += offset;
      found.size -= offset;
      if (GoTable::Parse(*source_, found.offset, found.size, 0)) return found;
    }
  }
  return std::nullopt;
}

// Where Go's code begins, for a table that does not say. With the C linker it is not the first of .text.
std::optional<uint64_t> ElfFile::GuessGoText(const Section& table, const Section& text) {
  auto inside = [&](uint64_t start) { return start >= text.vaddr && start - text.vaddr < text.size; };
  // The dynamic linker writes it into the table.
  constexpr uint64_t kTextField = 24;
  uint64_t left = kMaxRelocations;
  std::vector<Elf64_Rela> part(1024);
  for (const Section& s : sections_) {
    if (s.type != SHT_RELA || s.entry_size != sizeof(Elf64_Rela) || s.offset > source_->size()) continue;
    uint64_t count = std::min({s.size / sizeof(Elf64_Rela), (source_->size() - s.offset) / sizeof(Elf64_Rela), left});
    left -= count;
    for (uint64_t i = 0; i < count; i += part.size()) {
      size_t n = std::min<uint64_t>(part.size(), count - i);
      if (!source_->Read(s.offset + i * sizeof(Elf64_Rela), part.data(), n * sizeof(Elf64_Rela))) break;
      for (size_t k = 0; k < n; ++k) {
        uint64_t start = static_cast<uint64_t>(part[k].r_addend);
        if (part[k].r_offset == table.vaddr + kTextField && inside(start)) return start;
      }
    }
  }
  if (!symbols_built_) BuildSymbols();
  for (const Entry& e : entries_) {
    if (inside(e.start) && NameOf(e) == "runtime.text") return e.start;
  }
  if (const Section* module = FindSection(".go.module")) {
    constexpr uint64_t kModuleText = 22 * 8;  // moduledata.text
    uint64_t start;
    if (source_->ReadValue(module->offset + kModuleText, &start) && inside(start)) return start;
  }
  return std::nullopt;
}

const GoTable* ElfFile::go_table() {
  if (go_table_tried_) return go_table_.get();
  go_table_tried_ = true;
  std::optional<Section> section = FindGoTable();
  const Section* text = FindSection(".text");
  if (!section || !text) return nullptr;
  go_table_ = GoTable::Parse(*source_, section->offset, section->size, text->vaddr);
  if (!go_table_ || go_table_->knows_text()) return go_table_.get();
  // In a stripped program the entry point proves the guess.
  auto entry = go_table_->Find(entry_);
  if (entry && entry->start == entry_ && entry->name.starts_with("_rt0_")) return go_table_.get();
  std::optional<uint64_t> start = GuessGoText(*section, *text);
  go_table_ = start ? GoTable::Parse(*source_, section->offset, section->size, *start) : nullptr;
  return go_table_.get();
}

const EhFrame* ElfFile::eh_frame() {
  if (!eh_frame_tried_) {
    eh_frame_tried_ = true;
    eh_frame_ = EhFrame::Create(*this);
  }
  return eh_frame_.get();
}

uint64_t ElfFile::main_address() {
  if (main_address_) return *main_address_;
  main_address_ = 0;
  // glibc's _start loads main into rdi and calls __libc_start_main. aarch64's takes it from the GOT, which the dynamic linker fills.
  std::array<uint8_t, 48> code;
  if (machine_ != Machine::kX86_64 || entry_ == 0 || !Read(entry_, code.data(), code.size())) return 0;
  for (size_t i = 0; i + 13 <= code.size(); ++i) {
    bool lea = code[i] == 0x48 && code[i + 1] == 0x8d && code[i + 2] == 0x3d;   // lea rel32(%rip), %rdi
    bool move = code[i] == 0x48 && code[i + 1] == 0xc7 && code[i + 2] == 0xc7;  // mov $imm32, %rdi
    if (!lea && !move) continue;
    int32_t value;
    std::memcpy(&value, &code[i + 3], 4);
    const uint8_t* next = &code[i + 7];
    bool call = (next[0] == 0xff && next[1] == 0x15) || next[0] == 0xe8 || (next[0] == 0x67 && next[1] == 0xe8);
    if (call) main_address_ = (lea ? entry_ + i + 7 : 0) + static_cast<uint64_t>(static_cast<int64_t>(value));
    break;
  }
  return *main_address_;
}

size_t ElfFile::memory_bytes() const {
  return sizeof(*this) + entries_.capacity() * sizeof(Entry) + sections_.capacity() * sizeof(Section) +
         (eh_frame_ ? eh_frame_->memory_bytes() : 0) + (mini_ ? mini_->memory_bytes() + mini_->source().size() : 0);
}

}  // namespace borescope::symbols
