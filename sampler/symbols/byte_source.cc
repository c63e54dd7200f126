// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/byte_source.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace borescope::symbols {
namespace {

// Tables are read in small pieces near each other: one block is kept.
class FileSource final : public ByteSource {
 public:
  FileSource(UniqueFd fd, uint64_t size) : fd_(std::move(fd)), size_(size) {}

  uint64_t size() const override { return size_; }
  int fd() const override { return fd_.get(); }

  bool Read(uint64_t offset, void* into, size_t n) const override {
    if (offset > size_ || n > size_ - offset) return false;
    auto* out = static_cast<char*>(into);
    if (n > sizeof(block_)) return ReadFd(offset, out, n);
    if (offset < block_offset_ || offset + n > block_offset_ + block_size_) {
      block_offset_ = offset;
      block_size_ = std::min<uint64_t>(sizeof(block_), size_ - offset);
      if (!ReadFd(offset, block_, block_size_)) {
        block_size_ = 0;
        return false;
      }
    }
    std::memcpy(out, block_ + (offset - block_offset_), n);
    return true;
  }

 private:
  bool ReadFd(uint64_t offset, char* out, size_t n) const {
    while (n > 0) {
      ssize_t got = pread(fd_.get(), out, n, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      out += got;
      offset += static_cast<uint64_t>(got);
      n -= static_cast<size_t>(got);
    }
    return true;
  }

  UniqueFd fd_;
  uint64_t size_;
  mutable char block_[512];
  mutable uint64_t block_offset_ = 0, block_size_ = 0;
};

class StringSource final : public ByteSource {
 public:
  explicit StringSource(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  bool Read(uint64_t offset, void* into, size_t n) const override {
    if (offset > bytes_.size() || n > bytes_.size() - offset) return false;
    std::memcpy(into, bytes_.data() + offset, n);
    return true;
  }

 private:
  std::string bytes_;
};

}  // namespace

std::string ByteSource::ReadString(uint64_t offset, size_t max_bytes) const {
  std::string text;
  char part[128];
  while (text.size() < max_bytes && offset < size()) {
    size_t n = std::min<uint64_t>({sizeof(part), max_bytes - text.size(), size() - offset});
    if (!Read(offset, part, n)) break;
    const void* nul = std::memchr(part, 0, n);
    text.append(part, nul ? static_cast<const char*>(nul) - part : n);
    if (nul) break;
    offset += n;
  }
  return text;
}

Result<std::unique_ptr<ByteSource>> OpenSource(UniqueFd fd) {
  struct stat st;
  if (fstat(fd.get(), &st) != 0) return ErrnoError("fstat");
  if (!S_ISREG(st.st_mode)) return Error{ErrorCode::kInvalid, "not a regular file"};
  return OpenSource(std::move(fd), static_cast<uint64_t>(st.st_size));
}

std::unique_ptr<ByteSource> OpenSource(UniqueFd fd, uint64_t size) { return std::make_unique<FileSource>(std::move(fd), size); }

std::unique_ptr<ByteSource> MemorySource(std::string bytes) { return std::make_unique<StringSource>(std::move(bytes)); }

Result<UniqueFd> CopyToMemoryFile(const ByteSource& source) {
  constexpr uint64_t kMaxBytes = 64 << 20;
  std::string bytes(std::min(source.size(), kMaxBytes), '\0');
  UniqueFd fd(memfd_create("image", MFD_CLOEXEC));
  if (!fd.valid()) return ErrnoError("memfd_create");
  if (!source.Read(0, bytes.data(), bytes.size()) || pwrite(fd.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return ErrnoError("its image can't be copied");
  }
  return fd;
}

}  // namespace borescope::symbols
