// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/confined/process.h"
#include "sampler/naming/wire.h"

namespace borescope::naming {

// The sampler's side of one borescope-names: started when it is first needed, started anew when it died, was ended, or has seen so many
// files of so many tenants that it may be theirs.
class NamesProcess {
 public:
  static constexpr int kMaxFiles = 64;
  static constexpr int kMaxWanted = 4096;  // files that it may ask for in one request

  struct Batch {
    uint64_t file = 0;  // its number: never that of another file
    int fd = -1;        // read only
    bool lines = false;
    std::span<const uint64_t> addresses;  // at most NameRequest::kMaxAddresses
  };
  struct Named {
    std::vector<AddressNames> names;  // as many as addresses when outcome is kLine; else of the first ones
    bool has_debug = false;
    Outcome outcome = Outcome::kLine;  // kLine: the request was answered; else what became of the other addresses
    std::string problem;               // why, or why there are no lines
    bool gave_up = false;              // stop_fd
  };

  NamesProcess(const confined::Program& program, int stop_fd, confined::CpuBudget* budget, int64_t cpu_ns, int64_t wall_ns);
  Named Name(const Batch& batch, const std::function<UniqueFd(const Wanted&)>& open);
  void Stop() { process_.Stop(); }

  pid_t pid() const { return process_.pid(); }
  int64_t cpu_ns() const { return process_.cpu_ns(); }
  size_t peak_bytes() const { return peak_bytes_; }  // resident, of all that ran

 private:
  Status Ask(const Batch& batch, const std::function<UniqueFd(const Wanted&)>& open, Named* named);
  void Measure();

  confined::Process process_;
  std::vector<char> buffer_;
  std::vector<uint64_t> files_;  // which this process has seen
  uint64_t number_ = 0;
  size_t peak_bytes_ = 0;
  int64_t measured_ns_ = 0;
};

}  // namespace borescope::naming
