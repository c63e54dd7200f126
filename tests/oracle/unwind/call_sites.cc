// SPDX-License-Identifier: Apache-2.0
#include "call_sites.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

namespace borescope::oracle {
namespace {

constexpr int kMaxJumps = 4;
constexpr size_t kMaxFunctionBytes = 256 << 10;
constexpr uint8_t kTrampoline[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};  // mov $rt_sigreturn, %rax; syscall

// The length of an indirect call that ends `before` (its last 8 bytes), 0: none does.
int IndirectCall(const uint8_t (&before)[8]) {
  for (int length = 2; length <= 7; ++length) {
    const uint8_t* p = before + 8 - length;
    const uint8_t* op = p;
    if ((*op & 0xf0) == 0x40 && length > 2) ++op;  // REX
    if (*op != 0xff || ((op[1] >> 3) & 7) != 2) continue;
    const int mode = op[1] >> 6, rm = op[1] & 7;
    int size = 2 + (mode != 3 && rm == 4 ? 1 : 0);
    if (mode == 1) size += 1;
    if (mode == 2 || (mode == 0 && rm == 5)) size += 4;
    if (mode == 0 && rm == 4 && (op[2] & 7) == 5) size += 4;
    if (size + (op - p) == length) return length;
  }
  return 0;
}

int32_t Signed(const uint8_t* p) {
  int32_t value;
  memcpy(&value, p, 4);
  return value;
}

}  // namespace

CallSites::CallSites(pid_t pid) : pid_(pid) {
  memory_ = open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  ReadMappings();
}

CallSites::~CallSites() {
  if (memory_ >= 0) close(memory_);
}

bool CallSites::Read(uint64_t address, void* into, size_t n) const {
  return pread(memory_, into, n, static_cast<off_t>(address)) == static_cast<ssize_t>(n);
}

void CallSites::ReadMappings() {
  modules_.clear();
  known_.clear();
  std::ifstream maps("/proc/" + std::to_string(pid_) + "/maps");
  std::string line, last_path;
  Module* module = nullptr;
  while (std::getline(maps, line)) {
    unsigned long start, end, offset;
    char permissions[5], path[4096] = "";
    if (sscanf(line.c_str(), "%lx-%lx %4s %lx %*s %*s %4095s", &start, &end, permissions, &offset, path) < 4) continue;
    if (path[0] != '/') {
      module = nullptr;
      last_path.clear();
      continue;
    }
    if (module == nullptr || last_path != path) {
      module = &modules_[start];
      module->start = start;
      last_path = path;
      uint64_t linked = 0;
      Elf64_Ehdr header;
      if (Read(start, &header, sizeof header) && memcmp(header.e_ident, ELFMAG, 4) == 0) {
        for (int i = 0; i < header.e_phnum; ++i) {
          Elf64_Phdr segment;
          if (Read(start + header.e_phoff + sizeof segment * static_cast<uint64_t>(i), &segment, sizeof segment) && segment.p_type == PT_LOAD) {
            linked = segment.p_vaddr - segment.p_offset;
            break;
          }
        }
        ReadElf("/proc/" + std::to_string(pid_) + "/root" + path, start - linked, module);
      }
    }
    module->end = end;
  }
}

void CallSites::ReadElf(const std::string& path, uint64_t bias, Module* module) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  Elf64_Ehdr header;
  auto read = [&](uint64_t offset, void* into, size_t n) { return pread(fd, into, n, static_cast<off_t>(offset)) == static_cast<ssize_t>(n); };
  if (!read(0, &header, sizeof header)) header.e_phnum = header.e_shnum = 0;
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read(header.e_phoff + sizeof segment * static_cast<uint64_t>(i), &segment, sizeof segment) || segment.p_type != PT_GNU_EH_FRAME) continue;
    // version, encodings of the pointer, the count, the table; then the table of (function, entry), 4 bytes each, from the header on
    std::vector<uint8_t> bytes(segment.p_filesz);
    if (bytes.size() < 12 || !Read(bias + segment.p_vaddr, bytes.data(), bytes.size()) || bytes[2] != 0x03 || bytes[3] != 0x3b) continue;
    const uint64_t at = bias + segment.p_vaddr;
    uint32_t count;
    memcpy(&count, &bytes[8], 4);
    for (uint32_t k = 0; k < count && 12 + 8 * (k + 1) <= bytes.size(); ++k) {
      Function f{at + static_cast<uint64_t>(static_cast<int64_t>(Signed(&bytes[12 + 8 * k]))), 0};
      const uint64_t entry = at + static_cast<uint64_t>(static_cast<int64_t>(Signed(&bytes[16 + 8 * k])));
      uint8_t fde[16];
      uint32_t range;
      if (!Read(entry, fde, sizeof fde)) continue;
      memcpy(&range, fde + 12, 4);
      f.end = f.start + range;
      if (entry + 8 + static_cast<uint64_t>(static_cast<int64_t>(Signed(fde + 8))) == f.start) module->functions.push_back(f);
    }
  }
  std::sort(module->functions.begin(), module->functions.end(), [](const Function& a, const Function& b) { return a.start < b.start; });
  Elf64_Shdr names;
  if (header.e_shnum > 0 && read(header.e_shoff + sizeof names * header.e_shstrndx, &names, sizeof names)) {
    for (int i = 0; i < header.e_shnum; ++i) {
      Elf64_Shdr section;
      char name[8] = {};
      if (read(header.e_shoff + sizeof section * static_cast<uint64_t>(i), &section, sizeof section) && read(names.sh_offset + section.sh_name, name, 5) &&
          (strncmp(name, ".plt", 4) == 0 || strncmp(name, ".iplt", 5) == 0)) {
        module->stubs.push_back({bias + section.sh_addr, bias + section.sh_addr + section.sh_size});
      }
    }
  }
  close(fd);
}

const CallSites::Module* CallSites::FindModule(uint64_t address) const {
  auto it = modules_.upper_bound(address);
  if (it == modules_.begin()) return nullptr;
  --it;
  return address < it->second.end ? &it->second : nullptr;
}

CallSites::Function CallSites::FunctionAt(uint64_t address) const {
  const Module* module = FindModule(address);
  if (module == nullptr) return {};
  auto it = std::upper_bound(module->functions.begin(), module->functions.end(), address, [](uint64_t a, const Function& f) { return a < f.start; });
  if (it == module->functions.begin() || address >= std::prev(it)->end) return {};
  return *std::prev(it);
}

bool CallSites::InStub(uint64_t address) const {
  const Module* module = FindModule(address);
  if (module == nullptr) return false;
  for (const auto& s : module->stubs) {
    if (address >= s.start && address < s.end) return true;
  }
  return false;
}

bool CallSites::IsTrampoline(uint64_t address) {
  uint8_t code[sizeof kTrampoline];
  return Read(address, code, sizeof code) && memcmp(code, kTrampoline, sizeof code) == 0;
}

// Whether control can come from target into the callee's function without a call.
bool CallSites::Leads(uint64_t target, uint64_t callee, int depth, bool* indirect) {
  const Function into = FunctionAt(callee);
  if (InStub(target)) {
    if (InStub(callee) && target / 16 == callee / 16) return true;
    uint8_t stub[16];
    if (!Read(target, stub, sizeof stub)) return false;
    for (size_t i = 0; i + 6 <= sizeof stub; ++i) {
      uint64_t address;
      if (stub[i] == 0xff && stub[i + 1] == 0x25 && Read(target + i + 6 + static_cast<uint64_t>(static_cast<int64_t>(Signed(stub + i + 2))), &address, 8)) {
        if (InStub(address)) break;  // not bound yet
        return Leads(address, callee, depth, indirect);
      }
    }
    *indirect = true;
    return false;
  }
  const Function from = FunctionAt(target);
  if (into.start != 0 && target >= into.start && target < into.end) return true;
  if (from.start == 0) {  // no function is known there
    *indirect = true;
    return false;
  }
  if (depth >= kMaxJumps) {
    *indirect = true;
    return false;
  }
  std::vector<uint8_t> code(std::min<uint64_t>(from.end - from.start, kMaxFunctionBytes));
  if (!Read(from.start, code.data(), code.size())) return false;
  // Hand-written functions fall through into the next one.
  if (into.start >= from.end && into.start - from.end < 64) *indirect = true;
  std::vector<uint64_t> next;
  for (size_t i = 0; i + 2 <= code.size(); ++i) {
    const bool near = (code[i] == 0xe9 && i + 5 <= code.size()) || (code[i] == 0x0f && (code[i + 1] & 0xf0) == 0x80 && i + 6 <= code.size());
    const size_t length = near ? (code[i] == 0xe9 ? 5 : 6) : code[i] == 0xeb || (code[i] & 0xf0) == 0x70 ? 2 : 0;
    if (length != 0) {
      const uint64_t to = from.start + i + length + static_cast<uint64_t>(near ? Signed(&code[i + length - 4]) : static_cast<int64_t>(static_cast<int8_t>(code[i + 1])));
      if (to >= from.start && to < from.end) continue;
      if (into.start != 0 && to >= into.start && to < into.end) return true;
      const Function f = FunctionAt(to);
      if (f.start == to || InStub(to)) next.push_back(to);
    }
    if (code[i] == 0xff && ((code[i + 1] >> 3) & 7) == 4) *indirect = true;
  }
  for (uint64_t to : next) {
    if (Leads(to, callee, depth + 1, indirect)) return true;
  }
  return false;
}

CallSites::Pair CallSites::Check(uint64_t callee, uint64_t return_address) {
  auto [it, fresh] = known_.try_emplace({callee, return_address});
  Pair& pair = it->second;
  if (!fresh) return pair;
  uint8_t before[8];
  if (!Read(return_address - 8, before, sizeof before)) {
    pair = {Verdict::kImpossible, "the caller's code cannot be read"};
    return pair;
  }
  const bool may_be_indirect = IndirectCall(before) != 0;
  if (before[3] != 0xe8) {
    if (!may_be_indirect) pair = {Verdict::kImpossible, "no call before the return address"};
    return pair;
  }
  const uint64_t target = return_address + static_cast<uint64_t>(static_cast<int64_t>(Signed(before + 4)));
  bool indirect = false;
  if (FunctionAt(callee).start == 0 && !InStub(callee)) return pair;  // code without a function that we know
  if (Leads(target, callee, 0, &indirect)) {
    pair.verdict = Verdict::kRight;
  } else if (!indirect && !may_be_indirect) {
    char text[128];
    snprintf(text, sizeof text, "the call goes to 0x%lx, the callee is at 0x%lx", target, callee);
    pair = {Verdict::kImpossible, text};
  }
  return pair;
}

}  // namespace borescope::oracle
