// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/dwarf_line.h"

#include <algorithm>
#include <utility>

namespace borescope::symbols {
namespace {

constexpr uint64_t kMarkEvery = 2048;  // bytes of program

Error Nonsense(uint64_t offset, std::string_view what) {
  return Error{ErrorCode::kInvalid, "line table at " + std::to_string(offset) + " of .debug_line: " + std::string(what)};
}

// a/b, as compilers and other readers join them.
void Append(std::string& path, const std::string& part) {
  if (part.empty()) return;
  if (!path.empty() && path.back() != '/') path += '/';
  path += part;
}

}  // namespace

Result<std::unique_ptr<DwarfLine>> DwarfLine::Read(DwarfFile* file, uint64_t offset, const std::string& comp_dir,
                                                   const std::function<bool(uint64_t)>& is_code, size_t max_bytes, DwarfBudget& budget) {
  auto table = std::make_unique<DwarfLine>();
  table->file_ = file;
  table->comp_dir_ = comp_dir;
  RETURN_IF_ERROR(table->ReadHeader(offset, max_bytes, budget));
  RETURN_IF_ERROR(table->Run(is_code, max_bytes, budget));
  return table;
}

Status DwarfLine::ReadHeader(uint64_t offset, size_t max_bytes, DwarfBudget& budget) {
  DwarfSection& section = file_->line;
  DwarfReader reader(&section, offset, section.size());
  uint64_t length = reader.Take<uint32_t>();
  if (length == 0xffffffff) {
    offset_bytes_ = 8;
    length = reader.Take<uint64_t>();
  }
  if (!reader.ok() || length > section.size() - reader.offset()) return Nonsense(offset, "longer than the section");
  end_ = reader.offset() + length;
  version_ = reader.Take<uint16_t>();
  if (version_ < 2 || version_ > 5) {
    return Error{ErrorCode::kUnsupported, "line table at " + std::to_string(offset) + ": version " + std::to_string(version_)};
  }
  if (version_ >= 5) {
    address_bytes_ = reader.Take<uint8_t>();
    reader.Skip(1);  // size of segment selectors
  }
  uint64_t header_length = reader.Unsigned(offset_bytes_);
  if (!reader.ok() || reader.offset() > end_ || header_length > end_ - reader.offset()) return Nonsense(offset, "its header is cut off");
  program_ = reader.offset() + header_length;
  min_length_ = reader.Take<uint8_t>();
  if (version_ >= 4) max_operations_ = reader.Take<uint8_t>();
  reader.Skip(1);  // whether rows are statements at first
  line_base_ = reader.Take<int8_t>();
  line_range_ = reader.Take<uint8_t>();
  opcode_base_ = reader.Take<uint8_t>();
  if (max_operations_ == 0) max_operations_ = 1;
  if (!reader.ok() || line_range_ == 0 || opcode_base_ == 0 || address_bytes_ != 8) return Nonsense(offset, "its header makes no sense");
  for (int i = 1; i < opcode_base_; ++i) operands_.push_back(reader.Take<uint8_t>());
  if (version_ < 5) {
    RETURN_IF_ERROR(ReadOldNames(reader, max_bytes, budget));
  } else {
    RETURN_IF_ERROR(ReadNames(reader, directories_, max_bytes, budget));
    RETURN_IF_ERROR(ReadNames(reader, files_, max_bytes, budget));
  }
  if (!reader.ok() || reader.offset() > program_) return Nonsense(offset, "its lists of files are cut off");
  return OkStatus();
}

Status DwarfLine::ReadOldNames(DwarfReader& reader, size_t max_bytes, DwarfBudget& budget) {
  for (auto* list : {&directories_, &files_}) {
    while (reader.ok()) {
      if (!budget.Spend() || memory_bytes() > max_bytes) return Error{ErrorCode::kExhausted, "a line table with more files than the limit"};
      uint64_t at = reader.offset();
      reader.SkipString();
      if (reader.offset() == at + 1) break;
      Name name{{dw::kString, at}, 0};
      if (list == &files_) {
        name.directory = reader.Uleb();
        reader.Uleb();  // time and length of the file
        reader.Uleb();
      }
      list->push_back(name);
    }
  }
  return OkStatus();
}

Status DwarfLine::ReadNames(DwarfReader& reader, std::vector<Name>& into, size_t max_bytes, DwarfBudget& budget) {
  enum : uint64_t { kPath = 1, kDirectoryIndex = 2 };
  DwarfUnit forms;  // reads forms as this table's offsets are wide
  forms.version = version_;
  forms.offset_bytes = offset_bytes_;
  std::vector<std::pair<uint64_t, uint16_t>> format;
  int count = reader.Take<uint8_t>();
  for (int i = 0; i < count; ++i) {
    uint64_t kind = reader.Uleb();
    format.emplace_back(kind, static_cast<uint16_t>(reader.Uleb()));
  }
  uint64_t names = reader.Uleb();
  for (uint64_t i = 0; i < names && reader.ok(); ++i) {
    if (!budget.Spend() || memory_bytes() > max_bytes) return Error{ErrorCode::kExhausted, "a line table with more files than the limit"};
    Name name;
    for (auto [kind, form] : format) {
      DwarfValue value = forms.Attribute(reader, {0, form, 0});
      if (kind == kPath) name.name = value;
      if (kind == kDirectoryIndex) name.directory = value.value;
    }
    into.push_back(name);
  }
  return OkStatus();
}

void DwarfLine::Advance(State& state, uint64_t operations) const {
  if (max_operations_ == 1) {
    state.address += operations * min_length_;
    return;
  }
  uint64_t index = state.op_index + operations;
  state.address += index / max_operations_ * min_length_;
  state.op_index = static_cast<uint8_t>(index % max_operations_);
}

// Runs one instruction.
DwarfLine::Made DwarfLine::Step(DwarfReader& reader, State& state) const {
  enum : uint8_t { kExtended, kCopy, kAdvancePc, kAdvanceLine, kSetFile, kSetColumn, kNegateStatement, kBasicBlock, kConstAddPc, kFixedAdvancePc };
  enum : uint8_t { kEndSequence = 1, kSetAddress = 2 };
  uint8_t opcode = reader.Take<uint8_t>();
  if (opcode >= opcode_base_) {
    int special = opcode - opcode_base_;
    Advance(state, static_cast<uint64_t>(special / line_range_));
    state.line += static_cast<uint32_t>(line_base_ + special % line_range_);
    return reader.ok() ? Made::kRow : Made::kNothing;
  }
  switch (opcode) {
    case kExtended: {
      uint64_t length = reader.Uleb(), next = reader.offset() + length;
      if (length == 0) return Made::kNothing;
      uint8_t kind = reader.Take<uint8_t>();
      if (kind == kSetAddress && length == 9) {
        state.address = reader.Take<uint64_t>();
        state.op_index = 0;
      }
      if (next < reader.offset() || next > reader.limit()) {
        reader.Skip(UINT64_MAX);
        return Made::kNothing;
      }
      reader.Seek(next);
      return kind == kEndSequence ? Made::kEnd : Made::kNothing;
    }
    case kCopy: return Made::kRow;
    case kAdvancePc: Advance(state, reader.Uleb()); break;
    case kAdvanceLine: state.line += static_cast<uint32_t>(reader.Sleb()); break;
    case kSetFile: state.file = static_cast<uint32_t>(reader.Uleb()); break;
    case kConstAddPc: Advance(state, static_cast<uint64_t>((255 - opcode_base_) / line_range_)); break;
    case kFixedAdvancePc:
      state.address += reader.Take<uint16_t>();
      state.op_index = 0;
      break;
    default:
      for (int i = 0; i < operands_[opcode - 1]; ++i) reader.Uleb();
  }
  return Made::kNothing;
}

Status DwarfLine::Run(const std::function<bool(uint64_t)>& is_code, size_t max_bytes, DwarfBudget& budget) {
  DwarfReader reader(&file_->line, program_, end_);
  State state;
  uint32_t first = 0;
  uint64_t marked = 0;
  while (!reader.done()) {
    if (!budget.Spend() || memory_bytes() > max_bytes) return Error{ErrorCode::kExhausted, "a line table with more rows than the limit"};
    Made made = Step(reader, state);
    if (made == Made::kRow && (marks_.size() == first || reader.offset() - marked >= kMarkEvery)) {
      marked = reader.offset();
      marks_.push_back({marked, state});
    } else if (made == Made::kEnd) {
      auto count = static_cast<uint32_t>(marks_.size()) - first;
      if (count > 0 && marks_[first].state.address < state.address && is_code(marks_[first].state.address)) {
        sequences_.push_back({marks_[first].state.address, state.address, first, count});
      } else {
        marks_.resize(first);
      }
      first = static_cast<uint32_t>(marks_.size());
      state = {};
    }
  }
  marks_.resize(first);
  std::stable_sort(sequences_.begin(), sequences_.end(), [](const auto& a, const auto& b) { return a.high < b.high; });
  marks_.shrink_to_fit();
  sequences_.shrink_to_fit();
  return OkStatus();
}

std::optional<DwarfLine::Row> DwarfLine::Find(uint64_t address, DwarfBudget& budget) const {
  auto sequence = std::upper_bound(sequences_.begin(), sequences_.end(), address, [](uint64_t a, const Sequence& s) { return a < s.high; });
  if (sequence == sequences_.end() || address < sequence->low) return std::nullopt;
  auto begin = marks_.begin() + sequence->first, end = begin + sequence->count;
  auto mark = std::upper_bound(begin, end, address, [](uint64_t a, const Mark& m) { return a < m.state.address; });
  if (mark == begin) return std::nullopt;
  --mark;
  Row row{mark->state.file, mark->state.line};
  State state = mark->state;
  DwarfReader reader(&file_->line, mark->at, end_);
  while (!reader.done() && budget.Spend()) {
    Made made = Step(reader, state);
    if (made == Made::kEnd || (made == Made::kRow && state.address > address)) break;
    if (made == Made::kRow) row = {state.file, state.line};
  }
  return row;
}

std::string DwarfLine::Text(const DwarfValue& value) const {
  switch (value.form) {
    case dw::kString: return file_->line.String(value.value);
    case dw::kLineStrp: return file_->line_str.String(value.value);
    case dw::kStrp: return file_->str.String(value.value);
    default: return "";
  }
}

std::string DwarfLine::FileName(uint64_t file) const {
  bool old = version_ < 5;
  if (old && file == 0) return "";
  if (old) --file;
  if (file >= files_.size()) return "";
  const Name& entry = files_[file];
  std::string name = Text(entry.name);
  if (name.empty() || name[0] == '/') return name;
  std::string directory;
  uint64_t index = entry.directory;
  if (!old && index < directories_.size()) directory = Text(directories_[index].name);
  if (old && index > 0 && index <= directories_.size()) directory = Text(directories_[index - 1].name);
  std::string path;
  // directory 0 of version 5 is the compilation's own
  if ((old || index != 0) && !directory.starts_with('/')) path = comp_dir_;
  Append(path, directory);
  Append(path, name);
  return path;
}

size_t DwarfLine::memory_bytes() const {
  return sizeof(*this) + (directories_.capacity() + files_.capacity()) * sizeof(Name) + sequences_.capacity() * sizeof(Sequence) +
         marks_.capacity() * sizeof(Mark);
}

}  // namespace borescope::symbols
