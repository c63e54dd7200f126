// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/files.h"

#include <elf.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/base/strings.h"

namespace borescope::symbols {
namespace {

constexpr uint64_t kResolveCached = 0x20;  // RESOLVE_CACHED, since 5.12
constexpr uint32_t kStatxMount = 0x1000;   // STATX_MNT_ID, since 5.8

// What is mapped from memory (memfd, shared memory) lies on a mount of the kernel's that no mountinfo shows.
dev_t MemoryDevice() {
  static const dev_t device = [] {
    UniqueFd fd(memfd_create("borescope", MFD_CLOEXEC));
    struct stat st;
    return fd.valid() && fstat(fd.get(), &st) == 0 ? st.st_dev : 0;
  }();
  return device;
}

// That what lies behind an O_PATH descriptor can be read without waiting for ever, else kUnsupported. `mountinfo`: where its mount stands,
// if anywhere. Until the type of its file system is known, nothing is asked of that, not even attributes.
Status CheckFileSystem(int fd, const std::string& mountinfo, struct statx* x) {
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | kStatxMount, x) != 0) return ErrnoError("statx");
  // A file system with a block device of its own is the kernel's; others have no such number.
  if (x->stx_dev_major != 0 || makedev(x->stx_dev_major, x->stx_dev_minor) == MemoryDevice() || !(x->stx_mask & kStatxMount)) return OkStatus();
  for (const std::string& path : {mountinfo, std::string("/proc/self/mountinfo")}) {
    constexpr size_t kMaxBytes = 4 << 20;
    Result<std::string> text = ReadFile(path, kMaxBytes);
    if (!text.ok()) continue;
    const std::string_view type = FindFileSystem(*text, x->stx_mnt_id);
    if (type.empty()) continue;
    if (!MayBlock(type)) return OkStatus();
    return Error{ErrorCode::kUnsupported, "not read: it lies on a file system (" + SanitizeName(type, 32) + ") that may let its readers wait for ever"};
  }
  return Error{ErrorCode::kUnsupported, "not read: its file system is not mounted where its process can see it"};
}

// Opens what an O_PATH descriptor stands for, if it is a regular file: a device must not even be opened.
Result<UniqueFd> Reopen(UniqueFd path_fd, const std::string& mountinfo, struct stat* st) {
  struct statx x;
  Status readable = CheckFileSystem(path_fd.get(), mountinfo, &x);
  if (!readable.ok() && readable.error().code != ErrorCode::kUnsupported) return readable.error();
  if (!S_ISREG(x.stx_mode)) return Error{ErrorCode::kInvalid, "not a regular file"};
  RETURN_IF_ERROR(readable);
  UniqueFd fd(open(("/proc/self/fd/" + std::to_string(path_fd.get())).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd.valid()) return ErrnoError("open");
  if (fstat(fd.get(), st) != 0) return ErrnoError("fstat");
  return fd;
}

// What stands at a path, as if `directory` were the root directory: an O_PATH descriptor.
Result<UniqueFd> FindUnder(const std::string& directory, const std::string& mountinfo, std::string_view path) {
  UniqueFd root(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return ErrnoError("open " + directory);
  while (path.starts_with('/')) path.remove_prefix(1);
  const std::string name(path);
  auto open_with = [&](uint64_t resolve) {
    struct open_how how = {};
    how.flags = O_PATH | O_CLOEXEC;
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | resolve;
    return UniqueFd(static_cast<int>(syscall(SYS_openat2, root.get(), name.c_str(), &how, sizeof(how))));
  };
  // The way to a file may wait for ever, too: beyond what the kernel knows of it, only within the root's own file system.
  UniqueFd fd = open_with(kResolveCached);
  if (!fd.valid() && (errno == EAGAIN || errno == EINVAL)) {
    struct statx x;
    RETURN_IF_ERROR(CheckFileSystem(root.get(), mountinfo, &x));
    fd = open_with(RESOLVE_NO_XDEV);
  }
  if (!fd.valid()) return ErrnoError("open " + name);
  return fd;
}

Result<UniqueFd> OpenUnder(const std::string& directory, const std::string& mountinfo, std::string_view path) {
  ASSIGN_OR_RETURN(UniqueFd fd, FindUnder(directory, mountinfo, path));
  struct stat st;
  return Reopen(std::move(fd), mountinfo, &st);
}

FileId IdOf(const struct stat& st) {
  return {static_cast<uint32_t>(major(st.st_dev)), static_cast<uint32_t>(minor(st.st_dev)), st.st_ino};
}

// What a file that is not open is; false: it is not there. Asks no file system that would have to ask somebody else.
bool LookAt(const std::string& path, MappedFile* file, bool* regular) {
  struct statx x;
  if (statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &x) != 0) return false;
  file->opened_id = {x.stx_dev_major, x.stx_dev_minor, x.stx_ino};
  file->version = {x.stx_size, x.stx_mtime.tv_sec};
  file->mtime_nsec = x.stx_mtime.tv_nsec;
  *regular = S_ISREG(x.stx_mode);
  return true;
}

// Stands for the id of a file that is not to be found any more and of which the kernel told the build id only. No device has this number.
FileId IdOfBuild(std::string_view build_id) {
  FileId id{.device_major = UINT32_MAX, .device_minor = static_cast<uint32_t>(build_id.size()), .inode = 0};
  std::memcpy(&id.inode, build_id.data(), std::min(build_id.size(), sizeof(id.inode)));
  return id;
}

}  // namespace

Result<UniqueFd> OpenInRoot(const std::string& proc_root, pid_t pid, std::string_view path) {
  const std::string process = proc_root + "/" + std::to_string(pid);
  return OpenUnder(process + "/root", process + "/mountinfo", path);
}

Result<UniqueFd> OpenBeneath(const std::string& directory, std::string_view path) { return OpenUnder(directory, "/proc/self/mountinfo", path); }

std::string_view FindFileSystem(std::string_view mountinfo, uint64_t mount_id) {
  for (std::string_view line : Split(mountinfo, '\n')) {
    // "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue": blanks in names are escaped
    if (ParseUint(line.substr(0, line.find(' '))) != mount_id) continue;
    const size_t end = line.find(" - ");
    if (end == std::string_view::npos) return {};
    std::string_view type = line.substr(end + 3);
    return type.substr(0, type.find(' '));
  }
  return {};
}

bool MayBlock(std::string_view file_system) {
  constexpr std::string_view kRemote[] = {"fuse", "fuseblk", "nfs", "nfs4", "9p", "cifs", "smb3", "ceph", "afs", "lustre", "coda", "orangefs", "beegfs", "gpfs"};
  return file_system.starts_with("fuse.") || std::find(std::begin(kRemote), std::end(kRemote), file_system) != std::end(kRemote);
}

bool MappedFile::Unchanged() const {
  if (!elf || elf->source().fd() < 0) return true;
  struct stat st;
  return fstat(elf->source().fd(), &st) == 0 && version == FileVersion{static_cast<uint64_t>(st.st_size), st.st_mtim.tv_sec} &&
         st.st_mtim.tv_nsec == mtime_nsec;
}

size_t FileCache::Hash::operator()(const FileId& id) const {
  uint64_t x = id.inode * 0x9e3779b97f4a7c15u + (uint64_t{id.device_major} << 32) + id.device_minor;
  return x ^ (x >> 29);
}

FileCache::FileCache(std::string proc_root, size_t max_files) : proc_root_(std::move(proc_root)), max_files_(max_files) {}

std::shared_ptr<MappedFile> FileCache::Get(const FileRequest& asked) {
  FileRequest request = asked;
  if (request.id == FileId()) request.id = Identify(request);
  if (auto it = files_.find(request.id); it != files_.end()) {
    MappedFile& file = *it->second.file;
    bool same = file.opened && (request.build_id.empty() || file.build_id.empty() || file.build_id == request.build_id) &&
                (!request.version || *request.version == file.version) && file.Unchanged();
    if (same && !file.elf) {  // it is not held open, for it may be memory: what is mapped tells
      MappedFile now;
      bool regular;
      same = !LookAt(MapFile(request), &now, &regular) ||
             (now.opened_id == file.opened_id && now.version == file.version && now.mtime_nsec == file.mtime_nsec);
    }
    if (same) {
      order_.splice(order_.begin(), order_, it->second.place);
      return it->second.file;
    }
    // another file that got the inode, one that was written anew, or one that could not be opened then: the old entry lives on in the mappings that have it
    order_.erase(it->second.place);
    files_.erase(it);
  }
  auto file = std::make_shared<MappedFile>();
  file->id = request.id;
  file->path = request.path;
  file->build_id = request.build_id;
  while (files_.size() >= max_files_) {
    auto victim = std::find_if(order_.rbegin(), order_.rend(), [&](const FileId& id) { return files_[id].file.use_count() == 1; });
    if (victim == order_.rend()) {
      ++refused_;
      file->problem = "too many files are in use (" + std::to_string(max_files_) + ")";
      return file;
    }
    files_.erase(*victim);
    order_.erase(std::next(victim).base());
  }
  file->problem = Open(request, *file);
  order_.push_front(request.id);
  files_[request.id] = {file, order_.begin()};
  return file;
}

// Of a file of which the kernel told the build id only. Anybody can make another file with that: what is mapped counts.
FileId FileCache::Identify(const FileRequest& request) const {
  auto id_of = [](int fd) {
    struct statx x;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &x) != 0) return FileId();
    return FileId{x.stx_dev_major, x.stx_dev_minor, x.stx_ino};
  };
  UniqueFd link(open(MapFile(request).c_str(), O_PATH | O_CLOEXEC));
  if (link.valid()) return id_of(link.get());
  if (request.path.starts_with('/') && !request.path.starts_with("//")) {
    std::vector<pid_t> pids{request.pid};
    if (request.relatives && access((proc_root_ + "/" + std::to_string(request.pid)).c_str(), F_OK) != 0) pids = request.relatives();
    for (pid_t pid : pids) {
      const std::string process = proc_root_ + "/" + std::to_string(pid);
      if (auto fd = FindUnder(process + "/root", process + "/mountinfo", request.path); fd.ok()) return id_of(fd->get());
    }
  }
  return IdOfBuild(request.build_id);
}

std::string FileCache::MapFile(const FileRequest& request) const {
  char range[64];
  std::snprintf(range, sizeof(range), "/%d/map_files/%lx-%lx", request.pid, request.start, request.end);
  return proc_root_ + range;
}

// "" when file->elf is set, else why not.
std::string FileCache::Open(const FileRequest& request, MappedFile& file) {
  struct stat st;
  std::string problem;
  auto parse = [&](UniqueFd fd) -> bool {
    FileVersion version{static_cast<uint64_t>(st.st_size), st.st_mtim.tv_sec};
    if (request.version && version != *request.version) {
      problem = "the file has been written anew since";
      return false;
    }
    file.opened_id = IdOf(st);
    file.version = version;
    file.mtime_nsec = static_cast<uint32_t>(st.st_mtim.tv_nsec);
    struct statfs fs;
    file.overlay = fstatfs(fd.get(), &fs) == 0 && fs.f_type == OVERLAYFS_SUPER_MAGIC;
    auto source = OpenSource(std::move(fd));
    if (!source.ok()) {
      problem = source.error().message;
      return true;
    }
    auto elf = ElfFile::Parse(*std::move(source));
    if (!elf.ok()) {
      problem = elf.error().message;
      file.opened = request.build_id.empty();
      return true;  // it is the file, and of no use
    }
    if (!request.build_id.empty() && (*elf)->build_id() != request.build_id) {
      problem = "the file has another build id than the mapping";
      return false;
    }
    file.elf = *std::move(elf);
    file.opened = true;
    if (file.build_id.empty()) file.build_id = file.elf->build_id();
    problem.clear();
    return true;
  };

  // The mapping's own link leads to the very file, whatever happened to its name.
  const std::string link_name = MapFile(request);
  MappedFile seen;
  bool regular;
  const bool seen_it = request.build_id.empty() && LookAt(link_name, &seen, &regular) &&
                       (seen.opened_id.inode == request.id.inode || (request.version && seen.version == *request.version));
  auto never = [&](std::string why) {  // will it be read
    if (seen_it) {
      file.opened_id = seen.opened_id;
      file.version = seen.version;
      file.mtime_nsec = seen.mtime_nsec;
      file.opened = true;
    }
    return why;
  };
  if (seen_it && !regular) return never("not a regular file");
  const std::string mountinfo = proc_root_ + "/" + std::to_string(request.pid) + "/mountinfo";
  UniqueFd link(open(link_name.c_str(), O_PATH | O_CLOEXEC));
  if (link.valid()) {
    auto fd = Reopen(std::move(link), mountinfo, &st);
    if (!fd.ok() && fd.error().code == ErrorCode::kUnsupported) return never(fd.error().message);
    // The mapping may have been replaced since the event: the inode tells, or the build id (an overlay shows other numbers than its
    // layer's, which the kernel reports), or size and time.
    bool same = fd.ok() && (st.st_ino == request.id.inode || !request.build_id.empty() || request.version);
    if (same && parse(*std::move(fd))) return problem;
  } else {
    problem = ErrnoError("open " + link_name).message;
  }
  if (request.path.starts_with('/') && !request.path.starts_with("//")) {
    std::vector<pid_t> pids{request.pid};
    for (size_t i = 0; i < pids.size(); ++i) {
      pid_t pid = pids[i];
      if (i == 0 && request.relatives && access((proc_root_ + "/" + std::to_string(pid)).c_str(), F_OK) != 0) {
        pids = request.relatives();
        pids.insert(pids.begin(), pid);
      }
      auto fd = OpenInRoot(proc_root_, pid, request.path);
      if (!fd.ok()) {
        problem = fd.error().message;
        if (fd.error().code == ErrorCode::kUnsupported) return problem;
        continue;
      }
      if (fstat(fd->get(), &st) != 0) continue;
      if (request.build_id.empty() && IdOf(st) != request.id) {  // with a build id, it tells
        problem = "another file has its name now";
        continue;
      }
      if (parse(*std::move(fd))) return problem;
    }
  }
  return problem.empty() ? "the process and its file are gone" : problem;
}

std::shared_ptr<MappedFile> FileCache::Vdso() {
  if (vdso_) return vdso_;
  vdso_ = std::make_shared<MappedFile>();
  vdso_->path = "[vdso]";
  // Its size is not told: sections end it. The header is the kernel's, not a tenant's.
  auto address = getauxval(AT_SYSINFO_EHDR);
  if (address == 0) {
    vdso_->problem = "this process has no vDSO";
    return vdso_;
  }
  Elf64_Ehdr header;
  std::memcpy(&header, reinterpret_cast<const void*>(address), sizeof(header));
  size_t size = header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
  auto elf = ElfFile::Parse(MemorySource(std::string(reinterpret_cast<const char*>(address), size)));
  if (elf.ok()) {
    vdso_->elf = *std::move(elf);
    vdso_->opened = true;
    vdso_->build_id = vdso_->elf->build_id();
  } else {
    vdso_->problem = elf.error().message;
  }
  return vdso_;
}

size_t FileCache::memory_bytes() const { return files_.size() * 2048; }  // headers and section names of each

}  // namespace borescope::symbols
