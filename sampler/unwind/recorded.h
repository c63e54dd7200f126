// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bpf/abi/loss.h"
#include "bpf/abi/record.h"
#include "bpf/abi/unwind.h"
#include "sampler/unwind/compiled_table.h"

namespace borescope::unwind {

// Where a program counter of a recorded process lies, and what is known of the code there.
struct CodePlace {
  enum class Kind : uint8_t {
    kNowhere,    // in no executable mapping
    kFile,
    kAnonymous,  // code made at run time
    kProbe,      // the kernel's trampoline of return probes
  };
  Kind kind = Kind::kNowhere;
  uint64_t file_offset = 0;             // kFile
  const CompiledTable* table = nullptr;  // kFile; null: the file tells nothing, or is not known yet
  bool pending = false;                 // kFile: its table is not known yet
};

// What a recorded process had mapped.
class CodeMap {
 public:
  virtual ~CodeMap() = default;
  virtual CodePlace Find(uint64_t pc) = 0;
  // n bytes of code; false when they are not to be had (any more).
  virtual bool ReadCode(uint64_t address, void* into, size_t n) = 0;
};

constexpr size_t kMaxFrames = BORESCOPE_MAX_USER_FRAMES;

// Unwinds registers and a piece of stack (its first byte at `stack_start`) as the programs in the kernel do, by the same C. `pcs`: leaf
// first, USER_FRAME_INTERRUPTED set in those that a signal interrupted; at most max_frames. Returns why it ended: LOSS_NONE at the
// thread's entry, LOSS_TABLES_NOT_READY in a place that is pending, LOSS_STACK_UNREADABLE where the piece of stack ends. after_syscall: regs.pc
// stands behind the instruction of a system call.
borescope_loss UnwindRecorded(const unwind_regs& regs, uint64_t stack_start, std::span<const std::byte> stack, CodeMap& code,
                              std::vector<uint64_t>* pcs, size_t max_frames = kMaxFrames, bool after_syscall = false);

}  // namespace borescope::unwind
