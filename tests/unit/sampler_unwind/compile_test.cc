// SPDX-License-Identifier: Apache-2.0
// Programs made here from assembly, and one of Go; what readelf says of this machine's files is tests/oracle/tables.
#include "sampler/unwind/compile.h"

#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "temporary_directory.h"

namespace borescope::unwind {
namespace {

constexpr const char* kFunctions = R"(
.text
.globl first, second, odd, shifted
first: .cfi_startproc
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register %rbp
  nop
  pop %rbp
  .cfi_def_cfa %rsp, 8
  .cfi_restore %rbp
  ret
.cfi_endproc
.skip 40, 0xcc
second: .cfi_startproc
  .cfi_undefined %rip
  nop
  nop
.cfi_endproc
odd: .cfi_startproc
  .cfi_escape 0x0f, 5, 0x77, 8, 0x79, 0, 0x1e
  nop
  nop
.cfi_endproc
shifted: .cfi_startproc
  .cfi_def_cfa %r10, 8
  .cfi_register %rip, %rdi
  nop
  .cfi_def_cfa %rsp, 8
  .cfi_offset %rip, -8
  .cfi_register %rbp, %r12
  nop
.cfi_endproc
)";

std::string ReadWhole(const std::string& path) {
  std::string bytes;
  FILE* file = fopen(path.c_str(), "rb");
  if (!file) return bytes;
  char block[4096];
  for (size_t n; (n = fread(block, 1, sizeof(block), file)) > 0;) bytes.append(block, n);
  fclose(file);
  return bytes;
}

std::unique_ptr<symbols::ElfFile> Open(std::string bytes) {
  auto elf = symbols::ElfFile::Parse(symbols::MemorySource(std::move(bytes)));
  EXPECT_TRUE(elf.ok()) << elf.error().message;
  return elf.ok() ? *std::move(elf) : nullptr;
}

class CompileTest : public ::testing::Test {
 protected:
  // A shared library of the functions above, whose code lies elsewhere in memory than in the file. Empty: it cannot be built here.
  std::string Build(const std::string& head, const std::string& options) {
    std::string source = directory_.path() + "/f.s", out = directory_.path() + "/f.so";
    FILE* file = fopen(source.c_str(), "w");
    fputs((head + kFunctions).c_str(), file);
    fclose(file);
    std::string command = "gcc -shared -nostdlib -Wl,-Ttext=0x7001000 " + options + " -o " + out + " " + source + " 2>/dev/null";
    return system(command.c_str()) == 0 ? out : "";
  }
  std::map<std::string, uint64_t> Symbols(const std::string& path) {
    std::map<std::string, uint64_t> symbols;
    FILE* pipe = popen(("nm " + path).c_str(), "r");
    unsigned long address;
    char kind, name[256];
    while (fscanf(pipe, "%lx %c %255s", &address, &kind, name) == 3) symbols[name] = address;
    pclose(pipe);
    return symbols;
  }

  // The rules that each form of the tables has to give, hand-made.
  void CheckFunctions(const CompiledTable& table, std::map<std::string, uint64_t>& at, uint64_t text) {
    auto rule = [&](const char* name, uint64_t more) { return table.Find(at[name] + more - 0x7001000 + text); };
    EXPECT_EQ(rule("first", 0).cfa_reg, 7);
    EXPECT_EQ(rule("first", 0).cfa_offset, 8);
    EXPECT_EQ(rule("first", 0).fp, UNWIND_FP_SAME);
    EXPECT_EQ(rule("first", 1).cfa_offset, 16);
    EXPECT_EQ(rule("first", 1).fp, UNWIND_FP_AT_CFA);
    EXPECT_EQ(rule("first", 1).fp_offset, -16);
    EXPECT_EQ(rule("first", 4).cfa_reg, 6);
    EXPECT_EQ(rule("first", 5).ra_offset, -8);
    EXPECT_EQ(rule("first", 6).cfa_reg, 7);
    EXPECT_EQ(rule("first", 6).fp, UNWIND_FP_SAME);
    EXPECT_EQ(rule("first", 20).kind, UNWIND_RULE_NONE);  // between the functions
    EXPECT_EQ(rule("second", 1).kind, UNWIND_RULE_END);
    EXPECT_EQ(rule("odd", 1).kind, UNWIND_RULE_UNSUPPORTED);
    EXPECT_EQ(rule("shifted", 0).cfa_reg, 10);
    EXPECT_EQ(rule("shifted", 0).ra, UNWIND_RA_IN_REG);
    EXPECT_EQ(rule("shifted", 0).ra_offset, 5);
    EXPECT_EQ(rule("shifted", 1).kind, UNWIND_RULE_FRAME);
    EXPECT_EQ(rule("shifted", 1).fp, UNWIND_FP_UNKNOWN);
    EXPECT_EQ(table.unsupported_rows, 2u);
    std::map<std::string, uint64_t> missing;
    for (const MissingRule& m : table.missing) missing[m.what] = m.rows;
    EXPECT_EQ(missing["CFA expression 77 08 79 00 1e"], 1u);
    EXPECT_EQ(missing["frame pointer in register r12"], 1u);
  }
  uint64_t TextOffset(const symbols::ElfFile& elf) {
    const auto* text = elf.FindSection(".text");
    return text ? text->offset : 0;
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(CompileTest, EveryFormOfTheTablesGivesTheSame) {
  struct {
    const char *head, *options, *source;
  } kForms[] = {
      {"", "", "eh_frame"},
      {"", "-Wl,--no-eh-frame-hdr", "eh_frame"},
      {".cfi_sections .debug_frame\n", "", "debug_frame"},
      {".cfi_sections .debug_frame\n", "-Wl,--compress-debug-sections=zlib", "debug_frame"},
      {".cfi_sections .debug_frame\n", "-Wl,--compress-debug-sections=zstd", "debug_frame"},
      {".cfi_sections .eh_frame, .debug_frame\n", "", "eh_frame"},
  };
  for (const auto& form : kForms) {
    std::string path = Build(form.head, form.options);
    if (path.empty()) continue;  // a linker without zstd
    SCOPED_TRACE(std::string(form.head) + form.options);
    auto elf = Open(ReadWhole(path));
    ASSERT_TRUE(elf);
    auto table = Compile(*elf, nullptr);
    ASSERT_TRUE(table.ok()) << table.error().message;
    EXPECT_TRUE(table->sources.starts_with(form.source)) << table->sources;
    auto symbols = Symbols(path);
    if (std::string(form.head).find(".eh_frame, ") == std::string::npos) {
      CheckFunctions(*table, symbols, TextOffset(*elf));
    } else {
      EXPECT_EQ(table->unsupported_rows, 4u);  // told twice
    }
  }
}

TEST_F(CompileTest, WithoutSectionHeadersTheSearchTableLeadsTheWay) {
  std::string path = Build("", "");
  ASSERT_FALSE(path.empty());
  std::string bytes = ReadWhole(path);
  uint64_t text = TextOffset(*Open(bytes));
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.e_shoff = 0;
  header.e_shnum = 0;
  std::memcpy(bytes.data(), &header, sizeof(header));
  auto elf = Open(bytes);
  ASSERT_TRUE(elf->sections().empty());
  auto table = Compile(*elf, nullptr);
  ASSERT_TRUE(table.ok()) << table.error().message;
  auto symbols = Symbols(path);
  CheckFunctions(*table, symbols, text);
}

TEST_F(CompileTest, TheDebugFileTellsWhatTheProgramDoesNot) {
  std::string path = Build(".cfi_sections .debug_frame\n", "");
  ASSERT_FALSE(path.empty());
  std::string debug = directory_.path() + "/f.debug", stripped = directory_.path() + "/s.so";
  ASSERT_EQ(system(("objcopy --only-keep-debug --compress-debug-sections " + path + " " + debug + " && strip -o " + stripped + " " + path).c_str()), 0);
  auto elf = Open(ReadWhole(stripped)), companion = Open(ReadWhole(debug));
  ASSERT_TRUE(elf && companion);
  auto table = Compile(*elf, companion.get());
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_TRUE(table->sources.starts_with("debug_frame")) << table->sources;
  auto symbols = Symbols(path);
  CheckFunctions(*table, symbols, TextOffset(*elf));
}

TEST_F(CompileTest, MoreRowsThanAllowedIsAnError) {
  std::string path = Build("", "");
  ASSERT_FALSE(path.empty());
  auto elf = Open(ReadWhole(path));
  CompileLimits limits;
  limits.max_rows = 3;
  auto table = Compile(*elf, nullptr, limits);
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.error().code, ErrorCode::kExhausted);
}

TEST_F(CompileTest, GoTellsByItsOwnTable) {
  std::string go = "cd " + directory_.path() + " && export GO111MODULE=off GOFLAGS= && ";
  FILE* file = fopen((directory_.path() + "/m.go").c_str(), "w");
  fputs("package main\n\n//go:noinline\nfunc f(n int) int { if n < 2 { return n }; return f(n-1) + f(n-2) }\nfunc main() { println(f(3)) }\n", file);
  fclose(file);
  if (system((go + "go build -o whole m.go && go build -ldflags='-s -w' -o stripped m.go && "
                   "go build -ldflags='-s -w' -buildmode=pie -o pie m.go 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "no Go here";
  }
  auto symbols = Symbols(directory_.path() + "/whole");
  auto whole = Open(ReadWhole(directory_.path() + "/whole"));
  auto table = Compile(*whole, nullptr);
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_TRUE(table->sources.starts_with("gopclntab")) << table->sources;
  const auto& segments = whole->segments();
  auto rule = [&](const std::string& name, uint64_t more) {
    uint64_t address = symbols.at(name) + more;
    for (const auto& s : segments) {
      if (s.executable && address >= s.vaddr && address < s.vaddr + s.file_size) return table->Find(address - s.vaddr + s.offset);
    }
    return unwind_rule{};
  };
  EXPECT_EQ(rule("runtime.goexit.abi0", 0).kind, UNWIND_RULE_END);
  EXPECT_EQ(rule("runtime.mstart.abi0", 0).kind, UNWIND_RULE_END);
  EXPECT_EQ(rule("runtime.sigreturn__sigaction.abi0", static_cast<uint64_t>(-1)).kind, UNWIND_RULE_SIGNAL);
  EXPECT_EQ(rule("main.f", 0).cfa_offset, 8);
  EXPECT_EQ(rule("main.f", 0).cfa_reg, 7);
  unwind_rule moved = rule("runtime.systemstack.abi0", 0x40);
  EXPECT_EQ(moved.kind, UNWIND_RULE_SWITCH);
  EXPECT_EQ(moved.cfa_reg, 6);
  EXPECT_EQ(moved.cfa_offset, 16);
  EXPECT_EQ(moved.fp_offset, -16);
  // the table does not depend on symbols
  for (const char* name : {"stripped", "pie"}) {
    auto other = Open(ReadWhole(directory_.path() + "/" + name));
    auto same = Compile(*other, nullptr);
    ASSERT_TRUE(same.ok()) << name;
    EXPECT_TRUE(same->sources.starts_with("gopclntab")) << name << " " << same->sources;
    if (std::string(name) == "stripped") {
      EXPECT_EQ(same->table_rows, table->table_rows);
    }
    EXPECT_GT(same->table_rows, table->table_rows * 9 / 10) << name;
  }
}

// Files of aarch64 are read on every machine: their registers have other numbers, and a call leaves its return address in x30.
TEST_F(CompileTest, AnotherMachinesRegisters) {
  static constexpr const char* kArm64 = R"(
.text
.globl first, aligned, last, odd, signal
first: .cfi_startproc
  paciasp
  .cfi_negate_ra_state
  stp x29, x30, [sp, #-32]!
  .cfi_def_cfa_offset 32
  .cfi_offset x29, -32
  .cfi_offset x30, -24
  mov x29, sp
  str x19, [sp, #16]
  .cfi_offset x19, -16
  ldp x29, x30, [sp], #32
  .cfi_restore x29
  .cfi_restore x30
  .cfi_def_cfa_offset 0
  autiasp
  .cfi_negate_ra_state
  ret
.cfi_endproc
aligned: .cfi_startproc
  stp x29, x30, [sp, #-16]!
  mov x29, sp
  .cfi_def_cfa x29, 16
  .cfi_offset x29, -16
  .cfi_offset x30, -8
  nop
.cfi_endproc
last: .cfi_startproc
  .cfi_undefined x30
  nop
.cfi_endproc
odd: .cfi_startproc
  .cfi_escape 0x0c, 40, 8
  nop
  .cfi_def_cfa sp, 8
  .cfi_register x29, x20
  nop
.cfi_endproc
signal: .cfi_startproc
  .cfi_signal_frame
  .cfi_def_cfa x29, 0
  .cfi_offset x29, 0
  .cfi_offset x30, 8
  mov x8, #139
  svc #0
.cfi_endproc
)";
  std::string source = directory_.path() + "/a.s", out = directory_.path() + "/a.so";
  FILE* file = fopen(source.c_str(), "w");
  fputs(kArm64, file);
  fclose(file);
  std::string command = "clang-19 --target=aarch64-linux-gnu -fuse-ld=lld -shared -nostdlib -o " + out + " " + source;
  ASSERT_EQ(system(command.c_str()), 0) << command;
  auto elf = Open(ReadWhole(out));
  ASSERT_TRUE(elf);
  EXPECT_EQ(elf->machine(), symbols::Machine::kArm64);
  auto table = Compile(*elf, nullptr);
  ASSERT_TRUE(table.ok()) << table.error().message;
  auto at = Symbols(out);
  const auto* text = elf->FindSection(".text");
  ASSERT_TRUE(text);
  auto rule = [&](const char* name, uint64_t more) { return table->Find(at[name] + more - text->vaddr + text->offset); };
  constexpr uint8_t kFp = 29, kLink = 30, kSp = 31;
  for (uint64_t leaf : {0, 4, 20, 24}) {
    EXPECT_EQ(rule("first", leaf).kind, UNWIND_RULE_FRAME) << leaf;
    EXPECT_EQ(rule("first", leaf).cfa_reg, kSp) << leaf;
    EXPECT_EQ(rule("first", leaf).cfa_offset, 0) << leaf;
    EXPECT_EQ(rule("first", leaf).fp, UNWIND_FP_SAME) << leaf;
    EXPECT_EQ(rule("first", leaf).ra, UNWIND_RA_IN_REG) << leaf;
    EXPECT_EQ(rule("first", leaf).ra_offset, kLink) << leaf;
  }
  for (uint64_t body : {8, 12, 16}) {
    EXPECT_EQ(rule("first", body).cfa_offset, 32) << body;
    EXPECT_EQ(rule("first", body).fp, UNWIND_FP_AT_CFA) << body;
    EXPECT_EQ(rule("first", body).fp_offset, -32) << body;
    EXPECT_EQ(rule("first", body).ra, UNWIND_RA_AT_CFA) << body;
    EXPECT_EQ(rule("first", body).ra_offset, -24) << body;
  }
  EXPECT_EQ(rule("aligned", 8).cfa_reg, kFp);
  EXPECT_EQ(rule("aligned", 8).cfa_offset, 16);
  EXPECT_EQ(rule("last", 0).kind, UNWIND_RULE_END);
  EXPECT_EQ(rule("odd", 0).kind, UNWIND_RULE_UNSUPPORTED);
  EXPECT_EQ(rule("odd", 4).fp, UNWIND_FP_UNKNOWN);
  EXPECT_EQ(rule("signal", 4).kind, UNWIND_RULE_SIGNAL);
  std::map<std::string, uint64_t> missing;
  for (const MissingRule& m : table->missing) missing[m.what] = m.rows;
  EXPECT_EQ(missing["CFA told by register 40"], 1u);
  EXPECT_EQ(missing["frame pointer in register x20"], 1u);
  EXPECT_EQ(table->unsupported_rows, 2u);
}

}  // namespace
}  // namespace borescope::unwind
