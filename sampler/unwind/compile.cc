// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/compile.h"

#include <elf.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "sampler/symbols/dwarf_cursor.h"
#include "sampler/unwind/cfi.h"
#include "sampler/unwind/code.h"
#include "sampler/unwind/go_rows.h"
#include "sampler/unwind/rows.h"

namespace borescope::unwind {
namespace {

constexpr uint64_t kMaxSection = 512u << 20;
constexpr uint64_t kMaxRatio = 1032;  // of what is compressed: the most that deflate can do
constexpr uint32_t kZstd = 2;         // ELFCOMPRESS_ZSTD, which older elf.h do not have

// Bytes of a section. Nothing: it is not there, or not whole.
std::optional<std::vector<uint8_t>> ReadBytes(const symbols::ElfFile& elf, uint64_t offset, uint64_t size) {
  if (size == 0 || size > kMaxSection || offset > elf.source().size() || size > elf.source().size() - offset) return std::nullopt;
  std::vector<uint8_t> bytes(size);
  if (!elf.source().Read(offset, bytes.data(), bytes.size())) return std::nullopt;
  return bytes;
}

struct EhFrame {
  std::vector<uint8_t> bytes;
  uint64_t vaddr = 0;
  bool to_terminator = false;
};

// By its section, and in a file without sections by the search table, which says where it begins.
std::optional<EhFrame> FindEhFrame(const symbols::ElfFile& elf) {
  if (const auto* section = elf.FindSection(".eh_frame"); section && section->type != SHT_NOBITS) {
    auto bytes = ReadBytes(elf, section->offset, section->size);
    if (bytes) return EhFrame{std::move(*bytes), section->vaddr, false};
  }
  if (!elf.eh_frame_hdr()) return std::nullopt;
  uint8_t header[16];
  if (!elf.Read(*elf.eh_frame_hdr(), header, sizeof(header)) || header[0] != 1) return std::nullopt;
  symbols::DwarfCursor c(header + 4, sizeof(header) - 4, *elf.eh_frame_hdr() + 4);
  uint64_t vaddr = c.Pointer(header[1], *elf.eh_frame_hdr());
  if (!c.ok()) return std::nullopt;
  for (const auto& segment : elf.segments()) {
    if (vaddr < segment.vaddr || vaddr - segment.vaddr >= segment.file_size) continue;
    uint64_t within = vaddr - segment.vaddr;
    auto bytes = ReadBytes(elf, segment.offset + within, segment.file_size - within);
    if (bytes) return EhFrame{std::move(*bytes), vaddr, true};
  }
  return std::nullopt;
}

Result<std::vector<uint8_t>> Inflate(std::span<const uint8_t> packed, uint32_t method, uint64_t size) {
  if (size > kMaxSection || size / kMaxRatio > packed.size()) return Error{ErrorCode::kInvalid, "a compressed section of an impossible size"};
  std::vector<uint8_t> bytes(size);
  bool whole = false;
  if (method == ELFCOMPRESS_ZLIB) {
    uLongf out = bytes.size();
    whole = uncompress(bytes.data(), &out, packed.data(), packed.size()) == Z_OK && out == size;
  } else if (method == kZstd) {
    whole = ZSTD_decompress(bytes.data(), bytes.size(), packed.data(), packed.size()) == size;
  } else {
    return Error{ErrorCode::kUnsupported, "a section compressed by method " + std::to_string(method) + ", known are 1 (zlib) and 2 (zstd)"};
  }
  if (!whole) return Error{ErrorCode::kInvalid, "a compressed section that is broken"};
  return bytes;
}

// Empty: there is none.
Result<std::vector<uint8_t>> ReadDebugFrame(const symbols::ElfFile& elf) {
  const auto* section = elf.FindSection(".debug_frame");
  if (!section || section->type == SHT_NOBITS) return std::vector<uint8_t>();
  auto bytes = ReadBytes(elf, section->offset, section->size);
  if (!bytes) return std::vector<uint8_t>();
  if (!(section->flags & SHF_COMPRESSED)) return *std::move(bytes);
  Elf64_Chdr header;
  if (bytes->size() < sizeof(header)) return Error{ErrorCode::kInvalid, "a compressed section that is cut off"};
  std::memcpy(&header, bytes->data(), sizeof(header));
  return Inflate(std::span(*bytes).subspan(sizeof(header)), header.ch_type, header.ch_size);
}

// Code of which no table tells, by file offset. Shorter gaps are padding, see Paginate.
std::vector<CodeRange> Uncovered(const symbols::ElfFile& elf, const std::vector<Row>& rows) {
  constexpr uint64_t kPadding = 15;
  // Some linkers put read-only data into the executable segment: only sections tell it from code.
  std::vector<CodeRange> parts;
  for (const auto& section : elf.sections()) {
    if ((section.flags & SHF_EXECINSTR) && section.type == SHT_PROGBITS) parts.push_back({section.offset, section.offset + section.size});
  }
  if (parts.empty()) {
    for (const auto& segment : elf.segments()) {
      if (segment.executable) parts.push_back({segment.offset, segment.offset + segment.file_size});
    }
  }
  std::sort(parts.begin(), parts.end(), [](const CodeRange& a, const CodeRange& b) { return a.start < b.start; });
  std::vector<CodeRange> ranges;
  uint64_t done = 0;
  for (const CodeRange& part : parts) {
    uint64_t at = std::max(part.start, done), end = std::min(part.end, elf.source().size());
    if (part.end < part.start || at >= end || end > kMaxFileOffset) continue;
    done = end;
    auto it = std::upper_bound(rows.begin(), rows.end(), at, [](uint64_t offset, Row row) { return offset < RowOffset(row); });
    bool covered = it != rows.begin() && RowRule(*std::prev(it)) != kNoRule;
    for (; at < end; ++it) {
      uint64_t next = it == rows.end() ? end : std::min(end, RowOffset(*it));
      if (!covered && next > at + kPadding) ranges.push_back({at, next});
      if (it == rows.end()) break;
      at = next;
      covered = RowRule(*it) != kNoRule;
    }
  }
  return ranges;
}

// `rows`, and what follows from the code itself where they tell nothing. The source's name, null: nothing followed.
const char* AddCode(symbols::ElfFile& elf, symbols::ElfFile* debug, Rules* rules, std::vector<Row>* rows) {
  // Not understood: a rule of its own, since gaps without one are taken for padding.
  unwind_rule unknown = {};
  unknown.kind = UNWIND_RULE_NONE;
  unknown.cfa_offset = 1;
  Layer layer;
  bool any = false;
  uint64_t end = 0;
  CodeStats stats;
  for (const CodeRow& row : RulesFromCode(elf, debug, Uncovered(elf, *rows), rules, {}, &stats)) {
    if (layer.empty() || row.start != end) layer.Begin(row.start, row.end);
    else layer.Extend(row.end);
    end = row.end;
    any |= row.rule != kNoRule;
    layer.Add(row.start, row.rule != kNoRule ? row.rule : rules->Index(unknown));
  }
  if (any) *rows = Underlay(*rows, layer.Flatten());
  if (!any) return nullptr;
  return stats.out_of_budget ? "code (in part: there is too much of it)" : "code";
}

class Compiler {
 public:
  Compiler(symbols::ElfFile& elf, const CompileLimits& limits) : elf_(elf), limits_(limits), code_(elf) {}

  Result<CompiledTable> Run(symbols::ElfFile* debug) {
    if (auto frames = FindEhFrame(elf_)) {
      RETURN_IF_ERROR(AddCfi(CfiSection{frames->bytes, frames->vaddr, false, frames->to_terminator, elf_.machine()}, "eh_frame"));
    }
    Layer go;
    ASSIGN_OR_RETURN(uint64_t go_rows, ReadGoRows(elf_, code_, limits_.max_rows, &rules_, &go));
    table_.table_rows += go_rows;
    AddLayer(&go, "gopclntab");
    // Go's linker makes .debug_frame from the same numbers.
    if (go_rows == 0) {
      RETURN_IF_ERROR(AddDebugFrame(elf_));
      if (debug) RETURN_IF_ERROR(AddDebugFrame(*debug));
    }
    if (const char* source = AddCode(elf_, debug, &rules_, &rows_)) AddSource(source);
    if (rows_.empty()) return Error{ErrorCode::kNotFound, "the file has no unwind information"};
    RETURN_IF_ERROR(Paginate(rows_, &table_));
    table_.rules = rules_.Take();
    table_.missing = missing_.Take();
    return std::move(table_);
  }

 private:
  Status AddDebugFrame(const symbols::ElfFile& elf) {
    auto bytes = ReadDebugFrame(elf);
    if (!bytes.ok()) {  // the other sources still count
      missing_.Count(".debug_frame: " + bytes.error().message, 0);
      return OkStatus();
    }
    return bytes->empty() ? OkStatus() : AddCfi(CfiSection{*bytes, 0, true, false, elf.machine()}, "debug_frame");
  }

  Status AddCfi(const CfiSection& section, const char* source) {
    Layer layer;
    ASSIGN_OR_RETURN(CfiResult result, ReadCfi(section, code_, limits_.max_rows, &rules_, &layer, &missing_));
    table_.table_rows += result.rows;
    table_.unsupported_rows += result.unsupported_rows;
    AddLayer(&layer, source);
    return OkStatus();
  }

  // Below what is there.
  void AddLayer(Layer* layer, const char* source) {
    if (layer->empty()) return;
    rows_ = rows_.empty() ? layer->Flatten() : Underlay(rows_, layer->Flatten());
    AddSource(source);
  }

  void AddSource(const char* source) { table_.sources += (table_.sources.empty() ? "" : "+") + std::string(source); }

  symbols::ElfFile& elf_;
  const CompileLimits& limits_;
  CodeOffsets code_;
  Rules rules_;
  MissingRules missing_;
  CompiledTable table_;
  std::vector<Row> rows_;
};

}  // namespace

Result<CompiledTable> Compile(symbols::ElfFile& elf, symbols::ElfFile* debug, const CompileLimits& limits) {
  return Compiler(elf, limits).Run(debug);
}

}  // namespace borescope::unwind
