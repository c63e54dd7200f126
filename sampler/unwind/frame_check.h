// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "sampler/symbols/elf_file.h"

namespace borescope::unwind {

// Reads memory of a process: n bytes at an address, or false.
class MemoryReader {
 public:
  virtual ~MemoryReader() = default;
  virtual bool Read(uint64_t address, void* into, size_t n) const = 0;
};

// Where a program counter lies.
struct Place {
  symbols::ElfFile* elf = nullptr;       // null: memory without a file, or a file that is not ELF
  uint64_t pc = 0;                       // linked address in elf, else the address in the process
  const MemoryReader* memory = nullptr;  // used when elf is null
  uint64_t function_start = 0;           // of the symbol that covers pc, 0: unknown; used where there is no better information
};

// How to find the caller of an interrupted function.
struct LeafRule {
  enum class Kind : uint8_t {
    kChain,  // the frame pointer is its own: the first return address of the chain is its caller
    kStack,  // the return address is at [sp + delta] and the frame pointer is still (or again) the caller's
    kBare,   // as kStack, in a function that never makes a frame (compilers leave it out of leaf functions): to be believed only when
             // the caller lies in the same file; what libraries without frame pointers do is not looked into
    kDelta,  // the return address is at [sp + delta]; the frame pointer is its own when it equals sp + delta - 8
    kNone,   // it has no frame-pointer prologue
    kUnreadable,
  };
  Kind kind = Kind::kNone;
  uint32_t delta = 0;
};

// What is known of a return address.
struct CallerRule {
  bool readable = true;        // false: the bytes before it could not be read
  bool follows_call = false;
  bool frame_pointer = false;  // the frame pointer is the function's own at the call: the chain goes on
  bool root = false;           // nothing calls this function: the stack is whole with it
  bool keeps_rbp = false;      // no frame pointer of its own, but it leaves its caller's alone: a chain that ends here with 0 is whole
};

// Frame-pointer chains are checked against the code. "Never a wrong caller" is the rule: what cannot be shown to be right is cut.
// Both are pure functions of the code: the caller may keep the answers for as long as the code stays.
LeafRule CheckLeaf(const Place& place);
CallerRule CheckCaller(const Place& place);  // place.pc: the return address itself

// Whether the bytes before a return address end in a call: `code` are the up to 8 bytes before it, the last byte last.
bool EndsInCall(std::span<const uint8_t> code);

}  // namespace borescope::unwind
