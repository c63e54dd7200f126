// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace borescope::unwind {
namespace {

struct Header {
  char magic[8];
  uint64_t bytes;  // that follow
  uint64_t hash;   // of these: a crash may leave half a file behind
};
constexpr char kMagic[8] = {'B', 'S', 'U', 'N', 'W', 'I', 'N', '1'};
constexpr uint64_t kMaxFile = 256 << 20;
constexpr std::string_view kTemporary = ".new-";

bool WriteAll(int fd, const void* data, size_t n) {
  const char* at = static_cast<const char*>(data);
  while (n > 0) {
    ssize_t written = ::write(fd, at, n);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    n -= static_cast<size_t>(written);
  }
  return true;
}

bool ReadAll(int fd, void* data, size_t n) {
  char* at = static_cast<char*>(data);
  while (n > 0) {
    ssize_t got = ::read(fd, at, n);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<DiskCache>> DiskCache::Open(const std::string& path, uint64_t max_bytes) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) ::mkdir(path.substr(0, end).c_str(), 0755);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoError("make the directory " + path);
  UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.valid()) return ErrnoError("open " + path);
  struct stat st;
  if (::fstat(directory.get(), &st) != 0) return ErrnoError("fstat " + path);
  if (st.st_uid != ::geteuid() || (st.st_mode & 022) != 0) {
    return Error{ErrorCode::kDenied, path + ": others may write to it, so that unwind tables in it are not to be trusted; chown it to uid " +
                                         std::to_string(::geteuid()) + " and chmod it to 0700, or choose another directory"};
  }
  std::unique_ptr<DiskCache> cache(new DiskCache(std::move(directory), max_bytes));
  cache->Shrink();
  return cache;
}

Result<std::optional<CompiledTable>> DiskCache::Load(const std::string& name) {
  UniqueFd fd(::openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError("open " + name);
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return ErrnoError("fstat " + name);
  auto damaged = [&](const std::string& why) {
    ::unlinkat(directory_.get(), name.c_str(), 0);
    return Error{ErrorCode::kInvalid, "the unwind table kept in " + name + " is damaged (" + why + "): it is made again"};
  };
  if (!S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 022) != 0) return damaged("others may have written it");
  Header header;
  if (!ReadAll(fd.get(), &header, sizeof(header)) || std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return damaged("no header");
  if (header.bytes > kMaxFile || sizeof(header) + header.bytes != static_cast<uint64_t>(st.st_size)) return damaged("its size is wrong");
  std::string bytes(header.bytes, '\0');
  if (!ReadAll(fd.get(), bytes.data(), bytes.size()) || XXH3_64bits(bytes.data(), bytes.size()) != header.hash) return damaged("its content is not what was written");
  ::futimens(fd.get(), nullptr);  // used now
  if (bytes.empty()) return std::optional<CompiledTable>();
  Result<CompiledTable> table = Parse(bytes);
  if (!table.ok()) return damaged(table.error().message);
  return std::optional<CompiledTable>(*std::move(table));
}

Status DiskCache::Store(const std::string& name, std::string_view serialized) {
  if (serialized.size() > std::min(kMaxFile, max_bytes_)) return Error{ErrorCode::kExhausted, "too large to be kept"};
  Header header{{}, serialized.size(), XXH3_64bits(serialized.data(), serialized.size())};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  const std::string temporary = std::string(kTemporary) + std::to_string(::getpid());
  UniqueFd fd(::openat(directory_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoError("open " + temporary);
  if (!WriteAll(fd.get(), &header, sizeof(header)) || !WriteAll(fd.get(), serialized.data(), serialized.size()) ||
      ::renameat(directory_.get(), temporary.c_str(), directory_.get(), name.c_str()) != 0) {
    Error error = ErrnoError("write " + name);
    ::unlinkat(directory_.get(), temporary.c_str(), 0);
    return error;
  }
  bytes_ += sizeof(header) + serialized.size();
  if (bytes_ > max_bytes_) Shrink();
  return OkStatus();
}

// Counts what is there, and makes it a tenth smaller than allowed when it is too much.
void DiskCache::Shrink() {
  struct Entry {
    timespec used;
    uint64_t bytes;
    std::string name;
  };
  std::vector<Entry> entries;
  UniqueFd again(::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* dir = again.valid() ? ::fdopendir(again.get()) : nullptr;
  if (!dir) return;
  again.Release();
  bytes_ = 0;
  const time_t hour_ago = ::time(nullptr) - 3600;
  while (const dirent* entry = ::readdir(dir)) {
    struct stat st;
    if (::fstatat(directory_.get(), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) continue;
    if (std::string_view(entry->d_name).starts_with(kTemporary) && st.st_mtime < hour_ago) {
      ::unlinkat(directory_.get(), entry->d_name, 0);  // of a process that died over it
      continue;
    }
    bytes_ += static_cast<uint64_t>(st.st_size);
    entries.push_back({st.st_mtim, static_cast<uint64_t>(st.st_size), entry->d_name});
  }
  ::closedir(dir);
  if (bytes_ <= max_bytes_) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec : a.used.tv_nsec < b.used.tv_nsec;
  });
  for (const Entry& entry : entries) {
    if (bytes_ <= max_bytes_ - max_bytes_ / 10) break;
    if (::unlinkat(directory_.get(), entry.name.c_str(), 0) == 0) bytes_ -= entry.bytes;
  }
}

}  // namespace borescope::unwind
