// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/x86_instruction.h"

#include <array>
#include <cstring>

namespace borescope::unwind::x86 {
namespace {

// What follows an opcode, and which registers it writes.
enum : uint16_t {
  kModrm = 1 << 0,
  kImm8 = 1 << 1,
  kImmZ = 1 << 2,      // 4 bytes, 2 with an operand size of 16 bits
  kImm16 = 1 << 3,
  kInvalid = 1 << 4,
  kByte = 1 << 5,      // register operands are bytes: without REX, 4 … 7 are ah, ch, dh, bh
  kWriteRm = 1 << 6,   // the r/m operand, when it is a register
  kWriteReg = 1 << 7,  // the reg operand
  kWriteRax = 1 << 8,
  kWriteRcx = 1 << 9,
  kWriteRdx = 1 << 10,
  kWriteIndex = 1 << 11,  // rsi, rdi (string instructions), rcx (their count)
  kWriteLow = 1 << 12,    // the register in the low 3 bits of the opcode
  kNeedsF = 1 << 13,      // kWriteReg holds with a prefix f2 or f3 only
};

using Table = std::array<uint16_t, 256>;

consteval Table OneByte() {
  Table t{};
  for (int op = 0; op < 0x40; op += 8) {
    bool compare = op == 0x38;
    uint16_t rm = compare ? 0 : kWriteRm, reg = compare ? 0 : kWriteReg, rax = compare ? 0 : kWriteRax;
    t[op] = kModrm | kByte | rm;
    t[op + 1] = kModrm | rm;
    t[op + 2] = kModrm | kByte | reg;
    t[op + 3] = kModrm | reg;
    t[op + 4] = kImm8 | rax;
    t[op + 5] = kImmZ | rax;
    t[op + 6] = t[op + 7] = kInvalid;
  }
  for (int op = 0x58; op < 0x60; ++op) t[op] = kWriteLow;
  t[0x60] = t[0x61] = kInvalid;
  t[0x63] = kModrm | kWriteReg;
  t[0x68] = kImmZ;
  t[0x69] = kModrm | kImmZ | kWriteReg;
  t[0x6a] = kImm8;
  t[0x6b] = kModrm | kImm8 | kWriteReg;
  for (int op = 0x6c; op < 0x70; ++op) t[op] = kWriteIndex;
  for (int op = 0x70; op < 0x80; ++op) t[op] = kImm8;
  t[0x80] = kModrm | kByte | kImm8 | kWriteRm;
  t[0x81] = kModrm | kImmZ | kWriteRm;
  t[0x82] = kInvalid;
  t[0x83] = kModrm | kImm8 | kWriteRm;
  t[0x84] = kModrm | kByte;
  t[0x85] = kModrm;
  t[0x86] = kModrm | kByte | kWriteRm | kWriteReg;
  t[0x87] = kModrm | kWriteRm | kWriteReg;
  t[0x88] = kModrm | kByte | kWriteRm;
  t[0x89] = kModrm | kWriteRm;
  t[0x8a] = kModrm | kByte | kWriteReg;
  t[0x8b] = kModrm | kWriteReg;
  t[0x8c] = kModrm | kWriteRm;
  t[0x8d] = kModrm | kWriteReg;
  t[0x8e] = kModrm;
  t[0x8f] = kModrm | kWriteRm;
  for (int op = 0x91; op < 0x98; ++op) t[op] = kWriteLow | kWriteRax;
  t[0x98] = kWriteRax;
  t[0x99] = kWriteRdx;
  t[0x9a] = kInvalid;
  t[0x9f] = kWriteRax;
  for (int op = 0xa4; op < 0xa8; ++op) t[op] = kWriteIndex;
  t[0xa8] = kImm8;
  t[0xa9] = kImmZ;
  for (int op = 0xaa; op < 0xb0; ++op) t[op] = kWriteIndex;
  t[0xac] |= kWriteRax;
  t[0xad] |= kWriteRax;
  for (int op = 0xb0; op < 0xb8; ++op) t[op] = kImm8 | kByte | kWriteLow;
  for (int op = 0xb8; op < 0xc0; ++op) t[op] = kImmZ | kWriteLow;  // 8 bytes with REX.W
  t[0xc0] = kModrm | kByte | kImm8 | kWriteRm;
  t[0xc1] = kModrm | kImm8 | kWriteRm;
  t[0xc2] = kImm16;
  t[0xc6] = kModrm | kByte | kImm8 | kWriteRm;
  t[0xc7] = kModrm | kImmZ | kWriteRm;
  t[0xc8] = kImm16;  // and a byte
  t[0xca] = kImm16;
  t[0xcd] = kImm8 | kWriteRax;
  t[0xce] = kInvalid;
  t[0xd0] = t[0xd2] = kModrm | kByte | kWriteRm;
  t[0xd1] = t[0xd3] = kModrm | kWriteRm;
  t[0xd4] = t[0xd5] = t[0xd6] = kInvalid;
  t[0xd7] = kWriteRax;
  for (int op = 0xd8; op < 0xe0; ++op) t[op] = kModrm;
  for (int op = 0xe0; op < 0xe3; ++op) t[op] = kImm8 | kWriteRcx;
  t[0xe3] = kImm8;
  t[0xe4] = t[0xe5] = kImm8 | kWriteRax;
  t[0xe6] = t[0xe7] = kImm8;
  t[0xe8] = t[0xe9] = kImmZ;
  t[0xea] = kInvalid;
  t[0xeb] = kImm8;
  t[0xec] = t[0xed] = kWriteRax;
  t[0xf6] = kModrm | kByte;
  t[0xf7] = kModrm;
  t[0xfe] = kModrm | kByte | kWriteRm;
  t[0xff] = kModrm;
  return t;
}

// Opcodes behind 0f.
consteval Table TwoByte() {
  Table t{};
  for (int op = 0; op < 256; ++op) t[op] = kModrm;
  t[0x02] = t[0x03] = kModrm | kWriteReg;
  for (int op : {0x05, 0x06, 0x07, 0x08, 0x09, 0x0b, 0x0e, 0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x37, 0x77, 0xa0, 0xa1, 0xa2, 0xa8, 0xa9, 0xaa}) t[op] = 0;
  for (int op : {0x04, 0x0a, 0x0c, 0x24, 0x25, 0x26, 0x27, 0x36, 0x39, 0x3b, 0x3c, 0x3d, 0x3e, 0x3f, 0x7a, 0x7b}) t[op] = kInvalid;
  t[0x0f] = kModrm | kImm8;  // 3DNow!
  t[0x20] = t[0x21] = kModrm | kWriteRm;
  t[0x2c] = t[0x2d] = kModrm | kWriteReg | kNeedsF;
  t[0x31] = t[0x32] = t[0x33] = kWriteRax | kWriteRdx;
  for (int op = 0x40; op < 0x50; ++op) t[op] = kModrm | kWriteReg;
  t[0x50] = kModrm | kWriteReg;
  for (int op = 0x70; op < 0x74; ++op) t[op] = kModrm | kImm8;
  t[0x78] = kModrm | kWriteRm;
  t[0x7e] = kModrm | kWriteRm;
  for (int op = 0x80; op < 0x90; ++op) t[op] = kImmZ;
  for (int op = 0x90; op < 0xa0; ++op) t[op] = kModrm | kByte | kWriteRm;
  t[0xa4] = t[0xac] = kModrm | kImm8 | kWriteRm;
  t[0xa5] = t[0xad] = t[0xab] = t[0xb3] = t[0xbb] = kModrm | kWriteRm;
  t[0xa6] = t[0xa7] = kModrm | kWriteIndex | kWriteRax;
  t[0xaf] = kModrm | kWriteReg;
  t[0xb0] = kModrm | kByte | kWriteRm | kWriteRax;
  t[0xb1] = kModrm | kWriteRm | kWriteRax;
  for (int op : {0xb2, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xbc, 0xbd, 0xbe, 0xbf}) t[op] = kModrm | kWriteReg;
  t[0xba] = kModrm | kImm8 | kWriteRm;
  t[0xc0] = kModrm | kByte | kWriteRm | kWriteReg;
  t[0xc1] = kModrm | kWriteRm | kWriteReg;
  t[0xc2] = t[0xc4] = t[0xc6] = kModrm | kImm8;
  t[0xc5] = kModrm | kImm8 | kWriteReg;
  t[0xc7] = kModrm | kWriteRm | kWriteRax | kWriteRdx;
  for (int op = 0xc8; op < 0xd0; ++op) t[op] = kWriteLow;
  t[0xd7] = kModrm | kWriteReg;
  return t;
}

constexpr Table kOneByte = OneByte(), kTwoByte = TwoByte();

// Bytes of one instruction, read in order.
class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> code) : code_(code.first(code.size() < kMaxInstruction ? code.size() : kMaxInstruction)) {}
  uint8_t Take() {
    if (at_ >= code_.size()) {
      whole_ = false;
      return 0;
    }
    return code_[at_++];
  }
  int64_t TakeSigned(int n) {
    uint64_t value = 0;
    for (int i = 0; i < n; ++i) value |= uint64_t{Take()} << (8 * i);
    if (n < 8 && (value >> (8 * n - 1) & 1)) value |= ~uint64_t{0} << (8 * n);
    return static_cast<int64_t>(value);
  }
  uint8_t Peek() const { return at_ < code_.size() ? code_[at_] : 0; }
  bool whole() const { return whole_; }
  size_t at() const { return at_; }

 private:
  std::span<const uint8_t> code_;
  size_t at_ = 0;
  bool whole_ = true;
};

struct Prefixes {
  bool size16 = false, address32 = false, segment = false, rep = false, repne = false;
  uint8_t rex = 0;
  bool wide() const { return rex & 8; }
};

struct Operands {
  uint8_t mod = 0, reg_field = 0;  // reg without REX: the group's number
  uint8_t reg = 0, rm = 0;         // with REX
  bool is_register() const { return mod == 3; }
};

// ModRM, SIB, displacement.
Operands TakeModrm(Bytes& bytes, uint8_t rex, Instruction* out) {
  uint8_t modrm = bytes.Take();
  Operands o;
  o.mod = modrm >> 6;
  o.reg_field = (modrm >> 3) & 7;
  o.reg = static_cast<uint8_t>(o.reg_field | (rex & 4 ? 8 : 0));
  uint8_t low = modrm & 7;
  o.rm = static_cast<uint8_t>(low | (rex & 1 ? 8 : 0));
  if (o.mod == 3) return o;
  out->memory = true;
  int displacement = o.mod == 1 ? 1 : o.mod == 2 ? 4 : 0;
  if (low == 4) {
    uint8_t sib = bytes.Take();
    uint8_t index = static_cast<uint8_t>(((sib >> 3) & 7) | (rex & 2 ? 8 : 0));
    if (index != 4) out->index = static_cast<Register>(index);
    if ((sib & 7) == 5 && o.mod == 0) {
      displacement = 4;
    } else {
      out->base = static_cast<Register>((sib & 7) | (rex & 1 ? 8 : 0));
    }
  } else if (low == 5 && o.mod == 0) {
    out->rip_relative = true;
    displacement = 4;
  } else {
    out->base = static_cast<Register>(o.rm);
  }
  if (displacement) out->displacement = bytes.TakeSigned(displacement);
  return o;
}

// Byte registers without REX: 4 … 7 are the second bytes of the first four.
uint8_t RegisterOf(uint8_t number, bool byte, uint8_t rex) { return byte && !rex && number >= 4 && number < 8 ? number - 4 : number; }

uint16_t Bit(int n) { return static_cast<uint16_t>(1u << n); }

uint16_t Writes(uint16_t flags, uint8_t opcode, const Prefixes& p, const Operands& o) {
  bool byte = flags & kByte;
  uint16_t writes = 0;
  if ((flags & kWriteRm) && o.is_register()) writes |= Bit(RegisterOf(o.rm, byte, p.rex));
  if ((flags & kWriteReg) && (!(flags & kNeedsF) || p.rep || p.repne)) writes |= Bit(RegisterOf(o.reg, byte, p.rex));
  if (flags & kWriteRax) writes |= Bit(kRax);
  if (flags & kWriteRcx) writes |= Bit(kRcx);
  if (flags & kWriteRdx) writes |= Bit(kRdx);
  if (flags & kWriteIndex) writes |= Bit(kRsi) | Bit(kRdi) | Bit(kRcx);
  if (flags & kWriteLow) writes |= Bit(RegisterOf(static_cast<uint8_t>((opcode & 7) | (p.rex & 1 ? 8 : 0)), byte, p.rex));
  return writes;
}

// 0f 38 …: no immediate; those that write general registers.
uint16_t Flags38(uint8_t opcode, const Prefixes& p) {
  switch (opcode) {
    case 0xf0: return kModrm | kWriteReg;                                   // movbe, crc32
    case 0xf1: return p.repne ? kModrm | kWriteReg : kModrm;                // crc32; movbe to memory
    case 0xf6: return kModrm | kWriteReg;                                   // adcx, adox
    default: return kModrm;
  }
}

// 0f 3a …: an immediate byte.
uint16_t Flags3a(uint8_t opcode) {
  if (opcode >= 0x14 && opcode <= 0x17) return kModrm | kImm8 | kWriteRm;   // pextr*, extractps
  if (opcode == 0x61 || opcode == 0x63) return kModrm | kImm8 | kWriteRcx;  // pcmp*stri
  return kModrm | kImm8;
}

// VEX, EVEX and XOP: `map` of opcodes, `prefix` they stand for (1: 66, 2: f3, 3: f2).
uint16_t FlagsVector(int map, int prefix, uint8_t opcode, bool evex, bool* writes_third) {
  uint16_t f = prefix >= 2 ? kWriteReg : 0;
  switch (map) {
    case 1:
      if (opcode == 0x77 && !evex) return 0;
      if (opcode == 0x2c || opcode == 0x2d) return kModrm | f;
      if (evex && (opcode == 0x78 || opcode == 0x79)) return kModrm | f;
      if (opcode == 0x50 || opcode == 0xd7 || (opcode == 0x93 && !evex)) return kModrm | kWriteReg;
      if (opcode == 0x7e && prefix != 2) return kModrm | kWriteRm;
      if (opcode == 0xc5) return kModrm | kImm8 | kWriteReg;
      if ((opcode >= 0x70 && opcode <= 0x73) || opcode == 0xc2 || opcode == 0xc4 || opcode == 0xc6) return kModrm | kImm8;
      return kModrm;
    case 2:
      if (!evex && opcode == 0xf3) *writes_third = true;  // blsr, blsmsk, blsi
      if (!evex && opcode == 0xf6) *writes_third = true;  // mulx
      if (!evex && ((opcode >= 0xf2 && opcode <= 0xf7 && opcode != 0xf3) || (opcode >= 0xe0 && opcode <= 0xef))) return kModrm | kWriteReg;
      return kModrm;
    case 3:
      if (opcode == 0xf0 && !evex) return kModrm | kImm8 | kWriteReg;  // rorx
      return Flags3a(opcode);
    case 5:
      if (opcode == 0x2c || opcode == 0x2d || opcode == 0x78 || opcode == 0x79) return kModrm | f;
      return opcode == 0x7e ? kModrm | kWriteRm : kModrm;
    case 6: return kModrm;
    case 8: return kModrm | kImm8;                                          // XOP, vectors only
    case 9:
      *writes_third = opcode == 0x01 || opcode == 0x02;                     // blcfill, blsic, tzmsk, …
      return opcode == 0x12 ? kModrm | kWriteRm : kModrm;                   // slwpcb
    case 10: return opcode == 0x10 ? kModrm | kImmZ | kWriteReg : kModrm | kImmZ;  // bextr
    default: return kInvalid;
  }
}

void DecodeVector(Bytes& bytes, uint8_t first, Instruction* out) {
  Prefixes p;
  int map = 1, prefix, third;
  bool evex = first == 0x62;
  uint8_t b = bytes.Take();
  p.rex = b & 0x80 ? 0 : 4;
  if (first == 0xc5) {
    prefix = b & 3;
    third = 15 - ((b >> 3) & 15);
  } else {
    p.rex |= (b & 0x40 ? 0 : 2) | (b & 0x20 ? 0 : 1);
    map = evex ? b & 7 : b & 31;
    uint8_t c = bytes.Take();
    prefix = c & 3;
    third = 15 - ((c >> 3) & 15);
    if (evex) bytes.Take();
  }
  uint8_t opcode = bytes.Take();
  bool writes_third = false;
  uint16_t flags = FlagsVector(map, prefix, opcode, evex, &writes_third);
  bool xop = first == 0x8f;
  if ((flags & kInvalid) || xop != (map >= 8)) {
    out->length = 0;
    return;
  }
  Operands o;
  if (flags & kModrm) o = TakeModrm(bytes, p.rex, out);
  if (flags & kImm8) bytes.Take();
  if (flags & kImmZ) bytes.TakeSigned(4);
  out->writes = Writes(flags, opcode, p, o);
  if (writes_third) out->writes |= Bit(third);
  out->memory = false;  // none of these moves a stack
  out->length = bytes.whole() ? static_cast<uint8_t>(bytes.at()) : 0;
}

// The instructions that a stack or a flow depends on; all others keep Op::kOther and what they write.
void SetOp(uint8_t opcode, const Prefixes& p, const Operands& o, Instruction* out) {
  auto set = [&](Op op, uint8_t reg = kNoRegister, uint8_t source = kNoRegister) {
    out->op = op;
    out->reg = static_cast<Register>(reg);
    out->source = static_cast<Register>(source);
    if (reg != kNoRegister) out->writes &= static_cast<uint16_t>(~Bit(reg));
  };
  bool wide = p.wide();
  bool stack_word = !p.size16 || wide;  // 8 bytes pushed or popped
  uint8_t low = static_cast<uint8_t>((opcode & 7) | (p.rex & 1 ? 8 : 0));
  auto lost_stack = [&] { out->writes |= Bit(kRsp); };

  if (opcode >= 0x50 && opcode < 0x58) return stack_word ? set(Op::kPush, low) : lost_stack();
  if (opcode >= 0x58 && opcode < 0x60) return stack_word ? set(Op::kPop, low) : lost_stack();
  if (opcode >= 0x70 && opcode < 0x80) {
    set(Op::kBranch);
    out->condition = opcode & 15;
    out->displacement = out->immediate;
    return;
  }
  if (opcode >= 0xb0 && opcode < 0xb8) {
    if (p.rex || low < 4) set(Op::kMoveByte, low);
    return;
  }
  if (opcode >= 0xb8 && opcode < 0xc0) {
    if (p.size16) return;
    set(Op::kMoveImmediate, low);
    if (!wide) out->immediate = static_cast<uint32_t>(out->immediate);
    return;
  }
  switch (opcode) {
    case 0x01: case 0x29:
    case 0x03: case 0x2b: {
      bool from_reg = opcode == 0x01 || opcode == 0x29, sub = opcode >= 0x29;
      if (!o.is_register() || p.size16) return;
      if (sub && o.reg == o.rm) {
        out->immediate = 0;
        return set(Op::kMoveImmediate, o.rm);
      }
      if (wide) set(sub ? Op::kSubRegister : Op::kAddRegister, from_reg ? o.rm : o.reg, from_reg ? o.reg : o.rm);
      return;
    }
    case 0x31: case 0x33:
      if (o.is_register() && o.reg == o.rm && !p.size16) {
        out->immediate = 0;
        set(Op::kMoveImmediate, o.rm);
      }
      return;
    case 0x39: case 0x3b:
      if (o.is_register() && wide) set(Op::kCompare, o.rm, o.reg);
      return;
    case 0x85:
      if (o.is_register() && o.reg == o.rm && !p.size16) set(Op::kTest, o.rm);
      return;
    case 0x68: case 0x6a:
      if (!stack_word) return lost_stack();
      return set(Op::kPushImmediate);
    case 0x81: case 0x83:
      if (o.reg_field == 7) out->writes = 0;
      if (!o.is_register() || !wide) return;
      if (o.reg_field == 0) set(Op::kAdd, o.rm);
      if (o.reg_field == 5) {
        set(Op::kAdd, o.rm);
        out->immediate = -out->immediate;
      }
      if (o.reg_field == 4) set(Op::kAnd, o.rm);
      return;
    case 0x80:
      if (o.reg_field == 7) out->writes = 0;
      return;
    case 0x88:
      if (!o.is_register()) {
        set(Op::kStore);
        out->size = 1;
      }
      return;
    case 0x89:
      if (o.is_register()) {
        if (wide) set(Op::kMove, o.rm, o.reg);
        return;
      }
      set(Op::kStore, kNoRegister, wide ? o.reg : static_cast<uint8_t>(kNoRegister));
      out->size = wide ? 8 : p.size16 ? 2 : 4;
      return;
    case 0x8b:
      if (!wide) return;
      if (o.is_register()) return set(Op::kMove, o.reg, o.rm);
      if (out->memory) set(Op::kLoad, o.reg);
      return;
    case 0x8d:
      if (wide && out->memory) set(Op::kLea, o.reg);
      return;
    case 0x8f:
      if (!stack_word) return lost_stack();
      return set(Op::kPop, o.is_register() ? o.rm : static_cast<uint8_t>(kNoRegister));
    case 0x90:
      if (!(p.rex & 1)) return set(Op::kNop);
      out->writes = Bit(kRax) | Bit(kR8);
      return;
    case 0x9c: return stack_word ? set(Op::kPush) : lost_stack();
    case 0x9d: return stack_word ? set(Op::kPop) : lost_stack();
    case 0xc2: case 0xc3: return set(Op::kReturn);
    case 0xc6: case 0xc7:
      if (!o.is_register()) {
        if (o.reg_field != 0) return;
        set(Op::kStore);
        out->size = opcode == 0xc6 ? 1 : wide ? 8 : p.size16 ? 2 : 4;
        return;
      }
      if (opcode == 0xc7 && o.reg_field == 7) {  // xbegin: where it goes when the transaction is aborted
        set(Op::kBranch);
        out->condition = 16;
        out->displacement = out->immediate;
        out->writes |= Bit(kRax);
        return;
      }
      if (opcode == 0xc7 && o.reg_field == 0 && !p.size16) {
        set(Op::kMoveImmediate, o.rm);
        if (!wide) out->immediate = static_cast<uint32_t>(out->immediate);
      }
      return;
    case 0xc8:
      if (out->size == 0) return set(Op::kEnter);  // size: its level, see Decode
      out->writes |= Bit(kRsp) | Bit(kRbp);
      return;
    case 0xc9: return stack_word ? set(Op::kLeave) : (void)(out->writes |= Bit(kRsp) | Bit(kRbp));
    case 0xca: case 0xcb: case 0xcf: case 0xf1: return set(Op::kStop);
    case 0xcc: case 0xf4: return set(Op::kTrap);
    case 0xe0: case 0xe1: case 0xe2: case 0xe3:
      out->op = Op::kBranch;
      out->condition = 16;
      out->displacement = out->immediate;
      return;
    case 0xe8:
      set(Op::kCall);
      out->displacement = out->immediate;
      return;
    case 0xe9: case 0xeb:
      set(Op::kJump);
      out->displacement = out->immediate;
      return;
    case 0xf6: case 0xf7:
      if ((o.reg_field == 2 || o.reg_field == 3) && o.is_register()) out->writes |= Bit(RegisterOf(o.rm, opcode == 0xf6, p.rex));
      if (o.reg_field >= 4) out->writes |= Bit(kRax) | Bit(kRdx);
      return;
    case 0xfe:
      if (o.reg_field > 1) out->length = 0;
      return;
    case 0xff: {
      uint8_t reg = o.is_register() ? o.rm : static_cast<uint8_t>(kNoRegister);
      switch (o.reg_field) {
        case 0: case 1:
          if (!o.is_register()) return;
          out->writes |= Bit(o.rm);
          if (!wide) return;
          set(Op::kAdd, o.rm);
          out->immediate = o.reg_field == 0 ? 1 : -1;
          return;
        case 2: return set(Op::kCallIndirect, reg);
        case 3: return set(Op::kStop);  // far: nobody does
        case 4: return set(Op::kJumpIndirect, reg);
        case 5: return set(Op::kStop);
        case 6: return stack_word ? set(Op::kPush, reg) : lost_stack();
        default: out->length = 0; return;
      }
    }
    default: return;
  }
}

void SetOpTwoByte(uint8_t opcode, const Prefixes& p, const Operands& o, Instruction* out) {
  if (opcode >= 0x80 && opcode < 0x90) {
    out->op = Op::kBranch;
    out->condition = opcode & 15;
    out->displacement = out->immediate;
    return;
  }
  switch (opcode) {
    case 0x00:
      if (o.reg_field <= 1 && o.is_register()) out->writes |= Bit(o.rm);
      return;
    case 0x01:
      if (!o.is_register()) return;
      if (o.reg_field == 4) out->writes |= Bit(o.rm);            // smsw
      out->writes |= Bit(kRax) | Bit(kRcx) | Bit(kRdx);          // rdtscp, xgetbv, …
      return;
    case 0x05:
      out->op = Op::kSyscall;
      out->writes = Bit(kRax) | Bit(kRcx) | Bit(kR11);
      return;
    case 0x07: case 0x0b: case 0x35: case 0xaa: case 0xb9: case 0xff: out->op = Op::kStop; return;
    case 0x18: case 0x19: case 0x1a: case 0x1b: case 0x1c: case 0x1d: case 0x1f: out->op = Op::kNop; return;
    case 0x1e:
      if (p.rep && o.is_register() && o.reg_field == 1) {
        out->writes |= Bit(o.rm);  // rdssp
        return;
      }
      out->op = Op::kNop;
      return;
    case 0x7e:
      if (p.rep) out->writes = 0;  // movq between vectors
      return;
    case 0xa0: case 0xa8: out->op = Op::kPush; return;
    case 0xa1: case 0xa9: out->op = Op::kPop; return;
    case 0xa2: out->writes |= Bit(kRax) | Bit(kRbx) | Bit(kRcx) | Bit(kRdx); return;
    case 0xae:
      if (p.rep && o.is_register() && o.reg_field <= 1) out->writes |= Bit(o.rm);  // rdfsbase
      return;
    case 0xba:
      if (o.reg_field == 4) out->writes = 0;
      return;
    default: return;
  }
}

}  // namespace

Instruction Decode(std::span<const uint8_t> code) {
  Instruction out;
  Bytes bytes(code);
  Prefixes p;
  uint8_t opcode;
  for (;;) {
    opcode = bytes.Take();
    if (!bytes.whole()) return out;
    if (opcode == 0x66) p.size16 = true;
    else if (opcode == 0x67) p.address32 = true;
    else if (opcode == 0x64 || opcode == 0x65) p.segment = true;
    else if (opcode == 0xf2) p.repne = true;
    else if (opcode == 0xf3) p.rep = true;
    else if (opcode != 0xf0 && opcode != 0x26 && opcode != 0x2e && opcode != 0x36 && opcode != 0x3e) break;
  }
  if ((opcode & 0xf0) == 0x40) {
    p.rex = opcode;
    opcode = bytes.Take();
    if ((opcode & 0xf0) == 0x40 || opcode == 0x62 || opcode == 0xc4 || opcode == 0xc5) return out;  // a REX that nothing heeds
    switch (opcode) {
      case 0x66: case 0x67: case 0x64: case 0x65: case 0xf0: case 0xf2: case 0xf3: case 0x26: case 0x2e: case 0x36: case 0x3e: return out;
      default: break;
    }
  }
  if (opcode == 0x62 || opcode == 0xc4 || opcode == 0xc5 || (opcode == 0x8f && (bytes.Peek() & 31) >= 8)) {
    DecodeVector(bytes, opcode, &out);
    return out;
  }
  int map = 0;
  uint16_t flags;
  if (opcode == 0x0f) {
    opcode = bytes.Take();
    map = 1;
    flags = kTwoByte[opcode];
    if (opcode == 0x38) {
      map = 2;
      opcode = bytes.Take();
      flags = Flags38(opcode, p);
    } else if (opcode == 0x3a) {
      map = 3;
      opcode = bytes.Take();
      flags = Flags3a(opcode);
    } else if (opcode == 0x78 && (p.size16 || p.repne)) {
      flags = kModrm | kImm16;  // extrq, insertq: two bytes
    }
  } else {
    flags = kOneByte[opcode];
  }
  if (!bytes.whole() || (flags & kInvalid)) return out;
  Operands o;
  if (flags & kModrm) {
    if (map == 1 && opcode >= 0x20 && opcode <= 0x23) {  // control registers: always registers
      uint8_t modrm = bytes.Take();
      o.mod = 3;
      o.rm = static_cast<uint8_t>((modrm & 7) | (p.rex & 1 ? 8 : 0));
    } else {
      o = TakeModrm(bytes, p.rex, &out);
    }
  }
  if (map == 0 && (opcode == 0xf6 || opcode == 0xf7) && o.reg_field <= 1) flags |= opcode == 0xf6 ? kImm8 : kImmZ;
  bool relative = (map == 0 && (opcode == 0xe8 || opcode == 0xe9)) || (map == 1 && opcode >= 0x80 && opcode < 0x90);
  if (relative && p.size16 && !p.wide()) return out;  // processors differ
  if (flags & kImm8) out.immediate = bytes.TakeSigned(1);
  if (flags & kImm16) out.immediate = bytes.TakeSigned(2) & 0xffff;
  if (flags & kImmZ) {
    bool moves = map == 0 && opcode >= 0xb8 && opcode < 0xc0;
    out.immediate = bytes.TakeSigned(p.wide() ? (moves ? 8 : 4) : p.size16 ? 2 : 4);
  }
  if (map == 0 && opcode >= 0xa0 && opcode < 0xa4) {  // an absolute address
    bytes.TakeSigned(p.address32 ? 4 : 8);
    if (opcode < 0xa2) out.writes |= Bit(kRax);
  }
  if (map == 0 && opcode == 0xc8) out.size = bytes.Take();
  if (!bytes.whole()) return out;
  out.length = static_cast<uint8_t>(bytes.at());
  out.writes |= Writes(flags, opcode, p, o);
  if (p.segment || p.address32) out.memory = false;
  if (map == 0) SetOp(opcode, p, o, &out);
  if (map == 1) SetOpTwoByte(opcode, p, o, &out);
  if (out.length == 0) out = Instruction();
  return out;
}

}  // namespace borescope::unwind::x86
