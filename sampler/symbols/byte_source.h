// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace borescope::symbols {

// Random access to the bytes of a file or image. Reads never fault: files are read with pread, not mapped, because their owner may
// truncate them at any time.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // All n bytes at offset, or false.
  virtual bool Read(uint64_t offset, void* into, size_t n) const = 0;
  // The file's descriptor, -1: bytes in memory. It stays the source's.
  virtual int fd() const { return -1; }

  template <typename T>
  bool ReadValue(uint64_t offset, T* into) const {
    return Read(offset, into, sizeof(T));
  }
  // The bytes up to the next NUL, at most max_bytes; empty when the offset is outside.
  std::string ReadString(uint64_t offset, size_t max_bytes) const;
};

// A regular file; kInvalid for anything else.
Result<std::unique_ptr<ByteSource>> OpenSource(UniqueFd fd);
// One that somebody else has looked at: a confined process may not ask what a descriptor is of.
std::unique_ptr<ByteSource> OpenSource(UniqueFd fd, uint64_t size);
std::unique_ptr<ByteSource> MemorySource(std::string bytes);
// The bytes of a source without a descriptor (at most 64 MiB of them) as a memory file, to be handed to a child.
Result<UniqueFd> CopyToMemoryFile(const ByteSource& source);

}  // namespace borescope::symbols
