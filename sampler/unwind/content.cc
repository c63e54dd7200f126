// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/content.h"

#include <elf.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "sampler/symbols/elf_file.h"

namespace borescope::unwind {
namespace {

bool ReadFd(int fd, uint64_t offset, char* into, size_t n) {
  while (n > 0) {
    ssize_t got = ::pread(fd, into, n, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    into += got;
    offset += static_cast<uint64_t>(got);
    n -= static_cast<size_t>(got);
  }
  return true;
}

// All of a file, as it is just now.
class PlainSource final : public symbols::ByteSource {
 public:
  PlainSource(int fd, uint64_t size) : fd_(fd), size_(size) {}
  uint64_t size() const override { return size_; }
  bool Read(uint64_t offset, void* into, size_t n) const override {
    if (offset > size_ || n > size_ - offset) return false;
    if (n > block_.size()) return ReadFd(fd_, offset, static_cast<char*>(into), n);
    if (offset < at_ || offset + n > at_ + filled_) {
      at_ = offset;
      filled_ = std::min<uint64_t>(block_.size(), size_ - offset);
      if (!ReadFd(fd_, at_, block_.data(), filled_)) {
        filled_ = 0;
        return false;
      }
    }
    std::memcpy(into, block_.data() + (offset - at_), n);
    return true;
  }

 private:
  const int fd_;
  const uint64_t size_;
  mutable std::array<char, 16384> block_;
  mutable uint64_t at_ = 0, filled_ = 0;
};

}  // namespace

Result<std::unique_ptr<HashedSource>> HashedSource::Open(UniqueFd fd, uint64_t size, bool whole, const HashKey& key, bool* changed) {
  std::unique_ptr<HashedSource> source(new HashedSource(std::move(fd), size, key, changed));
  RETURN_IF_ERROR(source->FindParts(whole));
  RETURN_IF_ERROR(source->HashParts());
  return source;
}

// What it finds need not be right: of what is not in a part nothing can be read afterwards.
Status HashedSource::FindParts(bool whole) {
  auto plain = std::make_unique<PlainSource>(fd_.get(), size_);
  Elf64_Ehdr header{};
  if (!plain->ReadValue(0, &header)) return Error{ErrorCode::kInvalid, "not an ELF file"};
  ASSIGN_OR_RETURN(std::unique_ptr<symbols::ElfFile> elf, symbols::ElfFile::Parse(std::move(plain)));
  auto add = [&](uint64_t offset, uint64_t bytes) {
    if (offset >= size_ || bytes == 0) return;
    bytes = std::min(bytes, size_ - offset);
    ranges_.push_back({offset / kBlock, (offset + bytes - 1) / kBlock + 1, 0});
  };
  add(0, sizeof(header));
  add(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr));
  add(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr));
  for (const auto& segment : elf->segments()) {
    if (whole) add(segment.offset, segment.file_size);
  }
  for (const auto& section : elf->sections()) {
    const bool table = section.type == SHT_SYMTAB || section.type == SHT_STRTAB || section.type == SHT_DYNSYM || section.type == SHT_NOTE;
    if (table || (section.name == ".debug_frame" && section.type != SHT_NOBITS)) add(section.offset, section.size);
  }
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> merged;
  uint64_t blocks = 0;
  for (const Range& range : ranges_) {
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  for (Range& range : merged) {
    range.first = blocks;
    blocks += range.end - range.begin;
  }
  ranges_ = std::move(merged);
  if (blocks > kMaxBytes / kBlock) {
    return Error{ErrorCode::kInvalid, "it has " + std::to_string(blocks / ((1 << 20) / kBlock)) + " MiB of code and tables, more than " +
                                          std::to_string(kMaxBytes >> 20) + " MiB"};
  }
  return OkStatus();
}

Status HashedSource::HashParts() {
  std::vector<char> bytes;
  std::string all;
  auto put = [&](const auto& value) { all.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  put(size_);
  for (const Range& range : ranges_) {
    put(range.begin);
    put(range.end);
    for (uint64_t block = range.begin; block < range.end; ++block) {
      if (!ReadBlock(block, &bytes)) return Error{ErrorCode::kInvalid, "it can't be read at offset " + std::to_string(block * kBlock)};
      hashes_.push_back(HashOf(bytes.data(), bytes.size()));
      put(hashes_.back());
    }
  }
  const Hash hash = HashOf(all.data(), all.size());
  digest_.assign(reinterpret_cast<const char*>(&hash), sizeof(hash));
  return OkStatus();
}

HashedSource::Hash HashedSource::HashOf(const void* data, size_t n) const {
  const XXH128_hash_t hash = XXH3_128bits_withSecret(data, n, key_.data(), key_.size());
  return {hash.low64, hash.high64};
}

bool HashedSource::ReadBlock(uint64_t block, std::vector<char>* bytes) const {
  bytes->resize(std::min(kBlock, size_ - block * kBlock));
  return ReadFd(fd_.get(), block * kBlock, bytes->data(), bytes->size());
}

bool HashedSource::Read(uint64_t offset, void* into, size_t n) const {
  if (offset > size_ || n > size_ - offset) return false;
  auto* out = static_cast<char*>(into);
  while (n > 0) {
    const uint64_t block = offset / kBlock;
    Kept& kept = kept_[block % kKept];
    if (kept.block != block) {
      auto range = std::upper_bound(ranges_.begin(), ranges_.end(), block, [](uint64_t b, const Range& r) { return b < r.begin; });
      if (range == ranges_.begin() || block >= (--range)->end) return false;
      kept.block = UINT64_MAX;
      if (!ReadBlock(block, &kept.bytes) || HashOf(kept.bytes.data(), kept.bytes.size()) != hashes_[range->first + (block - range->begin)]) {
        *changed_ = true;
        return false;
      }
      kept.block = block;
    }
    const uint64_t at = offset % kBlock, part = std::min<uint64_t>(n, kept.bytes.size() - at);
    std::memcpy(out, kept.bytes.data() + at, part);
    out += part;
    offset += part;
    n -= part;
  }
  return true;
}

}  // namespace borescope::unwind
