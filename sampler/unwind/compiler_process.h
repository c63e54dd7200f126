// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/unwind/compiler_child.h"

namespace borescope::unwind {

// Beside our own program.
Result<std::string> DefaultCompiler();

// The sampler's side of borescope-unwind-tables: started when it is first needed, started anew when it died or was ended.
class CompilerProcess {
 public:
  struct Limits {
    int64_t cpu_ns = 10'000'000'000;   // of one file
    int64_t wall_ns = 60'000'000'000;  // on a busy machine, too
  };
  struct File {
    int fd = -1;  // read only
    uint64_t bytes = 0;
  };

  // stop_fd: readable when a compile under way is to be given up.
  CompilerProcess(std::string path, int stop_fd, Limits limits) : path_(std::move(path)), stop_fd_(stop_fd), limits_(limits) {}
  ~CompilerProcess() { Stop(); }
  CompilerProcess(const CompilerProcess&) = delete;
  CompilerProcess& operator=(const CompilerProcess&) = delete;

  // The serialised table (Parse has not looked at it). kNotFound: the file tells nothing; kInvalid: it can't be compiled; kExhausted: it
  // took too long; kUnavailable: the process died over it; kInternal: the process can't be started; kGone: given up.
  Result<std::string> Compile(const File& file, const File& debug);
  // Ends the process; the next file starts one.
  void Stop();

  pid_t pid() const { return pid_; }       // 0: not running
  int64_t cpu_ns() const { return cpu_ns_; }  // of all files so far

 private:
  Status Start();
  // Waits for an answer, for which the process began to work when it had used so much CPU; it is gone unless this is ok.
  Status Receive(int64_t cpu_start, CompilerAnswer* answer);
  int64_t CpuNow() const;
  std::string Reap();

  const std::string path_;
  const int stop_fd_;
  const Limits limits_;
  UniqueFd socket_;
  pid_t pid_ = 0;
  int64_t cpu_ns_ = 0;
};

}  // namespace borescope::unwind
