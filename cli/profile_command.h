// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace borescope::cli {

struct ProfileOptions {
  std::string session_file;           // -f: a ProfilingSession; its target is replaced by what stands below
  std::vector<int> pids;              // --pid
  bool all = false;                   // --all
  std::vector<std::string> command;   // -- COMMAND ARGS
  std::string duration;               // "10s", "500ms", "1m"; empty: the session's, else 10 s, or until COMMAND ends
  int frequency = 0;                  // 0: the session's, else 99
  std::string output;                 // -o
  std::string format = "pprof";       // pprof | collapsed | html
  std::string samples_file;           // --samples
  bool explain = false;               // --explain
  int unwind_memory_mib = 64;         // --unwind-memory
  std::vector<std::string> kernel_overrides;  // --kernel-override
  int top = 15;                       // rows of the table
};

// Samples processes of this machine, prints the table to standard output and progress to standard error (a terminal only).
// Exit code: 0 done, 1 nothing was sampled, 2 it cannot run (one sentence on standard error says what helps).
int RunProfile(const ProfileOptions& options);

}  // namespace borescope::cli
