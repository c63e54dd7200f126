// SPDX-License-Identifier: Apache-2.0
// Every instruction of chosen functions, under ptrace: registers and stack are unwound by our user-space build and by elfutils, and both
// must agree frame by frame. Needs no BPF, only the right to trace a child.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/strings.h"
#include "elfutils.h"
#include "live_code.h"

namespace borescope::oracle {
namespace {

constexpr int kSteps = 20'000;
constexpr size_t kStackBytes = 128 << 10;  // the largest frame is 70 000
constexpr size_t kRedZone = 128;

uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* given = getenv("SEED");
    uint64_t s = given != nullptr ? strtoull(given, nullptr, 0) : std::random_device{}();
    printf("SEED=%" PRIu64 "\n", s);
    return s;
  }();
  return seed;
}

struct Function {
  std::string name;
  std::set<uint64_t> instructions;  // linked addresses
};

// Every instruction of the functions named step_…, as objdump says.
std::vector<Function> ChosenFunctions(const std::string& file) {
  std::vector<Function> found;
  FILE* objdump = popen(("objdump -d --no-show-raw-insn " + file).c_str(), "r");
  char line[4096];
  bool inside = false;
  while (fgets(line, sizeof line, objdump)) {
    unsigned long address;
    char name[2048];
    if (sscanf(line, "%lx <%2047[^>]>:", &address, name) == 2) {
      inside = strstr(name, "step_") != nullptr && strstr(name, "@plt") == nullptr && strncmp(name, "_ZS", 3) != 0 && strncmp(name, "_ZNS", 4) != 0;
      if (inside) found.push_back({name, {}});
    } else if (inside && sscanf(line, " %lx:", &address) == 1 && strstr(line, "nop") == nullptr && strstr(line, "xchg   %ax,%ax") == nullptr) {
      found.back().instructions.insert(address);
    }
  }
  pclose(objdump);
  return found;
}

unwind_regs ToUnwindRegs(const user_regs_struct& r) {
  return {.pc = r.rip, .r = {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15}};
}

struct Difference {
  int count = 0;
  std::string example;
};

class SingleStep : public testing::TestWithParam<const char*> {};

TEST_P(SingleStep, AgreesWithElfutilsAtEveryInstruction) {
  const std::string file = std::string(STEP_TARGET_DIRECTORY "/") + GetParam();
  std::vector<Function> functions = ChosenFunctions(file);
  ASSERT_GE(functions.size(), 30u) << file;
  pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    const std::string seed = std::to_string(Seed());
    setenv("LD_BIND_NOW", "1", 1);  // the loader's lazy binding is not among the chosen functions, and too much for elfutils
    execl(file.c_str(), file.c_str(), seed.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL);

  // To main: what the loader does before is the loader's.
  LiveCode code(pid);
  uint64_t main_linked = 0;
  FILE* nm = popen(("nm " + file + " | grep ' T main$'").c_str(), "r");
  ASSERT_EQ(fscanf(nm, "%lx", &main_linked), 1);
  pclose(nm);
  auto elf = symbols::ElfFile::Parse(*symbols::OpenSource(UniqueFd(open(file.c_str(), O_RDONLY | O_CLOEXEC))));
  ASSERT_TRUE(elf.ok());
  uint64_t bias = 0;  // address in the process - linked address
  for (const auto& line : code.lines()) {
    if (line.path == file) bias = line.start - *(*elf)->OffsetToVaddr(line.offset);
  }
  ASSERT_NE(bias, 0u) << file << " must be a position-independent program";
  const uint64_t main_pc = bias + main_linked;
  const long word = ptrace(PTRACE_PEEKTEXT, pid, main_pc, nullptr);
  ptrace(PTRACE_POKETEXT, pid, main_pc, (word & ~0xffl) | 0xcc);
  ptrace(PTRACE_CONT, pid, nullptr, nullptr);
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
  ptrace(PTRACE_POKETEXT, pid, main_pc, word);
  user_regs_struct regs;
  ptrace(PTRACE_GETREGS, pid, nullptr, &regs);
  regs.rip = main_pc;
  ptrace(PTRACE_SETREGS, pid, nullptr, &regs);
  code.ReadMappings();
  Elfutils elfutils(pid);

  std::map<uint64_t, int> seen;                  // linked addresses of the program
  std::map<std::string, Difference> differences;  // by function and shape
  std::map<std::string, int> oracle_problems;
  std::vector<std::byte> stack(kStackBytes);
  std::vector<uint64_t> ours;
  int steps = 0, whole = 0, undescribed = 0, in_longjmp = 0;
  size_t deepest = 0;
  for (; steps < kSteps; ++steps) {
    // As much of the stack as there is.
    const uint64_t start = regs.rsp - kRedZone;
    size_t bytes = stack.size();
    while (bytes > 0 && !code.Read(start, stack.data(), bytes)) bytes = ((start + bytes - 1) & ~4095ull) > start ? ((start + bytes - 1) & ~4095ull) - start : 0;
    const unwind_regs at = ToUnwindRegs(regs);
    const borescope_loss end = unwind::UnwindRecorded(at, start, std::span(stack.data(), bytes), code, &ours);
    const TrueStack truth = elfutils.Unwind(at, start, std::span(stack.data(), bytes));
    ++seen[regs.rip - bias];
    deepest = std::max(deepest, truth.frames.size());

    bool same = ours.size() >= truth.frames.size() && (!truth.whole || (ours.size() == truth.frames.size() && end == LOSS_NONE));
    for (size_t i = 0; same && i < truth.frames.size(); ++i) same = (ours[i] & ~(1ull << 63)) == truth.frames[i].pc;
    if (!truth.problem.empty()) {
      ++oracle_problems[truth.problem + " in " + elfutils.Describe(truth.frames.empty() ? regs.rip : truth.frames.back().pc)];
    } else if (truth.whole) {
      whole += same;
    } else {
      ++undescribed;
    }
    // Its caller stands in the jump buffer, which need not be on the stack: we say that we do not know.
    if (!same && (end == LOSS_BAD_CFA || end == LOSS_UNSUPPORTED_RULE) && ours.size() == 1 && elfutils.Describe(regs.rip).starts_with("__longjmp")) {
      ++in_longjmp;
    } else if (!same) {
      size_t i = 0;
      while (i < std::min(ours.size(), truth.frames.size()) && (ours[i] & ~(1ull << 63)) == truth.frames[i].pc) ++i;
      const uint64_t below = i == 0 ? regs.rip : truth.frames[std::min(i, truth.frames.size()) - 1].pc;
      std::string shape = elfutils.Describe(below);
      Difference& d = differences[shape];
      if (d.count++ == 0) {
        d.example = "ours (end " + std::to_string(end) + "):";
        for (uint64_t pc : ours) d.example += " " + elfutils.Describe(pc & ~(1ull << 63));
        d.example += "\n      true" + std::string(truth.whole ? ", whole:" : ":");
        for (const auto& f : truth.frames) d.example += " " + elfutils.Describe(f.pc) + (f.described ? "" : " [no CFI]");
      }
    }

    ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSTOPPED(status)) << "the target ended";
    if (WSTOPSIG(status) != SIGTRAP) {  // delivered: the next stop is at the handler's first instruction
      ptrace(PTRACE_SINGLESTEP, pid, nullptr, WSTOPSIG(status));
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      ASSERT_TRUE(WIFSTOPPED(status));
    }
    ptrace(PTRACE_GETREGS, pid, nullptr, &regs);
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);

  size_t instructions = 0, run = 0, entered = 0;
  for (const auto& f : functions) {
    size_t mine = 0;
    for (uint64_t address : f.instructions) mine += seen.contains(address);
    instructions += f.instructions.size();
    run += mine;
    entered += mine > 0;
    if (mine == 0) printf("  never run: %s\n", f.name.c_str());
  }
  printf("%s: %d steps, %zu places; %zu of %zu chosen functions, %zu of their %zu instructions; %d stacks whole and equal, %d up to code without CFI, %d in longjmp, deepest %zu; differing places %zu\n",
         GetParam(), steps, seen.size(), entered, functions.size(), run, instructions, whole, undescribed, in_longjmp, deepest, differences.size());
  for (const auto& [problem, count] : oracle_problems) printf("  elfutils failed: %d x %s\n", count, problem.c_str());
  for (const auto& [path, problem] : code.problems()) printf("  no table: %s: %s\n", path.c_str(), problem.c_str());
  for (const auto& [shape, d] : differences) ADD_FAILURE() << d.count << " x above " << shape << "\n      " << d.example;
  int problems = 0;
  for (const auto& [problem, count] : oracle_problems) problems += count;
  EXPECT_LE(problems, steps / 100);
  EXPECT_GE(entered, 30u);
  EXPECT_GE(run * 100, instructions * 80);  // the rest is for errors, and for what the seed did not bring
}

INSTANTIATE_TEST_SUITE_P(Builds, SingleStep, testing::Values("step_target_gcc_O2", "step_target_clang_O2", "step_target_gcc_O0"),
                         [](const auto& info) { return std::string(info.param + strlen("step_target_")); });

}  // namespace
}  // namespace borescope::oracle
