// SPDX-License-Identifier: Apache-2.0
// The unwinder, the same C as in BPF, over recorded images of a stack.
#include "bpf/lib/unwind.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace borescope::engine {
namespace {

constexpr uint64_t kStack = 0x7ffc'0000'1000;
constexpr int kRbp = 6, kRsp = 7, kR10 = 10;

// A stack image that grows upwards from kStack.
struct Image {
  std::vector<uint64_t> words = std::vector<uint64_t>(4096);
  uint64_t& operator[](uint64_t address) { return words.at((address - kStack) / 8); }
  unwind Begin(const unwind_regs& regs) const {
    unwind u{};
    u.reader = {reinterpret_cast<const unsigned char*>(words.data()), kStack, words.size() * 8};
    unwind_begin(&u, &regs);
    return u;
  }
};

unwind_rule Frame(int reg, int offset) {
  unwind_rule r{};
  r.kind = UNWIND_RULE_FRAME;
  r.cfa_reg = static_cast<uint8_t>(reg);
  r.cfa_offset = offset;
  r.ra_offset = -8;
  return r;
}

unwind_rule WithFp(unwind_rule r, unwind_fp_kind kind, int offset) {
  r.fp = static_cast<uint8_t>(kind);
  r.fp_offset = static_cast<int16_t>(offset);
  return r;
}

unwind_regs Regs(uint64_t pc, uint64_t sp, uint64_t fp) {
  unwind_regs regs{};
  regs.pc = pc;
  for (auto& r : regs.r) r = 0xbad0'0000;
  regs.r[kRsp] = sp;
  regs.r[kRbp] = fp;
  return regs;
}

TEST(UnwindTest, RulesOfTheStackPointerFollowAnyStack) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    Image image;
    uint64_t sp = kStack + UNWIND_RED_ZONE + random() % 16 * 8, fp = random();
    unwind u = image.Begin(Regs(random(), sp, fp));
    for (size_t depth = random() % 60 + 1; depth > 0; --depth) {
      uint64_t cfa = sp + 16 + random() % 40 * 8, return_address = random();
      unwind_rule rule = Frame(kRsp, static_cast<int>(cfa - sp));
      image[cfa - 8] = return_address;
      if (random() % 2 != 0 && cfa - 16 >= sp) {  // pushed right below the return address, or further down
        int at = -16 - 8 * static_cast<int>(random() % ((cfa - 16 - sp) / 8 + 1));
        image[cfa + static_cast<uint64_t>(at)] = fp = random();
        rule = WithFp(rule, UNWIND_FP_AT_CFA, at);
      }
      unwind_up(&u, &rule);
      ASSERT_FALSE(u.done);
      ASSERT_EQ(u.pc, return_address);
      ASSERT_EQ(u.r[kRsp], cfa);
      ASSERT_EQ(u.r[kRbp], fp);
      ASSERT_EQ(unwind_lookup_pc(&u), return_address - 1);
      sp = cfa;
    }
  }
}

TEST(UnwindTest, TheInterruptedFrameMayUseAnyRegisterItsCallersMayNot) {
  Image image;
  uint64_t sp = kStack + 256;
  unwind_regs regs = Regs(0x1000, sp, 0);
  regs.r[kR10] = sp + 64;
  image[sp + 56] = 0x2000;
  unwind u = image.Begin(regs);
  EXPECT_EQ(unwind_lookup_pc(&u), 0x1000u);
  unwind_rule by_r10 = Frame(kR10, 0);
  unwind_up(&u, &by_r10);
  ASSERT_FALSE(u.done);
  EXPECT_EQ(u.pc, 0x2000u);
  unwind_up(&u, &by_r10);
  EXPECT_TRUE(u.done);
  EXPECT_EQ(u.end, LOSS_REGISTER_UNKNOWN);
}

TEST(UnwindTest, RealignedFramesFindTheCfaInMemory) {
  // As gcc realigns: lea 8(rsp), r10; and rsp; push -8(r10); push rbp; mov rsp, rbp; push r10. CFA = *(rbp - 8), rbp at [rbp].
  Image image;
  uint64_t fp = kStack + 512, cfa = kStack + 608;
  image[fp - 8] = cfa;
  image[fp] = 0x7777;
  image[cfa - 8] = 0x2000;
  unwind_rule rule = WithFp(Frame(kRbp, -8), UNWIND_FP_AT_FP, 0);
  rule.cfa_deref = 1;
  unwind u = image.Begin(Regs(0x1000, kStack + 256, fp));
  unwind_up(&u, &rule);
  ASSERT_FALSE(u.done);
  EXPECT_EQ(u.pc, 0x2000u);
  EXPECT_EQ(u.r[kRsp], cfa);
  EXPECT_EQ(u.r[kRbp], 0x7777u);
  rule.cfa_add = 16;  // CFA = *(rbp - 8) + 16
  image[cfa + 8] = 0x3000;
  u = image.Begin(Regs(0x1000, kStack + 256, fp));
  unwind_up(&u, &rule);
  EXPECT_EQ(u.pc, 0x3000u);
  EXPECT_EQ(u.r[kRsp], cfa + 16);
}

TEST(UnwindTest, APopIsSeenInTheRedZone) {
  // After `pop rbp` gcc does not say that rbp is restored: its slot lies below the stack pointer now.
  Image image;
  uint64_t sp = kStack + 256;
  image[sp - 8] = 0x7777;
  image[sp] = 0x2000;
  unwind u = image.Begin(Regs(0x1000, sp, 0x7777));
  unwind_rule rule = WithFp(Frame(kRsp, 8), UNWIND_FP_AT_CFA, -16);
  unwind_up(&u, &rule);
  ASSERT_FALSE(u.done);
  EXPECT_EQ(u.r[kRbp], 0x7777u);
  unwind_up(&u, &rule);  // a caller has no red zone
  EXPECT_EQ(u.end, LOSS_BAD_CFA);
}

TEST(UnwindTest, PltEntriesPushOnTheWay) {
  for (uint64_t at = 0; at < 16; ++at) {
    Image image;
    uint64_t sp = kStack + 256;
    image[sp] = at < 11 ? 0x2000 : 0x9999;
    image[sp + 8] = 0x2000;
    unwind_rule rule = Frame(kRsp, 8);
    rule.kind = UNWIND_RULE_PLT;
    rule.cfa_add = 11;
    unwind u = image.Begin(Regs(0x1000 + at, sp, 0));
    unwind_up(&u, &rule);
    EXPECT_EQ(u.pc, 0x2000u) << at;
    EXPECT_EQ(u.r[kRsp], sp + (at < 11 ? 8 : 16)) << at;
  }
}

TEST(UnwindTest, ReturnAddressInARegister) {
  Image image;
  uint64_t sp = kStack + 256;
  unwind_regs regs = Regs(0x1000, sp, 5);
  regs.r[kR10] = 0x2000;
  unwind_rule rule = Frame(kRsp, 0);  // popped into r10
  rule.ra = UNWIND_RA_IN_REG;
  rule.ra_offset = kR10;
  unwind u = image.Begin(regs);
  unwind_up(&u, &rule);
  ASSERT_FALSE(u.done);
  EXPECT_EQ(u.pc, 0x2000u);
  EXPECT_EQ(u.r[kRsp], sp);
  unwind_up(&u, &rule);
  EXPECT_EQ(u.end, LOSS_BAD_CFA);  // a caller's frame is not empty
}

// r8 … r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip from byte 40 of the ucontext on, as <ucontext.h> has them.
void SignalFrame(Image& image, uint64_t ucontext, const unwind_regs& regs) {
  const int order[] = {8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7};
  uint64_t at = ucontext + 40;
  for (int r : order) image[at] = regs.r[r], at += 8;
  image[at] = regs.pc;
}

TEST(UnwindTest, ASignalFrameHoldsAllRegisters) {
  Image image;
  unwind_rule signal{}, leaf = Frame(kR10, 8);
  signal.kind = UNWIND_RULE_SIGNAL;
  unwind_regs interrupted = Regs(0x5000, kStack + 2048, 0x6666);
  for (int r = 0; r < 16; ++r) interrupted.r[r] = r == kRsp ? kStack + 2048 : 0x100 + static_cast<uint64_t>(r);
  interrupted.r[kR10] = kStack + 2048 + 64;
  SignalFrame(image, kStack + 512, interrupted);
  image[kStack + 2048 + 64] = 0x2000;
  unwind u = image.Begin(Regs(0x1000, kStack + 512, 0));
  unwind_up(&u, &signal);
  ASSERT_FALSE(u.done);
  EXPECT_EQ(u.pc, 0x5000u);
  EXPECT_TRUE(u.interrupted);
  EXPECT_EQ(unwind_lookup_pc(&u), 0x5000u);
  EXPECT_EQ(u.segments, 1u);
  for (int r = 0; r < 16; ++r) EXPECT_EQ(u.r[r], interrupted.r[r]) << r;
  unwind_up(&u, &leaf);
  EXPECT_EQ(u.pc, 0x2000u);
}

TEST(UnwindTest, SignalFramesLeadToFewOtherStacks) {
  Image image;
  unwind_rule signal{};
  signal.kind = UNWIND_RULE_SIGNAL;
  // Two signal frames that point at each other.
  SignalFrame(image, kStack + 512, Regs(0x5000, kStack + 1024, 0));
  SignalFrame(image, kStack + 1024, Regs(0x6000, kStack + 512, 0));
  unwind u = image.Begin(Regs(0x1000, kStack + 512, 0));
  int frames = 0;
  for (; !u.done && frames < 100; ++frames) unwind_up(&u, &signal);
  EXPECT_EQ(u.end, LOSS_STACK_SWITCH);
  EXPECT_LE(frames, 2 * UNWIND_SEGMENTS + 1);
}

// Go's systemstack: it stands on the thread's stack, the frame pointer of its own leads to the goroutine's, which may lie below.
TEST(UnwindTest, AFramePointerLeadsToTheStackThatWasLeft) {
  unwind_rule rule{};
  rule.kind = UNWIND_RULE_SWITCH;
  rule.cfa_reg = kRbp;
  rule.cfa_offset = 16;
  rule.fp = UNWIND_FP_AT_CFA;
  rule.fp_offset = -16;
  rule.ra_offset = -8;
  for (uint64_t frame : {kStack + 128, kStack + 3072}) {
    Image image;
    image[frame] = kStack + 256;
    image[frame + 8] = 0x2000;
    unwind u = image.Begin(Regs(0x1000, kStack + 2048, frame));
    unwind_up(&u, &rule);
    ASSERT_FALSE(u.done);
    EXPECT_EQ(u.pc, 0x2000u);
    EXPECT_EQ(u.r[kRsp], frame + 16);
    EXPECT_EQ(u.r[kRbp], kStack + 256);
    EXPECT_EQ(u.segments, frame < kStack + 2048 ? 2u : 1u);
  }
  Image image;  // one that leads to itself
  image[kStack + 128] = kStack + 128;
  image[kStack + 136] = 0x2000;
  unwind u = image.Begin(Regs(0x1000, kStack + 2048, kStack + 128));
  int frames = 0;
  for (; !u.done && frames < 100; ++frames) unwind_up(&u, &rule);
  EXPECT_EQ(u.end, LOSS_STACK_SWITCH);
  EXPECT_EQ(frames, UNWIND_SEGMENTS);
}

TEST(UnwindTest, KindsThatEnd) {
  const std::pair<unwind_rule_kind, borescope_loss> cases[] = {
      {UNWIND_RULE_END, LOSS_NONE}, {UNWIND_RULE_UNSUPPORTED, LOSS_UNSUPPORTED_RULE}, {UNWIND_RULE_SWITCH, LOSS_STACK_SWITCH}};
  for (const auto& [kind, end] : cases) {
    Image image;
    unwind_rule rule{};
    rule.kind = static_cast<uint8_t>(kind);
    unwind u = image.Begin(Regs(0x1000, kStack + 256, 0));
    unwind_up(&u, &rule);
    EXPECT_TRUE(u.done);
    EXPECT_EQ(u.end, static_cast<uint32_t>(end)) << kind;
  }
  Image image;
  unwind_rule unknown_kind{};
  unknown_kind.kind = 200;
  unwind u = image.Begin(Regs(0x1000, kStack + 256, 0));
  unwind_up(&u, &unknown_kind);
  EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_UNSUPPORTED_RULE));
}

TEST(UnwindTest, TheStackRisesWithinOneSegment) {
  uint64_t sp = kStack + 256;
  struct {
    uint64_t cfa;
    const char* why;
  } cases[] = {
      {sp - 8, "below the stack pointer"},
      {sp + 12, "not aligned"},
      {sp + UNWIND_SPAN + 8, "beyond the segment"},
      {~7ull, "wraps around"},
      {0xffff'8880'0000'0000, "kernel address"},
  };
  for (const auto& c : cases) {
    Image image;
    unwind u = image.Begin(Regs(0x1000, sp, c.cfa));
    unwind_rule rule = Frame(kRbp, 0);
    unwind_up(&u, &rule);
    EXPECT_TRUE(u.done) << c.why;
    EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_BAD_CFA)) << c.why;
  }
}

TEST(UnwindTest, MemoryThatIsNotThereIsNamed) {
  Image image;
  uint64_t end_of_image = kStack + image.words.size() * 8;
  for (uint64_t cfa : {end_of_image + 8, end_of_image + 16}) {
    unwind u = image.Begin(Regs(0x1000, kStack + 256, cfa));
    unwind_rule rule = WithFp(Frame(kRbp, 0), UNWIND_FP_AT_CFA, -16);
    unwind_up(&u, &rule);
    EXPECT_TRUE(u.done);
    EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_STACK_UNREADABLE));
  }
}

// ---- without rules ----

TEST(UnwindTest, GuessFollowsTheChainToItsEnd) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    Image image;
    uint64_t sp = kStack + random() % 16 * 8;
    std::vector<uint64_t> frames, expected, found;
    for (uint64_t fp = sp + random() % 8 * 8; frames.size() < 1 + random() % 100 && fp < kStack + 30000; fp += 16 + random() % 20 * 8) frames.push_back(fp);
    for (size_t i = 0; i < frames.size(); ++i) {
      expected.push_back(random() | 1);
      image[frames[i]] = i + 1 == frames.size() ? 0 : frames[i + 1];
      image[frames[i] + 8] = expected.back();
    }
    unwind u = image.Begin(Regs(0x1000, sp, frames[0]));
    for (unwind_guess(&u, 0); !u.done; unwind_guess(&u, 0)) found.push_back(u.pc);
    EXPECT_EQ(found, expected);
    EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_NONE));
  }
}

uint64_t Word(std::initializer_list<uint8_t> bytes) {
  uint64_t word = 0x9090'9090'9090'9090;
  int at = 0;
  for (uint8_t b : bytes) word = (word & ~(0xffull << at)) | uint64_t{b} << at, at += 8;
  return word;
}

TEST(UnwindTest, GuessReadsTheCodeOfAnInterruptedFunction) {
  constexpr uint64_t kOuter = 0x3000, kCaller = 0x2000;
  const std::pair<uint64_t, code_place> cases[] = {
      {Word({0x55}), CODE_ENTRY},
      {Word({0xf3, 0x0f, 0x1e, 0xfa, 0x55}), CODE_ENTRY},
      {Word({0x48, 0x89, 0xe5}), CODE_PUSHED},
      {Word({0x48, 0x8b, 0xec}), CODE_PUSHED},
      {Word({0xc3}), CODE_ENTRY},
      {Word({0xf3, 0xc3}), CODE_ENTRY},
      {Word({0xc2, 0x10, 0x00}), CODE_ENTRY},
      {Word({0xc9, 0xc3}), CODE_BODY},
      {Word({0x48, 0x83, 0xec, 0x10}), CODE_BODY},
      {0, CODE_BODY},
  };
  for (const auto& [code, place] : cases) {
    Image image;
    uint64_t sp = kStack + 256, outer = kStack + 512, own = kStack + 320;
    image[outer] = 0;
    image[outer + 8] = kOuter;
    uint64_t fp = outer;
    if (place == CODE_ENTRY) {
      image[sp] = kCaller;
    } else if (place == CODE_PUSHED) {
      image[sp] = outer;
      image[sp + 8] = kCaller;
    } else {
      fp = own;
      image[own] = outer;
      image[own + 8] = kCaller;
    }
    unwind u = image.Begin(Regs(0x1000, sp, fp));
    unwind_guess(&u, code);
    EXPECT_EQ(u.pc, kCaller) << std::hex << code;
    unwind_guess(&u, code);  // the code at a return address tells nothing
    EXPECT_EQ(u.pc, kOuter) << std::hex << code;
    unwind_guess(&u, code);
    EXPECT_TRUE(u.done);
    EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_NONE));
  }
}

TEST(UnwindTest, GuessDoesNotCallAStackWholeThatHasNoChain) {
  Image image;
  uint64_t sp = kStack + 256;
  unwind u = image.Begin(Regs(0x1000, sp, 0));  // a program without frame pointers
  unwind_guess(&u, 0);
  EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_NO_UNWIND_INFO));
  for (uint64_t fp : std::initializer_list<uint64_t>{sp - 8, sp + 4, sp + UNWIND_SPAN, ~7ull, 0xffff'8880'0000'0000ull}) {
    u = image.Begin(Regs(0x1000, sp, fp));
    unwind_guess(&u, 0);
    EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_NO_UNWIND_INFO)) << std::hex << fp;
  }
  image[sp] = sp;  // onto itself
  image[sp + 8] = 0x2000;
  u = image.Begin(Regs(0x1000, sp, sp));
  unwind_guess(&u, 0);
  ASSERT_FALSE(u.done);
  unwind_guess(&u, 0);
  EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_NO_UNWIND_INFO));
  unwind_rule lost = WithFp(Frame(kRsp, 8), UNWIND_FP_UNKNOWN, 0);
  u = image.Begin(Regs(0x1000, sp, sp + 64));
  unwind_up(&u, &lost);
  unwind_guess(&u, 0);
  EXPECT_EQ(u.end, static_cast<uint32_t>(LOSS_NO_UNWIND_INFO));
}

TEST(UnwindTest, CallsAreTold) {
  auto before = [](std::initializer_list<uint8_t> call) {
    uint64_t word = 0x9090'9090'9090'9090;
    for (uint8_t b : call) word = word >> 8 | uint64_t{b} << 56;
    return word;
  };
  const uint64_t calls[] = {
      before({0xe8, 1, 2, 3, 4}),                    // call rel32
      before({0xff, 0xd0}),                          // call rax
      before({0x41, 0xff, 0xd4}),                    // call r12
      before({0xff, 0x10}),                          // call [rax]
      before({0xff, 0x50, 0x18}),                    // call [rax + 0x18]
      before({0x41, 0xff, 0x54, 0x24, 0x10}),        // call [r12 + 0x10]
      before({0xff, 0x14, 0xd8}),                    // call [rax + rbx * 8]
      before({0xff, 0x15, 1, 2, 3, 4}),              // call [rip + n]
      before({0xff, 0x90, 0, 1, 0, 0}),              // call [rax + 0x100]
      before({0xff, 0x14, 0xc5, 0, 1, 0, 0}),        // call [rax * 8 + 0x100]
      before({0xff, 0x94, 0xc8, 0, 1, 0, 0}),        // call [rax + rcx * 8 + 0x100]
  };
  for (uint64_t word : calls) EXPECT_TRUE(code_ends_in_call(word)) << std::hex << word;
  const uint64_t others[] = {
      before({0x90}), before({0xc3}), before({0xe9, 1, 2, 3, 4}), before({0xff, 0xe0}) /* jmp rax */, before({0xff, 0x25, 1, 2, 3, 4}), 0};
  for (uint64_t word : others) EXPECT_FALSE(code_ends_in_call(word)) << std::hex << word;
  unwind u{};
  EXPECT_TRUE(unwind_is_caller(&u, 0));  // found by a rule
  u.guessed = UNWIND_BY_CHAIN;
  EXPECT_FALSE(unwind_is_caller(&u, others[0]));
  EXPECT_TRUE(unwind_is_caller(&u, calls[0]));
}

TEST(CodeTest, TheInstructionOfASystemCall) {
  EXPECT_TRUE(code_is_syscall(0x050f'9090'9090'9090));
  EXPECT_FALSE(code_is_syscall(0x9090'050f'9090'9090));
  EXPECT_FALSE(code_is_syscall(0));
}

}  // namespace
}  // namespace borescope::engine
