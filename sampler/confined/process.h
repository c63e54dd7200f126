// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace borescope::confined {

// A program of ours, opened once: what is started is what the version was taken of, whatever becomes of its name.
struct Program {
  std::string path;
  UniqueFd fd;
  std::string version;  // changes with each build of it
};
// Empty path: `name` beside our own program. kNotFound: it is not there; purpose: what it does, for that message.
Result<Program> OpenProgram(std::string path, const std::string& name, const std::string& purpose);

// CPU time that may be used: `allowance_ns` at once, `share` of a CPU in the long run.
class CpuBudget {
 public:
  CpuBudget(int64_t allowance_ns, double share) : allowance_ns_(allowance_ns), share_(share), left_ns_(allowance_ns) {}
  void Spend(int64_t ns, int64_t now_ns);
  int64_t Left(int64_t now_ns);
  // Until so much may be used again.
  int64_t WaitNs(int64_t need_ns, int64_t now_ns);

 private:
  const int64_t allowance_ns_;
  const double share_;
  int64_t left_ns_, seen_ns_ = 0;
};

// The sampler's side of a confined child. One thread.
class Process {
 public:
  struct Options {
    std::string title;  // "the compiler of unwind tables"
    std::string work;   // "compiling its unwind table"
    int64_t cpu_ns = 10'000'000'000;   // of one piece of work
    int64_t wall_ns = 60'000'000'000;  // on a busy machine, too
    CpuBudget* budget = nullptr;       // the child is stopped while it has nothing left of it; null: none
  };

  // stop_fd: readable when what is under way is to be given up.
  Process(const Program& program, int stop_fd, Options options) : program_(program), stop_fd_(stop_fd), options_(std::move(options)) {}
  ~Process() { Stop(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // kInternal: it can't be started or can't confine itself; kGone: given up.
  Status Start();
  // Ends it; what it has open is gone.
  void Stop();
  // The limits of the next piece of work are counted from here. kUnavailable: it died, or spoke without being asked; kGone: given up while
  // the budget was waited for.
  Status BeginWork();
  // kUnavailable: it died. It is gone then.
  Status Send(const void* data, size_t bytes, std::span<const int> fds);
  // The next message, its length. kExhausted: it took too much CPU time; kUnavailable: the process died or took too long on the clock;
  // kGone: given up. It is gone then.
  Result<size_t> Receive(void* into, size_t capacity);
  // Ends it since what it said is none; kUnavailable.
  Error Useless(const std::string& what);

  pid_t pid() const { return pid_; }          // 0: not running
  int64_t cpu_ns() const { return cpu_ns_; }  // of all work so far

 private:
  int64_t CpuNow() const;
  void Account();
  std::string Reap();

  const Program& program_;
  const int stop_fd_;
  const Options options_;
  UniqueFd socket_;
  pid_t pid_ = 0;
  std::vector<pid_t> left_;  // killed, but the kernel does not let go of them yet
  int64_t cpu_seen_ns_ = 0, cpu_ns_ = 0;
  int64_t work_cpu_ns_ = 0, work_start_ns_ = 0;  // of the piece of work under way
  bool paused_ = false;
};

}  // namespace borescope::confined
