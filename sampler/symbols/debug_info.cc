// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/debug_info.h"

#include <elf.h>

#include <algorithm>
#include <list>
#include <unordered_map>
#include <utility>

#include "sampler/symbols/dwarf_line.h"
#include "sampler/symbols/dwarf_section.h"
#include "sampler/symbols/dwarf_unit.h"

namespace borescope::symbols {
namespace {

constexpr int kMaxHops = 16;      // from an entry to the one that has its name
constexpr size_t kMaxDepth = 512;  // of entries within each other
constexpr size_t kMaxDescriptionBytes = 8 << 20;

bool HasDebugInfo(const ElfFile* file) {
  const ElfFile::Section* section = file ? file->FindSection(".debug_info") : nullptr;
  return section && section->type != SHT_NOBITS;
}

// Languages of which names stand in scopes; in the others a name is whole, or there are no scopes.
bool HasScopes(uint16_t language) {
  constexpr uint16_t kCpp = 0x04, kCpp03 = 0x19, kCpp11 = 0x1a, kRust = 0x1c, kCpp14 = 0x21, kCpp17 = 0x2a, kCpp20 = 0x2b;
  for (uint16_t l : {kCpp, kCpp03, kCpp11, kRust, kCpp14, kCpp17, kCpp20}) {
    if (language == l) return true;
  }
  return false;
}

bool IsScope(uint16_t tag) {
  return tag == dw::kNamespace || tag == dw::kClassType || tag == dw::kStructureType || tag == dw::kUnionType || tag == dw::kModule ||
         tag == dw::kInterfaceType || tag == dw::kEnumerationType || tag == dw::kSubprogram;
}

// Types that hold no code when they say where they end: compilers that write definitions into types do not write that.
bool IsType(uint16_t tag) {
  return tag == dw::kClassType || tag == dw::kStructureType || tag == dw::kUnionType || tag == dw::kEnumerationType || tag == dw::kArrayType ||
         tag == dw::kSubroutineType || tag == dw::kInterfaceType;
}

class Information final : public DebugInfo {
 public:
  Information(DebugFiles files, DebugLimits limits) : files_(std::move(files)), limits_(limits) {}

  Status Open();
  Result<std::vector<SourceFrame>> Find(uint64_t vaddr) override;
  const std::string& problem() const override { return problem_; }
  size_t memory_bytes() const override;

 private:
  struct Place {
    uint64_t low, high;
    uint64_t reach;  // greatest high of this and the ones before
    uint32_t unit;   // in main_.units
  };
  struct Function {
    uint64_t low, high, entry;
  };
  struct Unit {
    std::unique_ptr<DwarfUnit> own;
    std::shared_ptr<DwarfFile> split_file;
    std::unique_ptr<DwarfUnit> split;
    bool functions_read = false, lines_read = false;
    std::vector<Function> functions;
    std::unique_ptr<DwarfLine> lines;
    size_t bytes = 0;

    // The unit that describes the code.
    const DwarfUnit& code() const { return split ? *split : *own; }
  };
  using UnitPtr = std::shared_ptr<Unit>;
  struct Key {
    uint64_t file, offset;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const { return std::hash<uint64_t>()(key.offset * 31 + key.file); }
  };
  struct Description {
    std::string name;
    uint32_t line = 0;
  };
  struct Inlined {
    size_t depth;  // of its children
    uint64_t entry;
    uint64_t call_file;
    uint32_t call_line;
  };

  bool IsCode(uint64_t vaddr) const;
  Status ReadAddresses(DwarfBudget& budget);
  bool ReadAranges(std::vector<bool>& known, DwarfBudget& budget);
  Result<UnitPtr> Load(DwarfFile* file, uint64_t offset);
  void LoadSplit(Unit& unit, DwarfBudget& budget);
  Status ReadFunctions(Unit& unit, DwarfBudget& budget);
  void ReadLines(Unit& unit, DwarfBudget& budget);
  const Function* FindFunction(const Unit& unit, uint64_t vaddr) const;
  Result<std::vector<Inlined>> Chain(const Unit& unit, uint64_t entry, uint64_t vaddr, DwarfBudget& budget);
  Description Describe(const DwarfUnit& from, uint64_t entry, DwarfBudget& budget);
  std::string Qualify(const DwarfUnit& unit, uint64_t entry, std::string name, DwarfBudget& budget) const;
  void Problem(std::string_view what) {
    if (problem_.empty()) problem_ = what;
  }
  void Count(Unit& unit);
  void Trim(const Unit* keep);

  DebugFiles files_;
  DebugLimits limits_;
  size_t packed_left_ = 0;  // what compressed sections may take yet
  DwarfFile main_, alt_;
  uint64_t next_number_ = 2;
  std::vector<Place> places_;
  std::list<std::pair<Key, UnitPtr>> units_;  // used last first
  std::unordered_map<Key, std::list<std::pair<Key, UnitPtr>>::iterator, Hash> by_offset_;
  size_t unit_bytes_ = 0;
  std::unordered_map<const ElfFile*, std::weak_ptr<DwarfFile>> split_files_;
  std::unordered_map<Key, Description, Hash> descriptions_;
  size_t description_bytes_ = 0;
  std::string problem_;
};

Status Information::Open() {
  const ElfFile* file = HasDebugInfo(files_.debug) ? files_.debug : HasDebugInfo(files_.main) ? files_.main : nullptr;
  if (!file) return Error{ErrorCode::kNotFound, "no debug information"};
  packed_left_ = limits_.memory_bytes / 2;
  RETURN_IF_ERROR(main_.Open(*file, &packed_left_));
  DwarfBudget budget{limits_.steps};
  if (files_.alt && HasDebugInfo(files_.alt)) {
    alt_.number = 1;
    RETURN_IF_ERROR(alt_.Open(*files_.alt, &packed_left_).WithContext("alternate debug file"));
    RETURN_IF_ERROR(alt_.ListUnits(budget).WithContext("alternate debug file"));
    main_.alt = &alt_;
  } else if (file->FindSection(".gnu_debugaltlink")) {
    Problem("the alternate debug file (.gnu_debugaltlink) is missing");
  }
  RETURN_IF_ERROR(main_.ListUnits(budget));
  return ReadAddresses(budget);
}

bool Information::IsCode(uint64_t vaddr) const {
  for (const ElfFile::Segment& s : files_.main->segments()) {
    if (s.executable && vaddr >= s.vaddr && vaddr - s.vaddr < s.memory_size) return true;
  }
  return false;
}

// The index by address. False: the section makes no sense, and nothing of it is used.
bool Information::ReadAranges(std::vector<bool>& known, DwarfBudget& budget) {
  DwarfSection& section = main_.aranges;
  for (uint64_t at = 0; at < section.size();) {
    DwarfReader reader(&section, at, section.size());
    int offset_bytes = 4;
    uint64_t length = reader.Take<uint32_t>();
    if (length == 0xffffffff) {
      offset_bytes = 8;
      length = reader.Take<uint64_t>();
    }
    if (!reader.ok() || length > section.size() - reader.offset()) return false;
    uint64_t end = reader.offset() + length;
    uint16_t version = reader.Take<uint16_t>();
    uint64_t unit = reader.Unsigned(offset_bytes);
    int address_bytes = reader.Take<uint8_t>(), segment_bytes = reader.Take<uint8_t>();
    auto it = std::lower_bound(main_.units.begin(), main_.units.end(), unit);
    if (!reader.ok() || version != 2 || address_bytes != 8 || segment_bytes != 0 || it == main_.units.end() || *it != unit) return false;
    auto index = static_cast<uint32_t>(it - main_.units.begin());
    reader.Skip((16 - (reader.offset() - at) % 16) % 16);
    while (reader.offset() + 16 <= end) {
      if (!budget.Spend()) return false;
      uint64_t low = reader.Take<uint64_t>(), size = reader.Take<uint64_t>();
      if (!reader.ok()) return false;
      if (low == 0 && size == 0) break;
      if (size > 0 && low + size > low && IsCode(low)) {
        known[index] = true;
        places_.push_back({low, low + size, 0, index});
        if (places_.size() * sizeof(Place) > limits_.memory_bytes / 2) return false;
      }
    }
    at = end;
  }
  return true;
}

Status Information::ReadAddresses(DwarfBudget& budget) {
  std::vector<bool> known(main_.units.size());  // units that .debug_aranges has; compilers may leave it out
  if (!ReadAranges(known, budget)) {
    places_.clear();
    known.assign(known.size(), false);
  }
  std::vector<AddressRange> ranges;
  for (uint32_t i = 0; i < main_.units.size(); ++i) {
    if (known[i]) continue;
    if (!budget.Spend()) return Error{ErrorCode::kExhausted, "more units than the limit of steps"};
    auto unit = DwarfUnit::Read(&main_, main_.units[i], /*root_only=*/true);
    ranges.clear();
    if (!unit.ok() || !(*unit)->Ranges(ranges, budget)) {
      Problem(unit.ok() ? "unit at " + std::to_string(main_.units[i]) + " of .debug_info: its ranges make no sense" : unit.error().message);
      continue;
    }
    for (const AddressRange& r : ranges) {
      if (IsCode(r.low)) places_.push_back({r.low, r.high, 0, i});
    }
    if (places_.size() * sizeof(Place) > limits_.memory_bytes / 2) return Error{ErrorCode::kExhausted, "more ranges of units than the limit of memory"};
  }
  std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return std::pair(a.low, a.unit) < std::pair(b.low, b.unit); });
  size_t kept = 0;
  for (const Place& place : places_) {
    if (kept > 0 && places_[kept - 1].unit == place.unit && places_[kept - 1].high >= place.low) {
      places_[kept - 1].high = std::max(places_[kept - 1].high, place.high);
    } else {
      places_[kept++] = place;
    }
  }
  places_.resize(kept);
  places_.shrink_to_fit();
  uint64_t reach = 0;
  for (Place& place : places_) place.reach = reach = std::max(reach, place.high);
  return OkStatus();
}

Result<Information::UnitPtr> Information::Load(DwarfFile* file, uint64_t offset) {
  Key key{file->number, offset};
  if (auto it = by_offset_.find(key); it != by_offset_.end()) {
    units_.splice(units_.begin(), units_, it->second);
    return it->second->second;
  }
  auto unit = std::make_shared<Unit>();
  ASSIGN_OR_RETURN(unit->own, DwarfUnit::Read(file, offset, /*root_only=*/false));
  units_.emplace_front(key, unit);
  by_offset_[key] = units_.begin();
  Count(*unit);
  return unit;
}

void Information::LoadSplit(Unit& unit, DwarfBudget& budget) {
  const DwarfUnit& own = *unit.own;
  std::shared_ptr<ElfFile> elf = files_.split ? files_.split(own.dwo_name, own.comp_dir, own.dwo_id) : nullptr;
  if (!elf) return Problem("split debug information is missing: " + own.dwo_name);
  auto& slot = split_files_[elf.get()];
  std::shared_ptr<DwarfFile> file = slot.lock();
  if (!file) {
    file = std::make_shared<DwarfFile>();
    file->owner = elf;
    file->split = true;
    file->number = next_number_++;
    if (Status opened = file->Open(*elf, &packed_left_); !opened.ok()) return Problem(own.dwo_name + ": " + opened.error().message);
    slot = file;
  }
  auto read = [&](uint64_t offset, const DwpParts& parts) {
    auto split = DwarfUnit::Read(file.get(), offset, /*root_only=*/false, &own, parts);
    if (!split.ok()) {
      Problem(own.dwo_name + ": " + split.error().message);
    } else if ((*split)->dwo_id == own.dwo_id) {
      unit.split_file = file;
      unit.split = *std::move(split);
    }
  };
  if (elf->FindSection(".debug_cu_index")) {
    if (auto parts = DwarfFile::FindInPackage(*elf, own.dwo_id)) read(parts->info, *parts);
  } else {
    if (file->units.empty()) {
      if (Status listed = file->ListUnits(budget); !listed.ok()) return Problem(own.dwo_name + ": " + listed.error().message);
    }
    for (size_t i = 0; i < file->units.size() && !unit.split && budget.Spend(); ++i) read(file->units[i], {});
  }
  if (!unit.split) Problem("split debug information is of another build: " + own.dwo_name);
}

Status Information::ReadFunctions(Unit& unit, DwarfBudget& budget) {
  if (unit.functions_read) return OkStatus();
  unit.functions_read = true;
  if (!unit.own->dwo_name.empty()) LoadSplit(unit, budget);
  const DwarfUnit& code = unit.code();
  DwarfReader reader = code.Reader(code.first);
  size_t depth = 0;
  std::vector<AddressRange> ranges;
  Status status;
  while (!reader.done()) {
    if (!budget.Spend() || unit.functions.size() * sizeof(Function) > limits_.memory_bytes / 2) {
      status = Error{ErrorCode::kExhausted, "unit at " + std::to_string(code.offset) + " of .debug_info is larger than the limit"};
      break;
    }
    uint64_t at = reader.offset();
    const Abbreviation* entry = code.Next(reader);
    if (!entry) {
      if (!reader.ok()) break;
      if (depth <= 1) break;
      --depth;
      continue;
    }
    DwarfValue low, high, list, sibling;
    bool subprogram = entry->tag == dw::kSubprogram, type = entry->children && IsType(entry->tag);
    if (subprogram || type) {
      for (const auto& attribute : entry->attributes) {
        switch (attribute.name) {
          case dw::kLowPc: low = code.Attribute(reader, attribute); break;
          case dw::kHighPc: high = code.Attribute(reader, attribute); break;
          case dw::kRanges: list = code.Attribute(reader, attribute); break;
          case dw::kSibling: sibling = code.Attribute(reader, attribute); break;
          default: code.Skip(reader, attribute);
        }
      }
    } else {
      code.SkipAll(reader, *entry);
    }
    if (subprogram && (low || list)) {
      ranges.clear();
      if (!code.RangesOf(low, high, list, ranges, budget)) Problem("ranges of a function make no sense");
      for (const AddressRange& r : ranges) {
        if (IsCode(r.low)) unit.functions.push_back({r.low, r.high, at});
      }
    }
    if (type && sibling) {
      auto next = code.SiblingAt(sibling);
      if (next > reader.offset()) {
        reader.Seek(next);
        continue;
      }
    }
    if (entry->children) ++depth;
    if (depth == 0) break;
  }
  if (!reader.ok()) Problem("unit at " + std::to_string(code.offset) + " of .debug_info: its entries make no sense");
  std::stable_sort(unit.functions.begin(), unit.functions.end(), [](const Function& a, const Function& b) { return a.low < b.low; });
  unit.functions.shrink_to_fit();
  if (!status.ok()) {
    unit.functions = {};
    unit.functions_read = false;
  }
  return status;
}

void Information::ReadLines(Unit& unit, DwarfBudget& budget) {
  if (unit.lines_read) return;
  unit.lines_read = true;
  const DwarfUnit& own = *unit.own;
  if (!own.line_offset) return;
  auto lines = DwarfLine::Read(own.file, *own.line_offset, own.comp_dir, [this](uint64_t a) { return IsCode(a); }, limits_.memory_bytes / 2, budget);
  if (!lines.ok()) return Problem(lines.error().message);
  unit.lines = *std::move(lines);
}

const Information::Function* Information::FindFunction(const Unit& unit, uint64_t vaddr) const {
  constexpr int kOverlaps = 64;  // functions that begin between an outer one and the address
  const auto& all = unit.functions;
  auto it = std::upper_bound(all.begin(), all.end(), vaddr, [](uint64_t a, const Function& f) { return a < f.low; });
  for (int i = 0; i < kOverlaps && it != all.begin(); ++i) {
    --it;
    if (vaddr < it->high) return &*it;
  }
  return nullptr;
}

// Inlined functions at an address of the function whose entry is given: the outermost first.
Result<std::vector<Information::Inlined>> Information::Chain(const Unit& unit, uint64_t function, uint64_t vaddr, DwarfBudget& budget) {
  const DwarfUnit& code = unit.code();
  DwarfReader reader = code.Reader(function);
  std::vector<Inlined> path, best;
  std::vector<AddressRange> ranges;
  size_t depth = 0, hidden = SIZE_MAX;  // below it are the children of another function
  while (!reader.done()) {
    if (!budget.Spend()) return Error{ErrorCode::kExhausted, "a function has more inlined ones than the limit"};
    uint64_t at = reader.offset();
    const Abbreviation* entry = code.Next(reader);
    if (!entry) {
      if (!path.empty() && path.back().depth == depth) path.pop_back();
      if (hidden == depth) hidden = SIZE_MAX;
      if (depth <= 1) break;
      --depth;
      continue;
    }
    bool inlined = entry->tag == dw::kInlinedSubroutine && hidden == SIZE_MAX;
    DwarfValue low, high, list, sibling;
    Inlined found{depth + 1, at, 0, 0};
    if (!inlined && !IsType(entry->tag)) {
      code.SkipAll(reader, *entry);
    } else {
      for (const auto& attribute : entry->attributes) {
        switch (attribute.name) {
          case dw::kLowPc: low = code.Attribute(reader, attribute); break;
          case dw::kHighPc: high = code.Attribute(reader, attribute); break;
          case dw::kRanges: list = code.Attribute(reader, attribute); break;
          case dw::kSibling: sibling = code.Attribute(reader, attribute); break;
          case dw::kCallFile: found.call_file = code.Attribute(reader, attribute).value; break;
          case dw::kCallLine: found.call_line = static_cast<uint32_t>(code.Attribute(reader, attribute).value); break;
          default: code.Skip(reader, attribute);
        }
      }
    }
    if (inlined) {
      ranges.clear();
      code.RangesOf(low, high, list, ranges, budget);
      if (std::any_of(ranges.begin(), ranges.end(), [&](const AddressRange& r) { return r.Contains(vaddr); })) {
        best = path;
        best.push_back(found);
      }
    } else if (entry->children && sibling) {
      auto next = code.SiblingAt(sibling);
      if (next > reader.offset()) {
        reader.Seek(next);
        continue;
      }
    }
    if (!entry->children) {
      if (depth == 0) break;
      continue;
    }
    if (++depth > kMaxDepth) return Error{ErrorCode::kExhausted, "entries within each other, deeper than the limit"};
    if (inlined) path.push_back(found);
    if (depth > 1 && entry->tag == dw::kSubprogram && hidden == SIZE_MAX) hidden = depth;
  }
  if (!reader.ok()) Problem("a function's entries make no sense");
  return best;
}

// Name and first line of a function, from its entry and from those to which it refers.
Information::Description Information::Describe(const DwarfUnit& from, uint64_t entry_offset, DwarfBudget& budget) {
  Key key{from.file->number, entry_offset};
  if (auto it = descriptions_.find(key); it != descriptions_.end()) return it->second;
  Description out;
  const DwarfUnit* unit = &from;
  UnitPtr kept;  // keeps *unit
  std::string linkage;
  uint64_t at = entry_offset;
  for (int hop = 0; hop < kMaxHops && budget.Spend(); ++hop) {
    DwarfReader reader = unit->Reader(at);
    const Abbreviation* entry = unit->Next(reader);
    if (!entry) break;
    DwarfValue next, name, linkage_name;
    for (const auto& attribute : entry->attributes) {
      switch (attribute.name) {
        case dw::kName: name = unit->Attribute(reader, attribute); break;
        case dw::kLinkageName: case dw::kMipsLinkageName: linkage_name = unit->Attribute(reader, attribute); break;
        case dw::kDeclLine: {
          DwarfValue line = unit->Attribute(reader, attribute);
          if (out.line == 0) out.line = static_cast<uint32_t>(line.value);
          break;
        }
        case dw::kAbstractOrigin: case dw::kSpecification: next = unit->Attribute(reader, attribute); break;
        default: unit->Skip(reader, attribute);
      }
    }
    if (!reader.ok()) break;
    if (linkage.empty() && linkage_name) linkage = unit->String(linkage_name);
    if (out.name.empty() && name) out.name = unit->String(name);
    if (!next || (!linkage.empty() && out.line != 0)) break;
    auto target = unit->Reference(next);
    if (!target) {
      Problem("a function refers to an entry that is not there");
      break;
    }
    auto [file, to] = *target;
    if (file != unit->file || to < unit->first || to >= unit->end) {
      auto it = std::upper_bound(file->units.begin(), file->units.end(), to);
      if (it == file->units.begin() || file->split) break;
      auto loaded = Load(file, *(it - 1));
      if (!loaded.ok()) {
        Problem(loaded.error().message);
        break;
      }
      kept = *std::move(loaded);
      unit = kept->own.get();
      if (to < unit->first || to >= unit->end) break;
    }
    at = to;
  }
  if (!linkage.empty()) {
    out.name = std::move(linkage);
  } else if (!out.name.empty() && HasScopes(unit->language)) {
    out.name = Qualify(*unit, at, std::move(out.name), budget);
  }
  size_t bytes = sizeof(Key) + sizeof(Description) + 4 * sizeof(void*) + out.name.capacity();
  if (description_bytes_ + bytes > std::min(kMaxDescriptionBytes, limits_.memory_bytes / 4)) {
    descriptions_.clear();
    description_bytes_ = 0;
  }
  description_bytes_ += bytes;
  descriptions_.emplace(key, out);
  return out;
}

// The name with the scopes in which its entry stands: entries do not say who holds them, the unit is walked up to this one.
std::string Information::Qualify(const DwarfUnit& unit, uint64_t target, std::string name, DwarfBudget& budget) const {
  DwarfReader reader = unit.Reader(unit.first);
  struct Scope {
    size_t depth;
    DwarfValue name;
    uint16_t tag;
  };
  std::vector<Scope> scopes;
  size_t depth = 0;
  while (!reader.done() && reader.offset() < target && budget.Spend()) {
    const Abbreviation* entry = unit.Next(reader);
    if (!entry) {
      if (!scopes.empty() && scopes.back().depth == depth) scopes.pop_back();
      if (depth <= 1) return name;
      --depth;
      continue;
    }
    if (!entry->children) {
      unit.SkipAll(reader, *entry);
      if (depth == 0) return name;
      continue;
    }
    DwarfValue own, sibling;
    for (const auto& attribute : entry->attributes) {
      if (attribute.name == dw::kName) {
        own = unit.Attribute(reader, attribute);
      } else if (attribute.name == dw::kSibling) {
        sibling = unit.Attribute(reader, attribute);
      } else {
        unit.Skip(reader, attribute);
      }
    }
    if (uint64_t next = unit.SiblingAt(sibling); next > reader.offset() && next <= target) {
      reader.Seek(next);
      continue;
    }
    if (++depth > kMaxDepth) return name;
    if (IsScope(entry->tag)) scopes.push_back({depth, own, entry->tag});
  }
  if (reader.offset() != target) return name;
  std::string qualified;
  for (const Scope& scope : scopes) {
    std::string part = unit.String(scope.name);
    if (part.empty() && scope.tag == dw::kSubprogram) continue;
    qualified += part.empty() ? scope.tag == dw::kNamespace ? "(anonymous namespace)" : "(anonymous)" : part;
    qualified += "::";
  }
  return qualified + name;
}

Result<std::vector<SourceFrame>> Information::Find(uint64_t vaddr) {
  DwarfBudget budget{limits_.steps};
  std::vector<uint32_t> candidates;  // several when code was shared by the linker
  auto place = std::upper_bound(places_.begin(), places_.end(), vaddr, [](uint64_t a, const Place& p) { return a < p.low; });
  while (place != places_.begin() && (--place)->reach > vaddr && budget.Spend()) {
    if (vaddr < place->high) candidates.push_back(place->unit);
  }
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());

  std::vector<SourceFrame> frames;
  for (uint32_t candidate : candidates) {
    ASSIGN_OR_RETURN(UnitPtr unit, Load(&main_, main_.units[candidate]));
    Status read = ReadFunctions(*unit, budget);
    ReadLines(*unit, budget);
    Count(*unit);
    if (!read.ok()) {
      Trim(unit.get());
      return read.error();
    }
    const Function* function = FindFunction(*unit, vaddr);
    auto row = unit->lines ? unit->lines->Find(vaddr, budget) : std::nullopt;
    if (!function && (!row || !frames.empty())) continue;
    uint64_t file = row ? row->file : 0;
    uint32_t line = row ? row->line : 0;
    bool known = row.has_value();
    auto add = [&](std::string name, uint32_t start_line) {
      frames.push_back({std::move(name), known ? unit->lines->FileName(file) : "", line, start_line});
    };
    if (!function) {  // perhaps another unit has the function
      add("", 0);
      continue;
    }
    frames.clear();
    ASSIGN_OR_RETURN(auto chain, Chain(*unit, function->entry, vaddr, budget));
    while (!chain.empty()) {
      Description what = Describe(unit->code(), chain.back().entry, budget);
      add(std::move(what.name), what.line);
      file = chain.back().call_file;
      line = chain.back().call_line;
      known = unit->lines != nullptr;
      chain.pop_back();
    }
    Description what = Describe(unit->code(), function->entry, budget);
    add(std::move(what.name), what.line);
    Trim(unit.get());
    if (budget.steps == 0) return Error{ErrorCode::kExhausted, "a look-up took more steps than the limit"};
    return frames;
  }
  Trim(nullptr);
  return frames;
}

void Information::Count(Unit& unit) {
  unit_bytes_ -= unit.bytes;
  unit.bytes = sizeof(Unit) + unit.own->memory_bytes() + (unit.split ? unit.split->memory_bytes() + unit.split_file->memory_bytes() : 0) +
               unit.functions.capacity() * sizeof(Function) + (unit.lines ? unit.lines->memory_bytes() : 0);
  unit_bytes_ += unit.bytes;
}

void Information::Trim(const Unit* keep) {
  while (memory_bytes() > limits_.memory_bytes && !units_.empty() && units_.back().second.get() != keep) {
    unit_bytes_ -= units_.back().second->bytes;
    by_offset_.erase(units_.back().first);
    units_.pop_back();
  }
  std::erase_if(split_files_, [](const auto& entry) { return entry.second.expired(); });
}

size_t Information::memory_bytes() const {
  return sizeof(*this) + main_.memory_bytes() + alt_.memory_bytes() + places_.capacity() * sizeof(Place) + unit_bytes_ + description_bytes_;
}

}  // namespace

Result<std::unique_ptr<DebugInfo>> DebugInfo::Open(DebugFiles files, DebugLimits limits) {
  if (!files.main) return Error{ErrorCode::kInvalid, "no file"};
  auto information = std::make_unique<Information>(std::move(files), limits);
  RETURN_IF_ERROR(information->Open());
  return std::unique_ptr<DebugInfo>(std::move(information));
}

}  // namespace borescope::symbols
