// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "sampler/naming/wire.h"
#include "sampler/symbols/files.h"

namespace borescope::naming {

// Names of addresses in files of tenants, found out in two confined children (borescope-names): one for symbols, which are there soon, and
// one for inlined functions and source lines, which may take their time; a file that is too much for the second one has the names of the
// first. One owner thread, but for the workers it runs itself.
class Names {
 public:
  struct Options {
    std::string proc_root = "/proc";
    std::string program = "";                        // path of borescope-names; empty: beside /proc/self/exe
    std::string debug_directory = "/usr/lib/debug";  // separate debug files on this machine, by build id
    // CPU time of each of the two: at once, and in the long run as a share of a CPU.
    int64_t allowance_ns = 3'000'000'000;
    double symbols_share = 0.10, lines_share = 0.15;
    int64_t cpu_limit_ns = 30'000'000'000;  // for one request
  };
  // Where a file comes from.
  struct Origin {
    uint64_t owner = 0;       // cgroup id: owners take turns
    std::vector<pid_t> pids;  // processes that see its root directory
  };
  // An address may be answered twice: by its symbol, then with its lines. No lines: what was answered before stays.
  struct Answer {
    std::shared_ptr<symbols::MappedFile> file;
    uint64_t vaddr = 0;
    AddressNames names;
    bool last = false;
  };
  struct Stats {
    std::array<uint64_t, kOutcomes> addresses{};  // last answers so far
    uint64_t waiting = 0;                         // without their last answer
    int64_t cpu_ns = 0;                           // of the children
    uint64_t peak_bytes = 0;                      // resident memory of the larger one, at most
  };
  // Of one file, for --explain.
  struct FileInfo {
    std::string path, build_id, problem;  // build_id in hex
    std::array<uint64_t, kOutcomes> addresses{};
  };

  // kNotFound: there is no program.
  static Result<std::unique_ptr<Names>> Create(Options options);
  virtual ~Names() = default;

  // Asks for the name of a linked address; never waits. The answer is taken by Take, once more for each time it is asked.
  // origin: asked for when the file is new.
  virtual void Ask(const std::shared_ptr<symbols::MappedFile>& file, uint64_t vaddr, const std::function<Origin()>& origin) = 0;
  virtual std::vector<Answer> Take() = 0;
  // Readable when Take has something.
  virtual int wake_fd() const = 0;
  // No process is sampled any more: forgets all, and the children end.
  virtual void Release() = 0;
  virtual Stats stats() const = 0;
  virtual std::vector<FileInfo> files() const = 0;
};

}  // namespace borescope::naming
