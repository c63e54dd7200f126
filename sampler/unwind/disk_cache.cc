// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "common/base/strings.h"

namespace borescope::unwind {
namespace {

struct Header {
  char magic[8];
  uint64_t kind;
  uint64_t bytes;  // that follow
  uint64_t hash;   // of these and the kind: a crash may leave half a file behind
};
constexpr char kMagic[8] = {'B', 'S', 'U', 'N', 'W', 'I', 'N', '2'};
enum : uint64_t { kTable, kNothing, kProblem };
constexpr time_t kProblemSeconds = 24 * 3600;
constexpr size_t kMaxProblem = 1024;
constexpr uint64_t kMaxFile = 256 << 20;
constexpr std::string_view kTemporary = ".new-";
constexpr const char* kKey = ".key";

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
  RETURN_IF_ERROR(cache->OpenKey());
  cache->Shrink();
  return cache;
}

Status DiskCache::OpenKey() {
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (auto key = ReadKey()) {
      key_ = *key;
      return OkStatus();
    }
    ::unlinkat(directory_.get(), kKey, 0);  // not ours, or half of one
    HashKey key;
    if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) return ErrnoError("getrandom");
    std::string temporary;
    ASSIGN_OR_RETURN(UniqueFd fd, Create(&temporary));
    const bool written = WriteAll(fd.get(), key.data(), key.size());
    // Of two that make one at a time, the second finds the first's.
    if (written) (void)!::linkat(directory_.get(), temporary.c_str(), directory_.get(), kKey, 0);
    Error error = ErrnoError("write the key of the unwind table cache");
    ::unlinkat(directory_.get(), temporary.c_str(), 0);
    if (!written) return error;
  }
  return Error{ErrorCode::kDenied, "the key of the unwind table cache can't be kept"};
}

std::optional<HashKey> DiskCache::ReadKey() {
  UniqueFd fd(::openat(directory_.get(), kKey, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat st;
  HashKey key;
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 077) != 0 ||
      st.st_size != static_cast<off_t>(key.size()) || !ReadAll(fd.get(), key.data(), key.size())) {
    return std::nullopt;
  }
  return key;
}

Result<UniqueFd> DiskCache::Create(std::string* temporary) {
  *temporary = std::string(kTemporary) + RandomHex(16);
  UniqueFd fd(::openat(directory_.get(), temporary->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoError("create " + *temporary);
  return fd;
}

Result<DiskCache::Kept> DiskCache::Load(const std::string& name) {
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
  if (!ReadAll(fd.get(), bytes.data(), bytes.size()) || XXH3_64bits_withSeed(bytes.data(), bytes.size(), header.kind) != header.hash) return damaged("its content is not what was written");
  Kept kept;
  if (header.kind == kProblem) {
    if (st.st_mtime < ::time(nullptr) - kProblemSeconds) return Error{ErrorCode::kNotFound, "it is tried again"};
    kept.problem = SanitizeName(bytes, kMaxProblem);
    return kept;
  }
  ::futimens(fd.get(), nullptr);  // used now
  if (header.kind == kNothing) return kept;
  Result<CompiledTable> table = Parse(bytes);
  if (!table.ok()) return damaged(table.error().message);
  kept.table = *std::move(table);
  return kept;
}

Status DiskCache::Store(const std::string& name, std::string_view serialized) {
  return Write(name, serialized.empty() ? kNothing : kTable, serialized);
}

Status DiskCache::StoreProblem(const std::string& name, std::string_view problem) { return Write(name, kProblem, problem.substr(0, kMaxProblem)); }

Status DiskCache::Write(const std::string& name, uint64_t kind, std::string_view bytes) {
  if (bytes.size() > std::min(kMaxFile, max_bytes_)) return Error{ErrorCode::kExhausted, "too large to be kept"};
  Header header{{}, kind, bytes.size(), XXH3_64bits_withSeed(bytes.data(), bytes.size(), kind)};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::string temporary;
  ASSIGN_OR_RETURN(UniqueFd fd, Create(&temporary));
  if (!WriteAll(fd.get(), &header, sizeof(header)) || !WriteAll(fd.get(), bytes.data(), bytes.size()) ||
      ::renameat(directory_.get(), temporary.c_str(), directory_.get(), name.c_str()) != 0) {
    Error error = ErrnoError("write " + name);
    ::unlinkat(directory_.get(), temporary.c_str(), 0);
    return error;
  }
  bytes_ += sizeof(header) + bytes.size();
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
    if (std::string_view(entry->d_name) == kKey) {
      bytes_ += static_cast<uint64_t>(st.st_size);
      continue;
    }
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
