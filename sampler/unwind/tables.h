// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bpf/abi/unwind.h"
#include "common/base/result.h"
#include "sampler/symbols/files.h"
#include "sampler/unwind/compiled_table.h"
#include "sampler/unwind/table_memory.h"

namespace borescope::unwind {

// The tables of all files of the wanted processes: compiled once for each content in a confined child, cached on disk, placed in the programs' memory under one budget; the least used leave first, and only for those that are used more.
// One owner thread, but for the worker it runs itself.
class Tables {
 public:
  struct Options {
    TableMemory* memory = nullptr;  // null: nothing is placed (unwinding in user space only)
    size_t budget_bytes = 64 << 20;         // of the programs' memory
    size_t user_budget_bytes = 16 << 20;    // of tables kept for unwinding in user space
    std::string compiler = "";              // path of borescope-unwind-tables; empty: beside /proc/self/exe
    std::string cache_directory = "";       // empty: no cache on disk
    std::string debug_directory = "/usr/lib/debug";  // separate debug files, by build id
    int64_t compile_limit_ns = 10'000'000'000;       // CPU time for one file
  };
  enum class State : uint8_t { kPending, kReady, kNothing, kFailed };  // kNothing: the file tells nothing; kFailed: see problem()

  struct Stats {
    uint64_t under_way = 0;  // files whose tables are being made or wait for their place
    uint64_t files = 0, placed_files = 0, failed = 0, not_placed = 0;  // now; not_placed: for want of room
    uint64_t compiled = 0, from_disk = 0, damaged = 0, evictions = 0;  // so far; damaged: on disk
    uint64_t placed_bytes = 0, chunk_bytes = 0, user_bytes = 0, rows = 0;
    int64_t compile_cpu_ns = 0;
  };
  // Of one file, for --explain.
  struct FileInfo {
    std::string path, build_id, sources, problem;  // build_id in hex
    State state = State::kPending;
    bool placed = false;
    uint64_t rows = 0, unsupported_rows = 0, bytes = 0;
    std::vector<MissingRule> missing;
  };

  // kNotFound: there is no compiler.
  static Result<std::unique_ptr<Tables>> Create(Options options);
  virtual ~Tables() = default;

  // The kernel knows `file` as `key`; asks for its table to be compiled and placed. Cheap when known. The file's descriptor is used.
  // Inode 0: as what the kernel knows it is not known yet; it is compiled only. A file that is no ELF file is placed as kNothing.
  // owner: a number of whose file it is (cgroup id): owners take turns at the compiler.
  virtual State Want(const unwind_file_key& key, const std::shared_ptr<symbols::MappedFile>& file, uint64_t owner = 0) = 0;
  // The table itself, for unwinding in user space; null: state says why. Asks for it when it is not there (any more).
  virtual std::shared_ptr<const CompiledTable> Get(const std::shared_ptr<symbols::MappedFile>& file, State* state) = 0;
  // Takes what the compiler has finished, places, evicts. Call it at each drain; returns how many files became ready.
  virtual size_t Poll() = 0;
  // Readable when Poll has something to take.
  virtual int wake_fd() const = 0;
  // No process is sampled any more: gives all chunks back. What was compiled stays within user_budget_bytes.
  virtual void Release() = 0;

  virtual Stats stats() const = 0;
  virtual std::vector<FileInfo> files() const = 0;
};

}  // namespace borescope::unwind
