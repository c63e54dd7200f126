// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "sampler/symbols/dwarf_section.h"

namespace borescope::symbols {

// What DWARF calls things: those that we look at.
namespace dw {
enum Tag : uint16_t {
  kArrayType = 0x01, kClassType = 0x02, kEnumerationType = 0x04, kCompileUnit = 0x11, kStructureType = 0x13, kSubroutineType = 0x15,
  kUnionType = 0x17, kModule = 0x1e, kInlinedSubroutine = 0x1d, kSubprogram = 0x2e, kNamespace = 0x39, kInterfaceType = 0x38,
  kPartialUnit = 0x3c, kSkeletonUnit = 0x4a,
};
enum At : uint16_t {
  kSibling = 0x01, kName = 0x03, kStmtList = 0x10, kLowPc = 0x11, kHighPc = 0x12, kLanguage = 0x13, kCompDir = 0x1b, kAbstractOrigin = 0x31,
  kDeclLine = 0x3b, kSpecification = 0x47, kRanges = 0x55, kCallFile = 0x58, kCallLine = 0x59, kLinkageName = 0x6e, kStrOffsetsBase = 0x72,
  kAddrBase = 0x73, kRnglistsBase = 0x74, kDwoName = 0x76, kMipsLinkageName = 0x2007, kGnuDwoName = 0x2130, kGnuDwoId = 0x2131,
  kGnuRangesBase = 0x2132, kGnuAddrBase = 0x2133,
};
enum Form : uint16_t {
  kAddr = 0x01, kBlock2 = 0x03, kBlock4 = 0x04, kData2 = 0x05, kData4 = 0x06, kData8 = 0x07, kString = 0x08, kBlock = 0x09, kBlock1 = 0x0a,
  kData1 = 0x0b, kFlag = 0x0c, kSdata = 0x0d, kStrp = 0x0e, kUdata = 0x0f, kRefAddr = 0x10, kRef1 = 0x11, kRef2 = 0x12, kRef4 = 0x13,
  kRef8 = 0x14, kRefUdata = 0x15, kIndirect = 0x16, kSecOffset = 0x17, kExprloc = 0x18, kFlagPresent = 0x19, kStrx = 0x1a, kAddrx = 0x1b,
  kRefSup4 = 0x1c, kStrpSup = 0x1d, kData16 = 0x1e, kLineStrp = 0x1f, kRefSig8 = 0x20, kImplicitConst = 0x21, kLoclistx = 0x22,
  kRnglistx = 0x23, kRefSup8 = 0x24, kStrx1 = 0x25, kStrx2 = 0x26, kStrx3 = 0x27, kStrx4 = 0x28, kAddrx1 = 0x29, kAddrx2 = 0x2a,
  kAddrx3 = 0x2b, kAddrx4 = 0x2c, kGnuAddrIndex = 0x1f01, kGnuStrIndex = 0x1f02, kGnuRefAlt = 0x1f20, kGnuStrpAlt = 0x1f21,
};
}  // namespace dw

// Work that one look-up may still do.
struct DwarfBudget {
  uint64_t steps;
  bool Spend() { return steps > 0 && steps-- > 0; }
};

struct AddressRange {
  uint64_t low = 0, high = 0;  // high is exclusive
  bool Contains(uint64_t address) const { return address >= low && address < high; }
};

// Where a split unit's parts begin within a .dwp's sections; all 0 in a .dwo file.
struct DwpParts {
  uint64_t info = 0, abbrev = 0, str_offsets = 0, rnglists = 0;
};

// The sections of one file. alt is another file, of which pieces are shared.
struct DwarfFile {
  std::shared_ptr<ElfFile> owner;  // of a split file
  bool split = false;
  DwarfFile* alt = nullptr;
  uint64_t number = 0;  // tells files apart when one is gone
  DwarfSection info, abbrev, str, line, line_str, ranges, rnglists, addr, str_offsets, aranges;
  std::vector<uint64_t> units;  // offsets of their headers, in order

  Status Open(const ElfFile& file, size_t* budget);
  // Fills units.
  Status ListUnits(DwarfBudget& budget);
  // Where this .dwp keeps a unit; nullopt: it is none, or does not have it.
  static std::optional<DwpParts> FindInPackage(const ElfFile& package, uint64_t dwo_id);
  size_t memory_bytes() const;
};

struct Abbreviation {
  struct Attribute {
    uint16_t name, form;
    int64_t constant;  // of kImplicitConst
  };
  uint64_t code = 0;
  uint16_t tag = 0;
  bool children = false;
  int bytes = 0;  // of all attributes; -1: that varies
  std::vector<Attribute> attributes;
};

// One attribute as it stands in the entry; what it means depends on its unit.
struct DwarfValue {
  uint16_t form = 0;
  uint64_t value = 0;  // kString: offset in .debug_info
  explicit operator bool() const { return form != 0; }
};

// Header and root entry of a unit, and how to read its entries.
class DwarfUnit {
 public:
  // The unit whose header is at an offset of .debug_info; root_only: no other entry will be read. skeleton: the unit to which this split
  // one belongs, and which has to stay.
  static Result<std::unique_ptr<DwarfUnit>> Read(DwarfFile* file, uint64_t offset, bool root_only, const DwarfUnit* skeleton = nullptr,
                                                 const DwpParts& parts = {});

  DwarfFile* file = nullptr;
  const DwarfUnit* skeleton = nullptr;
  uint64_t offset = 0, first = 0, end = 0;  // header, root entry, behind the last
  uint16_t version = 0, language = 0;
  int address_bytes = 8, offset_bytes = 4;
  uint64_t dwo_id = 0;
  std::optional<uint64_t> line_offset;
  std::string name, comp_dir, dwo_name;

  // Addresses of the unit as its root entry says.
  bool Ranges(std::vector<AddressRange>& into, DwarfBudget& budget) const { return RangesOf(low_, high_, ranges_, into, budget); }

  // Next entry's abbreviation, or null: the end of a list of children (ok), or nonsense (reader not ok).
  const Abbreviation* Next(DwarfReader& reader) const;
  DwarfValue Attribute(DwarfReader& reader, const Abbreviation::Attribute& attribute) const;
  void Skip(DwarfReader& reader, const Abbreviation::Attribute& attribute) const;
  void SkipAll(DwarfReader& reader, const Abbreviation& abbreviation) const;
  DwarfReader Reader(uint64_t at) const { return DwarfReader(&file->info, at, end); }

  std::string String(const DwarfValue& value) const;
  std::optional<uint64_t> Address(const DwarfValue& value) const;
  // The entry that a reference names: file and offset in its .debug_info.
  std::optional<std::pair<DwarfFile*, uint64_t>> Reference(const DwarfValue& value) const;
  // Where DW_AT_sibling says that the next entry is; 0: it says nothing of use.
  uint64_t SiblingAt(const DwarfValue& value) const;
  // Ranges of an entry with these attributes, appended; empty ones and those of dropped code are left out. False: they make no sense.
  bool RangesOf(const DwarfValue& low, const DwarfValue& high, const DwarfValue& ranges, std::vector<AddressRange>& into, DwarfBudget& budget) const;
  size_t memory_bytes() const;

 private:
  // Bytes of a form that always has as many; -1: it varies.
  int Bytes(uint16_t form) const;
  Status ReadHeader();
  Status ReadAbbreviations(uint64_t at, bool root_only);
  Status ReadRoot();
  bool RangeList(uint64_t at, std::vector<AddressRange>& into, DwarfBudget& budget) const;
  bool OldRanges(uint64_t at, std::vector<AddressRange>& into, DwarfBudget& budget) const;
  std::optional<uint64_t> IndexedAddress(uint64_t index) const;

  std::vector<Abbreviation> abbreviations_;  // by code
  size_t abbreviation_bytes_ = 0;
  uint64_t abbrev_offset_ = 0;
  DwpParts parts_;
  std::optional<uint64_t> str_offsets_base_, addr_base_, rnglists_base_, old_ranges_base_;
  DwarfValue low_, high_, ranges_;
};

}  // namespace borescope::symbols
