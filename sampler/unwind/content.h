// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/symbols/byte_source.h"

namespace borescope::unwind {

// Nobody who does not know it can make two files that have one content hash.
using HashKey = std::array<uint8_t, 192>;

// The parts of an ELF file from which an unwind table is made: hashed once, and from then on only what still hashes as it did can be
// read. So whatever was made from it belongs to the hash, though the file's owner may write to it meanwhile. Reads with pread only.
class HashedSource final : public symbols::ByteSource {
 public:
  static constexpr uint64_t kMaxBytes = 512 << 20;  // of those parts

  // whole: headers, what is loaded, and symbols; else (a debug file) headers, .debug_frame and symbols. kInvalid: no ELF file, too much
  // of it, or it can't be read. *changed becomes true when a read fails since other bytes are there. `key` and `changed` must live as long.
  static Result<std::unique_ptr<HashedSource>> Open(UniqueFd fd, uint64_t size, bool whole, const HashKey& key, bool* changed);

  const std::string& digest() const { return digest_; }  // 16 bytes
  uint64_t size() const override { return size_; }
  int fd() const override { return fd_.get(); }
  bool Read(uint64_t offset, void* into, size_t n) const override;

 private:
  static constexpr uint64_t kBlock = 64 << 10;
  static constexpr size_t kKept = 512;  // blocks in memory: string tables are read back and forth
  struct Hash {
    uint64_t low, high;
    bool operator==(const Hash&) const = default;
  };
  struct Range {
    uint64_t begin, end;  // blocks
    size_t first;         // in hashes_
  };
  struct Kept {
    uint64_t block = UINT64_MAX;
    std::vector<char> bytes;
  };

  HashedSource(UniqueFd fd, uint64_t size, const HashKey& key, bool* changed)
      : fd_(std::move(fd)), size_(size), key_(key), changed_(changed), kept_(kKept) {}
  Status FindParts(bool whole);
  Status HashParts();
  Hash HashOf(const void* data, size_t n) const;
  bool ReadBlock(uint64_t block, std::vector<char>* bytes) const;

  UniqueFd fd_;
  const uint64_t size_;
  const HashKey& key_;
  bool* const changed_;
  std::vector<Range> ranges_;
  std::vector<Hash> hashes_;
  std::string digest_;
  mutable std::vector<Kept> kept_;
};

}  // namespace borescope::unwind
