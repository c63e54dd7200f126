// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bpf/abi/unwind.h"
#include "sampler/unwind/x86_instruction.h"

namespace borescope::unwind::x86 {

// What a register or a word of the stack is known to hold.
struct Value {
  enum class Kind : uint8_t {
    kUnknown,
    kCfa,            // CFA + offset
    kAligned,        // the stack pointer as it was rounded down, + offset
    kEntryFp,        // the caller's frame pointer
    kReturnAddress,
    kConstant,       // offset
  };
  Kind kind = Kind::kUnknown;
  int32_t offset = 0;
  bool operator==(const Value&) const = default;
  bool points() const { return kind == Kind::kCfa || kind == Kind::kAligned; }
};

// What is known of a function's frame before one of its instructions.
class Frame {
 public:
  // As it is right after a call. outermost: nobody calls it.
  static Frame AtEntry(bool outermost);

  // From here on as after the instruction; how it goes on (jumps, calls) is the caller's matter.
  void Step(const Instruction& instruction);
  // A call has come back.
  void AfterCall();
  // What holds of both. False: nothing new.
  bool Meet(const Frame& other);
  // Constants are of use within one block only; without them fewer blocks differ.
  void DropConstants();
  // After a branch right behind a comparison: it went the way of "equal", or the other.
  void Compared(bool equal);

  bool AsAtEntry() const;  // it can return here, or leave by a tail call
  bool outermost() const { return outermost_; }
  const Value& Of(Register reg) const { return registers_[reg]; }
  // What finds the caller. UNWIND_RULE_NONE: not known.
  unwind_rule Rule() const;

 private:
  struct Slot {
    Value at, value;  // at: kCfa or kAligned
    bool operator==(const Slot&) const = default;
  };
  Value Address(const Instruction& instruction) const;
  Value Load(const Value& at) const;
  void Store(const Value& at, int size, const Value& value);
  void Set(Register reg, const Value& value) {
    if (reg == kRsp) SetStackPointer(value);
    else registers_[reg] = value;
  }
  void SetStackPointer(const Value& value);
  void Push(const Value& value);
  Value Pop();
  void Align();
  void SetFpRule(unwind_rule* rule) const;

  std::array<Value, 16> registers_;
  std::vector<Slot> slots_;
  bool outermost_ = false;
  bool maybe_child_ = false;               // behind clone: a new thread, or who made it
  enum class Comparison : uint8_t { kNone, kRaxZero, kStackPointer } comparison_ = Comparison::kNone;
  Value compared_;                         // kStackPointer: with what
};

}  // namespace borescope::unwind::x86
