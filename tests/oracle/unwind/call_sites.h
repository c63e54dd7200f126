// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace borescope::oracle {

// Whether each caller in a stack can have called the one below it, told from the code of the living process alone: the bytes before the
// return address must be a call, and where it names its target, that must be the function below, or lead there by jumps.
class CallSites {
 public:
  explicit CallSites(pid_t pid);
  ~CallSites();

  enum class Verdict {
    kRight,       // the call's target is the callee, or jumps into it
    kUnknown,     // an indirect call, or the way from the target leads over an indirect jump, or no function is known at the callee
    kImpossible,
  };
  struct Pair {
    Verdict verdict = Verdict::kUnknown;
    std::string why;  // of kImpossible
  };
  // callee: any address in the lower function (of a caller: its return address - 1); return_address: of the frame above it.
  Pair Check(uint64_t callee, uint64_t return_address);
  // Whether address is a trampoline of signals: nobody calls it.
  bool IsTrampoline(uint64_t address);
  void ReadMappings();

 public:
  struct Function {
    uint64_t start = 0, end = 0;
  };
  struct Module {
    uint64_t start = 0, end = 0;  // of its mappings
    std::vector<Function> functions;  // by .eh_frame_hdr, in the process
    std::vector<Function> stubs;      // sections of the linker's stubs
  };

  bool Read(uint64_t address, void* into, size_t n) const;
  const Module* FindModule(uint64_t address) const;
  Function FunctionAt(uint64_t address) const;
  bool InStub(uint64_t address) const;
  bool Leads(uint64_t target, uint64_t callee, int depth, bool* indirect);
  void ReadElf(const std::string& path, uint64_t bias, Module* module);

  pid_t pid_;
  int memory_ = -1;
  std::map<uint64_t, Module> modules_;  // by start
  std::map<std::pair<uint64_t, uint64_t>, Pair> known_;
};

}  // namespace borescope::oracle
