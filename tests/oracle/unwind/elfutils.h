// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bpf/abi/unwind.h"

namespace borescope::oracle {

// One frame as the independent unwinder sees it.
struct TrueFrame {
  uint64_t pc = 0;
  bool described = false;  // there is call frame information for it: what stands above is worth comparing
};

struct TrueStack {
  std::vector<TrueFrame> frames;  // leaf first, up to the first that is not described
  bool whole = false;             // it ended at the thread's entry
  std::string problem;            // why it ended, when neither whole nor at an undescribed frame: the unwinder's own failure
};

// An unwinder that shares nothing with ours: libdw of elfutils over registers and a copy of the stack of a living process, which need not be stopped.
class Elfutils {
 public:
  explicit Elfutils(pid_t pid);
  ~Elfutils();
  Elfutils(const Elfutils&) = delete;

  // `stack` starts at stack_start. Reads outside it fail, with `live` they go to the process.
  TrueStack Unwind(const unwind_regs& regs, uint64_t stack_start, std::span<const std::byte> stack, bool live = false);
  // Takes the mappings as they are now.
  void ReadMappings();
  // "function+0x12 (libc.so.6)"
  std::string Describe(uint64_t pc) const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace borescope::oracle
