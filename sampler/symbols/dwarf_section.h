// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "sampler/symbols/elf_file.h"

namespace borescope::symbols {

// One section of debug information, read in windows of which a few are kept. A compressed one is held whole. Not thread-safe.
class DwarfSection {
 public:
  struct Window {
    uint64_t offset = 0;  // in the section
    std::vector<uint8_t> bytes;
  };

  // A section that is not there is empty. budget: bytes that a compressed one may take yet; what it takes is taken off.
  Status Open(const ElfFile& file, std::string_view name, size_t* budget);
  uint64_t size() const { return size_; }
  // The window that holds a byte; null: behind the end, or unreadable.
  std::shared_ptr<const Window> At(uint64_t offset);
  // The bytes up to the next NUL, at most 4 KiB; empty when the offset is outside.
  std::string String(uint64_t offset);
  size_t memory_bytes() const;

 private:
  const ByteSource* source_ = nullptr;
  uint64_t offset_ = 0, size_ = 0;
  std::shared_ptr<const Window> whole_;  // of a compressed section
  std::array<std::shared_ptr<const Window>, 16> windows_;
};

// Reads a part of a section in order. Once something is missing ok() is false and everything reads as 0.
class DwarfReader {
 public:
  DwarfReader(DwarfSection* section, uint64_t offset, uint64_t end);
  bool ok() const { return ok_; }
  bool done() const { return !ok_ || offset() >= limit_; }
  uint64_t offset() const { return base_ + static_cast<uint64_t>(at_ - begin_); }
  uint64_t limit() const { return limit_; }
  void Seek(uint64_t offset);
  void Skip(uint64_t n) {
    if (n <= static_cast<uint64_t>(end_ - at_)) {
      at_ += n;
    } else {
      SkipFar(n);
    }
  }

  template <typename T>
  T Take() {
    T value{};
    if (static_cast<size_t>(end_ - at_) >= sizeof(T)) {
      std::memcpy(&value, at_, sizeof(T));
      at_ += sizeof(T);
    } else if (!TakeSlow(reinterpret_cast<uint8_t*>(&value), sizeof(T))) {
      return T{};
    }
    return value;
  }
  uint64_t Uleb();
  int64_t Sleb();
  // Little-endian, of 1 to 8 bytes.
  uint64_t Unsigned(int bytes);
  std::string String();
  void SkipString();

 private:
  bool Refill();
  bool TakeSlow(uint8_t* into, size_t n);
  void SkipFar(uint64_t n);
  void Fail() {
    ok_ = false;
    end_ = at_;
  }

  DwarfSection* section_;
  std::shared_ptr<const DwarfSection::Window> window_;
  const uint8_t *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;
  uint64_t base_, limit_;  // offset of begin_ in the section; where to end
  bool ok_ = true;
};

}  // namespace borescope::symbols
