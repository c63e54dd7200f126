// SPDX-License-Identifier: Apache-2.0
#include "common/base/fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace borescope {

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Result<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError("open " + path);
  std::string content;
  char buffer[16384];
  while (true) {
    ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("read " + path);
    if (n == 0) return content;
    if (content.size() + static_cast<size_t>(n) > max_bytes) {
      return Error{ErrorCode::kExhausted,
                   path + " is larger than the " + std::to_string(max_bytes) + " bytes that are read of it"};
    }
    content.append(buffer, static_cast<size_t>(n));
  }
}

Status WriteFileAtomically(const std::string& path, std::string_view content, unsigned mode) {
  std::string temporary = path + ".tmp." + std::to_string(::getpid());
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd.valid()) return ErrnoError("open " + temporary);
  while (!content.empty()) {
    ssize_t n = ::write(fd.get(), content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      Error error = ErrnoError("write " + temporary);
      ::unlink(temporary.c_str());
      return error;
    }
    content.remove_prefix(static_cast<size_t>(n));
  }
  if (::fsync(fd.get()) != 0 || std::rename(temporary.c_str(), path.c_str()) != 0) {
    Error error = ErrnoError("replace " + path);
    ::unlink(temporary.c_str());
    return error;
  }
  return OkStatus();
}

void WakeEventFd(int event_fd) {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(event_fd, &one, sizeof one);  // fails only when it is readable already
}

}  // namespace borescope
