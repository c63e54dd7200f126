// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/go_rows.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/symbols/go_table.h"
#include "sampler/unwind/machine.h"

namespace borescope::unwind {
namespace {

using symbols::Machine;

constexpr uint64_t kMaxTable = 1u << 30;

// Code by file offset. Functions are asked for in order: a window is read ahead.
class Code {
 public:
  explicit Code(const symbols::ByteSource& source) : source_(source) {}
  // The bytes of [offset, offset + n), or as many as there are.
  std::span<const uint8_t> Get(uint64_t offset, uint64_t n) {
    constexpr uint64_t kWindow = 256 << 10;
    n = std::min(n, kWindow);
    if (offset < begin_ || offset + n > begin_ + window_.size()) {
      if (offset > source_.size()) return {};
      begin_ = offset;
      window_.resize(std::min(kWindow, source_.size() - offset));
      if (!source_.Read(begin_, window_.data(), window_.size())) window_.clear();
    }
    uint64_t at = offset - begin_;
    return std::span<const uint8_t>(window_).subspan(std::min<uint64_t>(at, window_.size())).first(std::min<uint64_t>(n, window_.size() - at));
  }

 private:
  const symbols::ByteSource& source_;
  uint64_t begin_ = 0;
  std::vector<uint8_t> window_;
};

struct Step {
  uint64_t begin, end;  // relative to the function's start
  uint32_t delta;       // x86-64: the return address stands at [sp + delta]; aarch64: at [sp] if delta is not 0, and the CFA is sp + delta
};

// Where a function has put its caller's frame pointer.
struct SavedFp {
  uint64_t from = UINT64_MAX;        // relative to the function's start: it is in its place
  uint64_t frame_from = UINT64_MAX;  // and from here on the frame pointer holds that place
  int64_t slot = 0;                  // its address is CFA + slot
  bool Holds(uint64_t at, uint32_t delta) const { return at >= from && delta + 8 >= -slot; }
};

uint32_t InstructionAt(std::span<const uint8_t> code, uint64_t at) {
  uint32_t in = 0;
  if (at + sizeof(in) <= code.size()) std::memcpy(&in, &code[at], sizeof(in));
  return in;
}

// aarch64's prologues: "str x30, [sp, #-n]!; stur x29, [sp, #-8]; sub x29, sp, #8", and for large frames "stp x29, x30, [x20, #-8]; mov sp, x20".
SavedFp FindSavedFpArm64(std::span<const uint8_t> code, std::span<const Step> steps) {
  constexpr uint32_t kSaveFp = 0xf81f83fd, kMoveSp = 0x9100029f, kSetFp = 0xd10023fd;
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].delta <= steps[i - 1].delta) continue;
    uint64_t at = steps[i].begin;
    if (at < 4) return {};
    if (InstructionAt(code, at) == kSaveFp) at += 4;
    else if (InstructionAt(code, at - 4) != kMoveSp) return {};
    return {at, InstructionAt(code, at) == kSetFp ? at + 4 : UINT64_MAX, -static_cast<int64_t>(steps[i].delta) - 8};
  }
  return {};
}

// Go's prologues: "push %rbp; mov %rsp,%rbp" since 1.21, before that "sub $n,%rsp; mov %rbp,n-8(%rsp); lea n-8(%rsp),%rbp".
SavedFp FindSavedFp(std::span<const uint8_t> code, std::span<const Step> steps) {
  constexpr size_t kGrowths = 3;  // a prologue is among the first
  size_t growths = 0;
  for (size_t i = 1; i < steps.size() && growths < kGrowths; ++i) {
    if (steps[i].delta <= steps[i - 1].delta) continue;
    ++growths;
    uint64_t at = steps[i].begin;
    if (at == 0 || at + 10 > code.size()) continue;
    const uint8_t* p = &code[at];
    auto is = [&](std::initializer_list<uint8_t> bytes, size_t offset) { return std::equal(bytes.begin(), bytes.end(), p + offset); };
    if (steps[i].delta == steps[i - 1].delta + 8 && p[-1] == 0x55) {
      SavedFp saved{at, UINT64_MAX, -static_cast<int64_t>(steps[i].delta) - 8};
      if (is({0x48, 0x89, 0xe5}, 0)) saved.frame_from = at + 3;
      return saved;
    }
    int64_t cfa = static_cast<int64_t>(steps[i].delta) + 8;  // from sp
    if (is({0x48, 0x89, 0x6c, 0x24}, 0) && is({0x48, 0x8d, 0x6c, 0x24, p[4]}, 5)) {
      return {at + 5, at + 10, static_cast<int8_t>(p[4]) - cfa};
    }
    if (at + 16 <= code.size() && is({0x48, 0x89, 0xac, 0x24}, 0) && is({0x48, 0x8d, 0xac, 0x24, p[4], p[5], p[6], p[7]}, 8)) {
      int32_t displacement;
      std::memcpy(&displacement, p + 4, 4);
      return {at + 8, at + 16, displacement - cfa};
    }
  }
  return {};
}

// Behind the first instruction that loads the stack pointer, relative to the code's begin: "mov m,%rsp", "mov r,%rsp"; "mov sp, x".
std::optional<uint64_t> FindSpLoad(Machine machine, std::span<const uint8_t> code) {
  if (machine == Machine::kArm64) {
    for (size_t i = 0; i + 4 <= code.size(); i += 4) {
      const uint32_t in = InstructionAt(code, i);
      if ((in & 0xfffffc1f) == 0x9100001f && in != 0x9100029f) return i + 4;  // from x20: a prologue
    }
    return std::nullopt;
  }
  for (size_t i = 0; i + 3 <= code.size(); ++i) {
    uint8_t rex = code[i], op = code[i + 1], modrm = code[i + 2];
    if (op == 0x89 && (rex & 0xf9) == 0x48 && (modrm & 0xc7) == 0xc4 && !(rex & 1)) return i + 3;
    if (op == 0x8b && (rex & 0xf8) == 0x48 && (modrm & 0x38) == 0x20 && !(rex & 4)) {
      uint8_t mod = modrm >> 6;
      return i + 3 + ((modrm & 7) == 4 && mod != 3) + (mod == 1 ? 1 : mod == 2 ? 4 : 0);
    }
  }
  return std::nullopt;
}

class Reader {
 public:
  Reader(Machine machine, const symbols::GoTable& table, const symbols::ByteSource& file, const CodeOffsets& code, size_t max_rows, Rules* rules,
         Layer* layer)
      : machine_(machine), registers_(RegistersOf(machine)), table_(table), code_(file), offsets_(code), max_rows_(max_rows), rules_(rules), layer_(layer) {}

  Result<uint64_t> Run() {
    for (uint64_t i = 0; i < table_.size(); ++i) {
      if (auto function = table_.At(i)) Add(i, *function);
      if (steps_seen_ > max_rows_) return Error{ErrorCode::kExhausted, "more than " + std::to_string(max_rows_) + " unwind rows of Go"};
    }
    return rows_;
  }

 private:
  uint16_t Simple(uint8_t kind) {
    unwind_rule rule = {};
    rule.kind = kind;
    return rules_->Index(rule);
  }

  void Emit(uint64_t offset, uint16_t rule) {
    ++rows_;
    layer_->Add(offset, rule);
  }

  void Add(uint64_t index, const symbols::GoFunction& function) {
    auto piece = offsets_.Find(function.start, function.end - function.start);
    if (!piece) return;
    uint64_t start = piece->offset, end = start + piece->size;
    ++steps_seen_;
    if (function.name == "runtime.sigreturn__sigaction" || function.name == "runtime.sigreturn") {
      // A handler returns to its first byte, and return addresses are looked up one byte before.
      layer_->Begin(start > 0 ? start - 1 : 0, end);
      return Emit(start > 0 ? start - 1 : 0, Simple(UNWIND_RULE_SIGNAL));
    }
    // sigtramp bears the mark of outermost functions because Go's own unwinder ends there; the kernel made it a frame.
    bool outermost = (function.top_frame && function.name != "runtime.sigtramp") || function.name.starts_with("_rt0_");
    if (outermost) {
      layer_->Begin(start, end);
      return Emit(start, Simple(UNWIND_RULE_END));
    }
    steps_.clear();
    table_.StackSteps(index, [&](uint64_t begin, uint64_t step_end, uint32_t delta) {
      steps_.push_back({begin - function.start, step_end - function.start, delta});
      return ++steps_seen_ <= max_rows_;
    });
    if (steps_.empty()) return;  // not of Go: linked in from C
    constexpr uint64_t kPrologue = 256;  // with the check of the stack's bound before it
    std::span<const uint8_t> code = code_.Get(start, std::min(piece->size, function.writes_sp ? uint64_t{4096} : kPrologue));
    SavedFp saved = machine_ == Machine::kArm64 ? FindSavedFpArm64(code, steps_) : FindSavedFp(code, steps_);
    layer_->Begin(start, end);
    // These two leave their caller for good: a stack of the scheduler is whole with mcall, a new thread's with clone.
    bool leaves = function.name == "runtime.mcall" || function.name == "runtime.clone";
    uint64_t moved = UINT64_MAX;  // from here on it stands on another stack, and has not kept where it came from
    if (function.writes_sp && (leaves || saved.frame_from == UINT64_MAX)) moved = FindSpLoad(machine_, code).value_or(0);
    for (const Step& step : steps_) {
      for (uint64_t at = step.begin; at < step.end && at < piece->size;) {
        uint64_t next = step.end;
        for (uint64_t change : {saved.from, saved.frame_from, moved}) {
          if (change > at) next = std::min(next, change);
        }
        if (at >= moved) {
          unwind_rule rule = {};
          rule.kind = leaves ? UNWIND_RULE_END : UNWIND_RULE_SWITCH;
          rule.fp = leaves ? UNWIND_FP_SAME : UNWIND_FP_UNKNOWN;
          Emit(start + at, rules_->Index(rule));
        } else {
          EmitStep(start, at, step.delta, saved, function.writes_sp && !leaves);
        }
        at = next;
      }
    }
  }

  void EmitStep(uint64_t start, uint64_t at, uint32_t delta, const SavedFp& saved, bool writes_sp) {
    unwind_rule rule = {};
    rule.kind = UNWIND_RULE_FRAME;
    rule.cfa_reg = registers_.sp;
    if (!registers_.links) {
      rule.cfa_offset = static_cast<int32_t>(delta) + 8;
      rule.ra_offset = -8;
    } else if (delta == 0) {
      rule.ra = UNWIND_RA_IN_REG;
      rule.ra_offset = registers_.return_address;
    } else if (delta > static_cast<uint32_t>(INT16_MAX)) {
      return Emit(start + at, kUnsupported);
    } else {
      rule.cfa_offset = static_cast<int32_t>(delta);
      rule.ra_offset = static_cast<int16_t>(-static_cast<int32_t>(delta));
    }
    if (saved.Holds(at, delta)) {
      bool fits = saved.slot >= INT16_MIN;
      rule.fp = fits ? UNWIND_FP_AT_CFA : UNWIND_FP_UNKNOWN;
      rule.fp_offset = fits ? static_cast<int16_t>(saved.slot) : int16_t{0};
      if (writes_sp && at >= saved.frame_from) {
        rule.kind = UNWIND_RULE_SWITCH;
        rule.cfa_reg = registers_.fp;
        rule.cfa_offset = static_cast<int32_t>(-saved.slot);
      }
    }
    Emit(start + at, rules_->Index(rule));
  }

  const Machine machine_;
  const MachineRegisters registers_;
  const symbols::GoTable& table_;
  Code code_;
  const CodeOffsets& offsets_;
  size_t max_rows_;
  Rules* rules_;
  Layer* layer_;
  std::vector<Step> steps_;
  uint64_t rows_ = 0, steps_seen_ = 0;
};

}  // namespace

Result<uint64_t> ReadGoRows(symbols::ElfFile& elf, const CodeOffsets& code, size_t max_rows, Rules* rules, Layer* layer) {
  const symbols::GoTable* found = elf.go_table();
  if (!found || found->bytes() > kMaxTable) return uint64_t{0};
  // Each number of it is read one by one: from memory.
  std::string bytes(std::min(found->bytes(), elf.source().size() - std::min(elf.source().size(), found->offset())), '\0');
  if (!elf.source().Read(found->offset(), bytes.data(), bytes.size())) return uint64_t{0};
  auto source = symbols::MemorySource(std::move(bytes));
  auto table = symbols::GoTable::Parse(*source, 0, source->size(), found->text());
  if (!table) return uint64_t{0};
  return Reader(elf.machine(), *table, elf.source(), code, max_rows, rules, layer).Run();
}

}  // namespace borescope::unwind
