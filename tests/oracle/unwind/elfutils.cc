// SPDX-License-Identifier: Apache-2.0
#include "elfutils.h"

#include <elfutils/libdwfl.h>
#include <sys/uio.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace borescope::oracle {
namespace {

constexpr int kReturnAddress = 16;  // DWARF's number

char* no_debug_files = nullptr;
const Dwfl_Callbacks kCallbacks = {
    .find_elf = dwfl_linux_proc_find_elf,
    .find_debuginfo = dwfl_standard_find_debuginfo,
    .section_address = nullptr,
    .debuginfo_path = &no_debug_files,
};

}  // namespace

struct Elfutils::State {
  pid_t pid = 0;
  Dwfl* dwfl = nullptr;
  const unwind_regs* regs = nullptr;
  uint64_t stack_start = 0;
  std::span<const std::byte> stack;
  bool live = false, outside = false, at_end = false, astray = false;
  TrueStack* out = nullptr;
  struct Known {
    bool described = false, end = false, code = false;
  };
  std::map<uint64_t, Known> known;  // by the address that is looked up
  std::map<uint64_t, uint64_t> executable;  // mappings: start, end

  Dwfl_Module* ModuleAt(uint64_t address) const {
    Dwfl_Module* module = dwfl_addrmodule(dwfl, address);  // the nearest one
    Dwarf_Addr start = 0, end = 0;
    if (module == nullptr || dwfl_module_info(module, nullptr, &start, &end, nullptr, nullptr, nullptr, nullptr) == nullptr) return nullptr;
    return address >= start && address < end ? module : nullptr;
  }

  Known Look(uint64_t address) {
    auto [it, fresh] = known.try_emplace(address);
    if (!fresh) return it->second;
    Known& k = it->second;
    auto mapping = executable.upper_bound(address);
    k.code = mapping != executable.begin() && address < std::prev(mapping)->second;
    Dwfl_Module* module = ModuleAt(address);
    if (module == nullptr) return k;
    for (auto* get : {dwfl_module_eh_cfi, dwfl_module_dwarf_cfi}) {
      Dwarf_Addr bias = 0;
      Dwarf_CFI* cfi = get(module, &bias);
      Dwarf_Frame* frame = nullptr;
      if (cfi == nullptr || dwarf_cfi_addrframe(cfi, address - bias, &frame) != 0) continue;
      k.described = true;
      Dwarf_Op space[3], *ops = nullptr;
      size_t count = 0;
      k.end = dwarf_frame_register(frame, kReturnAddress, space, &ops, &count) == 0 && ops == space && count == 0;  // undefined
      free(frame);
      break;
    }
    return k;
  }
};

namespace {

pid_t NextThread(Dwfl*, void* arg, void** thread_arg) {
  if (*thread_arg != nullptr) return 0;
  *thread_arg = arg;
  return static_cast<Elfutils::State*>(arg)->pid;
}

bool GetThread(Dwfl*, pid_t, void* arg, void** thread_arg) {
  *thread_arg = arg;
  return true;
}

bool ReadMemory(Dwfl*, Dwarf_Addr address, Dwarf_Word* result, void* arg) {
  auto& s = *static_cast<Elfutils::State*>(arg);
  if (address >= s.stack_start && s.stack.size() >= 8 && address - s.stack_start <= s.stack.size() - 8) {
    memcpy(result, s.stack.data() + (address - s.stack_start), 8);
    return true;
  }
  s.outside = true;
  if (!s.live) return false;
  iovec local{result, 8}, remote{reinterpret_cast<void*>(address), 8};
  return process_vm_readv(s.pid, &local, 1, &remote, 1, 0) == 8;
}

bool SetRegisters(Dwfl_Thread* thread, void* arg) {
  const unwind_regs& regs = *static_cast<Elfutils::State*>(arg)->regs;
  Dwarf_Word words[17];
  for (int i = 0; i < 16; ++i) words[i] = regs.r[i];
  words[16] = regs.pc;
  return dwfl_thread_state_registers(thread, 0, 17, words);
}

const Dwfl_Thread_Callbacks kThreads = {.next_thread = NextThread,
                                        .get_thread = GetThread,
                                        .memory_read = ReadMemory,
                                        .set_initial_registers = SetRegisters,
                                        .detach = nullptr,
                                        .thread_detach = nullptr};

int OnFrame(Dwfl_Frame* frame, void* arg) {
  auto& s = *static_cast<Elfutils::State*>(arg);
  Dwarf_Addr pc = 0;
  if (!dwfl_frame_pc(frame, &pc, nullptr)) return -1;
  // A return address belongs to the call before it; the callers of signal handlers and what they interrupted have none.
  bool interrupted = true;
  if (!s.out->frames.empty() && !dwfl_frame_pc(frame, &pc, &interrupted)) return -1;
  const auto known = s.Look(interrupted ? pc : pc - 1);
  s.at_end = known.end;
  if (!known.code) {  // what it took for a return address is none
    s.astray = true;
    return DWARF_CB_ABORT;
  }
  s.out->frames.push_back({pc, known.described});
  return known.described && s.out->frames.size() < 1000 ? DWARF_CB_OK : DWARF_CB_ABORT;
}

}  // namespace

Elfutils::Elfutils(pid_t pid) : state_(std::make_unique<State>()) {
  state_->pid = pid;
  ReadMappings();
}

Elfutils::~Elfutils() {
  if (state_->dwfl != nullptr) dwfl_end(state_->dwfl);
}

void Elfutils::ReadMappings() {
  if (state_->dwfl != nullptr) dwfl_end(state_->dwfl);
  state_->dwfl = dwfl_begin(&kCallbacks);
  state_->known.clear();
  state_->executable.clear();
  std::ifstream maps("/proc/" + std::to_string(state_->pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long start, end;
    char permissions[5];
    if (sscanf(line.c_str(), "%lx-%lx %4s", &start, &end, permissions) == 3 && permissions[2] == 'x') state_->executable[start] = end;
  }
  dwfl_report_begin(state_->dwfl);
  dwfl_linux_proc_report(state_->dwfl, state_->pid);
  dwfl_report_end(state_->dwfl, nullptr, nullptr);
  dwfl_attach_state(state_->dwfl, nullptr, state_->pid, &kThreads, state_.get());
}

TrueStack Elfutils::Unwind(const unwind_regs& regs, uint64_t stack_start, std::span<const std::byte> stack, bool live) {
  TrueStack out;
  State& s = *state_;
  s.regs = &regs;
  s.stack_start = stack_start;
  s.stack = stack;
  s.live = live;
  s.outside = s.at_end = s.astray = false;
  s.out = &out;
  int result = dwfl_getthread_frames(s.dwfl, s.pid, OnFrame, &s);
  // elfutils takes a return address that it cannot find or read for the end.
  out.whole = result == 0 && s.at_end;
  if (out.frames.empty() && !s.Look(regs.pc).described) {
    out.frames.push_back({regs.pc, false});  // it does not begin in code that it knows nothing of
  } else if (out.frames.empty()) {
    out.problem = "no frame: " + std::string(dwfl_errmsg(-1));
  } else if (!out.whole && out.frames.back().described) {
    out.problem = s.astray                    ? "a return address that is not code"
                  : s.outside && !live        ? "a read outside the bytes of the stack"
                  : result == 0               ? "an end where none is"
                  : result == DWARF_CB_ABORT  ? "too many frames"
                                              : dwfl_errmsg(-1);
  }
  return out;
}

std::string Elfutils::Describe(uint64_t pc) const {
  char text[64];
  Dwfl_Module* module = state_->ModuleAt(pc);
  if (module == nullptr) {
    snprintf(text, sizeof text, "0x%lx", pc);
    return text;
  }
  const char* file = dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  const char* slash = strrchr(file, '/');
  GElf_Off offset = 0;
  GElf_Sym symbol;
  const char* name = dwfl_module_addrinfo(module, pc, &offset, &symbol, nullptr, nullptr, nullptr);
  Dwarf_Addr start = 0;
  dwfl_module_info(module, nullptr, &start, nullptr, nullptr, nullptr, nullptr, nullptr);
  snprintf(text, sizeof text, "+0x%lx", name != nullptr ? offset : pc - start);
  return std::string(name != nullptr ? name : "?") + text + " (" + (slash != nullptr ? slash + 1 : file) + ")";
}

}  // namespace borescope::oracle
