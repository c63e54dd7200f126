// SPDX-License-Identifier: Apache-2.0
// Unwinding of recorded samples: stacks are drawn, laid out word by word as the code that they stand for would, and must come back.
#include "sampler/unwind/recorded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "random_profile.h"

namespace borescope::unwind {
namespace {

constexpr uint64_t kStack = 0x7ffc00001000, kCode = 0x400000, kJit = 0x7f0000000000;
constexpr uint8_t kSp = UNWIND_SP, kFp = UNWIND_FP;

// One file, mapped at kCode from offset 0, a rule every 64 bytes; and a piece of code made at run time.
class Code final : public CodeMap {
 public:
  Code() { table_.rules.emplace_back(); }
  // Address of a function that is under `rule`.
  uint64_t Add(const unwind_rule& rule) {
    table_.rules.push_back(rule);
    auto index = static_cast<uint32_t>(table_.rules.size() - 1);
    auto offset = static_cast<uint32_t>(64 * index);
    if (table_.rows.empty()) table_.rows.push_back(UNWIND_ROW(0, 0));
    table_.rows.push_back(UNWIND_ROW(offset, index));
    table_.page_rows = {0, static_cast<uint32_t>(table_.rows.size())};
    return kCode + offset;
  }
  void Write(uint64_t address, const std::string& code) { code_[address] = code; }

  CodePlace Find(uint64_t pc) override {
    CodePlace place;
    if (pc >= kCode && pc < kCode + 0x10000) {
      place.kind = CodePlace::Kind::kFile;
      place.file_offset = pc - kCode;
      place.table = pending ? nullptr : &table_;
      place.pending = pending;
    } else if (pc >= kJit && pc < kJit + 0x10000) {
      place.kind = CodePlace::Kind::kAnonymous;
    } else if (pc == 0x7fffffffe000) {
      place.kind = CodePlace::Kind::kProbe;
    }
    return place;
  }
  bool ReadCode(uint64_t address, void* into, size_t n) override {
    std::memset(into, 0x90, n);
    for (const auto& [start, code] : code_) {
      for (size_t i = 0; i < code.size(); ++i) {
        if (start + i >= address && start + i < address + n) static_cast<char*>(into)[start + i - address] = code[i];
      }
    }
    return readable;
  }

  bool pending = false, readable = true;

 private:
  CompiledTable table_;
  std::map<uint64_t, std::string> code_;
};

unwind_rule Rule(uint8_t kind, uint8_t reg = kSp, int32_t cfa_offset = 8) {
  unwind_rule rule = {};
  rule.kind = kind;
  rule.cfa_reg = reg;
  rule.cfa_offset = cfa_offset;
  rule.ra_offset = -8;
  return rule;
}

// A stack that is filled from its leaf up.
struct Stack {
  std::vector<uint64_t> words = std::vector<uint64_t>(1 << 16);
  uint64_t sp = kStack + 16 * 8;  // a red zone below
  uint64_t& At(uint64_t address) { return words[(address - kStack) / 8]; }
  std::span<const std::byte> Bytes(size_t n = 1 << 19) const { return {reinterpret_cast<const std::byte*>(words.data()), n}; }
};

borescope_loss Unwind(const unwind_regs& regs, const Stack& stack, Code& code, std::vector<uint64_t>* pcs) {
  return UnwindRecorded(regs, kStack, stack.Bytes(), code, pcs);
}

TEST(RecordedTest, DrawnStacksComeBack) {
  std::mt19937_64 random(testing::Seed());
  for (int round = 0; round < 500; ++round) {
    Code code;
    Stack stack;
    unwind_regs regs = {};
    for (auto& r : regs.r) r = random();
    regs.r[kSp] = stack.sp;
    uint64_t fp = random() % 2 ? random() & ~7ull : 0;  // what the leaf's frame pointer register holds: known, whatever it is
    regs.r[kFp] = fp;
    std::vector<uint64_t> expected;
    uint64_t sp = stack.sp, pc = 0;
    bool leaf = true, returned = false;
    uint64_t* return_slot = nullptr;  // where the frame below keeps its return address
    uint64_t* fp_slot = nullptr;      // where some frame below keeps the frame pointer that is this frame's own
    auto enter = [&](uint64_t function) {
      pc = function + 1 + random() % 60;  // not the first byte: a return address stands behind a call
      if (return_slot) *return_slot = pc;
      if (leaf && !returned) regs.pc = pc;
      expected.push_back(pc);
    };
    size_t depth = 1 + random() % std::min<size_t>(200, kMaxFrames - 2);
    for (size_t i = 0; i < depth; ++i) {
      uint64_t size = 16 + 8 * (random() % 40), cfa = sp + size;
      unwind_rule rule = Rule(UNWIND_RULE_FRAME, kSp, static_cast<int32_t>(size));
      switch (random() % 5) {
        case 0:  // the frame pointer is not touched
          break;
        case 1:  // saved anywhere
        case 2: {  // right below the return address, and set
          bool framed = random() % 2;
          int16_t at = framed ? -16 : static_cast<int16_t>(-16 - 8 * static_cast<int>(random() % ((size - 8) / 8)));
          rule.fp = UNWIND_FP_AT_CFA;
          rule.fp_offset = at;
          if (framed) {
            rule.cfa_reg = kFp;
            rule.cfa_offset = 16;
            uint64_t own = cfa - 16;
            if (fp_slot) {
              *fp_slot = own;
            } else {
              regs.r[kFp] = own;
            }
          }
          fp_slot = &stack.At(cfa + static_cast<uint64_t>(int64_t{at}));
          *fp_slot = random();
          break;
        }
        case 3: {  // an interrupted frame may find its CFA through any register
          if (!leaf) break;
          uint8_t reg = static_cast<uint8_t>(8 + random() % 8);
          rule.cfa_reg = reg;
          rule.cfa_offset = -24;
          regs.r[reg] = cfa + 24;
          break;
        }
        case 4: {  // the CFA is kept in memory
          rule.cfa_deref = 1;
          rule.cfa_offset = 0;
          rule.cfa_add = 32;
          stack.At(sp) = cfa - 32;
          if (size < 24) rule.cfa_deref = 0, rule.cfa_offset = static_cast<int32_t>(size);
          break;
        }
      }
      enter(code.Add(rule));
      return_slot = &stack.At(cfa - 8);
      sp = cfa;
      leaf = false;
    }
    enter(code.Add(Rule(UNWIND_RULE_END)));
    std::vector<uint64_t> pcs;
    EXPECT_EQ(Unwind(regs, stack, code, &pcs), LOSS_NONE) << "round " << round;
    ASSERT_EQ(pcs, expected) << "round " << round;
  }
}

TEST(RecordedTest, ASignalInterruptsOnAnotherStack) {
  Code code;
  Stack stack;
  uint64_t entry = code.Add(Rule(UNWIND_RULE_END)), victim = code.Add(Rule(UNWIND_RULE_FRAME, 10, 0)), trampoline = code.Add(Rule(UNWIND_RULE_SIGNAL)),
           handler = code.Add(Rule(UNWIND_RULE_FRAME, kSp, 64));
  unwind_regs regs = {};
  regs.pc = handler + 5;
  uint64_t other = kStack + 0x10000;  // the handler's stack lies above the victim's
  regs.r[kSp] = other;
  stack.At(other + 56) = trampoline + 1;
  uint64_t context = other + 64 + 40;
  // struct sigcontext_64: r8 … r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip
  stack.At(context + 2 * 8) = kStack + 0x800;  // r10: the victim's CFA
  stack.At(context + 15 * 8) = kStack + 0x700;
  stack.At(context + 16 * 8) = victim;  // its first instruction
  stack.At(kStack + 0x7f8) = entry + 1;
  std::vector<uint64_t> pcs;
  EXPECT_EQ(Unwind(regs, stack, code, &pcs), LOSS_NONE);
  EXPECT_EQ(pcs, (std::vector<uint64_t>{handler + 5, trampoline + 1, victim | USER_FRAME_INTERRUPTED, entry + 1}));
  // In the trampoline's system call, with which it ends: pc stands where the next function begins.
  regs.pc = trampoline + 64;
  regs.r[kSp] = other + 64;
  EXPECT_EQ(UnwindRecorded(regs, kStack, stack.Bytes(), code, &pcs, kMaxFrames, true), LOSS_NONE);
  EXPECT_EQ(pcs, (std::vector<uint64_t>{trampoline + 64, victim | USER_FRAME_INTERRUPTED, entry + 1}));
}

TEST(RecordedTest, CodeWithoutATableIsWalkedAlongFramePointers) {
  Code code;
  Stack stack;
  uint64_t entry = code.Add(Rule(UNWIND_RULE_END));
  std::string call("\xe8\0\0\0\0", 5);
  code.Write(kJit + 0x100, call);  // returns to 0x105
  code.Write(entry + 10 - 5, call);
  unwind_regs regs = {};
  uint64_t frame = stack.sp + 0x40;
  regs.r[kSp] = stack.sp;
  regs.r[kFp] = frame;
  stack.At(frame) = frame + 0x80;
  stack.At(frame + 8) = kJit + 0x105;
  stack.At(frame + 0x80) = 0;
  stack.At(frame + 0x88) = entry + 10;
  std::vector<uint64_t> whole{0, kJit + 0x105, entry + 10}, pcs;

  regs.pc = whole[0] = kJit + 0x50;  // in the body
  EXPECT_EQ(Unwind(regs, stack, code, &pcs), LOSS_NONE);
  EXPECT_EQ(pcs, whole);

  // before the frame stands: the return address is on top of the stack and the frame pointer is the caller's
  stack.At(stack.sp) = kJit + 0x105;
  regs.r[kFp] = frame + 0x80;
  for (const char* first : {"\x55", "\xc3", "\xf3\x0f\x1e\xfa\x55"}) {  // push rbp; ret; endbr64, push rbp
    code.Write(kJit + 0x50, first);
    EXPECT_EQ(Unwind(regs, stack, code, &pcs), LOSS_NONE);
    EXPECT_EQ(pcs, whole);
  }
  // after push rbp, at mov rbp, rsp
  code.Write(kJit + 0x50, "\x48\x89\xe5");
  stack.At(stack.sp) = frame + 0x80;
  stack.At(stack.sp + 8) = kJit + 0x105;
  EXPECT_EQ(Unwind(regs, stack, code, &pcs), LOSS_NONE);
  EXPECT_EQ(pcs, whole);

  // what does not stand behind a call has not called
  stack.At(stack.sp + 8) = kJit + 0x106;
  EXPECT_EQ(Unwind(regs, stack, code, &pcs), LOSS_NO_UNWIND_INFO);
  EXPECT_EQ(pcs, (std::vector<uint64_t>{whole[0]}));
}

TEST(RecordedTest, EveryEndHasItsReason) {
  Stack stack;
  unwind_regs regs = {};
  regs.r[kSp] = stack.sp;
  std::vector<uint64_t> pcs;
  auto end = [&](const unwind_rule& rule, auto... change) {
    Code code;
    regs.pc = code.Add(rule) + 1;
    (change(code), ...);
    return Unwind(regs, stack, code, &pcs);
  };
  stack.At(stack.sp + 8) = 0x1234;  // no code
  EXPECT_EQ(end(Rule(UNWIND_RULE_FRAME, kSp, 16)), LOSS_NOT_CODE);
  EXPECT_EQ(pcs.size(), 1u);
  stack.At(stack.sp + 8) = 0x7fffffffe001;
  EXPECT_EQ(end(Rule(UNWIND_RULE_FRAME, kSp, 16)), LOSS_URETPROBE);
  EXPECT_EQ(end(Rule(UNWIND_RULE_UNSUPPORTED)), LOSS_UNSUPPORTED_RULE);
  EXPECT_EQ(end(Rule(UNWIND_RULE_SWITCH)), LOSS_STACK_SWITCH);
  EXPECT_EQ(end(Rule(UNWIND_RULE_FRAME, kSp, -8)), LOSS_BAD_CFA);
  EXPECT_EQ(end(Rule(UNWIND_RULE_FRAME, kSp, 1 << 20)), LOSS_STACK_UNREADABLE);  // beyond what was recorded
  EXPECT_EQ(end(Rule(UNWIND_RULE_NONE)), LOSS_NO_UNWIND_INFO);
  EXPECT_EQ(end(Rule(UNWIND_RULE_END), [](Code& code) { code.pending = true; }), LOSS_TABLES_NOT_READY);
  EXPECT_EQ(pcs.size(), 1u);
  EXPECT_EQ(end(Rule(UNWIND_RULE_END), [&](Code&) { regs.pc = 0x1000; }), LOSS_NOT_CODE);
  EXPECT_EQ(pcs, (std::vector<uint64_t>{0x1000}));

  Code code;  // a caller's other registers are not known
  uint64_t caller = code.Add(Rule(UNWIND_RULE_FRAME, 10, 0)), leaf = code.Add(Rule(UNWIND_RULE_FRAME, kSp, 16));
  regs.pc = leaf + 1;
  stack.At(stack.sp + 8) = caller + 1;
  EXPECT_EQ(Unwind(regs, stack, code, &pcs), LOSS_REGISTER_UNKNOWN);
  EXPECT_EQ(pcs.size(), 2u);

  uint64_t recursive = code.Add(Rule(UNWIND_RULE_FRAME, kSp, 16));
  for (uint64_t at = stack.sp + 8; at < kStack + (1 << 19); at += 16) stack.At(at) = recursive + 1;
  regs.pc = recursive + 1;
  EXPECT_EQ(Unwind(regs, stack, code, &pcs), LOSS_TOO_DEEP);
  EXPECT_EQ(pcs.size(), kMaxFrames);
}

}  // namespace
}  // namespace borescope::unwind
