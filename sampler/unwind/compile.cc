// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/compile.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "sampler/symbols/dwarf_cursor.h"
#include "sampler/unwind/cfi.h"
#include "sampler/unwind/code.h"
#include "sampler/unwind/rows.h"

namespace borescope::unwind {
namespace {

constexpr uint64_t kMaxSection = 512u << 20;

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
  constexpr uint32_t kNoBits = 8;
  if (const auto* section = elf.FindSection(".eh_frame"); section && section->type != kNoBits) {
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

// Code of which no table tells. Shorter gaps are padding, see Paginate.
std::vector<CodeRange> Uncovered(const symbols::ElfFile& elf, const std::vector<Row>& rows) {
  constexpr uint64_t kPadding = 15;
  std::vector<CodeRange> ranges;
  for (const auto& segment : elf.segments()) {
    if (!segment.executable || segment.file_size == 0) continue;
    uint64_t at = segment.offset, end = segment.offset + segment.file_size;
    if (end < at || end > kMaxFileOffset) continue;
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

// `rows`, and what follows from the code itself where they tell nothing. True: something did.
bool AddCode(symbols::ElfFile& elf, symbols::ElfFile* debug, Rules* rules, std::vector<Row>* rows) {
  // Not understood: a rule of its own, since gaps without one are taken for padding.
  unwind_rule unknown = {};
  unknown.kind = UNWIND_RULE_NONE;
  unknown.cfa_offset = 1;
  Layer layer;
  bool any = false;
  uint64_t end = 0;
  for (const CodeRow& row : RulesFromCode(elf, debug, Uncovered(elf, *rows), rules)) {
    if (layer.empty() || row.start != end) layer.Begin(row.start, row.end);
    else layer.Extend(row.end);
    end = row.end;
    any |= row.rule != kNoRule;
    layer.Add(row.start, row.rule != kNoRule ? row.rule : rules->Index(unknown));
  }
  if (any) *rows = Underlay(*rows, layer.Flatten());
  return any;
}

}  // namespace

Result<CompiledTable> Compile(symbols::ElfFile& elf, symbols::ElfFile* debug, const CompileLimits& limits) {
  CompiledTable table;
  CodeOffsets code(elf);
  Rules rules;
  MissingRules missing;
  std::vector<Row> rows;
  if (auto frames = FindEhFrame(elf)) {
    Layer layer;
    CfiSection section{frames->bytes, frames->vaddr, false, frames->to_terminator};
    ASSIGN_OR_RETURN(CfiResult result, ReadCfi(section, code, limits.max_rows, &rules, &layer, &missing));
    table.table_rows += result.rows;
    table.unsupported_rows += result.unsupported_rows;
    rows = layer.Flatten();
    if (!rows.empty()) table.sources = "eh_frame";
  }
  if (AddCode(elf, debug, &rules, &rows)) table.sources += table.sources.empty() ? "code" : "+code";
  if (rows.empty()) return Error{ErrorCode::kNotFound, "the file has no unwind information"};
  RETURN_IF_ERROR(Paginate(rows, &table));
  table.rules = rules.Take();
  table.missing = missing.Take();
  return table;
}

}  // namespace borescope::unwind
