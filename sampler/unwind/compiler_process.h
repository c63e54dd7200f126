// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/unwind/compiler_child.h"

namespace borescope::unwind {

// borescope-unwind-tables, opened once: what is started is what the version was taken of, whatever becomes of its name.
struct CompilerProgram {
  std::string path;
  UniqueFd fd;
  std::string version;  // changes with each build of it
};
// Empty path: beside our own program. kNotFound: it is not there.
Result<CompilerProgram> OpenCompiler(std::string path);

// The sampler's side of borescope-unwind-tables: started when it is first needed, started anew when it died, was ended, or has seen so many
// files of so many tenants that it may be theirs.
class CompilerProcess {
 public:
  static constexpr int kMaxFiles = 64;
  struct Limits {
    int64_t cpu_ns = 10'000'000'000;   // of one file
    int64_t wall_ns = 60'000'000'000;  // on a busy machine, too
  };
  struct File {
    int fd = -1;  // read only
    uint64_t bytes = 0;
  };

  // stop_fd: readable when what is under way is to be given up.
  CompilerProcess(const CompilerProgram& program, int stop_fd, Limits limits) : program_(program), stop_fd_(stop_fd), limits_(limits) {}
  ~CompilerProcess() { Stop(); }
  CompilerProcess(const CompilerProcess&) = delete;
  CompilerProcess& operator=(const CompilerProcess&) = delete;

  // Hash of all that tables are made from, 32 hex digits. Errors: as Compile's.
  Result<std::string> Identify(const File& file, const File& debug, const HashKey& key);
  // The serialised table (Parse has not looked at it) of just the bytes that Identify has hashed last. kNotFound: they tell nothing;
  // kInvalid: they can't be compiled; kExhausted: it took too much CPU time; kUnavailable: the process died over it or took too long on the
  // clock, or other bytes are there now; kInternal: the process can't be started; kGone: given up.
  Result<std::string> Compile();
  // Ends the process; the next file starts one.
  void Stop();

  pid_t pid() const { return pid_; }          // 0: not running
  int64_t cpu_ns() const { return cpu_ns_; }  // of all files so far

 private:
  Status Start();
  Result<CompilerAnswer> Ask(CompilerRequest request, const int* fds, size_t count);
  // Waits for an answer, for which the process began to work when it had used so much CPU; it is gone unless this is ok.
  Status Receive(int64_t cpu_start, CompilerAnswer* answer);
  int64_t CpuNow() const;
  std::string Reap();

  const CompilerProgram& program_;
  const int stop_fd_;
  const Limits limits_;
  UniqueFd socket_;
  pid_t pid_ = 0;
  std::vector<pid_t> left_;  // killed, but the kernel does not let go of them yet
  uint64_t number_ = 0;
  int files_ = 0;  // of this process
  bool identified_ = false;
  int64_t cpu_ns_ = 0;
};

}  // namespace borescope::unwind
