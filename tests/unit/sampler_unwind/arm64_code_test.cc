// SPDX-License-Identifier: Apache-2.0
// Rules from aarch64's code, on any machine: files made here by clang, which builds for all.
#include "sampler/unwind/arm64_code.h"

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
#include "temporary_directory.h"

namespace borescope::unwind {
namespace {

class Arm64Code : public ::testing::Test {
 protected:
  void Make(const std::string& name, const std::string& text, const std::string& options) {
    std::ofstream(Path(name)) << text;
    const std::string command = "clang-19 --target=aarch64-linux-gnu -fuse-ld=lld -nostdlib " + options + " -o " + Path("program") + " " + Path(name);
    ASSERT_EQ(system(command.c_str()), 0) << command;
    elf_ = Open(Path("program"));
    ASSERT_NE(elf_, nullptr);
    FILE* pipe = popen(("nm " + Path("program")).c_str(), "r");
    unsigned long address;
    char type, label[256];
    while (fscanf(pipe, "%lx %c %255s", &address, &type, label) == 3) at_[label] = address;
    pclose(pipe);
  }
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  static std::unique_ptr<symbols::ElfFile> Open(const std::string& path) {
    auto source = symbols::OpenSource(UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)));
    if (!source.ok()) return nullptr;
    auto elf = symbols::ElfFile::Parse(std::move(*source));
    return elf.ok() ? std::move(*elf) : nullptr;
  }
  uint64_t Offset(const std::string& label) {
    for (const auto& s : elf_->segments()) {
      if (at_.at(label) >= s.vaddr && at_.at(label) - s.vaddr < s.file_size) return s.offset + (at_.at(label) - s.vaddr);
    }
    return 0;
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<symbols::ElfFile> elf_;
  std::map<std::string, uint64_t> at_;
};

// "sp+16 fp=cfa-16 ra=cfa-8", "sp+0 fp=same ra=x30", "END" …
std::string Text(const unwind_rule& rule) {
  auto number = [](int n) { return (n < 0 ? "" : "+") + std::to_string(n); };
  switch (rule.kind) {
    case UNWIND_RULE_NONE: return "none";
    case UNWIND_RULE_SIGNAL: return "SIGNAL";
    case UNWIND_RULE_END: return "END";
    case UNWIND_RULE_FRAME: break;
    default: return "?";
  }
  return (rule.cfa_reg == 31 ? "sp" : "x" + std::to_string(rule.cfa_reg)) + number(rule.cfa_offset) + " fp=" +
         (rule.fp == UNWIND_FP_SAME ? "same" : rule.fp == UNWIND_FP_AT_CFA ? "cfa" + number(rule.fp_offset) : "?") + " ra=" +
         (rule.ra == UNWIND_RA_IN_REG ? "x" + std::to_string(rule.ra_offset) : "cfa" + number(rule.ra_offset));
}

TEST_F(Arm64Code, HandWrittenCode) {
  Make("a.s", R"(
  .text
  .globl _start
  .type _start, %function
_start:
  mov x29, #0
  mov x30, #0
L_start:
  mov x0, sp
  bl framed
  brk #0

  .type framed, %function
framed:
  paciasp
L_signed:
  stp x29, x30, [sp, #-48]!
L_pushed:
  mov x29, sp
  stp x19, x20, [sp, #16]
L_framed:
  cbz x0, 1f
  sub sp, sp, x0
L_alloca:
  bl leaf
  mov sp, x29
1:
L_before_pop:
  ldp x19, x20, [sp, #16]
  ldp x29, x30, [sp], #48
L_popped:
  autiasp
  ret

  .type leaf, %function
leaf:
  sub sp, sp, #1, lsl #12
  str q0, [sp, #-32]!
L_leaf:
  ldr q0, [sp], #32
  add sp, sp, #1, lsl #12
L_leaf_left:
  b framed

  .type clones, %function
clones:
  mov x8, #220
  svc #0
  cbz x0, 1f
L_parent:
  ret
1:
L_child:
  ldp x1, x0, [sp], #16
  blr x1
L_child_goes_on:
  mov x8, #93
  svc #0

  .type wrong, %function
wrong:
  str x30, [sp, #-16]!
L_wrong:
  ret

  .type overwritten, %function
overwritten:
  mov x30, x5
L_overwritten:
  cbz x0, overwritten
  br x6

  nop
  .type restore, %function
restore:
L_trampoline:
  mov x8, #139
L_system_call:
  svc #0
)", "-static");
  auto table = Compile(*elf_, nullptr);
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->sources, "code");
  const std::map<std::string, std::string> expected = {
      {"_start", "END"}, {"L_start", "END"},
      {"framed", "sp+0 fp=same ra=x30"}, {"L_signed", "sp+0 fp=same ra=x30"},
      {"L_pushed", "sp+48 fp=same ra=cfa-40"}, {"L_framed", "sp+48 fp=cfa-48 ra=cfa-40"},
      {"L_alloca", "x29+48 fp=cfa-48 ra=cfa-40"}, {"L_before_pop", "sp+48 fp=cfa-48 ra=cfa-40"},
      {"L_popped", "sp+0 fp=same ra=x30"},
      {"L_leaf", "sp+4128 fp=same ra=x30"}, {"L_leaf_left", "sp+0 fp=same ra=x30"},
      {"clones", "sp+0 fp=same ra=x30"}, {"L_parent", "sp+0 fp=same ra=x30"},
      {"L_child", "END"}, {"L_child_goes_on", "END"},
      {"L_wrong", "none"}, {"L_overwritten", "none"},
      {"L_trampoline", "SIGNAL"}, {"L_system_call", "SIGNAL"},
  };
  for (const auto& [label, rule] : expected) EXPECT_EQ(Text(table->Find(Offset(label))), rule) << label;
  // Return addresses are looked up one byte before: that of a handler in the instruction before the trampoline.
  EXPECT_EQ(Text(table->Find(Offset("L_trampoline") - 1)), "SIGNAL");
}

constexpr char kProgram[] = R"(
extern int other(int, char*);
__attribute__((noinline)) int leaf(int a, int b) { return a * b + (a >> 3); }
int large(int n) { char text[9000]; text[n & 1023] = (char)n; return other(n, text) + text[n & 511]; }
int grows(int n) { char* text = __builtin_alloca((unsigned)n & 255); text[0] = 1; return other(n, text) + *text; }
int chooses(int n, int m) {
  switch (n) {
    case 0: return other(m, 0) + 1;
    case 1: return leaf(m, 3) + other(m, 0);
    case 2: return m * 7;
    case 3: other(3, 0); return other(m + 1, 0);
    case 4: return leaf(other(m, 0), m);
    case 5: other(m, 0); other(m + 2, 0); return 11;
    default: return other(n, 0);
  }
}
double vectors(double* a, int n) { double s = 0; for (int i = 0; i < n; i++) s += a[i] * other(i, 0) + a[n - i]; return s; }
int recursive(int n) { return n ? recursive(n - 1) + leaf(n, n) + other(n, 0) : 3; }
int last(int n) { return n > 4 ? chooses(n, 2) : other(n, 0); }
int many(int a, int b, int c, int d, int e, int f) {
  int x = other(a, 0), y = other(b, 0), z = other(c, 0), w = other(d, 0), v = other(e, 0), u = other(f, 0);
  return x * y + z * w + v * u + leaf(x, y) + leaf(z, w) + leaf(v, u);
}
)";

// What the compiler says of its code, against what follows from that code itself.
TEST_F(Arm64Code, EqualsTheCompilersTables) {
  for (const char* options : {"-O2", "-O2 -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer", "-Os -mbranch-protection=standard", "-O0", "-O3 -fomit-frame-pointer"}) {
    Make("p.c", kProgram, std::string("-shared -fPIC -fasynchronous-unwind-tables ") + options);
    auto truth = Compile(*elf_, nullptr);
    ASSERT_TRUE(truth.ok());
    const auto* text = elf_->FindSection(".text");
    ASSERT_NE(text, nullptr);
    Rules rules;
    CodeStats stats;
    const CodeRange all[] = {{text->offset, text->offset + text->size}};
    uint64_t known = 0, instructions = 0;
    std::map<uint64_t, unwind_rule> ours;
    for (const CodeRow& row : Arm64RulesFromCode(*elf_, nullptr, all, &rules, {}, &stats)) {
      for (uint64_t at = row.start; at < row.end; at += 4) ours[at] = rules.all()[row.rule];
    }
    for (uint64_t at = text->offset; at < text->offset + text->size; at += 4) {
      const unwind_rule& a = truth->Find(at);
      if (a.kind != UNWIND_RULE_FRAME) continue;
      ++instructions;
      auto found = ours.find(at);
      if (found == ours.end() || found->second.kind == UNWIND_RULE_NONE) continue;
      ++known;
      const unwind_rule& b = found->second;
      // The same in other words: by another register, from the register or from where it is saved besides.
      const bool cfa = a.cfa_reg != b.cfa_reg || a.cfa_offset == b.cfa_offset;
      const bool ra = a.ra == UNWIND_RA_IN_REG || b.ra == UNWIND_RA_IN_REG ? true : a.ra_offset == b.ra_offset;
      const bool fp = a.fp != UNWIND_FP_AT_CFA || b.fp != UNWIND_FP_AT_CFA || a.fp_offset == b.fp_offset;
      EXPECT_TRUE(b.kind == UNWIND_RULE_FRAME && cfa && ra && fp) << options << " at " << std::hex << at << ": the compiler says " << Text(a) << ", we " << Text(b);
    }
    std::printf("%s: %lu of %lu instructions known\n", options, known, instructions);
    EXPECT_GT(known, instructions * 95 / 100) << options;
  }
}

TEST_F(Arm64Code, GivesUpInTime) {
  std::mt19937_64 random(std::random_device{}());
  std::string text = "  .text\n  .globl f\n  .type f, %function\nf:\n";
  for (int i = 0; i < 4000; ++i) {
    text += "  cbz x1, f+" + std::to_string(random() % 2000 * 4) + "\n  sub sp, sp, #16\n  br x" + std::to_string(random() % 30) + "\n  tbz x2, #3, .+8\n";
  }
  Make("hostile.s", text + "  ret\n", "-shared");
  Rules rules;
  CodeStats stats;
  const auto* code = elf_->FindSection(".text");
  const CodeRange all[] = {{code->offset, code->offset + code->size}};
  CodeOptions options;
  auto rows = Arm64RulesFromCode(*elf_, nullptr, all, &rules, options, &stats);
  EXPECT_LE(stats.instructions, options.base_instructions + stats.bytes * options.instructions_per_byte);
  for (size_t i = 1; i < rows.size(); ++i) EXPECT_LE(rows[i - 1].end, rows[i].start);
}

}  // namespace
}  // namespace borescope::unwind
