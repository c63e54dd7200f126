// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/result.h"
#include "sampler/symbols/elf_file.h"

namespace borescope::symbols {

// What a mapping says of its file.
struct FileId {
  uint32_t device_major = 0, device_minor = 0;
  uint64_t inode = 0;
  bool operator==(const FileId&) const = default;
};

// A file that is written anew in place keeps its inode, and is another file.
struct FileVersion {
  uint64_t bytes = 0;
  int64_t mtime_sec = 0;
  bool operator==(const FileVersion&) const = default;
};

// One executable file, opened when it was first seen and kept open: it can be read when its process and its name are gone.
struct MappedFile {
  FileId id;
  std::string path;            // as the process sees it
  std::string build_id;        // raw bytes
  std::unique_ptr<ElfFile> elf;  // null: could not be opened, or is no ELF file that we read
  bool opened = false;           // the file that is mapped was looked at: without elf it is none
  std::string problem;         // why elf is null
  // What the file system said when it was opened. A container's overlay has other numbers than the layer that the kernel has mapped.
  FileId opened_id;
  FileVersion version;
  uint32_t mtime_nsec = 0;
  bool overlay = false;  // it lies on such a file system

  // Whether it is what it was, as far as can be told.
  bool Unchanged() const;
  bool SameFile(const MappedFile& other) const {
    return id == other.id && build_id == other.build_id && version == other.version && mtime_nsec == other.mtime_nsec;
  }
};

// Where to look for a file that pid has mapped.
struct FileRequest {
  pid_t pid = 0;
  // Living processes that see the same root; asked for when pid is gone. May be empty.
  std::function<std::vector<pid_t>()> relatives;
  uint64_t start = 0, end = 0;   // of the mapping
  FileId id;
  std::string_view path, build_id;
  std::optional<FileVersion> version = {};  // when it is known: another file is not taken
};

// Opens regular files only, never blocks on a FIFO, never follows a link of the process out of its own root. kUnsupported: the file
// lies on a file system that may let its readers wait for ever (FUSE, NFS, …).
Result<UniqueFd> OpenInRoot(const std::string& proc_root, pid_t pid, std::string_view path);
// The same for a path within a directory of our own.
Result<UniqueFd> OpenBeneath(const std::string& directory, std::string_view path);

// Type of the file system of a mount, from a mountinfo text; empty: that mount is not there.
std::string_view FindFileSystem(std::string_view mountinfo, uint64_t mount_id);
// Whether reading a file of it may wait for a process or another machine, without limit.
bool MayBlock(std::string_view file_system);

// Bounded: at most max_files, unused ones go first, least recently used first.
class FileCache {
 public:
  FileCache(std::string proc_root, size_t max_files);
  // Never null. The same file gives the same object while it is cached and unchanged, and one that is no ELF file is not opened again.
  std::shared_ptr<MappedFile> Get(const FileRequest& request);
  // Our own vDSO: the kernel maps the same image into every 64-bit process.
  std::shared_ptr<MappedFile> Vdso();
  size_t memory_bytes() const;
  size_t size() const { return files_.size(); }
  uint64_t refused() const { return refused_; }  // files not opened because max_files are in use

 private:
  struct Hash {
    size_t operator()(const FileId& id) const;
  };
  struct Slot {
    std::shared_ptr<MappedFile> file;
    std::list<FileId>::iterator place;
  };
  FileId Identify(const FileRequest& request) const;
  std::string MapFile(const FileRequest& request) const;
  std::string Open(const FileRequest& request, MappedFile& file);

  std::string proc_root_;
  size_t max_files_;
  std::unordered_map<FileId, Slot, Hash> files_;
  std::list<FileId> order_;  // most recently asked for first
  std::shared_ptr<MappedFile> vdso_;
  uint64_t refused_ = 0;
};

}  // namespace borescope::symbols
