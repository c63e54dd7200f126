// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/dwarf_section.h"

#include <elf.h>
#include <libdeflate.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

namespace borescope::symbols {
namespace {

constexpr uint64_t kWindow = 16 << 10;
constexpr size_t kMaxString = 4096;
constexpr uint32_t kCompressZstd = 2;  // ELFCOMPRESS_ZSTD, younger than some elf.h

// zlib's format. libdeflate needs half of zlib's time, which was half of what a short run took for naming.
bool Inflate(const std::vector<uint8_t>& in, std::vector<uint8_t>& out) {
  std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  return decompressor && libdeflate_zlib_decompress(decompressor.get(), in.data(), in.size(), out.data(), out.size(), nullptr) == LIBDEFLATE_SUCCESS;
}

}  // namespace

Status DwarfSection::Open(const ElfFile& file, std::string_view name, size_t* budget) {
  const ElfFile::Section* section = file.FindSection(name);
  if (!section || section->type == SHT_NOBITS) return OkStatus();
  const ByteSource& source = file.source();
  if (section->offset > source.size() || section->size > source.size() - section->offset) {
    return Error{ErrorCode::kInvalid, std::string(name) + " reaches beyond the end of the file"};
  }
  source_ = &source;
  offset_ = section->offset;
  size_ = section->size;
  if (!(section->flags & SHF_COMPRESSED)) return OkStatus();

  Elf64_Chdr header;
  if (size_ < sizeof(header) || !source.ReadValue(offset_, &header)) return Error{ErrorCode::kInvalid, std::string(name) + ": no compression header"};
  uint64_t packed = size_ - sizeof(header);
  size_ = 0;
  if (header.ch_size > *budget || packed > *budget - header.ch_size) {
    return Error{ErrorCode::kExhausted, std::string(name) + " is compressed and takes " + std::to_string(header.ch_size) +
                                            " bytes, more than the limit: debug files that are not compressed are read in pieces"};
  }
  auto whole = std::make_shared<Window>();
  whole->bytes.resize(header.ch_size);
  if (header.ch_type != ELFCOMPRESS_ZLIB && header.ch_type != kCompressZstd) {
    return Error{ErrorCode::kUnsupported, std::string(name) + ": compressed in an unknown way, " + std::to_string(header.ch_type)};
  }
  std::vector<uint8_t> in(packed);
  bool good = source.Read(offset_ + sizeof(header), in.data(), in.size());
  if (good && header.ch_type == ELFCOMPRESS_ZLIB) {
    good = Inflate(in, whole->bytes);
  } else if (good) {
    good = ZSTD_decompress(whole->bytes.data(), whole->bytes.size(), in.data(), in.size()) == whole->bytes.size();
  }
  if (!good) return Error{ErrorCode::kInvalid, std::string(name) + ": cannot be decompressed"};
  *budget -= whole->bytes.size();
  size_ = whole->bytes.size();
  whole_ = std::move(whole);
  return OkStatus();
}

std::shared_ptr<const DwarfSection::Window> DwarfSection::At(uint64_t offset) {
  if (offset >= size_) return nullptr;
  if (whole_) return whole_;
  uint64_t start = offset / kWindow * kWindow;
  auto& kept = windows_[offset / kWindow % windows_.size()];
  if (kept && kept->offset == start) return kept;
  auto window = std::make_shared<Window>();
  window->offset = start;
  window->bytes.resize(std::min(kWindow, size_ - start));
  if (!source_->Read(offset_ + start, window->bytes.data(), window->bytes.size())) return nullptr;
  return kept = std::move(window);
}

std::string DwarfSection::String(uint64_t offset) { return DwarfReader(this, offset, size_).String(); }

size_t DwarfSection::memory_bytes() const {
  size_t bytes = whole_ ? whole_->bytes.size() : 0;
  for (const auto& window : windows_) bytes += window ? window->bytes.size() : 0;
  return bytes;
}

DwarfReader::DwarfReader(DwarfSection* section, uint64_t offset, uint64_t end)
    : section_(section), base_(offset), limit_(std::min(end, section->size())) {
  if (offset > limit_) Fail();
}

void DwarfReader::Seek(uint64_t offset) {
  if (!ok_) return;
  if (window_ && offset >= base_ && offset - base_ <= static_cast<uint64_t>(end_ - begin_)) {
    at_ = begin_ + (offset - base_);
    return;
  }
  begin_ = at_ = end_ = nullptr;
  window_.reset();
  base_ = offset;
  if (offset > limit_) Fail();
}

void DwarfReader::SkipFar(uint64_t n) {
  uint64_t here = offset();
  if (!ok_ || n > limit_ - here) return Fail();
  Seek(here + n);
}

// Called at the end of a window.
bool DwarfReader::Refill() {
  uint64_t here = offset();
  if (!ok_ || here >= limit_ || !(window_ = section_->At(here))) {
    Fail();
    return false;
  }
  begin_ = at_ = window_->bytes.data() + (here - window_->offset);
  end_ = begin_ + std::min<uint64_t>(limit_ - here, window_->bytes.size() - (here - window_->offset));
  base_ = here;
  return true;
}

bool DwarfReader::TakeSlow(uint8_t* into, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (at_ == end_ && !Refill()) return false;
    into[i] = *at_++;
  }
  return true;
}

uint64_t DwarfReader::Uleb() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at_ == end_ && !Refill()) return 0;
    uint8_t byte = *at_++;
    if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return value;
  }
  Fail();
  return 0;
}

int64_t DwarfReader::Sleb() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at_ == end_ && !Refill()) return 0;
    uint8_t byte = *at_++;
    if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte & 0x80) continue;
    if ((byte & 0x40) && shift + 7 < 64) value |= ~uint64_t{0} << (shift + 7);
    return static_cast<int64_t>(value);
  }
  Fail();
  return 0;
}

uint64_t DwarfReader::Unsigned(int bytes) {
  switch (bytes) {
    case 1: return Take<uint8_t>();
    case 2: return Take<uint16_t>();
    case 4: return Take<uint32_t>();
    case 8: return Take<uint64_t>();
    default: break;
  }
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= uint64_t{Take<uint8_t>()} << (8 * i);
  return value;
}

std::string DwarfReader::String() {
  std::string text;
  while (true) {
    if (at_ == end_ && !Refill()) return text;
    const void* nul = std::memchr(at_, 0, static_cast<size_t>(end_ - at_));
    const uint8_t* to = nul ? static_cast<const uint8_t*>(nul) : end_;
    text.append(reinterpret_cast<const char*>(at_), std::min<size_t>(static_cast<size_t>(to - at_), kMaxString - text.size()));
    at_ = nul ? to + 1 : to;
    if (nul) return text;
    if (text.size() >= kMaxString) {
      SkipString();
      return text;
    }
  }
}

void DwarfReader::SkipString() {
  while (at_ != end_ || Refill()) {
    const void* nul = std::memchr(at_, 0, static_cast<size_t>(end_ - at_));
    at_ = nul ? static_cast<const uint8_t*>(nul) + 1 : end_;
    if (nul) return;
  }
}

}  // namespace borescope::symbols
