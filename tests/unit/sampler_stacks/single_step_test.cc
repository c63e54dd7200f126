// SPDX-License-Identifier: Apache-2.0
// Exact at every instruction: a program runs step by step under ptrace, the test follows its calls and returns, and each state is given
// to the aggregator as a sample. What comes out must be the true stack, or its beginning with a cut: never a wrong caller.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "random_profile.h"
#include "sampler/stacks/aggregator.h"
#include "sampler/symbols/proc_maps.h"

namespace borescope::stacks {
namespace {

bool Peek(pid_t pid, uint64_t address, void* into, size_t n) {
  iovec local{into, n}, remote{reinterpret_cast<void*>(address), n};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(n);
}

// As the BPF program walks.
borescope_loss Walk(pid_t pid, const user_regs_struct& regs, std::vector<uint64_t>* pcs) {
  pcs->assign(1, regs.rip);
  uint64_t bp = regs.rbp, low = regs.rsp, limit = regs.rsp + (16 << 20);
  while (pcs->size() < 127) {
    if (bp == 0) return LOSS_NONE;
    if (bp < low || bp > limit - 16 || bp % 8 != 0) return LOSS_BAD_FRAME_POINTER;
    uint64_t words[2];
    if (!Peek(pid, bp, words, 16)) return LOSS_STACK_UNREADABLE;
    if (words[1] == 0) return LOSS_NONE;
    low = bp + 16;
    bp = words[0];
    pcs->push_back(words[1]);
  }
  return LOSS_TOO_DEEP;
}

// What the linked address of an instruction of the target is above its offset in the file, as readelf says.
uint64_t LinkedMinusOffset() {
  uint64_t offset = 0, linked = 0;
  FILE* readelf = popen("readelf -lW " STEP_TARGET " | grep 'LOAD.* R E '", "r");
  EXPECT_EQ(fscanf(readelf, " LOAD %lx %lx", &offset, &linked), 2);
  pclose(readelf);
  return linked - offset;
}

// addr2line-like truth for the target from nm; other modules by their base name.
class Truth {
 public:
  explicit Truth(pid_t pid) {
    for (auto& m : symbols::ParseMaps(*ReadFile("/proc/" + std::to_string(pid) + "/maps"), 1000)) maps_.push_back(m);
    FILE* nm = popen("nm -CS --defined-only " STEP_TARGET, "r");
    char line[4096];
    while (fgets(line, sizeof(line), nm)) {
      char type;
      unsigned long address, length;
      int name = 0;
      if (strlen(line) < 34 || line[33] != ' ' || sscanf(line, "%lx %lx %c %n", &address, &length, &type, &name) < 3 || !strchr("tTwWV", type)) continue;
      std::string text(line + name);
      text.pop_back();
      names_.emplace(address, std::pair(address + length, text));
    }
    pclose(nm);
  }
  // In the target's own code, all of which has frame pointers; not in a stub of the linker.
  bool InTarget(uint64_t pc) const {
    const auto* m = Map(pc);
    return m && m->path == STEP_TARGET && Name(pc) != "?";
  }
  // Name of the function, or of the module.
  std::string Name(uint64_t pc) const {
    const auto* m = Map(pc);
    if (!m) return "?";
    if (m->path != STEP_TARGET) return m->path.substr(m->path.rfind('/') + 1);
    uint64_t linked = pc - m->start + m->offset + shift_;
    auto it = names_.upper_bound(linked);
    return it == names_.begin() || linked >= std::prev(it)->second.first ? "?" : std::prev(it)->second.second;
  }

 private:
  const symbols::MapsLine* Map(uint64_t pc) const {
    for (const auto& m : maps_) {
      if (pc >= m.start && pc < m.end) return &m;
    }
    return nullptr;
  }
  uint64_t shift_ = LinkedMinusOffset();
  std::vector<symbols::MapsLine> maps_;
  std::multimap<uint64_t, std::pair<uint64_t, std::string>> names_;  // by start: end, name
};

TEST(SingleStep, NeverAWrongCaller) {
  uint64_t seed = testing::Seed();
  pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    std::string text = std::to_string(seed);
    setenv("LD_BIND_NOW", "1", 1);
    execl(STEP_TARGET, STEP_TARGET, text.c_str(), nullptr);
    _exit(127);
  }
  int status;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL);

  // run to main
  uint64_t main_offset = 0;
  {
    FILE* nm = popen("nm " STEP_TARGET " | grep -i ' t main$'", "r");
    ASSERT_EQ(fscanf(nm, "%lx", &main_offset), 1);
    pclose(nm);
  }
  uint64_t base = 0;
  for (const auto& m : symbols::ParseMaps(*ReadFile("/proc/" + std::to_string(pid) + "/maps"), 1000)) {
    if (m.path == STEP_TARGET) base = m.start - m.offset - LinkedMinusOffset();
  }
  ASSERT_NE(base, 0u);
  uint64_t main_pc = base + main_offset;
  long word = ptrace(PTRACE_PEEKTEXT, pid, main_pc, nullptr);
  ptrace(PTRACE_POKETEXT, pid, main_pc, (word & ~0xffl) | 0xcc);
  ptrace(PTRACE_CONT, pid, nullptr, nullptr);
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
  ptrace(PTRACE_POKETEXT, pid, main_pc, word);
  user_regs_struct regs;
  ptrace(PTRACE_GETREGS, pid, nullptr, &regs);
  regs.rip = main_pc;
  ptrace(PTRACE_SETREGS, pid, nullptr, &regs);
  Truth truth(pid);

  struct Call {
    uint64_t slot, address;  // where the return address is kept, and what it is
  };
  std::vector<Call> calls;  // outermost first
  auto push = [&](uint64_t slot) {
    uint64_t address = 0;
    Peek(pid, slot, &address, 8);
    calls.push_back({slot, address});
  };
  push(regs.rsp);
  std::vector<NamedFrame> got;
  borescope_loss got_reason = LOSS_NONE;
  Options options;
  options.on_sample = [&](const NamedSample& s) {
    got = *s.frames;
    got_reason = s.end_reason;
  };
  auto aggregator = Aggregator::Create(options);
  aggregator->StartJob(0, {});
  aggregator->OnFound({1, pid, 1, 0, "step_target"});

  int steps = 0, whole = 0, framed = 0, cut = 0;
  for (; steps < 20000; ++steps) {
    engine::Sample sample;
    std::vector<uint64_t> pcs;
    uint64_t top[2];
    ASSERT_TRUE(Peek(pid, regs.rsp, top, 16));
    sample.end_reason = Walk(pid, regs, &pcs);
    sample.time_ns = steps + 1;
    sample.tgid = sample.tid = pid;
    sample.space = 1;
    sample.job_mask = 1;
    sample.weight_ns = 1;
    sample.user_pcs = pcs;
    sample.user_sp = regs.rsp;
    sample.user_bp = regs.rbp;
    sample.stack_top = top;
    got.clear();
    aggregator->OnSample(sample);

    std::vector<std::string> expected{truth.Name(regs.rip)};
    bool all_framed = truth.InTarget(regs.rip);
    for (size_t i = calls.size(); i-- > 0;) {
      expected.push_back(truth.Name(calls[i].address - 1));
      if (i > 0) all_framed &= truth.InTarget(calls[i].address - 1);
    }
    auto show = [&] {
      std::string text = "step " + std::to_string(steps) + ", expected:";
      for (const auto& e : expected) text += " " + e + " <-";
      text += "\n got:";
      for (const auto& g : got) text += " " + g.name + " (" + g.location + ") <-";
      return text;
    };
    ASSERT_FALSE(got.empty()) << show();
    // The unwinder of exceptions writes into the frames that it is about to drop: its memory is no stack then.
    bool unwinding = expected[0].starts_with("libgcc_s.so");
    size_t frames = got.size() - (got_reason != LOSS_NONE);
    ASSERT_LE(frames, expected.size()) << show();
    for (size_t i = 0; i < frames && !unwinding; ++i) {
      bool target = got[i].location == "step_target";
      std::string name = target ? expected[i].substr(0, got[i].name.size()) : expected[i];
      if (target && (expected[i] == "?" || expected[i].starts_with("std::"))) continue;  // no function; one body of several templates
      ASSERT_EQ(target ? got[i].name : got[i].location, name) << show();
    }
    if (got_reason == LOSS_NONE) {
      bool has_main = false;
      for (const auto& g : got) has_main |= g.name == "main";
      ASSERT_TRUE(has_main) << show();
      ++whole;
    } else {
      ++cut;
    }
    if (all_framed) {
      ++framed;
      EXPECT_EQ(got_reason, LOSS_NONE) << show();
    }
    if (HasFailure()) break;

    // follow the next instruction
    uint8_t code[16] = {};
    Peek(pid, regs.rip, code, sizeof(code));
    size_t at = 0;
    while (code[at] == 0xf2 || code[at] == 0xf3 || code[at] == 0x66 || code[at] == 0x67 || code[at] == 0x3e || (code[at] & 0xf0) == 0x40) ++at;
    bool call = code[at] == 0xe8 || (code[at] == 0xff && ((code[at + 1] >> 3) & 7) == 2);
    uint64_t old_sp = regs.rsp;
    ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr);
    waitpid(pid, &status, 0);
    if (!WIFSTOPPED(status)) break;
    bool signal = WSTOPSIG(status) == SIGUSR1;
    if (signal) {  // deliver it: the next stop is in the handler
      calls.push_back({old_sp - 8, regs.rip});
      ptrace(PTRACE_SINGLESTEP, pid, nullptr, SIGUSR1);
      waitpid(pid, &status, 0);
    }
    ptrace(PTRACE_GETREGS, pid, nullptr, &regs);
    // returns, exceptions and the end of a signal handler alike leave the slots behind
    while (!calls.empty() && calls.back().slot < regs.rsp) calls.pop_back();
    if (calls.empty()) break;  // main returned
    if (signal || (call && regs.rsp == old_sp - 8)) push(regs.rsp);
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  printf("%d steps: %d whole, %d cut; %d with frame pointers everywhere\n", steps, whole, cut, framed);
  EXPECT_EQ(steps, 20000);
  EXPECT_GT(framed, 1000);
}

}  // namespace
}  // namespace borescope::stacks
