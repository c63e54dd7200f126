// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpf/abi/loss.h"
#include "bpf/abi/unwind.h"
#include "common/base/result.h"
#include "sampler/engine/kernel_gate.h"
#include "sampler/unwind/table_memory.h"

namespace borescope::engine {

// All times CLOCK_MONOTONIC ns unless the name says boot; all pids those of our own PID namespace.

// A file without an entry in the table memory that a stack led through: the kernel's key for it, and its mapping.
struct MissingFile {
  unwind_file_key key;
  uint64_t start, end;   // addresses in the process
  uint64_t file_offset;  // of start
};

// A thread as it was at the sample, to be unwound in user space.
struct RawStack {
  unwind_regs regs;
  uint64_t start;  // address of the first byte of `stack`: the red zone below the stack pointer is part of it
  std::span<const std::byte> stack;
};

// One tick that hit a wanted thread. Spans are valid during the call only.
struct Sample {
  int64_t time_ns = 0;
  pid_t tgid = 0, tid = 0;
  uint64_t space = 0;                     // address-space slot
  uint64_t cgroup_id = 0;                 // container's cgroup (the wanted ancestor's child); 0: thread-group selection
  int64_t weight_ns = 0;                  // true period, epoch-corrected
  uint64_t job_mask = 0;                  // bit = JobId
  std::span<const uint64_t> kernel_pcs;   // leaf first
  std::span<const uint64_t> user_pcs;     // leaf first: the interrupted pc, then return addresses; bit 63: an interrupted pc under a signal handler
  borescope_loss end_reason = LOSS_NONE;  // why the walk ended; LOSS_NONE: nobody called the last frame
  const MissingFile* missing = nullptr;   // the first file on the way up that has no table yet, or null
  const RawStack* raw = nullptr;          // set while tables are missing (bounded, see LOSS_TABLES_NOT_READY), and by Options::raw_every
  bool in_kernel = false;
  bool after_syscall = false;             // the first of user_pcs stands behind the instruction of a system call: it is looked up like a return address
  uint32_t cpu = 0;
  std::string_view comm;
};

// Side-band of the kernel: executable mappings as they are made.
struct Mmap {
  int64_t time_ns = 0;
  pid_t tgid = 0, tid = 0;
  uint64_t start = 0, length = 0, file_offset = 0;
  uint32_t device_major = 0, device_minor = 0;
  uint64_t inode = 0;
  std::string_view build_id;  // raw bytes, or empty
  std::string_view path;      // in the process's mount namespace; "//anon", "[vdso]" …
};
struct Fork { int64_t time_ns; pid_t parent_tgid, tgid; uint64_t space, cgroup_id; };
struct Exec { int64_t time_ns; pid_t tgid; uint64_t space, old_space, cgroup_id; std::string_view comm; };
struct Exit {
  int64_t time_ns;
  pid_t tgid, tid;
  uint64_t space, cgroup_id;
  bool group_dead;
};
// A process that ran already when its target was armed: user space reads /proc/PID/maps.
struct Found { int64_t time_ns; pid_t tgid; uint64_t space, cgroup_id; std::string_view comm; };
// A cgroup under a wanted pod: seen when armed, or when made.
struct Cgroup {
  int64_t time_ns;
  uint64_t cgroup_id, parent_id;
  std::string_view name;      // last path component, e.g. "cri-containerd-<64 hex>.scope" or "<64 hex>"
  std::string_view pod_uid;   // with dashes; of the wanted pod it lies in
  bool removed;
};

// Receives everything in time order, on the thread that calls Engine::Drain.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnSample(const Sample&) = 0;
  virtual void OnMmap(const Mmap&) = 0;
  virtual void OnFork(const Fork&) = 0;
  virtual void OnExec(const Exec&) = 0;
  virtual void OnExit(const Exit&) = 0;
  virtual void OnFound(const Found&) = 0;
  virtual void OnCgroup(const Cgroup&) = 0;
};

struct Options {
  bool fixed_period = false;       // test builds only: no jitter
  int raw_every = 0;               // tests only: so many-th sample carries a RawStack of up to 64 KiB besides its frames; 0: none
  size_t ring_bytes = 8 << 20;
  std::string proc_root = "/proc";
  std::string sys_root = "/sys";
  std::set<std::string> kernel_overrides = {};  // names of faults to live with: see KernelOverrides
};

using JobId = int;  // 0..63, a bit of Sample::job_mask

struct Job {
  int frequency_hz = 99;         // 1..999
  bool kernel_stacks = true;
  int64_t start_boot_ns = 0;     // samples before it are not taken
  int64_t deadline_boot_ns = 0;  // nor at or after it, whatever user space does
};

struct Loss { uint64_t count = 0; int64_t ns = 0; };

struct JobCounters {
  uint64_t samples = 0;                 // records delivered
  int64_t sampled_ns = 0;
  std::array<Loss, LOSS_MAX> loss{};    // by reason, BPF's part: LOST rows in ns; TRUNCATED rows as count
  int lowest_hz = 0;                    // below the job's frequency when kernel.perf_event_max_sample_rate was lower than twice that
  int64_t used_ns = 0;                  // run time of the wanted threads since the job was armed: exited ones and live ones
};

struct Counters {
  uint64_t runs = 0;         // ticks seen by the program
  uint64_t stack_walks = 0;  // user stacks walked
  int64_t bpf_ns = 0;        // own run time of all our programs, estimated from clock pairs around 1 of 16 runs
  uint64_t map_bytes = 0;    // memory of the BPF maps and rings
  uint64_t mapped_bytes = 0; // what these add to our RSS: the ring is mapped twice
};

// What one tick of a clock costs the thread that it interrupts when no program is attached to it: interrupt, timer, perf event. Takes 10 ms of CPU on the
// calling thread. 0: it could not be told.
int64_t MeasureBareTick();

// Loads the programs, holds maps; attaches them only while a job is armed (idle: no program attached, no event open).
// Not thread-safe: one owner thread, but for the jitter thread that it runs itself.
class Engine {
 public:
  // Errors name the failed operation, errno and what would help; kDenied: missing capability; kUnsupported: kernel.
  // `report`: what was found out about the kernel, also when it is refused.
  static Result<std::unique_ptr<Engine>> Open(const Options& options, KernelReport* report = nullptr);
  virtual ~Engine() = default;

  // kExhausted: 64 jobs, or (never for the caller: a fifth rate is served by thinning the next higher one).
  virtual Result<JobId> AddJob(const Job& job) = 0;
  // Drains nothing: call Drain once more first. Frees the bit.
  virtual void RemoveJob(JobId id) = 0;
  virtual void SetWindow(JobId id, int64_t start_boot_ns, int64_t deadline_boot_ns) = 0;

  // Targets. Pods by uid (for static pods the config hash): all cgroups below, also those made later.
  virtual Status SetPods(JobId id, const std::vector<std::string>& pod_uids) = 0;
  // Stops sampling one container's cgroup for this job (it is not among the job's containerNames).
  virtual void ExcludeCgroup(JobId id, uint64_t cgroup_id) = 0;
  // Thread groups, with all threads and what they fork from now on.
  virtual Status AddProcess(JobId id, pid_t pid) = 0;
  virtual Status AddAllProcesses(JobId id) = 0;

  // Delivers what the kernel has recorded up to about now, in time order. Call it on a timer (100 ms) and when wake_fd is readable.
  virtual Status Drain(Observer& observer) = 0;
  // Waits (some 20 ms) until each program that runs now is done: after it, one Drain delivers all samples of a window that is over.
  virtual void Quiesce() = 0;
  // Readable when something must be seen at once (a cgroup was made).
  virtual int wake_fd() const = 0;

  // Where the programs look for unwind tables; lives as long as the engine. Any thread may use it, one at a time.
  virtual unwind::TableMemory& table_memory() = 0;

  // The kernel's own name for an address of its text, 1 µs: "schedule", "nft_do_chain [nf_tables]"; empty when it knows none.
  virtual Result<std::string> NameKernel(uint64_t address) = 0;

  // The kernel may be broken: from now on the programs do nothing. Any thread; only stores to memory, so that it cannot wait for anything. Afterwards there
  // is nothing to do with the engine but to destroy it, which may wait: no job is added, nothing is delivered or named.
  virtual void Halt() = 0;

  virtual JobCounters counters(JobId id) const = 0;
  virtual Counters counters() const = 0;
};

}  // namespace borescope::engine
