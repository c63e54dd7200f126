// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/code.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "common/base/fd.h"
#include "sampler/unwind/compile.h"
#include "tests/support/temporary_directory.h"

namespace borescope::unwind {
namespace {

std::unique_ptr<symbols::ElfFile> Open(const std::string& path) {
  auto source = symbols::OpenSource(UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  if (!source.ok()) return nullptr;
  auto elf = symbols::ElfFile::Parse(std::move(*source));
  return elf.ok() ? std::move(*elf) : nullptr;
}

// A file made by `command` in a directory of its own from `text`, or null.
class Built {
 public:
  bool Make(const std::string& name, const std::string& text, const std::string& options) {
    std::ofstream(directory_.path() + "/" + name) << text;
    std::string command = "cd " + directory_.path() + " && cc " + options + " -o program " + name + " 2>errors";
    if (system(command.c_str()) != 0) {
      if (system(("cat " + directory_.path() + "/errors").c_str()) != 0) return false;
      return false;
    }
    elf = Open(path());
    return elf != nullptr;
  }
  std::string path() const { return directory_.path() + "/program"; }
  int Run(const std::string& command) { return system(("cd " + directory_.path() + " && " + command).c_str()); }

  // Linked address of each label, as nm says.
  std::map<std::string, uint64_t> Labels() {
    std::map<std::string, uint64_t> labels;
    FILE* pipe = popen(("nm " + path()).c_str(), "r");
    unsigned long address;
    char type, name[256];
    while (fscanf(pipe, "%lx %c %255s", &address, &type, name) == 3) labels[name] = address;
    pclose(pipe);
    return labels;
  }
  std::unique_ptr<symbols::ElfFile> elf;

 private:
  testing::TemporaryDirectory directory_;
};

// "sp+8 fp=same", "fp+16 fp=cfa-16", "END" …
std::string Text(const unwind_rule& rule) {
  static const char* const kNames[] = {"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "fp", "sp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"};
  auto number = [](int n) { return (n < 0 ? "" : "+") + std::to_string(n); };
  switch (rule.kind) {
    case UNWIND_RULE_NONE: return "none";
    case UNWIND_RULE_PLT: return "PLT" + number(rule.cfa_offset) + " from " + std::to_string(rule.cfa_add);
    case UNWIND_RULE_SIGNAL: return "SIGNAL";
    case UNWIND_RULE_END: return "END";
    case UNWIND_RULE_FRAME: break;
    default: return "?";
  }
  std::string cfa = kNames[rule.cfa_reg] + number(rule.cfa_offset);
  if (rule.cfa_deref) cfa = "[" + cfa + "]" + number(rule.cfa_add);
  std::string fp = rule.fp == UNWIND_FP_SAME ? "same" : rule.fp == UNWIND_FP_AT_CFA ? "cfa" + number(rule.fp_offset)
                   : rule.fp == UNWIND_FP_AT_FP ? "fp" + number(rule.fp_offset) : "?";
  std::string ra = rule.ra == UNWIND_RA_IN_REG ? std::string(" ra=") + kNames[rule.ra_offset] : "";
  return cfa + " fp=" + fp + ra;
}

// Hand-written code; each label L_… is followed by what must be in force there.
constexpr char kAssembly[] = R"(
  .text
  .globl _start
  .type _start, @function
_start:
  xor %ebp, %ebp
L_start:
  mov %rsp, %rdi
  and $-16, %rsp
L_start_call:
  call begin
  hlt
  .p2align 4
  .type begin, @function
begin:
L_begin:
  push %rbp
L_pushed:
  mov %rsp, %rbp
L_framed:
  sub $64, %rsp
  call tail
  call probe
  call realigned
  call in_place
  call other_return
  call two_depths
  call lost
  call where
  call *table(%rip)
  leave
L_left:
  ret

  .p2align 4
  .type tail, @function
tail:
  push %rbx
  sub $16, %rsp
L_tail_body:
  test %edi, %edi
  jne 1f
  add $16, %rsp
  pop %rbx
L_tail_jump:
  jmp in_place
1:
L_tail_never:
  call ends
  .p2align 4

  .type probe, @function
probe:
  lea -0x8000(%rsp), %r11
1: sub $0x1000, %rsp
L_probing:
  orq $0, (%rsp)
  cmp %r11, %rsp
  jne 1b
L_probed:
  sub $8, %rsp
  add $0x8008, %rsp
L_probe_end:
  ret

  .type realigned, @function
realigned:
  lea 8(%rsp), %r10
  and $-32, %rsp
L_realign_register:
  push -8(%r10)
  push %rbp
  mov %rsp, %rbp
  push %r10
L_realign_slot:
  sub $40, %rsp
  call in_place
L_realign_body:
  add $40, %rsp
  pop %r10
  pop %rbp
  lea -8(%r10), %rsp
  ret

  .type in_place, @function
in_place:
  sub $40, %rsp
  mov %rbp, 24(%rsp)
L_saved_by_move:
  mov $7, %ebp
L_clobbered:
  mov 24(%rsp), %rbp
  add $40, %rsp
  ret

  .type other_return, @function
other_return:
  pop %rdx
L_return_in_register:
  mov $58, %eax
  syscall
  push %rdx
L_return_back:
  ret

  .type two_depths, @function
two_depths:
  test %edi, %edi
  je 1f
  push %rax
1:
L_two_depths:
  add $1, %rax
  ret

  .type lost, @function
lost:
  push %rbp
  mov %rsp, %rbp
  sub %rdi, %rsp
L_by_frame_pointer:
  mov %rax, (%rsp)
  leave
  ret

  .type where, @function
where:
  call 1f
1: pop %rax
L_where:
  ret

  .type ends, @function
ends:
  sub $8, %rsp
  mov $231, %eax
  syscall

  .p2align 4
  .type makes_thread, @function
  .globl makes_thread
makes_thread:
  mov $56, %eax
  syscall
L_clone:
  test %eax, %eax
  jnz 1f
L_child:
  xor %ebp, %ebp
  pop %rdi
L_child_call:
  call *%r9
  mov $60, %eax
  syscall
1:
L_parent:
  ret

  .p2align 4
  nop
L_before_trampoline:
  nop
  .globl trampoline
trampoline:
L_trampoline:
  mov $15, %rax
L_trampoline_syscall:
  syscall
  .p2align 4
  .type switches, @function
switches:
  push %rbx
  sub $32, %rsp
  cmp $2, %edi
  ja 9f
  mov %edi, %edi
  jmp *jumps(,%rdi,8)
1:
L_case:
  xor %eax, %eax
  add $32, %rsp
  pop %rbx
L_case_end:
  ret
2: inc %eax
9:
L_default:
  add $32, %rsp
  pop %rbx
  ret

  .p2align 4
no_symbol_here:
  push %r12
L_unnamed:
  push %r13
  pop %r13
  pop %r12
  ret

  .p2align 4
.Lplt:
L_plt0:
  push got+8(%rip)
L_plt0_pushed:
  jmp *got+16(%rip)
  .p2align 4
L_plt1:
  jmp *got+24(%rip)
  .byte 0x68
  .long 0
L_plt1_pushed:
  jmp .Lplt
  .p2align 4
L_plt2:
  jmp *got+32(%rip)
  .byte 0x68
  .long 1
  jmp .Lplt
  .p2align 4
  .type last, @function
last:
  nop
  ret

  .data
got: .quad 0, 0, 0, 0, 0
jumps: .quad 1b, 2b, 1b
table: .quad no_symbol_here
  .section .note.GNU-stack,"",@progbits
)";

TEST(RulesFromCode, HandWrittenCode) {
  // The labels of the jump table.
  std::string text = kAssembly;
  auto replace = [&](const std::string& from, const std::string& to) {
    size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
  };
  replace("1:\nL_case:", ".Lcase1:\nL_case:");
  replace("2: inc %eax", ".Lcase2: inc %eax");
  replace(".quad 1b, 2b, 1b", ".quad .Lcase1, .Lcase2, .Lcase1");
  Built built;
  if (!built.Make("code.s", text, "-nostdlib -static -no-pie")) GTEST_SKIP() << "no compiler for static programs here";
  auto table = Compile(*built.elf, nullptr);
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->sources, "code");
  auto labels = built.Labels();
  auto at = [&](const std::string& label, int add = 0) {
    EXPECT_TRUE(labels.count(label)) << label;
    uint64_t vaddr = labels[label] + static_cast<uint64_t>(add);
    for (const auto& s : built.elf->segments()) {
      if (s.executable && vaddr >= s.vaddr && vaddr - s.vaddr < s.file_size) return Text(table->Find(vaddr - s.vaddr + s.offset));
    }
    return std::string("outside");
  };
  EXPECT_EQ(at("_start"), "END");
  EXPECT_EQ(at("L_start_call"), "END");
  EXPECT_EQ(at("L_begin"), "sp+8 fp=same");
  EXPECT_EQ(at("L_pushed"), "sp+16 fp=cfa-16");
  EXPECT_EQ(at("L_framed"), "fp+16 fp=cfa-16");
  EXPECT_EQ(at("L_left"), "sp+8 fp=same");
  EXPECT_EQ(at("L_tail_body"), "sp+32 fp=same");
  EXPECT_EQ(at("L_tail_jump"), "sp+8 fp=same");
  EXPECT_EQ(at("L_tail_never"), "sp+32 fp=same");
  EXPECT_EQ(at("L_probing"), "r11+32776 fp=same");
  EXPECT_EQ(at("L_probed"), "sp+32776 fp=same");
  EXPECT_EQ(at("L_probe_end"), "sp+8 fp=same");
  EXPECT_EQ(at("L_realign_register"), "r10+0 fp=same");
  EXPECT_EQ(at("L_realign_slot"), "[fp-8]+0 fp=fp+0");
  EXPECT_EQ(at("L_realign_body"), "[fp-8]+0 fp=fp+0");
  EXPECT_EQ(at("L_saved_by_move"), "sp+48 fp=cfa-24");
  EXPECT_EQ(at("L_clobbered"), "sp+48 fp=cfa-24");
  EXPECT_EQ(at("L_return_in_register"), "sp+0 fp=same ra=rdx");
  EXPECT_EQ(at("L_return_back"), "sp+8 fp=same");
  EXPECT_EQ(at("L_two_depths"), "none") << "two paths with different stacks";
  EXPECT_EQ(at("L_by_frame_pointer"), "fp+16 fp=cfa-16");
  EXPECT_EQ(at("L_where"), "sp+8 fp=same");
  EXPECT_EQ(at("L_clone"), "sp+8 fp=same");
  EXPECT_EQ(at("L_child"), "END");
  EXPECT_EQ(at("L_child_call"), "END");
  EXPECT_EQ(at("L_parent"), "sp+8 fp=same");
  EXPECT_EQ(at("L_trampoline"), "SIGNAL");
  EXPECT_EQ(at("L_trampoline", -1), "SIGNAL") << "return addresses are looked up a byte before";
  EXPECT_NE(at("L_before_trampoline", -1), "SIGNAL");
  EXPECT_EQ(at("L_trampoline_syscall"), "SIGNAL");
  EXPECT_EQ(at("L_case"), "sp+48 fp=same");
  EXPECT_EQ(at("L_case_end"), "sp+8 fp=same");
  EXPECT_EQ(at("L_default"), "sp+48 fp=same");
  EXPECT_EQ(at("L_unnamed"), "sp+16 fp=same");
  EXPECT_EQ(at("L_plt0"), "sp+16 fp=same");
  EXPECT_EQ(at("L_plt0_pushed"), "sp+24 fp=same");
  EXPECT_EQ(at("L_plt1"), "PLT+8 from 11");
  EXPECT_EQ(at("L_plt2"), "PLT+8 from 11");
}

// C whose functions use the stack in all ways that compilers know, drawn from a seed.
std::string Program(std::mt19937_64& random) {
  std::string text = "#include <stddef.h>\nvoid* memset(void*, int, size_t);\nvoid use(void*);\nextern volatile int v;\n";
  int count = 24;
  for (int i = 0; i < count; ++i) text += "int f" + std::to_string(i) + "(int, int, long, long, int, int, int, int);\n";
  for (int i = 0; i < count; ++i) {
    auto number = [&](int n) { return std::to_string(random() % static_cast<unsigned>(n)); };
    auto call = [&] { return "f" + number(count) + "(a + " + number(9) + ", b, c, d, e, f, g, v)"; };
    std::string body;
    if (random() % 3 == 0) body += "  char array[" + std::to_string(1 + random() % 9000) + "]; use(array);\n";
    if (random() % 6 == 0) body += "  char aligned[64] __attribute__((aligned(64))); use(aligned);\n";
    if (random() % 6 == 0) body += "  char* p = __builtin_alloca(a & 1023); memset(p, 0, a & 1023); use(p);\n";
    int statements = 1 + static_cast<int>(random() % 6);
    for (int k = 0; k < statements; ++k) {
      switch (random() % 6) {
        case 0: body += "  if (a > " + number(50) + ") b += " + call() + ";\n"; break;
        case 1: body += "  for (int i = 0; i < a; i++) { c += " + call() + "; d ^= c * i; }\n"; break;
        case 2: {
          body += "  switch (a) {\n";
          for (int n = 0; n < 9; ++n) body += "    case " + std::to_string(n) + ": b = " + call() + " * " + number(77) + (random() % 2 ? "; break;\n" : "; return b;\n");
          body += "  }\n";
          break;
        }
        case 3: body += "  if (!b) __builtin_trap();\n"; break;
        case 4: body += "  if (a == v) return " + call() + ";\n"; break;
        default: body += "  c += d * a + v; d = c / (b | 1);\n";
      }
    }
    text += "int f" + std::to_string(i) + "(int a, int b, long c, long d, int e, int f, int g, int h) {\n" + body + "  return a + b + (int)c + (int)d + e * f - g + h;\n}\n";
  }
  return text;
}

// The compiler's own tables are the truth: the same code with them and without.
TEST(RulesFromCode, EqualTheCompilersTables) {
  const char* given = getenv("SEED");
  uint64_t seed = given ? strtoull(given, nullptr, 0) : std::random_device{}();
  printf("SEED=%lu\n", seed);
  std::mt19937_64 random(seed);
  static constexpr const char* kOptions[] = {"-O1", "-O2", "-Os", "-O2 -fno-omit-frame-pointer", "-O0", "-O3 -fstack-clash-protection"};
  std::string options = kOptions[random() % std::size(kOptions)];
  bool strip = random() % 3 == 0;
  Built built;
  if (!built.Make("program.c", Program(random), options + " -w -shared -fPIC -fasynchronous-unwind-tables")) GTEST_SKIP() << "no compiler here";
  if (built.Run("objcopy -R .eh_frame -R .eh_frame_hdr program bare") != 0) GTEST_SKIP() << "no objcopy here";
  if (strip) {
    ASSERT_EQ(built.Run("strip bare"), 0);
  }
  auto bare = Open(built.path().substr(0, built.path().rfind('/')) + "/bare");
  ASSERT_NE(bare, nullptr);
  auto truth = Compile(*built.elf, nullptr), ours = Compile(*bare, nullptr);
  ASSERT_TRUE(truth.ok());
  ASSERT_TRUE(ours.ok()) << ours.error().message;
  const auto* text = built.elf->FindSection(".text");
  ASSERT_NE(text, nullptr);
  uint64_t bytes = 0, known = 0, differing = 0;
  for (uint64_t offset = text->offset; offset < text->offset + text->size; ++offset) {
    const unwind_rule &a = truth->Find(offset), &b = ours->Find(offset);
    if (a.kind != UNWIND_RULE_FRAME) continue;
    ++bytes;
    if (b.kind == UNWIND_RULE_NONE) continue;
    ++known;
    if (Text(a) == Text(b)) continue;
    // The same in other words: the frame pointer is popped already; the CFA by another register.
    bool popped = b.fp == UNWIND_FP_SAME && a.fp == UNWIND_FP_AT_CFA && a.cfa_reg == 7 && a.cfa_offset <= -a.fp_offset;
    bool same_cfa = a.cfa_reg == b.cfa_reg && a.cfa_offset == b.cfa_offset && a.cfa_deref == b.cfa_deref && a.cfa_add == b.cfa_add;
    bool popped_realigned = b.fp == UNWIND_FP_SAME && a.fp == UNWIND_FP_AT_FP && a.cfa_reg != 6;
    if ((popped || popped_realigned) && same_cfa) continue;
    if (a.cfa_reg != b.cfa_reg && a.cfa_reg != 6 && a.cfa_reg != 7) continue;
    if (++differing <= 5) ADD_FAILURE() << std::hex << offset << ": the compiler says " << Text(a) << ", we " << Text(b);
  }
  printf("%s%s: %lu of %lu bytes known, %lu differ\n", options.c_str(), strip ? ", stripped" : "", known, bytes, differing);
  EXPECT_EQ(differing, 0u);
  EXPECT_GT(known, bytes * (strip ? 50 : 90) / 100);
}

TEST(RulesFromCode, GivesUpInTime) {
  Built built;
  std::string text = "  .text\n  .globl f\n  .type f, @function\nf:\n";
  for (int i = 0; i < 2000; ++i) text += "  je f+" + std::to_string(i % 97) + "\n  push %rax\n";
  if (!built.Make("hostile.s", text + "  ret\n", "-nostdlib -shared")) GTEST_SKIP() << "no compiler here";
  Rules rules;
  CodeStats stats;
  std::vector<CodeRange> all;
  for (const auto& s : built.elf->segments()) {
    if (s.executable) all.push_back({s.offset, s.offset + s.file_size});
  }
  CodeOptions options;
  auto rows = RulesFromCode(*built.elf, nullptr, all, &rules, options, &stats);
  EXPECT_LE(stats.instructions, options.base_instructions + stats.bytes * options.instructions_per_byte);
  for (size_t i = 1; i < rows.size(); ++i) EXPECT_LE(rows[i - 1].end, rows[i].start);
  EXPECT_FALSE(stats.out_of_budget);

  // Too much code: a part of it has rules.
  const uint64_t whole = stats.instructions;
  options.max_instructions = whole / 2;
  Rules part_rules;
  rows = RulesFromCode(*built.elf, nullptr, all, &part_rules, options, &stats);
  EXPECT_LE(stats.instructions, whole / 2);
  EXPECT_TRUE(stats.out_of_budget);
}

}  // namespace
}  // namespace borescope::unwind
