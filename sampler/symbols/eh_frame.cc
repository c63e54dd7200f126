// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/eh_frame.h"

#include <algorithm>
#include <array>
#include <string>

#include "sampler/symbols/dwarf_cursor.h"
#include "sampler/symbols/elf_file.h"

namespace borescope::symbols {
namespace {

constexpr uint32_t kMaxRecord = 1 << 16;                     // bytes of one CIE or FDE; real ones have tens
constexpr size_t kMaxIndex = 1 << 20;

struct Record {
  std::vector<uint8_t> bytes;  // after the length field
  uint64_t vaddr = 0;          // of bytes[0]
  DwarfCursor cursor() const { return DwarfCursor(bytes.data(), bytes.size(), vaddr); }
};

// False: no such record, or the terminator.
bool ReadRecord(const ElfFile& elf, uint64_t vaddr, Record* record) {
  uint32_t length;
  if (!elf.Read(vaddr, &length, 4) || length < 4 || length > kMaxRecord) return false;  // 0xffffffff: the 64-bit form, which nobody writes
  record->bytes.resize(length);
  record->vaddr = vaddr + 4;
  return elf.Read(vaddr + 4, record->bytes.data(), length);
}

// How the FDEs of a CIE tell addresses.
std::optional<uint8_t> ReadEncoding(const ElfFile& elf, uint64_t vaddr) {
  Record record;
  if (!ReadRecord(elf, vaddr, &record)) return std::nullopt;
  DwarfCursor c = record.cursor();
  if (c.Take<uint32_t>() != 0) return std::nullopt;
  uint8_t version = c.Take<uint8_t>();
  if (version != 1 && version != 3) return std::nullopt;
  std::string augmentation;
  while (char ch = c.Take<char>()) augmentation += ch;
  c.Uleb();  // code and data alignment, column of the return address
  c.Sleb();
  if (version == 1) c.Take<uint8_t>();
  else c.Uleb();
  if (augmentation.empty()) return c.ok() ? std::optional<uint8_t>(0) : std::nullopt;
  if (augmentation[0] != 'z') return std::nullopt;
  DwarfCursor data = c.Block(c.Uleb());
  uint8_t encoding = 0;
  for (char letter : augmentation.substr(1)) {
    if (letter == 'R') {
      encoding = data.Take<uint8_t>();
    } else if (letter == 'L') {
      data.Take<uint8_t>();
    } else if (letter == 'P') {
      uint8_t personality = data.Take<uint8_t>();
      data.Pointer(personality & 0x0f);  // only its size matters
    }
  }
  return data.ok() && c.ok() ? std::optional<uint8_t>(encoding) : std::nullopt;
}

std::optional<EhFrame::Function> ReadFde(const ElfFile& elf, const Record& record) {
  DwarfCursor c = record.cursor();
  uint64_t here = c.vaddr();
  uint32_t distance = c.Take<uint32_t>();
  if (distance == 0 || distance > here) return std::nullopt;
  auto encoding = ReadEncoding(elf, here - distance);
  if (!encoding) return std::nullopt;
  EhFrame::Function function;
  function.start = c.Pointer(*encoding);
  function.end = function.start + c.Pointer(*encoding & 0x0f);
  return c.ok() && function.end > function.start ? std::optional(function) : std::nullopt;
}

}  // namespace

std::unique_ptr<EhFrame> EhFrame::Create(const ElfFile& elf) {
  std::unique_ptr<EhFrame> frames(new EhFrame(elf));
  if (elf.eh_frame_hdr() && frames->UseHeader(*elf.eh_frame_hdr())) return frames;
  const ElfFile::Section* section = elf.FindSection(".eh_frame");
  if (!section) return nullptr;
  frames->BuildIndex(section->vaddr, section->size);
  return frames->index_.empty() ? nullptr : std::move(frames);
}

bool EhFrame::UseHeader(uint64_t header) {
  std::array<uint8_t, 32> bytes{};
  if (!elf_.Read(header, bytes.data(), 16) || bytes[0] != 1) return false;
  DwarfCursor c(bytes.data(), bytes.size(), header);
  c.Take<uint8_t>();
  uint8_t frame_encoding = c.Take<uint8_t>(), count_encoding = c.Take<uint8_t>(), table_encoding = c.Take<uint8_t>();
  constexpr uint8_t kDataRelativeInt32 = 0x3b;  // what linkers write
  if (frame_encoding == 0xff || count_encoding == 0xff || table_encoding != kDataRelativeInt32) return false;
  c.Pointer(frame_encoding, header);
  count_ = c.Pointer(count_encoding, header);
  if (!c.ok() || count_ == 0 || count_ > kMaxIndex * 4) return false;
  header_ = header;
  table_ = c.vaddr();
  return true;
}

void EhFrame::BuildIndex(uint64_t vaddr, uint64_t size) {
  uint64_t end = vaddr + std::min<uint64_t>(size, 64 << 20);
  while (vaddr < end && index_.size() < kMaxIndex) {
    Record record;
    if (!ReadRecord(elf_, vaddr, &record)) break;
    if (auto function = ReadFde(elf_, record)) index_.push_back({function->start, vaddr});
    vaddr += 4 + record.bytes.size();
  }
  std::sort(index_.begin(), index_.end(), [](const Fde& a, const Fde& b) { return a.start < b.start; });
}

std::optional<uint64_t> EhFrame::FindFde(uint64_t vaddr) const {
  if (!index_.empty()) {
    auto it = std::upper_bound(index_.begin(), index_.end(), vaddr, [](uint64_t a, const Fde& f) { return a < f.start; });
    if (it == index_.begin()) return std::nullopt;
    return (it - 1)->vaddr;
  }
  struct Pair {
    int32_t start, fde;
  } pair;
  int64_t target = static_cast<int64_t>(vaddr - header_);
  uint64_t low = 0, high = count_;
  while (low < high) {  // the first entry that starts behind vaddr
    uint64_t middle = low + (high - low) / 2;
    if (!elf_.Read(table_ + middle * sizeof(pair), &pair, sizeof(pair))) return std::nullopt;
    if (pair.start <= target) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0 || !elf_.Read(table_ + (low - 1) * sizeof(pair), &pair, sizeof(pair))) return std::nullopt;
  return header_ + static_cast<uint64_t>(static_cast<int64_t>(pair.fde));
}

std::optional<EhFrame::Function> EhFrame::Find(uint64_t vaddr) const {
  auto fde = FindFde(vaddr);
  Record record;
  if (!fde || !ReadRecord(elf_, *fde, &record)) return std::nullopt;
  auto function = ReadFde(elf_, record);
  if (!function || vaddr < function->start || vaddr >= function->end) return std::nullopt;
  return function;
}

}  // namespace borescope::symbols
