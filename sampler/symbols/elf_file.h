// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "sampler/symbols/byte_source.h"

namespace borescope::symbols {

class EhFrame;
class GoTable;

struct Symbol {
  uint64_t start = 0, end = 0;  // addresses as linked; end is exclusive
  std::string name;             // as in the table, without "@VERSION"; mangled
};

enum class Language : uint8_t { kUnknown, kC, kCpp, kGo, kRust, kPython, kJava, kNodejs };
// "cpp", "go", …; kC reads "cpp" too (one toolchain, one kind of stack), kUnknown "unknown".
std::string_view LanguageName(Language language);

// Whose instructions a file holds.
enum class Machine : uint8_t { kX86_64, kArm64 };
#if defined(__aarch64__)
constexpr Machine kOwnMachine = Machine::kArm64;
#else
constexpr Machine kOwnMachine = Machine::kX86_64;
#endif

// A 64-bit little-endian ELF file of a tenant: nothing in it is believed, every read is checked, every table has a limit.
// Holds offsets, not bytes: names and code are read from the source when asked for. Not thread-safe.
class ElfFile {
 public:
  struct Segment {
    uint64_t offset = 0, file_size = 0, vaddr = 0, memory_size = 0;
    bool executable = false;
  };
  struct Section {
    std::string name;
    uint32_t type = 0, link = 0;
    uint64_t flags = 0, vaddr = 0, offset = 0, size = 0, entry_size = 0;
  };

  // kInvalid: not an ELF file; kUnsupported: another class or byte order, or of no machine that is known.
  static Result<std::unique_ptr<ElfFile>> Parse(std::unique_ptr<ByteSource> source);
  ~ElfFile();

  const std::string& build_id() const { return build_id_; }  // raw bytes of the GNU note, or empty
  Machine machine() const { return machine_; }
  Language language() const { return language_; }
  uint64_t entry() const { return entry_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const std::vector<Section>& sections() const { return sections_; }
  const Section* FindSection(std::string_view name) const;
  std::optional<uint64_t> eh_frame_hdr() const { return eh_frame_hdr_; }  // vaddr of PT_GNU_EH_FRAME

  // Linked address of a byte of the file that a PT_LOAD maps.
  std::optional<uint64_t> OffsetToVaddr(uint64_t offset) const;
  // n bytes at a linked address, from one segment's file part.
  bool Read(uint64_t vaddr, void* into, size_t n) const;
  const ByteSource& source() const { return *source_; }

  // The function that covers vaddr: .symtab (without one, what .gnu_debugdata has of it) and .dynsym, else Go's function table. Never a
  // neighbour: a symbol ends where its size says, one without a size at the next one or its section's end. Builds the table on first use.
  std::optional<Symbol> FindSymbol(uint64_t vaddr);
  // Where the symbol tables say that functions start in [begin, end), in order; without labels of assembly, which may stand within a
  // function, and without the cold parts that compilers split off, which nobody calls.
  std::vector<uint64_t> FunctionStarts(uint64_t begin, uint64_t end);
  // Go's function table, or null.
  const GoTable* go_table();
  // Functions by call frame information, or null.
  const EhFrame* eh_frame();
  // Address of main as the C start code hands it to libc: known in stripped programs too. 0: not found.
  uint64_t main_address();

  size_t memory_bytes() const;

 private:
  struct Entry {
    uint64_t start;
    uint32_t size;  // 0: up to the next entry
    uint32_t name;  // offset in the string table; top bit: of .dynsym; the next: a label
  };

  explicit ElfFile(std::unique_ptr<ByteSource> source);
  Status ReadHeaders();
  void ReadNotes(uint64_t offset, uint64_t size);
  void GuessLanguage();
  void BuildSymbols();
  std::optional<Symbol> FindInTables(uint64_t vaddr) const;
  void AddTable(const Section& table, uint32_t name_bit);
  std::string NameOf(const Entry& entry) const;
  std::optional<Section> FindGoTable() const;
  std::optional<uint64_t> GuessGoText(const Section& table, const Section& text);

  std::unique_ptr<ByteSource> source_;
  std::vector<Segment> segments_;
  std::vector<Section> sections_;
  std::string build_id_;
  std::optional<uint64_t> eh_frame_hdr_;
  uint64_t entry_ = 0;
  Machine machine_ = kOwnMachine;
  Language language_ = Language::kUnknown;
  bool symbols_built_ = false;
  std::vector<Entry> entries_;
  uint64_t strings_[2] = {0, 0}, strings_size_[2] = {0, 0};  // .symtab's, .dynsym's
  bool go_table_tried_ = false, eh_frame_tried_ = false;
  std::unique_ptr<EhFrame> eh_frame_;
  std::unique_ptr<GoTable> go_table_;
  std::unique_ptr<ElfFile> mini_;  // of .gnu_debugdata: sections and symbols only
  std::optional<uint64_t> main_address_;
};

}  // namespace borescope::symbols
