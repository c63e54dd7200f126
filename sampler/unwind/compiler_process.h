// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"
#include "sampler/confined/process.h"
#include "sampler/unwind/compiler_child.h"

namespace borescope::unwind {

// Empty path: beside our own program. kNotFound: it is not there.
Result<confined::Program> OpenCompiler(std::string path);

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
  CompilerProcess(const confined::Program& program, int stop_fd, Limits limits);

  // Hash of all that tables are made from, 32 hex digits. Errors: as Compile's.
  Result<std::string> Identify(const File& file, const File& debug, const HashKey& key);
  // The serialised table (Parse has not looked at it) of just the bytes that Identify has hashed last. kNotFound: they tell nothing;
  // kInvalid: they can't be compiled; kExhausted: it took too much CPU time; kUnavailable: the process died over it or took too long on the
  // clock, or other bytes are there now; kInternal: the process can't be started; kGone: given up.
  Result<std::string> Compile();
  // Ends the process; the next file starts one.
  void Stop() { process_.Stop(); }

  pid_t pid() const { return process_.pid(); }          // 0: not running
  int64_t cpu_ns() const { return process_.cpu_ns(); }  // of all files so far

 private:
  Result<CompilerAnswer> Ask(CompilerRequest request, std::span<const int> fds);

  confined::Process process_;
  uint64_t number_ = 0;
  int files_ = 0;  // of this process
  bool identified_ = false;
};

}  // namespace borescope::unwind
