// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sampler/engine/engine.h"
#include "sampler/symbols/files.h"
#include "sampler/symbols/perf_map.h"

namespace borescope::stacks {

// One executable mapping.
struct Mapping {
  uint64_t id = 0;  // never used twice: what is known of (id, address) stays true
  uint64_t start = 0, end = 0, offset = 0;
  std::string path;                           // "/usr/bin/app", "//anon", "[vdso]"
  std::shared_ptr<symbols::MappedFile> file;  // null: memory without a file

  symbols::ElfFile* elf() const { return file ? file->elf.get() : nullptr; }
};

// What is shown of a process; it outlives the process in the windows that hold its samples.
struct ProcessInfo {
  pid_t tgid = 0;
  std::string comm;
  symbols::Language language = symbols::Language::kUnknown;
  std::shared_ptr<const Mapping> executable;  // null: not seen
};

// A process's perf map, as far as it was read. Spaces that came from one by fork share it.
struct Jit {
  explicit Jit(size_t* all_bytes) : all_bytes(all_bytes) {}
  ~Jit() { *all_bytes -= bytes; }
  Jit(const Jit&) = delete;
  void Count() {
    *all_bytes += map.memory_bytes() - bytes;
    bytes = map.memory_bytes();
  }

  symbols::PerfMap map;
  uint64_t read = 0;            // bytes of the file that were taken
  int64_t read_ns = INT64_MIN;  // when we looked last
  uint64_t generation = 0;      // counts what was read
  bool full = false;            // there was no room for the rest
  size_t bytes = 0, *all_bytes;
};

// Executable mappings of an address space. Shared by processes until one of them maps something.
struct Space {
  uint64_t key = 0;  // changes when an address may mean something else than before
  pid_t pid = 0;     // the process that made it: its perf map is read
  std::map<uint64_t, std::shared_ptr<const Mapping>> mappings;  // by start; they do not overlap

  bool gaps = false;  // an address without a mapping was looked up

  int64_t maps_ns = INT64_MIN;  // when /proc/PID/maps was read last
  std::shared_ptr<Jit> jit;     // code made at run time; null: not asked for yet
  uint64_t jit_generation = 0;  // of what is known of code without a file

  const std::shared_ptr<const Mapping>* Find(uint64_t address) const;
};

struct Process {
  pid_t tgid = 0;
  uint64_t slot = 0;  // the engine's number of its address space
  uint64_t cgroup_id = 0;
  std::shared_ptr<Space> space;
  std::shared_ptr<ProcessInfo> info;
  bool past = false;  // a copy of what it was at some time: /proc is not asked for what is missing
};

// Which process has which address space, from the side-band of the kernel and, for processes that ran before, from /proc. A process
// that has ended is kept for some seconds. Bounded: what goes beyond the limits is counted.
class Spaces {
 public:
  static constexpr size_t kMaxProcesses = 32768, kMaxMappings = 65536, kMaxAllMappings = 1 << 19;
  static constexpr size_t kMaxJitBytes = 64 << 20;     // perf maps of all spaces
  static constexpr size_t kMaxPath = 256;              // of a mapping's path; the middle of a longer one is left out
  static constexpr int64_t kKeepNs = 5'000'000'000;    // an ended process
  static constexpr int64_t kRereadNs = 1'000'000'000;  // pause between two looks at the same file of /proc

  // on_file: told of each mapping of a file that was opened, and of the vDSO.
  explicit Spaces(std::string proc_root, std::function<void(const Process&, const Mapping&)> on_file = {});

  void OnMmap(const engine::Mmap& event);
  void OnFork(const engine::Fork& event);
  void OnExec(const engine::Exec& event);
  void OnExit(const engine::Exit& event);
  void OnFound(const engine::Found& event);

  // The process of a sample; reads /proc/PID when no event told of it. Null beyond kMaxProcesses.
  Process* Get(pid_t tgid, uint64_t slot, uint64_t cgroup_id, int64_t now_ns, std::string_view comm);
  // The mapping at an address, or null. Reads /proc/PID/maps again when there is none, at most once in kRereadNs.
  std::shared_ptr<const Mapping> FindMapping(Process& process, uint64_t address, int64_t now_ns);
  // The file of a mapping that the kernel told with a sample, opened by `id` when no event told of it or what it told of was another
  // version. Null: it can't be had (any more).
  std::shared_ptr<symbols::MappedFile> FindFile(Process& process, uint64_t start, uint64_t end, uint64_t offset, const symbols::FileId& id,
                                                const symbols::FileVersion& version, int64_t now_ns);
  // The name a runtime gave its code; valid until the next call. Reads on in the perf map when it grew, at most once in kRereadNs.
  std::optional<symbols::PerfMap::Found> FindJit(Process& process, uint64_t address, int64_t now_ns);

  // Processes that see the root directory that the process sees, itself first; some of them may be gone.
  std::vector<pid_t> Roots(const Process& process) const;

  void Clear();
  symbols::FileCache& files() { return files_; }
  size_t memory_bytes() const;
  uint64_t untracked() const { return untracked_; }  // processes, mappings and perf maps beyond the limits

 private:
  Process* Add(pid_t tgid, uint64_t slot, uint64_t cgroup_id, std::string_view comm);
  void ReadMaps(Process& process, int64_t now_ns);
  void Insert(Process& process, Mapping mapping);
  void SetExecutable(Process& process, const std::shared_ptr<const Mapping>& mapping);
  Space& Own(Process& process);
  void ReadPerfMap(Space& space);
  void Reap(int64_t now_ns);
  std::vector<pid_t> Relatives(const Process& process) const;

  std::string proc_root_;
  std::function<void(const Process&, const Mapping&)> on_file_;
  symbols::FileCache files_;
  size_t jit_bytes_ = 0;  // outlives the spaces, which count in it
  std::unordered_map<pid_t, Process> processes_;
  struct Ended {
    int64_t time_ns;
    pid_t tgid;
    std::shared_ptr<ProcessInfo> info;  // the same pid may be another process by then
  };
  std::deque<Ended> ended_;
  uint64_t next_id_ = 1;
  size_t all_mappings_ = 0;  // upper bound: those of ended processes are found again by a recount
  uint64_t untracked_ = 0;
};

}  // namespace borescope::stacks
