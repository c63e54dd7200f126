// SPDX-License-Identifier: Apache-2.0
// Exact at every instruction: a program runs step by step under ptrace, the test follows its calls and returns, and each state is given
// to the aggregator as a sample with registers and stack. What comes out must be the true stack, whole.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "local_names.h"
#include "random_profile.h"
#include "sampler/stacks/aggregator.h"
#include "sampler/symbols/proc_maps.h"
#include "sampler/unwind/compile.h"

namespace borescope::stacks {
namespace {

bool Peek(pid_t pid, uint64_t address, void* into, size_t n) {
  iovec local{into, n}, remote{reinterpret_cast<void*>(address), n};
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(n);
}

unwind_regs Registers(const user_regs_struct& r) {
  return {.pc = r.rip, .r = {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15}};
}

// Made here, at once, for each file that is asked for.
class LocalTables final : public unwind::Tables {
 public:
  State Want(const unwind_file_key&, const std::shared_ptr<symbols::MappedFile>&, uint64_t) override { return State::kReady; }
  std::shared_ptr<const unwind::CompiledTable> Get(const std::shared_ptr<symbols::MappedFile>& file, State* state) override {
    auto [it, added] = tables_.try_emplace(file);
    if (added) {
      auto compiled = unwind::Compile(*file->elf, nullptr);
      if (compiled.ok()) it->second = std::make_shared<const unwind::CompiledTable>(*std::move(compiled));
    }
    *state = it->second ? State::kReady : State::kNothing;
    return it->second;
  }
  size_t Poll() override { return 0; }
  int wake_fd() const override { return -1; }
  void Release() override {}
  Stats stats() const override { return {}; }
  std::vector<FileInfo> files() const override { return {}; }

 private:
  std::map<std::shared_ptr<symbols::MappedFile>, std::shared_ptr<const unwind::CompiledTable>> tables_;
};

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

TEST(SingleStep, EveryStackIsWhole) {
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
  LocalTables tables;
  Options options;
  LocalNames names;
  options.tables = &tables;
  options.names = &names;
  options.on_sample = [&](const NamedSample& s) {
    got = *s.frames;
    got_reason = s.end_reason;
  };
  auto aggregator = Aggregator::Create(options);
  aggregator->StartJob(0, {});
  aggregator->OnFound({1, pid, 1, 0, "step_target"});

  int steps = 0, unwinding_steps = 0;
  std::vector<std::byte> stack(32 << 10);
  uint64_t stack_end = UINT64_MAX;
  for (; steps < 20000; ++steps) {
    engine::Sample sample;
    engine::RawStack raw = {};
    raw.regs = Registers(regs);
    raw.start = (regs.rsp - UNWIND_RED_ZONE) & ~7ull;
    size_t n = std::min<uint64_t>(stack.size(), stack_end - raw.start);
    while (n > 0 && !Peek(pid, raw.start, stack.data(), n)) n -= 256;  // the stack's mapping ends above main's frame
    if (n < stack.size()) stack_end = raw.start + n;
    raw.stack = std::span(stack).first(n);
    uint64_t pc = regs.rip;
    sample.end_reason = LOSS_TABLES_NOT_READY;
    sample.time_ns = steps + 1;
    sample.tgid = sample.tid = pid;
    sample.space = 1;
    sample.job_mask = 1;
    sample.weight_ns = 1;
    sample.user_pcs = {&pc, 1};
    sample.raw = &raw;
    got.clear();
    aggregator->OnSample(sample);
    aggregator->Poll(sample.time_ns);

    std::vector<std::string> expected{truth.Name(regs.rip)};
    for (size_t i = calls.size(); i-- > 0;) expected.push_back(truth.Name(calls[i].address - 1));
    auto show = [&] {
      char at[32];
      snprintf(at, sizeof(at), "%llx", regs.rip);
      std::string text = "step " + std::to_string(steps) + " at " + at + ", expected:";
      for (const auto& e : expected) text += " " + e + " <-";
      text += "\n got:";
      for (const auto& g : got) text += " " + g.name + " (" + g.location + ") <-";
      return text;
    };
    ASSERT_FALSE(got.empty()) << show();
    // The unwinder of exceptions writes into the frames that it is about to drop: its memory is no stack then.
    if (expected[0].starts_with("libgcc_s.so")) {
      ++unwinding_steps;
    } else {
      ASSERT_EQ(got_reason, LOSS_NONE) << show();
      ASSERT_GE(got.size(), expected.size()) << show();
      for (size_t i = 0; i < expected.size(); ++i) {
        bool target = got[i].location == "step_target";
        std::string name = target ? expected[i].substr(0, got[i].name.size()) : expected[i];
        if (target && (expected[i] == "?" || expected[i].starts_with("std::"))) continue;  // no function; one body of several templates
        ASSERT_EQ(target ? got[i].name : got[i].location, name) << show();
      }
      ASSERT_EQ(got.back().name, "_start") << show();
      ASSERT_LE(got.size(), expected.size() + 2) << show();  // what calls main's caller
    }

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
  printf("%d steps, %d of them in the unwinder of exceptions\n", steps, unwinding_steps);
  EXPECT_EQ(steps, 20000);
}

}  // namespace
}  // namespace borescope::stacks
