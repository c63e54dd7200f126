// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/fd.h"
#include "sampler/naming/wire.h"

namespace borescope::naming {

// Where the debug files of a file are looked for.
struct DebugRoots {
  std::string proc_root = "/proc";
  std::vector<pid_t> pids;          // processes that see its root directory
  std::string debug_directory;      // on this machine, by build id only: names that a file gives lead nowhere here
  std::string path;                 // the file, as its process sees it
};

// The paths under the process's root directory at which a debug file may stand, best first.
std::vector<std::string> CandidatePaths(const Wanted& wanted, const std::string& path);
// Opens the attempt-th file that is there, by the rules of symbols/files: regular files only, none of a file system that may block, no
// way out of the root directory. Not valid: there are no more.
UniqueFd OpenDebugFile(const Wanted& wanted, const DebugRoots& roots);

}  // namespace borescope::naming
