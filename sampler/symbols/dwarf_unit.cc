// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/dwarf_unit.h"

#include <algorithm>

namespace borescope::symbols {
namespace {

constexpr size_t kMaxUnits = 1 << 20;
constexpr size_t kMaxAbbreviations = 1 << 16, kMaxAttributes = 1 << 18;  // of one unit
constexpr size_t kMaxRanges = 1 << 16;                                   // of one entry
// What linkers write for the address of code that they dropped, besides 0 (-2 in .debug_ranges, where -1 has a meaning).
constexpr uint64_t kDropped = UINT64_MAX - 1;

Error Nonsense(uint64_t offset, std::string_view what) {
  return Error{ErrorCode::kInvalid, "unit at " + std::to_string(offset) + " of .debug_info: " + std::string(what)};
}

}  // namespace

Status DwarfFile::Open(const ElfFile& file, size_t* budget) {
  std::string end = split ? ".dwo" : "";
  RETURN_IF_ERROR(info.Open(file, ".debug_info" + end, budget));
  if (info.size() == 0) return Error{ErrorCode::kNotFound, "no .debug_info" + end};
  RETURN_IF_ERROR(abbrev.Open(file, ".debug_abbrev" + end, budget));
  RETURN_IF_ERROR(str.Open(file, ".debug_str" + end, budget));
  RETURN_IF_ERROR(str_offsets.Open(file, ".debug_str_offsets" + end, budget));
  RETURN_IF_ERROR(rnglists.Open(file, ".debug_rnglists" + end, budget));
  if (split) return OkStatus();
  RETURN_IF_ERROR(line.Open(file, ".debug_line", budget));
  RETURN_IF_ERROR(line_str.Open(file, ".debug_line_str", budget));
  RETURN_IF_ERROR(ranges.Open(file, ".debug_ranges", budget));
  RETURN_IF_ERROR(addr.Open(file, ".debug_addr", budget));
  return aranges.Open(file, ".debug_aranges", budget);
}

Status DwarfFile::ListUnits(DwarfBudget& budget) {
  for (uint64_t at = 0; at < info.size();) {
    if (!budget.Spend() || units.size() >= kMaxUnits) return Error{ErrorCode::kExhausted, "more units than the limit"};
    DwarfReader reader(&info, at, info.size());
    uint64_t length = reader.Take<uint32_t>();
    if (length == 0xffffffff) length = reader.Take<uint64_t>();
    if (!reader.ok() || length > info.size() - reader.offset()) return Nonsense(at, "longer than the section");
    if (length > 0) units.push_back(at);
    at = reader.offset() + length;
  }
  return OkStatus();
}

std::optional<DwpParts> DwarfFile::FindInPackage(const ElfFile& package, uint64_t dwo_id) {
  DwarfSection index;
  size_t budget = 64 << 20;
  if (!index.Open(package, ".debug_cu_index", &budget).ok() || index.size() == 0) return std::nullopt;
  DwarfReader reader(&index, 0, index.size());
  uint32_t version = reader.Take<uint32_t>() & 0xffff;  // in version 5: two bytes, and two of padding
  uint64_t columns = reader.Take<uint32_t>(), units = reader.Take<uint32_t>(), slots = reader.Take<uint32_t>();
  if (!reader.ok() || (version != 2 && version != 5) || columns > 16 || slots == 0 || (slots & (slots - 1))) return std::nullopt;
  uint64_t hashes = reader.offset(), rows = hashes + slots * 8, names = rows + slots * 4, offsets = names + columns * 4;
  uint64_t slot = dwo_id & (slots - 1), step = ((dwo_id >> 32) & (slots - 1)) | 1;
  constexpr int kProbes = 4096;
  for (int i = 0; i < kProbes; ++i, slot = (slot + step) & (slots - 1)) {
    reader.Seek(rows + slot * 4);
    uint64_t row = reader.Take<uint32_t>();
    if (!reader.ok() || row == 0) return std::nullopt;
    reader.Seek(hashes + slot * 8);
    if (reader.Take<uint64_t>() != dwo_id) continue;
    if (row > units) return std::nullopt;
    DwpParts parts;
    for (uint64_t column = 0; column < columns; ++column) {
      reader.Seek(names + column * 4);
      uint32_t kind = reader.Take<uint32_t>();
      reader.Seek(offsets + ((row - 1) * columns + column) * 4);
      uint64_t offset = reader.Take<uint32_t>();
      if (kind == 1) parts.info = offset;
      if (kind == 3) parts.abbrev = offset;
      if (kind == 6) parts.str_offsets = offset;
      if (kind == 8 && version == 5) parts.rnglists = offset;
    }
    if (!reader.ok()) return std::nullopt;
    return parts;
  }
  return std::nullopt;
}

size_t DwarfFile::memory_bytes() const {
  size_t bytes = sizeof(*this) + units.capacity() * sizeof(uint64_t);
  for (const DwarfSection* s : {&info, &abbrev, &str, &line, &line_str, &ranges, &rnglists, &addr, &str_offsets, &aranges}) bytes += s->memory_bytes();
  return bytes;
}

Result<std::unique_ptr<DwarfUnit>> DwarfUnit::Read(DwarfFile* file, uint64_t offset, bool root_only, const DwarfUnit* skeleton,
                                                   const DwpParts& parts) {
  auto unit = std::make_unique<DwarfUnit>();
  unit->file = file;
  unit->offset = offset;
  unit->skeleton = skeleton;
  unit->parts_ = parts;
  RETURN_IF_ERROR(unit->ReadHeader());
  RETURN_IF_ERROR(unit->ReadAbbreviations(unit->abbrev_offset_ + parts.abbrev, root_only));
  RETURN_IF_ERROR(unit->ReadRoot());
  return unit;
}

Status DwarfUnit::ReadHeader() {
  constexpr uint8_t kUnitType = 2, kUnitSkeleton = 4, kUnitSplitCompile = 5, kUnitSplitType = 6;
  DwarfReader reader(&file->info, offset, file->info.size());
  uint64_t length = reader.Take<uint32_t>();
  if (length == 0xffffffff) {
    offset_bytes = 8;
    length = reader.Take<uint64_t>();
  }
  if (!reader.ok() || length > file->info.size() - reader.offset()) return Nonsense(offset, "longer than the section");
  end = reader.offset() + length;
  version = reader.Take<uint16_t>();
  if (version < 2 || version > 5) {
    return Error{ErrorCode::kUnsupported, "unit at " + std::to_string(offset) + " of .debug_info: DWARF version " + std::to_string(version)};
  }
  if (version >= 5) {
    uint8_t type = reader.Take<uint8_t>();
    address_bytes = reader.Take<uint8_t>();
    abbrev_offset_ = reader.Unsigned(offset_bytes);
    if (type == kUnitSkeleton || type == kUnitSplitCompile) dwo_id = reader.Take<uint64_t>();
    if (type == kUnitType || type == kUnitSplitType) reader.Skip(8 + static_cast<uint64_t>(offset_bytes));
  } else {
    abbrev_offset_ = reader.Unsigned(offset_bytes);
    address_bytes = reader.Take<uint8_t>();
  }
  first = reader.offset();
  if (!reader.ok() || first > end) return Nonsense(offset, "its header is cut off");
  if (address_bytes != 8) return Nonsense(offset, "addresses of " + std::to_string(address_bytes) + " bytes");
  return OkStatus();
}

Status DwarfUnit::ReadAbbreviations(uint64_t at, bool root_only) {
  DwarfReader reader(&file->abbrev, at, file->abbrev.size());
  uint64_t root = Reader(first).Uleb();
  size_t attributes = 0;
  while (uint64_t code = reader.Uleb()) {
    Abbreviation abbreviation;
    abbreviation.code = code;
    abbreviation.tag = static_cast<uint16_t>(reader.Uleb());
    abbreviation.children = reader.Take<uint8_t>() != 0;
    while (reader.ok()) {
      uint64_t name = reader.Uleb(), form = reader.Uleb();
      int64_t constant = form == dw::kImplicitConst ? reader.Sleb() : 0;
      if (name == 0 && form == 0) break;
      if (name > UINT16_MAX || form > UINT16_MAX || ++attributes > kMaxAttributes) return Nonsense(offset, "its abbreviations make no sense");
      abbreviation.attributes.push_back({static_cast<uint16_t>(name), static_cast<uint16_t>(form), constant});
      int bytes = Bytes(static_cast<uint16_t>(form));
      abbreviation.bytes = bytes < 0 || abbreviation.bytes < 0 ? -1 : abbreviation.bytes + bytes;
    }
    abbreviation.attributes.shrink_to_fit();
    if (!reader.ok() || abbreviations_.size() >= kMaxAbbreviations) return Nonsense(offset, "its abbreviations make no sense");
    abbreviations_.push_back(std::move(abbreviation));
    if (root_only && code == root) break;
  }
  if (!reader.ok()) return Nonsense(offset, "its abbreviations are cut off");
  std::stable_sort(abbreviations_.begin(), abbreviations_.end(), [](const auto& a, const auto& b) { return a.code < b.code; });
  abbreviation_bytes_ = abbreviations_.capacity() * sizeof(Abbreviation) + attributes * sizeof(Abbreviation::Attribute);
  return OkStatus();
}

Status DwarfUnit::ReadRoot() {
  DwarfReader reader = Reader(first);
  const Abbreviation* root = Next(reader);
  if (!root) return Nonsense(offset, "it has no root entry");
  DwarfValue name_value, comp_dir_value, dwo_name_value;
  for (const auto& attribute : root->attributes) {
    DwarfValue v = Attribute(reader, attribute);
    switch (attribute.name) {
      case dw::kName: name_value = v; break;
      case dw::kCompDir: comp_dir_value = v; break;
      case dw::kLanguage: language = static_cast<uint16_t>(v.value); break;
      case dw::kDwoName: case dw::kGnuDwoName: dwo_name_value = v; break;
      case dw::kGnuDwoId: dwo_id = v.value; break;
      case dw::kStmtList: line_offset = v.value; break;
      case dw::kLowPc: low_ = v; break;
      case dw::kHighPc: high_ = v; break;
      case dw::kRanges: ranges_ = v; break;
      case dw::kStrOffsetsBase: str_offsets_base_ = v.value; break;
      case dw::kAddrBase: case dw::kGnuAddrBase: addr_base_ = v.value; break;
      case dw::kRnglistsBase: rnglists_base_ = v.value; break;
      case dw::kGnuRangesBase: old_ranges_base_ = v.value; break;
      default: break;
    }
  }
  if (!reader.ok()) return Nonsense(offset, "its root entry is cut off");
  // names may be given by bases that come after them
  name = String(name_value);
  comp_dir = String(comp_dir_value);
  dwo_name = String(dwo_name_value);
  return OkStatus();
}

int DwarfUnit::Bytes(uint16_t form) const {
  switch (form) {
    case dw::kFlagPresent: case dw::kImplicitConst: return 0;
    case dw::kData1: case dw::kFlag: case dw::kRef1: case dw::kStrx1: case dw::kAddrx1: return 1;
    case dw::kData2: case dw::kRef2: case dw::kStrx2: case dw::kAddrx2: return 2;
    case dw::kStrx3: case dw::kAddrx3: return 3;
    case dw::kData4: case dw::kRef4: case dw::kRefSup4: case dw::kStrx4: case dw::kAddrx4: return 4;
    case dw::kData8: case dw::kRef8: case dw::kRefSup8: case dw::kRefSig8: return 8;
    case dw::kData16: return 16;
    case dw::kAddr: return address_bytes;
    case dw::kRefAddr: return version == 2 ? address_bytes : offset_bytes;
    case dw::kStrp: case dw::kSecOffset: case dw::kStrpSup: case dw::kLineStrp: case dw::kGnuRefAlt: case dw::kGnuStrpAlt: return offset_bytes;
    default: return -1;
  }
}

const Abbreviation* DwarfUnit::Next(DwarfReader& reader) const {
  uint64_t code = reader.Uleb();
  if (code == 0) return nullptr;
  // they are nearly always numbered from 1
  if (code <= abbreviations_.size() && abbreviations_[code - 1].code == code) return &abbreviations_[code - 1];
  auto it = std::lower_bound(abbreviations_.begin(), abbreviations_.end(), code, [](const auto& a, uint64_t c) { return a.code < c; });
  if (it != abbreviations_.end() && it->code == code) return &*it;
  reader.Skip(UINT64_MAX);
  return nullptr;
}

DwarfValue DwarfUnit::Attribute(DwarfReader& reader, const Abbreviation::Attribute& attribute) const {
  uint16_t form = attribute.form;
  if (form == dw::kIndirect) {
    form = static_cast<uint16_t>(reader.Uleb());
    if (form == dw::kIndirect || form == dw::kImplicitConst) reader.Skip(UINT64_MAX);
  }
  switch (form) {
    case dw::kFlagPresent: return {form, 1};
    case dw::kImplicitConst: return {form, static_cast<uint64_t>(attribute.constant)};
    case dw::kUdata: case dw::kRefUdata: case dw::kStrx: case dw::kAddrx: case dw::kLoclistx: case dw::kRnglistx: case dw::kGnuAddrIndex:
    case dw::kGnuStrIndex:
      return {form, reader.Uleb()};
    case dw::kSdata: return {form, static_cast<uint64_t>(reader.Sleb())};
    case dw::kString: {
      uint64_t at = reader.offset();
      reader.SkipString();
      return {form, at};
    }
    case dw::kBlock1: reader.Skip(reader.Take<uint8_t>()); return {form, 0};
    case dw::kBlock2: reader.Skip(reader.Take<uint16_t>()); return {form, 0};
    case dw::kBlock4: reader.Skip(reader.Take<uint32_t>()); return {form, 0};
    case dw::kBlock: case dw::kExprloc: reader.Skip(reader.Uleb()); return {form, 0};
    case dw::kData16: reader.Skip(16); return {form, 0};
    default: break;
  }
  int bytes = Bytes(form);
  if (bytes < 0) {
    reader.Skip(UINT64_MAX);  // a form that nobody knows: what follows cannot be read
    return {};
  }
  return {form, reader.Unsigned(bytes)};
}

void DwarfUnit::Skip(DwarfReader& reader, const Abbreviation::Attribute& attribute) const {
  if (int bytes = Bytes(attribute.form); bytes >= 0) {
    reader.Skip(static_cast<uint64_t>(bytes));
  } else {
    Attribute(reader, attribute);
  }
}

void DwarfUnit::SkipAll(DwarfReader& reader, const Abbreviation& abbreviation) const {
  if (abbreviation.bytes >= 0) return reader.Skip(static_cast<uint64_t>(abbreviation.bytes));
  for (const auto& attribute : abbreviation.attributes) Skip(reader, attribute);
}

std::string DwarfUnit::String(const DwarfValue& value) const {
  switch (value.form) {
    case dw::kString: return file->info.String(value.value);
    case dw::kStrp: return file->str.String(value.value);
    case dw::kLineStrp: return file->line_str.String(value.value);
    case dw::kStrpSup: case dw::kGnuStrpAlt: return file->alt ? file->alt->str.String(value.value) : "";
    case dw::kStrx: case dw::kStrx1: case dw::kStrx2: case dw::kStrx3: case dw::kStrx4: case dw::kGnuStrIndex: break;
    default: return "";
  }
  // a split unit's offsets begin behind the header of its own part
  uint64_t header = version < 5 ? 0 : offset_bytes == 8 ? 16 : 8;
  uint64_t base = parts_.str_offsets + str_offsets_base_.value_or(header);
  if (value.value > file->str_offsets.size()) return "";
  DwarfReader reader(&file->str_offsets, base + value.value * static_cast<uint64_t>(offset_bytes), file->str_offsets.size());
  uint64_t at = reader.Unsigned(offset_bytes);
  return reader.ok() ? file->str.String(at) : "";
}

std::optional<uint64_t> DwarfUnit::IndexedAddress(uint64_t index) const {
  const DwarfUnit& owner = skeleton ? *skeleton : *this;
  DwarfSection& addr = owner.file->addr;
  uint64_t base = owner.addr_base_.value_or(owner.version < 5 ? 0 : 8);
  if (index > addr.size() || base > addr.size()) return std::nullopt;
  DwarfReader reader(&addr, base + index * 8, addr.size());
  uint64_t value = reader.Take<uint64_t>();
  if (!reader.ok()) return std::nullopt;
  return value;
}

std::optional<uint64_t> DwarfUnit::Address(const DwarfValue& value) const {
  switch (value.form) {
    case dw::kAddr: return value.value;
    case dw::kAddrx: case dw::kAddrx1: case dw::kAddrx2: case dw::kAddrx3: case dw::kAddrx4: case dw::kGnuAddrIndex: return IndexedAddress(value.value);
    default: return std::nullopt;
  }
}

std::optional<std::pair<DwarfFile*, uint64_t>> DwarfUnit::Reference(const DwarfValue& value) const {
  switch (value.form) {
    case dw::kRef1: case dw::kRef2: case dw::kRef4: case dw::kRef8: case dw::kRefUdata:
      if (value.value >= end - offset) return std::nullopt;
      return std::pair(file, offset + value.value);
    case dw::kRefAddr: return std::pair(file, value.value);
    case dw::kRefSup4: case dw::kRefSup8: case dw::kGnuRefAlt:
      if (!file->alt) return std::nullopt;
      return std::pair(file->alt, value.value);
    default: return std::nullopt;
  }
}

uint64_t DwarfUnit::SiblingAt(const DwarfValue& value) const {
  auto target = Reference(value);
  return target && target->first == file && target->second <= end ? target->second : 0;
}

bool DwarfUnit::RangesOf(const DwarfValue& low, const DwarfValue& high, const DwarfValue& ranges, std::vector<AddressRange>& into,
                         DwarfBudget& budget) const {
  if (ranges) {
    if (version < 5) {
      const DwarfUnit& owner = skeleton ? *skeleton : *this;
      // only a split unit's ranges are relative to the base that its skeleton gives
      uint64_t base = skeleton ? owner.old_ranges_base_.value_or(0) : 0;
      return OldRanges(base + ranges.value, into, budget);
    }
    if (ranges.form != dw::kRnglistx) return RangeList(ranges.value, into, budget);
    uint64_t header = offset_bytes == 8 ? 20 : 12;
    uint64_t base = parts_.rnglists + rnglists_base_.value_or(header);
    if (ranges.value > file->rnglists.size()) return false;
    DwarfReader reader(&file->rnglists, base + ranges.value * static_cast<uint64_t>(offset_bytes), file->rnglists.size());
    uint64_t at = reader.Unsigned(offset_bytes);
    return reader.ok() && RangeList(base + at, into, budget);
  }
  if (!low) return true;
  auto begin = Address(low);
  if (!begin || *begin >= kDropped || !high) return begin.has_value();
  auto to = Address(high);
  uint64_t limit = to ? *to : *begin + high.value;
  if (limit > *begin) into.push_back({*begin, limit});
  return true;
}

bool DwarfUnit::OldRanges(uint64_t at, std::vector<AddressRange>& into, DwarfBudget& budget) const {
  const DwarfUnit& owner = skeleton ? *skeleton : *this;
  DwarfReader reader(&owner.file->ranges, at, owner.file->ranges.size());
  uint64_t base = owner.Address(owner.low_).value_or(0);
  for (size_t i = 0; i < kMaxRanges && budget.Spend(); ++i) {
    uint64_t low = reader.Take<uint64_t>(), high = reader.Take<uint64_t>();
    if (!reader.ok()) return false;
    if (low == 0 && high == 0) return true;
    if (low == UINT64_MAX) {
      base = high;
    } else if (low < high && low != kDropped && base < kDropped) {
      into.push_back({base + low, base + high});
    }
  }
  return false;
}

bool DwarfUnit::RangeList(uint64_t at, std::vector<AddressRange>& into, DwarfBudget& budget) const {
  enum : uint8_t { kEnd, kBaseX, kStartXEndX, kStartXLength, kOffsetPair, kBase, kStartEnd, kStartLength };
  const DwarfUnit& owner = skeleton ? *skeleton : *this;
  DwarfReader reader(&file->rnglists, at, file->rnglists.size());
  uint64_t base = owner.Address(owner.low_).value_or(0);
  auto add = [&](std::optional<uint64_t> low, std::optional<uint64_t> high) {
    if (low && high && *low < *high && *low < kDropped) into.push_back({*low, *high});
  };
  for (size_t i = 0; i < kMaxRanges && budget.Spend() && reader.ok(); ++i) {
    switch (reader.Take<uint8_t>()) {
      case kEnd: return reader.ok();
      case kBaseX: base = IndexedAddress(reader.Uleb()).value_or(UINT64_MAX); break;
      case kStartXEndX: {
        auto low = IndexedAddress(reader.Uleb()), high = IndexedAddress(reader.Uleb());
        add(low, high);
        break;
      }
      case kStartXLength: {
        auto low = IndexedAddress(reader.Uleb());
        uint64_t length = reader.Uleb();
        if (low) add(low, *low + length);
        break;
      }
      case kOffsetPair: {
        uint64_t low = reader.Uleb(), high = reader.Uleb();
        if (base < kDropped) add(base + low, base + high);
        break;
      }
      case kBase: base = reader.Take<uint64_t>(); break;
      case kStartEnd: {
        uint64_t low = reader.Take<uint64_t>(), high = reader.Take<uint64_t>();
        add(low, high);
        break;
      }
      case kStartLength: {
        uint64_t low = reader.Take<uint64_t>(), length = reader.Uleb();
        add(low, low + length);
        break;
      }
      default: return false;
    }
  }
  return false;
}

size_t DwarfUnit::memory_bytes() const { return sizeof(*this) + abbreviation_bytes_ + name.size() + comp_dir.size() + dwo_name.size(); }

}  // namespace borescope::symbols
