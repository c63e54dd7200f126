// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/cfi.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "sampler/symbols/dwarf_cursor.h"
#include "sampler/unwind/machine.h"

namespace borescope::unwind {
namespace {

using symbols::DwarfCursor;

using symbols::Machine;

constexpr MachineRegisters kX86 = RegistersOf(Machine::kX86_64);
constexpr size_t kMaxRemembered = 256;
#ifdef BORESCOPE_PLANTED_FAULT  // tests/fuzz shows that such a fault is found
constexpr size_t kBeyondEnd = 64;
#else
constexpr size_t kBeyondEnd = 0;
#endif
constexpr size_t kMaxRunsOfCies = 4;  // so many times the section's size may be spent on CIEs that lie over each other

int64_t Add(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
int64_t Negated(int64_t a) { return static_cast<int64_t>(-static_cast<uint64_t>(a)); }
uint8_t Register(uint64_t number) { return static_cast<uint8_t>(std::min<uint64_t>(number, UINT8_MAX)); }
template <typename T>
bool Fits(int64_t value) {
  return value == static_cast<T>(value);
}

std::string RegisterName(Machine machine, uint8_t number) {
  if (machine == Machine::kArm64) return number == 31 ? "sp" : (number < 31 ? "x" : "register ") + std::to_string(number);
  static constexpr const char* kNames[] = {"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"};
  if (number < 8) return kNames[number];
  return (number <= 16 ? "r" : "register ") + std::to_string(number);
}

std::string Hex(std::span<const uint8_t> bytes) {
  constexpr size_t kShown = 24;
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes.first(std::min(bytes.size(), kShown))) {
    if (!text.empty()) text += ' ';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return bytes.size() > kShown ? text + " …" : text;
}

// What an expression computes, as far as rules can use it.
struct Value {
  enum class Kind : uint8_t { kConstant, kCfa, kRegister, kDeref };
  Kind kind = Kind::kConstant;
  uint8_t reg = 0;
  int64_t offset = 0;  // kConstant: the value; kCfa: CFA + offset; kRegister: [reg] + offset; kDeref: *([reg] + offset) + add
  int64_t add = 0;

  int64_t& addend() { return kind == Kind::kDeref ? add : offset; }
  // Whether it is `other` and a constant more, which then stands in *distance.
  bool Follows(const Value& other, int64_t* distance) const {
    if (kind != other.kind || reg != other.reg || (kind == Kind::kDeref && offset != other.offset)) return false;
    Value a = *this, b = other;
    *distance = Add(a.addend(), Negated(b.addend()));
    return true;
  }
};

// Runs a DWARF expression with unknown registers. Nothing: it computes something else.
std::optional<Value> Evaluate(std::span<const uint8_t> expression, bool cfa_on_stack) {
  constexpr uint8_t kDeref = 0x06, kPlus = 0x22, kMinus = 0x1c, kPlusUconst = 0x23, kNop = 0x96, kBregx = 0x92;
  std::array<Value, 4> stack;
  size_t depth = 0;
  auto push = [&](Value value) {
    if (depth == stack.size()) return false;
    stack[depth++] = value;
    return true;
  };
  auto constant = [&](int64_t value) { return push({Value::Kind::kConstant, 0, value, 0}); };
  if (cfa_on_stack) push({Value::Kind::kCfa, 0, 0, 0});
  DwarfCursor c(expression.data(), expression.size(), 0);
  while (!c.done()) {
    uint8_t op = c.Take<uint8_t>();
    bool ok = false;
    if (op >= 0x70 && op <= 0x8f) {
      ok = push({Value::Kind::kRegister, static_cast<uint8_t>(op - 0x70), c.Sleb(), 0});
    } else if (op >= 0x30 && op <= 0x4f) {
      ok = constant(op - 0x30);
    } else {
      switch (op) {
        case kBregx: {
          uint8_t reg = Register(c.Uleb());
          ok = push({Value::Kind::kRegister, reg, c.Sleb(), 0});
          break;
        }
        case 0x08: ok = constant(c.Take<uint8_t>()); break;
        case 0x09: ok = constant(c.Take<int8_t>()); break;
        case 0x0a: ok = constant(c.Take<uint16_t>()); break;
        case 0x0b: ok = constant(c.Take<int16_t>()); break;
        case 0x0c: ok = constant(c.Take<uint32_t>()); break;
        case 0x0d: ok = constant(c.Take<int32_t>()); break;
        case 0x0e: case 0x0f: ok = constant(c.Take<int64_t>()); break;
        case 0x10: ok = constant(static_cast<int64_t>(c.Uleb())); break;
        case 0x11: ok = constant(c.Sleb()); break;
        case kNop: ok = true; break;
        case kPlusUconst:
          ok = depth > 0;
          if (ok) stack[depth - 1].addend() = Add(stack[depth - 1].addend(), static_cast<int64_t>(c.Uleb()));
          break;
        case kPlus: case kMinus: {
          if (depth < 2) break;
          Value& a = stack[depth - 2];
          Value& b = stack[depth - 1];
          if (op == kPlus && a.kind == Value::Kind::kConstant) std::swap(a, b);
          ok = b.kind == Value::Kind::kConstant;
          a.addend() = Add(a.addend(), op == kPlus ? b.offset : Negated(b.offset));
          --depth;
          break;
        }
        case kDeref:
          ok = depth > 0 && stack[depth - 1].kind == Value::Kind::kRegister;
          if (ok) stack[depth - 1].kind = Value::Kind::kDeref;
          break;
        default: break;
      }
    }
    if (!ok) return std::nullopt;
  }
  if (!c.ok() || depth == 0) return std::nullopt;
  return stack[depth - 1];
}

// What linkers write for .plt of x86-64: CFA = rsp + a + ((rip & 15) >= b ? 8 : 0).
bool IsPlt(std::span<const uint8_t> expression, int64_t* at_begin, uint8_t* push_ends) {
  DwarfCursor c(expression.data(), expression.size(), 0);
  if (c.Take<uint8_t>() != 0x70 + kX86.sp) return false;
  *at_begin = c.Sleb();
  if (c.Take<uint8_t>() != 0x70 + kX86.return_address || c.Sleb() != 0 || c.Take<uint8_t>() != 0x30 + 15 || c.Take<uint8_t>() != 0x1a) return false;
  uint8_t from = c.Take<uint8_t>();
  *push_ends = static_cast<uint8_t>(from - 0x30);
  static constexpr uint8_t kRest[] = {0x2a, 0x30 + 3, 0x24, 0x22};  // ge, lit3, shl, plus
  return from >= 0x30 && from <= 0x30 + 15 && c.ok() && c.left() == sizeof(kRest) && std::memcmp(c.at(), kRest, sizeof(kRest)) == 0;
}

// Where the caller's value of one register is.
struct Saved {
  enum class Kind : uint8_t { kUnspecified, kSame, kUndefined, kAt, kRegister, kValue, kExpression };
  Kind kind = Kind::kUnspecified;
  Value at;                              // kAt: its address; kRegister: at.reg
  std::span<const uint8_t> expression{};  // kExpression: an address that rules cannot tell; kValue: may be empty
};

struct State {
  enum class Cfa : uint8_t { kUnset, kValue, kPlt, kExpression };
  Cfa cfa = Cfa::kUnset;
  Value value;  // kPlt: addend: at begin, `add`: where the push ends
  std::span<const uint8_t> expression{};
  // Register and offset told last: after an expression one of them may be told anew and the other one still holds.
  uint8_t reg = 0;
  int64_t offset = 0;
  Saved fp, sp, ra;
};

struct Cie {
  std::string problem;  // empty: usable
  uint64_t code_align = 1;
  int64_t data_align = 1;
  uint64_t ra_column = 0;
  uint8_t encoding = 0;  // of pointers in its FDEs
  bool augmented = false, signal_frame = false;
  State state;  // after its instructions
};

// The frame that the kernel writes for a signal handler: glibc tells of it by expressions; aarch64's kernel, as far as it does, by the frame
// record that it leaves beside the registers.
bool IsKernelSignalFrame(Machine machine, const State& state) {
  if (machine == Machine::kArm64) {
    constexpr MachineRegisters kArm64 = RegistersOf(Machine::kArm64);
    return state.cfa == State::Cfa::kValue && state.value.kind == Value::Kind::kRegister && state.value.reg == kArm64.fp && state.value.offset == 0 &&
           state.ra.kind == Saved::Kind::kAt && state.ra.at.kind == Value::Kind::kCfa && state.ra.at.offset == 8;
  }
  constexpr int64_t kRspInFrame = 160, kRipInFrame = 168;  // ucontext.uc_mcontext.{rsp, rip}
  return state.cfa == State::Cfa::kValue && state.value.kind == Value::Kind::kDeref && state.value.reg == kX86.sp &&
         state.value.offset == kRspInFrame && state.value.add == 0 && state.ra.kind == Saved::Kind::kAt &&
         state.ra.at.kind == Value::Kind::kRegister && state.ra.at.reg == kX86.sp && state.ra.at.offset == kRipInFrame;
}

std::string Tell(Machine machine, const char* what, const Saved& saved) {
  std::string text = what;
  switch (saved.kind) {
    case Saved::Kind::kRegister: return text + " in register " + RegisterName(machine, saved.at.reg);
    case Saved::Kind::kValue: return text + " computed" + (saved.expression.empty() ? " from the CFA" : " by " + Hex(saved.expression));
    case Saved::Kind::kExpression: return text + " saved at expression " + Hex(saved.expression);
    case Saved::Kind::kAt:
      if (saved.at.kind == Value::Kind::kCfa) return text + " saved at CFA" + (saved.at.offset < 0 ? "" : "+") + std::to_string(saved.at.offset);
      return text + " saved at an address told by " + RegisterName(machine, saved.at.reg);
    default: return text + " not told";
  }
}

// The rule for a state. *missing: empty, or what the rule cannot express.
unwind_rule ToRule(Machine machine, const Cie& cie, const State& state, std::string* missing) {
  const MachineRegisters registers = RegistersOf(machine);
  missing->clear();
  unwind_rule rule = {};
  auto unsupported = [&](std::string what) {
    *missing = std::move(what);
    unwind_rule none = {};
    none.kind = UNWIND_RULE_UNSUPPORTED;
    return none;
  };
  if (state.ra.kind == Saved::Kind::kUndefined) {
    rule.kind = UNWIND_RULE_END;
    return rule;
  }
  if (cie.signal_frame && IsKernelSignalFrame(machine, state)) {
    rule.kind = UNWIND_RULE_SIGNAL;
    return rule;
  }
  const Value& cfa = state.value;
  switch (state.cfa) {
    case State::Cfa::kUnset: return unsupported("no CFA");
    case State::Cfa::kExpression: return unsupported("CFA expression " + Hex(state.expression));
    case State::Cfa::kPlt:
      if (!Fits<int32_t>(cfa.offset)) return unsupported("CFA expression " + Hex(state.expression));
      rule.kind = UNWIND_RULE_PLT;
      rule.cfa_reg = kX86.sp;
      rule.cfa_offset = static_cast<int32_t>(cfa.offset);
      rule.cfa_add = static_cast<int16_t>(cfa.add);
      break;
    case State::Cfa::kValue:
      if (cfa.kind != Value::Kind::kRegister && cfa.kind != Value::Kind::kDeref) return unsupported("CFA expression " + Hex(state.expression));
      if (cfa.reg >= registers.count) return unsupported("CFA told by register " + std::to_string(cfa.reg));
      if (!Fits<int32_t>(cfa.offset) || !Fits<int16_t>(cfa.add)) return unsupported("CFA too far from " + RegisterName(machine, cfa.reg));
      rule.kind = UNWIND_RULE_FRAME;
      rule.cfa_reg = cfa.reg;
      rule.cfa_deref = cfa.kind == Value::Kind::kDeref;
      rule.cfa_offset = static_cast<int32_t>(cfa.offset);
      rule.cfa_add = static_cast<int16_t>(cfa.add);
      break;
  }
  // The CFA is what the caller's stack pointer will be; longjmp, for one, tells another.
  if (state.sp.kind != Saved::Kind::kUnspecified && state.sp.kind != Saved::Kind::kSame) return unsupported(Tell(machine, "stack pointer", state.sp));
  // aarch64's frames have frame pointer and return address at their lower end, which may be far from the CFA.
  if (machine == Machine::kArm64 && state.ra.kind == Saved::Kind::kAt && state.ra.at.kind == Value::Kind::kCfa && !rule.cfa_deref &&
      !Fits<int16_t>(state.ra.at.offset) && Fits<int16_t>(state.ra.at.offset / 8)) {
    rule.cfa_add = static_cast<int16_t>(state.ra.at.offset / 8);
  }
  const int64_t base = machine == Machine::kArm64 && !rule.cfa_deref ? int64_t{rule.cfa_add} * 8 : 0;
  // Offset from the CFA (or from that place) of an address, when it is one.
  auto from_cfa = [&](const Value& at, int64_t* distance) {
    if (at.kind == Value::Kind::kCfa) *distance = Add(at.offset, -base);
    return (at.kind == Value::Kind::kCfa || (state.cfa == State::Cfa::kValue && at.Follows(cfa, distance))) && Fits<int16_t>(*distance);
  };
  int64_t distance = 0;
  if (state.ra.kind == Saved::Kind::kAt && from_cfa(state.ra.at, &distance)) {
    rule.ra_offset = static_cast<int16_t>(distance);
  } else if (state.ra.kind == Saved::Kind::kRegister && state.ra.at.reg < registers.count) {
    rule.ra = UNWIND_RA_IN_REG;
    rule.ra_offset = state.ra.at.reg;
  } else if (registers.links && (state.ra.kind == Saved::Kind::kUnspecified || state.ra.kind == Saved::Kind::kSame)) {
    rule.ra = UNWIND_RA_IN_REG;
    rule.ra_offset = registers.return_address;
  } else {
    return unsupported(Tell(machine, "return address", state.ra));
  }
  const Saved& fp = state.fp;
  if (fp.kind == Saved::Kind::kUnspecified || fp.kind == Saved::Kind::kSame || (fp.kind == Saved::Kind::kRegister && fp.at.reg == registers.fp)) {
    rule.fp = UNWIND_FP_SAME;
  } else if (fp.kind == Saved::Kind::kAt && from_cfa(fp.at, &distance)) {
    rule.fp = UNWIND_FP_AT_CFA;
    rule.fp_offset = static_cast<int16_t>(distance);
  } else if (fp.kind == Saved::Kind::kAt && fp.at.kind == Value::Kind::kRegister && fp.at.reg == registers.fp && Fits<int16_t>(fp.at.offset)) {
    rule.fp = UNWIND_FP_AT_FP;
    rule.fp_offset = static_cast<int16_t>(fp.at.offset);
  } else {
    rule.fp = UNWIND_FP_UNKNOWN;
    if (fp.kind != Saved::Kind::kUndefined) *missing = Tell(machine, "frame pointer", fp);
  }
  return rule;
}

class Reader {
 public:
  Reader(const CfiSection& section, const CodeOffsets& code, size_t max_rows, Rules* rules, Layer* layer, MissingRules* missing)
      : section_(section), machine_(section.machine), registers_(RegistersOf(machine_)), code_(code), max_rows_(max_rows), rules_(rules), layer_(layer), missing_(missing) {
    cie_budget_ = (section.bytes.size() + 4096) * kMaxRunsOfCies;
  }

  Result<CfiResult> Run() {
    uint64_t size = section_.bytes.size(), at = 0;
    while (at + 4 <= size) {
      Record record;
      if (!ReadRecord(at, &record)) {
        Missing("section that is cut off", 0);
        break;
      }
      if (record.end == record.begin) {
        if (section_.to_terminator) break;
      } else if (!record.is_cie) {
        ReadFde(record);
        if (layer_->size() > max_rows_) {
          return Error{ErrorCode::kExhausted, "more than " + std::to_string(max_rows_) + " unwind rows"};
        }
      }
      at = record.end;
    }
    return result_;
  }

 private:
  struct Record {
    uint64_t begin = 0, end = 0;  // what follows the length, in section_.bytes
    uint64_t body = 0;            // what follows the CIE's id or pointer
    bool is_cie = false;
    uint64_t cie = 0;             // of an FDE: where its CIE begins
  };

  DwarfCursor CursorAt(uint64_t begin, uint64_t end) const {
    return DwarfCursor(section_.bytes.data() + begin, static_cast<size_t>(end - begin), section_.vaddr + begin);
  }

  void Missing(const std::string& what, uint64_t file_offset) {
    missing_->Count(what, file_offset);
    ++result_.unsupported_rows;
  }

  bool ReadRecord(uint64_t at, Record* record) const {
    if (at > section_.bytes.size()) return false;
    DwarfCursor c = CursorAt(at, section_.bytes.size());
    uint64_t length = c.Take<uint32_t>();
    bool wide = length == UINT32_MAX;
    if (wide) length = c.Take<uint64_t>();
    if (!c.ok() || length > c.left() + kBeyondEnd) return false;
    record->begin = section_.bytes.size() - c.left();
    record->end = record->begin + length;
    if (length == 0) return true;
    // The pointer to the CIE has 4 bytes in .eh_frame, whatever the length has.
    DwarfCursor body = CursorAt(record->begin, record->end);
    bool wide_id = wide && section_.debug_frame;
    uint64_t id = wide_id ? body.Take<uint64_t>() : body.Take<uint32_t>();
    if (!body.ok()) return false;
    record->body = record->end - body.left();
    if (section_.debug_frame) {
      record->is_cie = id == (wide_id ? UINT64_MAX : UINT32_MAX);
      record->cie = id;
    } else {
      record->is_cie = id == 0;
      record->cie = id <= record->begin ? record->begin - id : UINT64_MAX;
    }
    return true;
  }

  const Cie& FindCie(uint64_t at) {
    auto [it, added] = cies_.try_emplace(at);
    if (added) it->second.problem = ReadCie(at, &it->second);
    return it->second;
  }

  // What is wrong with it, or "".
  std::string ReadCie(uint64_t at, Cie* cie) {
    Record record;
    if (!ReadRecord(at, &record) || !record.is_cie) return "function whose CIE is none";
    if (record.end - record.begin > cie_budget_) return "CIEs that lie over each other";
    cie_budget_ -= record.end - record.begin;
    DwarfCursor c = CursorAt(record.body, record.end);
    uint8_t version = c.Take<uint8_t>();
    if (version != 1 && version != 3 && version != 4) return "CIE version " + std::to_string(version);
    std::string augmentation;
    while (char letter = c.Take<char>()) augmentation += letter;
    if (augmentation == "eh") c.Take<uint64_t>();  // of GCC 2
    if (version == 4 && (c.Take<uint8_t>() != 8 || c.Take<uint8_t>() != 0)) return "CIE with addresses of another size";
    cie->code_align = c.Uleb();
    cie->data_align = c.Sleb();
    cie->ra_column = version == 1 ? c.Take<uint8_t>() : c.Uleb();
    if (augmentation.starts_with('z')) {
      cie->augmented = true;
      DwarfCursor data = c.Block(c.Uleb());
      for (char letter : augmentation.substr(1)) {
        switch (letter) {
          case 'R': cie->encoding = data.Take<uint8_t>(); break;
          case 'L': data.Take<uint8_t>(); break;
          case 'P': {
            uint8_t encoding = data.Take<uint8_t>();
            data.Pointer(encoding & 0x0f);  // only its size matters
            break;
          }
          case 'S': cie->signal_frame = true; break;
          case 'B': case 'G': break;  // of aarch64
          default: return "CIE augmentation " + Printable(augmentation);
        }
      }
      if (!data.ok()) return "CIE that is cut off";
    } else if (!augmentation.empty() && augmentation != "eh") {
      return "CIE augmentation " + Printable(augmentation);
    }
    if (!c.ok()) return "CIE that is cut off";
    cie_ = cie;
    state_ = {};
    initial_ = nullptr;
    remembered_.clear();
    begin_ = end_ = location_ = 0;  // it has no code
    std::string problem = Execute(c);
    cie->state = state_;
    return problem;
  }

  static std::string Printable(std::string text) {
    text.resize(std::min<size_t>(text.size(), 16));
    for (char& letter : text) {
      if (letter < ' ' || letter > '~') letter = '?';
    }
    return text;
  }

  void ReadFde(const Record& record) {
    const Cie& cie = FindCie(record.cie);
    if (!cie.problem.empty()) return Missing(cie.problem, 0);
    DwarfCursor c = CursorAt(record.body, record.end);
    uint64_t start = c.Pointer(cie.encoding);
    uint64_t size = c.Pointer(cie.encoding & 0x0f);
    if (cie.augmented) c.Block(c.Uleb());
    if (!c.ok()) return Missing("function entry that is cut off", 0);
    if (size == 0) return;
    auto piece = code_.Find(start, size);
    if (!piece) {
      ++result_.outside;
      return;
    }
    ++result_.functions;
    to_offset_ = piece->offset - piece->vaddr;
    begin_ = location_ = start;
    end_ = start + piece->size;
    cie_ = &cie;
    state_ = cie.state;
    initial_ = &cie.state;
    remembered_.clear();
    changed_ = true;
    layer_->Begin(piece->offset, piece->offset + piece->size);
    std::string problem = Execute(c);
    if (location_ >= end_) return;
    if (problem.empty()) return EmitRow();
    // What stands before the broken instruction is told; the rest of the function is not known.
    Missing(problem, location_ + to_offset_);
    ++result_.rows;
    layer_->Add(location_ + to_offset_, kUnsupported);
  }

  // The row from location_ on.
  void EmitRow() {
    if (changed_) {
      unwind_rule rule = ToRule(machine_, *cie_, state_, &problem_);
      rule_ = rules_->Index(rule);
      if (rule_ == kUnsupported && problem_.empty()) problem_ = "more than " + std::to_string(UNWIND_MAX_RULES) + " different rules";
      if (cie_->ra_column != registers_.return_address) {
        problem_ = "return address in column " + std::to_string(cie_->ra_column);
        rule_ = kUnsupported;
      }
      changed_ = false;
    }
    if (!problem_.empty()) Missing(problem_, location_ + to_offset_);
    ++result_.rows;
    layer_->Add(location_ + to_offset_, rule_);
  }

  void AdvanceTo(uint64_t to) {
    if (to <= location_ || location_ >= end_) return;
    EmitRow();
    location_ = to;
  }
  void Advance(uint64_t units) {
    uint64_t by;
    if (__builtin_mul_overflow(units, cie_->code_align, &by) || by > end_ - std::min(end_, location_)) by = end_ - std::min(end_, location_);
    AdvanceTo(location_ + by);
  }

  int64_t Scale(int64_t factored) const {
    return static_cast<int64_t>(static_cast<uint64_t>(factored) * static_cast<uint64_t>(cie_->data_align));
  }
  bool Follows(uint64_t reg) const { return reg == registers_.fp || reg == registers_.sp || reg == registers_.return_address; }
  void Set(uint64_t reg, const Saved& saved) {
    if (reg == registers_.fp) {
      state_.fp = saved;
    } else if (reg == registers_.sp) {
      state_.sp = saved;
    } else if (reg == registers_.return_address) {
      state_.ra = saved;
    } else {
      return;
    }
    changed_ = true;
  }
  void SetOffset(uint64_t reg, int64_t factored) {
    if (Follows(reg)) Set(reg, {Saved::Kind::kAt, {Value::Kind::kCfa, 0, Scale(factored), 0}});
  }
  void Restore(uint64_t reg) {
    static const Saved kUnspecified;
    if (reg == registers_.fp) Set(reg, initial_ ? initial_->fp : kUnspecified);
    if (reg == registers_.sp) Set(reg, initial_ ? initial_->sp : kUnspecified);
    if (reg == registers_.return_address) Set(reg, initial_ ? initial_->ra : kUnspecified);
  }
  void DefineCfa(uint64_t reg, int64_t offset) {
    state_.cfa = State::Cfa::kValue;
    state_.expression = {};
    state_.reg = Register(reg);
    state_.offset = offset;
    state_.value = {Value::Kind::kRegister, state_.reg, offset, 0};
    changed_ = true;
  }
  // Says nothing of the CFA while an expression tells it.
  void DefineCfaOffset(int64_t offset) {
    state_.offset = offset;
    if (state_.cfa == State::Cfa::kValue && state_.expression.empty()) DefineCfa(state_.reg, offset);
  }
  void DefineCfaExpression(std::span<const uint8_t> expression) {
    int64_t at_begin;
    uint8_t push_ends;
    state_.expression = expression;
    changed_ = true;
    if (auto value = Evaluate(expression, false)) {
      state_.cfa = State::Cfa::kValue;
      state_.value = *value;
    } else if (machine_ == Machine::kX86_64 && IsPlt(expression, &at_begin, &push_ends)) {
      state_.cfa = State::Cfa::kPlt;
      state_.value = {Value::Kind::kRegister, kX86.sp, at_begin, push_ends};
    } else {
      state_.cfa = State::Cfa::kExpression;
    }
  }
  std::span<const uint8_t> TakeBlock(DwarfCursor* c) {
    DwarfCursor block = c->Block(c->Uleb());
    return {block.at(), block.left()};
  }

  // Runs call frame instructions; rows are emitted when the location moves on. What is wrong, or "".
  std::string Execute(DwarfCursor c) {
    while (!c.done()) {
      uint8_t op = c.Take<uint8_t>();
      uint8_t operand = op & 0x3f;
      switch (op & 0xc0) {
        case 0x40: Advance(operand); continue;
        case 0x80: SetOffset(operand, static_cast<int64_t>(c.Uleb())); continue;
        case 0xc0: Restore(operand); continue;
      }
      switch (op) {
        case 0x00: break;                                     // nop
        case 0x01: AdvanceTo(std::min(c.Pointer(cie_->encoding), end_)); break;  // set_loc
        case 0x02: Advance(c.Take<uint8_t>()); break;
        case 0x03: Advance(c.Take<uint16_t>()); break;
        case 0x04: Advance(c.Take<uint32_t>()); break;
        case 0x05: { uint64_t reg = c.Uleb(); SetOffset(reg, static_cast<int64_t>(c.Uleb())); break; }
        case 0x06: Restore(c.Uleb()); break;
        case 0x07: Set(c.Uleb(), {Saved::Kind::kUndefined, {}}); break;
        case 0x08: Set(c.Uleb(), {Saved::Kind::kSame, {}}); break;
        case 0x09: {  // register
          uint64_t reg = c.Uleb();
          Set(reg, {Saved::Kind::kRegister, {Value::Kind::kRegister, Register(c.Uleb()), 0, 0}});
          break;
        }
        case 0x0a:
          if (remembered_.size() == kMaxRemembered) return "state remembered too often";
          remembered_.push_back(state_);
          break;
        case 0x0b:
          if (remembered_.empty()) return "state that was not remembered";
          state_ = remembered_.back();
          remembered_.pop_back();
          changed_ = true;
          break;
        case 0x0c: { uint64_t reg = c.Uleb(); DefineCfa(reg, static_cast<int64_t>(c.Uleb())); break; }
        case 0x0d: DefineCfa(c.Uleb(), state_.offset); break;
        case 0x0e: DefineCfaOffset(static_cast<int64_t>(c.Uleb())); break;
        case 0x0f: DefineCfaExpression(TakeBlock(&c)); break;
        case 0x10: {  // expression
          uint64_t reg = c.Uleb();
          std::span<const uint8_t> expression = TakeBlock(&c);
          if (!Follows(reg)) break;
          auto value = Evaluate(expression, true);
          bool known = value && value->kind != Value::Kind::kConstant;
          Set(reg, {known ? Saved::Kind::kAt : Saved::Kind::kExpression, known ? *value : Value{}, expression});
          break;
        }
        case 0x11: { uint64_t reg = c.Uleb(); SetOffset(reg, c.Sleb()); break; }
        case 0x12: { uint64_t reg = c.Uleb(); DefineCfa(reg, Scale(c.Sleb())); break; }
        case 0x13: DefineCfaOffset(Scale(c.Sleb())); break;
        case 0x14: {  // val_offset
          uint64_t reg = c.Uleb(), offset = c.Uleb();
          Set(reg, {reg == registers_.sp && offset == 0 ? Saved::Kind::kSame : Saved::Kind::kValue, {}});  // the CFA itself
          break;
        }
        case 0x15: {  // val_offset_sf
          uint64_t reg = c.Uleb();
          int64_t offset = c.Sleb();
          Set(reg, {reg == registers_.sp && offset == 0 ? Saved::Kind::kSame : Saved::Kind::kValue, {}});
          break;
        }
        case 0x16: { uint64_t reg = c.Uleb(); Set(reg, {Saved::Kind::kValue, {}, TakeBlock(&c)}); break; }
        case 0x2e: c.Uleb(); break;  // GNU_args_size
        case 0x2f: {                 // GNU_negative_offset_extended
          uint64_t reg = c.Uleb();
          SetOffset(reg, Negated(static_cast<int64_t>(c.Uleb())));
          break;
        }
        case 0x2c: case 0x2d:  // AARCH64_negate_ra_state{_with_pc,}: the return address is signed, or no more. Its signature is taken off everywhere
          if (machine_ == Machine::kArm64) break;
          [[fallthrough]];
        default: {
          uint8_t bytes[] = {op};
          return "call frame instruction " + Hex(bytes);
        }
      }
    }
    return c.ok() ? "" : "call frame instructions that are cut off";
  }

  const CfiSection& section_;
  const Machine machine_;
  const MachineRegisters registers_;
  const CodeOffsets& code_;
  size_t max_rows_;
  Rules* rules_;
  Layer* layer_;
  MissingRules* missing_;
  CfiResult result_;
  std::map<uint64_t, Cie> cies_;
  uint64_t cie_budget_;
  // of the FDE (or CIE) that is read
  const Cie* cie_ = nullptr;
  State state_;
  const State* initial_ = nullptr;
  std::vector<State> remembered_;
  uint64_t begin_ = 0, end_ = 0, location_ = 0, to_offset_ = 0;
  bool changed_ = true;  // the state, since rule_ and problem_ were made from it
  uint16_t rule_ = kNoRule;
  std::string problem_;
};

}  // namespace

CodeOffsets::CodeOffsets(const symbols::ElfFile& elf) {
  for (const auto& segment : elf.segments()) {
    if (segment.executable && segment.file_size > 0) segments_.push_back({segment.vaddr, segment.offset, segment.file_size});
  }
}

std::optional<CodeOffsets::Piece> CodeOffsets::Find(uint64_t vaddr, uint64_t size) const {
  for (const Piece& s : segments_) {
    if (vaddr < s.vaddr || vaddr - s.vaddr >= s.size) continue;
    uint64_t within = vaddr - s.vaddr, offset = s.offset + within;
    size = std::min(size, s.size - within);
    if (offset > kMaxFileOffset || size > kMaxFileOffset - offset) return std::nullopt;
    return Piece{vaddr, offset, size};
  }
  return std::nullopt;
}

Result<CfiResult> ReadCfi(const CfiSection& section, const CodeOffsets& code, size_t max_rows, Rules* rules, Layer* layer, MissingRules* missing) {
  return Reader(section, code, max_rows, rules, layer, missing).Run();
}

}  // namespace borescope::unwind
