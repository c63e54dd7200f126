// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/x86_frame.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace borescope::unwind::x86 {
namespace {

using Kind = Value::Kind;

constexpr size_t kMaxSlots = 12;
constexpr int32_t kRedZone = 128;
constexpr int32_t kFar = 1 << 28;  // frames are smaller
constexpr int32_t kSysClone = 56, kSysClone3 = 435;
constexpr Register kCallerSaved[] = {kRax, kRcx, kRdx, kRsi, kRdi, kR8, kR9, kR10, kR11};
constexpr uint8_t kDwarf[] = {0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15};  // of Register

Value Plus(const Value& value, int64_t n) {
  if (!value.points() && value.kind != Kind::kConstant) return {};
  if (n < -kFar || n > kFar) return {};
  int64_t sum = value.offset + n;
  if (sum < -kFar || sum > kFar) return {};
  return {value.kind, static_cast<int32_t>(sum)};
}

Value Constant(int64_t n) {
  if (n < -kFar || n > kFar) return {};
  return {Kind::kConstant, static_cast<int32_t>(n)};
}

bool FitsShort(int64_t n) { return n >= std::numeric_limits<int16_t>::min() && n <= std::numeric_limits<int16_t>::max(); }

}  // namespace

Frame Frame::AtEntry(bool outermost) {
  Frame frame;
  frame.registers_[kRsp] = {Kind::kCfa, -8};
  frame.registers_[kRbp] = {Kind::kEntryFp, 0};
  frame.slots_.push_back({{Kind::kCfa, -8}, {Kind::kReturnAddress, 0}});
  frame.outermost_ = outermost;
  return frame;
}

Value Frame::Address(const Instruction& in) const {
  if (!in.memory || in.base == kNoRegister || in.index != kNoRegister) return {};
  const Value& base = registers_[in.base];
  return base.points() ? Plus(base, in.displacement) : Value{};
}

Value Frame::Load(const Value& at) const {
  for (const Slot& slot : slots_) {
    if (slot.at == at) return slot.value;
  }
  return {};
}

void Frame::Store(const Value& at, int size, const Value& value) {
  if (!at.points()) return;  // through a pointer: not into what the compiler keeps for itself
  std::erase_if(slots_, [&](const Slot& s) { return s.at.kind == at.kind && s.at.offset < at.offset + size && at.offset < s.at.offset + 8; });
  if (value.kind == Kind::kUnknown) return;
  if (slots_.size() >= kMaxSlots) {
    if (value.kind != Kind::kEntryFp && value.kind != Kind::kReturnAddress) return;
    auto lesser = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.value.points() || s.value.kind == Kind::kConstant; });
    if (lesser == slots_.end()) return;
    slots_.erase(lesser);
  }
  slots_.push_back({at, value});
}

void Frame::Push(const Value& value) {
  Value copy = value;  // of the register before it moves: push %rsp
  registers_[kRsp] = Plus(registers_[kRsp], -8);
  Store(registers_[kRsp], 8, copy);
}

Value Frame::Pop() {
  Value value = Load(registers_[kRsp]);
  SetStackPointer(Plus(registers_[kRsp], 8));
  return value;
}

// What it rises above is free: the next push or call overwrites it.
void Frame::SetStackPointer(const Value& value) {
  Value& sp = registers_[kRsp];
  if (sp.kind == value.kind && value.offset > sp.offset) {
    std::erase_if(slots_, [&](const Slot& s) { return s.at.kind == sp.kind && s.at.offset >= sp.offset && s.at.offset < value.offset; });
  }
  sp = value.points() ? value : Value{};
}

void Frame::Align() {
  for (Value& value : registers_) {
    if (value.kind == Kind::kAligned) value = {};
  }
  std::erase_if(slots_, [](const Slot& s) { return s.at.kind == Kind::kAligned || s.value.kind == Kind::kAligned; });
  registers_[kRsp] = {Kind::kAligned, 0};
}

void Frame::Step(const Instruction& in) {
  if (in.op != Op::kBranch) comparison_ = Comparison::kNone;  // branches leave flags alone
  Value value;
  switch (in.op) {
    case Op::kPush:
      if (in.reg != kNoRegister) value = registers_[in.reg];
      else if (in.memory) value = Load(Address(in));
      Push(value);
      break;
    case Op::kPushImmediate: Push(Constant(in.immediate)); break;
    case Op::kPop: {
      value = Pop();
      // The address of a memory operand is that after the pop.
      if (in.reg != kNoRegister) Set(in.reg, value);
      else if (in.memory) Store(Address(in), 8, value);
      break;
    }
    case Op::kMove: Set(in.reg, registers_[in.source]); break;
    case Op::kMoveImmediate: Set(in.reg, Constant(in.immediate)); break;
    case Op::kMoveByte: {
      const Value& old = registers_[in.reg];
      value = old.kind == Kind::kConstant ? Constant((old.offset & ~0xff) | (in.immediate & 0xff)) : Value{};
      Set(in.reg, value);
      break;
    }
    case Op::kLoad: Set(in.reg, Load(Address(in))); break;
    case Op::kStore: Store(Address(in), in.size, in.source == kNoRegister ? Value{} : registers_[in.source]); break;
    case Op::kLea: Set(in.reg, Address(in)); break;
    case Op::kAdd: Set(in.reg, Plus(registers_[in.reg], in.immediate)); break;
    case Op::kAddRegister:
    case Op::kSubRegister: {
      const Value& by = registers_[in.source];
      if (by.kind == Kind::kConstant) value = Plus(registers_[in.reg], in.op == Op::kAddRegister ? int64_t{by.offset} : -int64_t{by.offset});
      Set(in.reg, value);
      break;
    }
    case Op::kAnd:
      if (in.reg == kRsp) Align();
      else Set(in.reg, {});
      break;
    case Op::kCompare:
      if (in.reg == kRsp || in.source == kRsp) {
        comparison_ = Comparison::kStackPointer;
        compared_ = registers_[in.reg == kRsp ? in.source : in.reg];
        if (!compared_.points()) comparison_ = Comparison::kNone;
      }
      break;
    case Op::kTest:
      if (in.reg == kRax) comparison_ = Comparison::kRaxZero;
      break;
    case Op::kLeave:
      SetStackPointer(registers_[kRbp]);
      Set(kRbp, Pop());
      break;
    case Op::kEnter:
      Push(registers_[kRbp]);
      Set(kRbp, registers_[kRsp]);
      registers_[kRsp] = Plus(registers_[kRsp], -in.immediate);
      break;
    case Op::kSyscall: {
      const Value& number = registers_[kRax];
      maybe_child_ = number.kind == Kind::kConstant && (number.offset == kSysClone || number.offset == kSysClone3);
      break;
    }
    default: break;
  }
  for (int r = 0; r < 16; ++r) {
    if (in.writes >> r & 1) registers_[r] = {};
  }
}

void Frame::AfterCall() {
  comparison_ = Comparison::kNone;
  for (Register r : kCallerSaved) registers_[r] = {};
  const Value& sp = registers_[kRsp];
  if (!sp.points()) return;
  std::erase_if(slots_, [&](const Slot& s) { return s.at.kind == sp.kind && s.at.offset < sp.offset; });
}

bool Frame::Meet(const Frame& other) {
  bool changed = false;
  for (int r = 0; r < 16; ++r) {
    if (registers_[r].kind == Kind::kUnknown || registers_[r] == other.registers_[r]) continue;
    registers_[r] = {};
    changed = true;
  }
  changed |= std::erase_if(slots_, [&](const Slot& s) { return std::find(other.slots_.begin(), other.slots_.end(), s) == other.slots_.end(); }) > 0;
  if (outermost_ != other.outermost_ && !(registers_ == decltype(registers_){} && slots_.empty() && !outermost_)) {
    registers_ = {};
    slots_.clear();
    outermost_ = false;
    changed = true;
  }
  if (maybe_child_ && !other.maybe_child_) {
    maybe_child_ = false;
    changed = true;
  }
  if (comparison_ != Comparison::kNone && (comparison_ != other.comparison_ || compared_ != other.compared_)) {
    comparison_ = Comparison::kNone;
    changed = true;
  }
  return changed;
}

void Frame::DropConstants() {
  for (Value& value : registers_) {
    if (value.kind == Kind::kConstant) value = {};
  }
  std::erase_if(slots_, [](const Slot& s) { return s.value.kind == Kind::kConstant; });
}

void Frame::Compared(bool equal) {
  if (comparison_ == Comparison::kRaxZero && maybe_child_) {
    maybe_child_ = false;
    outermost_ = outermost_ || equal;
  }
  if (comparison_ == Comparison::kStackPointer && equal) registers_[kRsp] = compared_;
}

bool Frame::AsAtEntry() const {
  if (outermost_) return false;
  return registers_[kRsp] == Value{Kind::kCfa, -8} && registers_[kRbp].kind == Kind::kEntryFp && Load({Kind::kCfa, -8}).kind == Kind::kReturnAddress;
}

// How the caller's frame pointer is found.
void Frame::SetFpRule(unwind_rule* rule) const {
  const Value &fp = registers_[kRbp], &sp = registers_[kRsp];
  rule->fp = fp.kind == Kind::kEntryFp ? UNWIND_FP_SAME : UNWIND_FP_UNKNOWN;
  for (const Slot& slot : slots_) {
    if (slot.value.kind != Kind::kEntryFp) continue;
    if (slot.at.kind == sp.kind) {
      if (slot.at.offset < sp.offset && fp.kind == Kind::kEntryFp) continue;  // it was popped
      if (slot.at.offset < sp.offset - kRedZone) continue;                    // a signal may have come over it
    }
    if (slot.at.kind == Kind::kCfa) {
      if (!FitsShort(slot.at.offset)) continue;
      rule->fp = UNWIND_FP_AT_CFA;
      rule->fp_offset = static_cast<int16_t>(slot.at.offset);
      return;
    }
    int64_t from_fp = int64_t{slot.at.offset} - fp.offset;
    if (fp.kind != Kind::kAligned || !FitsShort(from_fp)) continue;
    rule->fp = UNWIND_FP_AT_FP;
    rule->fp_offset = static_cast<int16_t>(from_fp);
    return;
  }
}

unwind_rule Frame::Rule() const {
  unwind_rule rule = {}, none = {};
  if (outermost_) {
    rule.kind = UNWIND_RULE_END;
    return rule;
  }
  rule.kind = UNWIND_RULE_FRAME;
  const Value &fp = registers_[kRbp], &sp = registers_[kRsp];
  auto from = [&](Register reg, int64_t offset) {
    rule.cfa_reg = kDwarf[reg];
    rule.cfa_offset = static_cast<int32_t>(offset);
    return true;
  };
  auto by_deref = [&](Register reg) {
    if (registers_[reg].kind != Kind::kAligned) return false;
    for (const Slot& slot : slots_) {
      if (slot.at.kind != Kind::kAligned || slot.value.kind != Kind::kCfa || !FitsShort(-int64_t{slot.value.offset})) continue;
      rule.cfa_deref = 1;
      rule.cfa_add = static_cast<int16_t>(-slot.value.offset);
      return from(reg, int64_t{slot.at.offset} - registers_[reg].offset);
    }
    return false;
  };
  auto found = [&] {
    if (fp == Value{Kind::kCfa, -16} && Load({Kind::kCfa, -16}).kind == Kind::kEntryFp) return from(kRbp, 16);
    if (sp.kind == Kind::kCfa) return from(kRsp, -sp.offset);
    if (fp.kind == Kind::kCfa) return from(kRbp, -fp.offset);
    if (by_deref(kRbp) || by_deref(kRsp)) return true;
    for (int r = 0; r < 16; ++r) {
      if (registers_[r].kind == Kind::kCfa) return from(static_cast<Register>(r), -registers_[r].offset);
    }
    return false;
  };
  if (!found()) return none;
  SetFpRule(&rule);
  // The return address must still stand above the stack pointer, or be in a register.
  bool on_stack = Load({Kind::kCfa, -8}).kind == Kind::kReturnAddress && (sp.kind != Kind::kCfa || sp.offset <= -8);
  if (on_stack) {
    rule.ra_offset = -8;
    return rule;
  }
  for (int r = 0; r < 16; ++r) {
    if (registers_[r].kind != Kind::kReturnAddress) continue;
    rule.ra = UNWIND_RA_IN_REG;
    rule.ra_offset = kDwarf[r];
    return rule;
  }
  return none;
}

}  // namespace borescope::unwind::x86
