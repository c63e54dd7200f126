// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace borescope::unwind::x86 {

// Registers as instructions encode them.
enum Register : uint8_t { kRax, kRcx, kRdx, kRbx, kRsp, kRbp, kRsi, kRdi, kR8, kR9, kR10, kR11, kR12, kR13, kR14, kR15, kNoRegister };

enum class Op : uint8_t {
  kOther,         // whatever it does beside: `writes`
  kPush,          // reg, or memory, or (kNoRegister) something else; 8 bytes
  kPushImmediate,
  kPop,           // into reg, or (kNoRegister) elsewhere; 8 bytes
  kMove,          // reg = source
  kMoveImmediate, // reg = immediate
  kMoveByte,      // low byte of reg = immediate
  kLoad,          // reg = 8 bytes of memory
  kStore,         // `size` bytes of memory = source; kNoRegister: something else
  kLea,           // reg = address of memory
  kAdd,           // reg += immediate
  kAddRegister,   // reg += source
  kSubRegister,   // reg -= source
  kAnd,           // reg &= immediate
  kCompare,       // reg with source
  kTest,          // reg with itself
  kLeave,
  kEnter,         // with `immediate` bytes, level 0
  kCall,          // target
  kCallIndirect,  // memory or reg
  kJump,
  kJumpIndirect,
  kBranch,        // to target, or not
  kReturn,
  kSyscall,
  kTrap,          // hlt, int3: a fault, behind which code may go on
  kStop,          // nothing comes behind it: ud2, iret …
  kNop,
};

// One instruction of 64-bit mode, as far as unwinding needs it.
struct Instruction {
  uint8_t length = 0;  // 0: no instruction, or not whole
  Op op = Op::kOther;
  uint8_t size = 0;                 // of a store's operand, bytes
  uint8_t condition = 0;            // of kBranch: low 4 bits of the opcode (4: equal, 5: not equal); 16: another
  Register reg = kNoRegister, source = kNoRegister;
  Register base = kNoRegister, index = kNoRegister;  // of the memory operand
  bool memory = false;              // there is one, of 64-bit address and usual segment
  bool rip_relative = false;        // memory: displacement from the next instruction
  int64_t displacement = 0;         // of memory; of kCall, kJump, kBranch: from the next instruction
  int64_t immediate = 0;
  uint16_t writes = 0;              // bit n: register n may be another afterwards (kPush … kLeave: beside what op says)
};

constexpr size_t kMaxInstruction = 15;

// Decodes the instruction at the begin of code. Never reads beyond it.
Instruction Decode(std::span<const uint8_t> code);

}  // namespace borescope::unwind::x86
