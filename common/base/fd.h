// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "common/base/result.h"

namespace borescope {

// Owns a file descriptor; closes it. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// Makes an eventfd readable: whoever polls it wakes up.
void WakeEventFd(int event_fd);

// The whole file, at most max_bytes (kExhausted when it is larger). Works on /proc files, whose size is 0.
Result<std::string> ReadFile(const std::string& path, size_t max_bytes = 64 << 20);

// Writes path so that a reader, or we after a crash, see the old or the new content, never half: temporary file, fsync, rename.
Status WriteFileAtomically(const std::string& path, std::string_view content, unsigned mode = 0644);

}  // namespace borescope
