// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/x86_instruction.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "common/base/strings.h"

namespace borescope::unwind::x86 {
namespace {

uint64_t Seed() {
  const char* given = getenv("SEED");
  uint64_t seed = given ? strtoull(given, nullptr, 0) : std::random_device{}();
  printf("SEED=%lu\n", seed);
  return seed;
}

struct Line {
  uint64_t address = 0;
  std::vector<uint8_t> bytes;
  std::string text;
};

// What objdump makes of a stretch of a file's code.
std::vector<Line> Disassemble(const std::string& path, uint64_t start, uint64_t size) {
  std::string command = "objdump -d -w --insn-width=16 --start-address=" + std::to_string(start) + " --stop-address=" + std::to_string(start + size) + " " + path;
  std::vector<Line> lines;
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  char* text = nullptr;
  size_t capacity = 0;
  while (getline(&text, &capacity, pipe) > 0) {
    auto columns = Split(text, '\t');
    Line line;
    if (columns.size() < 3 || sscanf(text, " %lx:", &line.address) != 1) continue;
    for (auto byte : Split(Trim(columns[1]), ' ')) {
      if (auto value = ParseUint(byte, 16)) line.bytes.push_back(static_cast<uint8_t>(*value));
    }
    line.text = Trim(columns[2]);
    lines.push_back(std::move(line));
  }
  free(text);
  pclose(pipe);
  return lines;
}

constexpr uint64_t kWindow = 48 << 10;
const char* const kFiles[] = {"/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/lib/x86_64-linux-gnu/libm.so.6"};

// A stretch of code of a library, drawn.
std::vector<Line> Draw(std::mt19937_64& random) {
  std::string path = kFiles[random() % std::size(kFiles)];
  FILE* pipe = popen(("readelf -SW " + path + " 2>/dev/null | sed -n 's/.* \\.text *PROGBITS *//p'").c_str(), "r");
  unsigned long start = 0, offset = 0, size = 0;
  int read = fscanf(pipe, "%lx %lx %lx", &start, &offset, &size);
  pclose(pipe);
  if (read != 3 || size <= kWindow) return {};
  auto lines = Disassemble(path, start + random() % (size - kWindow), kWindow);
  printf("%s: %zu instructions\n", path.c_str(), lines.size());
  return lines;
}

TEST(X86Instruction, LengthsEqualObjdumps) {
  std::mt19937_64 random(Seed());
  auto lines = Draw(random);
  if (lines.empty()) GTEST_SKIP() << "no objdump or library here";
  for (const Line& line : lines) {
    if (line.text.find("(bad)") != std::string::npos || line.text.starts_with(".byte") || line.text.find("rex") != std::string::npos) continue;  // begins within one
    if (line.bytes[0] == 0x9b) continue;  // fwait is written as part of the next
    if (line.text.starts_with("jmpw") || line.text.starts_with("callw")) continue;  // in data: processors differ, Decode refuses
    // A prefix that does nothing may stand alone.
    if (line.text.find(' ') == std::string::npos && line.bytes.size() == 1 && (line.text == "data16" || line.text == "lock" || line.text == "repz" || line.text == "repnz" || line.text == "cs" || line.text == "ds" || line.text == "es" || line.text == "ss" || line.text == "fs" || line.text == "gs" || line.text == "addr32")) continue;
    auto bytes = line.bytes;
    bytes.resize(kMaxInstruction + 5, 0x90);
    EXPECT_EQ(Decode(bytes).length, line.bytes.size()) << std::hex << line.address << " " << line.text;
    // Cut short it is no instruction, and nothing behind is read (AddressSanitizer).
    std::vector<uint8_t> part(line.bytes.begin(), line.bytes.end() - 1);
    EXPECT_EQ(Decode(part).length, 0) << std::hex << line.address << " " << line.text;
  }
}

// The last operand of an instruction is where its result goes, but for those that only look.
TEST(X86Instruction, KnowsWhatWritesStackAndFramePointer) {
  std::mt19937_64 random(Seed());
  auto lines = Draw(random);
  if (lines.empty()) GTEST_SKIP() << "no objdump or library here";
  int writers = 0;
  for (const Line& line : lines) {
    auto bytes = line.bytes;
    Instruction in = Decode(bytes);
    if (in.length != bytes.size()) continue;
    static constexpr Op kBlind[] = {Op::kStop, Op::kTrap, Op::kNop, Op::kJump, Op::kBranch, Op::kReturn, Op::kJumpIndirect, Op::kCall, Op::kCallIndirect};
    if (std::find(std::begin(kBlind), std::end(kBlind), in.op) != std::end(kBlind)) continue;
    bool looks = false;
    for (const char* name : {"cmp", "test", "push", "bt ", "nop", "prefetch", "mul", "imul", "div", "idiv", "sahf", "wr", "xrstor", "xsave", "out", "enter", "leave"}) {
      looks |= line.text.starts_with(name) || line.text.find(std::string(" ") + name) != std::string::npos;
    }
    if (looks) continue;
    std::string text = line.text.substr(0, line.text.find('#'));
    size_t end = text.find_last_not_of(' ');
    text.resize(end + 1);
    size_t comma = text.find_last_of(", ");
    std::string last = comma == std::string::npos ? "" : text.substr(comma + 1);
    auto writes = [&](Register r) {
      bool by_op = in.reg == r && in.op != Op::kPush && in.op != Op::kCompare && in.op != Op::kTest;
      return by_op || (in.writes >> r & 1) != 0;
    };
    if (last == "%rbp" || last == "%ebp" || last == "%bp" || last == "%bpl") {
      EXPECT_TRUE(writes(kRbp)) << std::hex << line.address << " " << line.text;
      ++writers;
    }
    if (last == "%rsp" || last == "%esp") {
      EXPECT_TRUE(writes(kRsp)) << std::hex << line.address << " " << line.text;
      ++writers;
    }
    // And none that does not name it.
    if (line.text.find("bp") == std::string::npos) {
      EXPECT_FALSE(writes(kRbp)) << std::hex << line.address << " " << line.text;
    }
    if (line.text.find("sp") == std::string::npos && line.text.find("pop") == std::string::npos) {  // pop of 16 bits: the stack is lost
      EXPECT_FALSE(in.writes >> kRsp & 1) << std::hex << line.address << " " << line.text;
    }
  }
  printf("%d write one of the two\n", writers);
}

Instruction Of(std::vector<uint8_t> bytes) { return Decode(bytes); }

TEST(X86Instruction, OperandsThatAreFollowed) {
  auto in = Of({0x48, 0x83, 0xec, 0x18});  // sub $24, %rsp
  EXPECT_EQ(in.op, Op::kAdd);
  EXPECT_EQ(in.reg, kRsp);
  EXPECT_EQ(in.immediate, -24);
  in = Of({0x48, 0x89, 0x6c, 0x24, 0x10});  // mov %rbp, 16(%rsp)
  EXPECT_EQ(in.op, Op::kStore);
  EXPECT_EQ(in.source, kRbp);
  EXPECT_EQ(in.base, kRsp);
  EXPECT_EQ(in.displacement, 16);
  EXPECT_EQ(in.size, 8);
  in = Of({0x4c, 0x8d, 0x54, 0x24, 0x08});  // lea 8(%rsp), %r10
  EXPECT_EQ(in.op, Op::kLea);
  EXPECT_EQ(in.reg, kR10);
  EXPECT_EQ(in.displacement, 8);
  in = Of({0x41, 0xff, 0x72, 0xf8});  // push -8(%r10)
  EXPECT_EQ(in.op, Op::kPush);
  EXPECT_EQ(in.base, kR10);
  in = Of({0xf2, 0xff, 0x25, 1, 0, 0, 0});  // bnd jmp *1(%rip)
  EXPECT_EQ(in.op, Op::kJumpIndirect);
  EXPECT_TRUE(in.rip_relative);
  in = Of({0xf3, 0xc3});
  EXPECT_EQ(in.op, Op::kReturn);
  in = Of({0x66, 0x50});  // push %ax: the stack is lost
  EXPECT_TRUE(in.writes >> kRsp & 1);
  in = Of({0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0});  // mov %fs:40, %rax
  EXPECT_FALSE(in.memory);
  in = Of({0x0f, 0xc7, 0xf5});  // rdrand %ebp
  EXPECT_TRUE(in.writes >> kRbp & 1);
  in = Of({0xc4, 0xe2, 0xd0, 0xf3, 0xc9});  // blsr %rcx, %rbp: the result is where VEX says
  EXPECT_TRUE(in.writes >> kRbp & 1);
  in = Of({0x62, 0xf1, 0x7d, 0x08, 0x7e, 0xc5});  // vmovd %xmm0, %ebp
  EXPECT_EQ(in.length, 6);
  EXPECT_TRUE(in.writes >> kRbp & 1);
  in = Of({0x8f, 0xe8, 0x78, 0xc0, 0xec, 0x03});  // vprotb $3, %xmm4, %xmm5: XOP, vectors only
  EXPECT_EQ(in.length, 6);
  EXPECT_EQ(in.writes, 0);
  in = Of({0x8f, 0xe9, 0xd0, 0x01, 0xc9});  // blcfill %rcx, %rbp
  EXPECT_EQ(in.writes, 1 << kRbp);
  in = Of({0x8f, 0xea, 0xf8, 0x10, 0xe9, 1, 0, 0, 0});  // bextr $1, %rcx, %rbp
  EXPECT_EQ(in.length, 9);
  EXPECT_EQ(in.writes, 1 << kRbp);
  in = Of({0xc8, 0x10, 0, 0});
  EXPECT_EQ(in.op, Op::kEnter);
  EXPECT_EQ(in.immediate, 16);
  EXPECT_EQ(Of({0x66, 0xe8, 0, 0, 0, 0}).length, 0);  // processors differ
  EXPECT_EQ(Of({0x06}).length, 0);
  EXPECT_EQ(Of(std::vector<uint8_t>(20, 0x66)).length, 0);
  EXPECT_EQ(Of({}).length, 0);
}

}  // namespace
}  // namespace borescope::unwind::x86
