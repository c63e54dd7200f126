// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/frame_check.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sampler/symbols/eh_frame.h"
#include "sampler/symbols/go_table.h"

namespace borescope::unwind {
namespace {

using symbols::Row;

constexpr size_t kPrologueBytes = 64;  // a prologue stands within them, after a stack check

bool ReadCode(const Place& place, uint64_t address, void* into, size_t n) {
  if (place.elf) return place.elf->Read(address, into, n);
  return place.memory && place.memory->Read(address, into, n);
}

// What the first bytes of a function tell.
struct Prologue {
  bool readable = false, found = false;
  uint64_t push = 0, done = 0;  // address of `push rbp`, and of the first instruction that has its own frame pointer
  bool saved_by_move = false;   // Go before 1.21: sub $n, rsp; mov rbp, n-8(rsp); lea n-8(rsp), rbp
};

Prologue FindPrologue(const Place& place, uint64_t start, uint64_t end) {
  Prologue p;
  std::array<uint8_t, kPrologueBytes> code{};
  size_t n = std::min<uint64_t>(code.size(), end - start);
  while (n >= 4 && !ReadCode(place, start, code.data(), n)) n /= 2;  // the end of the mapping may be near
  if (n < 4) return p;
  p.readable = true;
  for (size_t i = 0; i + 4 <= n; ++i) {
    static constexpr uint8_t kPush[] = {0x55, 0x48, 0x89, 0xe5}, kPushLlvm[] = {0x55, 0x48, 0x8b, 0xec};
    if (std::memcmp(&code[i], kPush, 4) == 0 || std::memcmp(&code[i], kPushLlvm, 4) == 0) {
      p.found = true;
      p.push = start + i;
      p.done = start + i + 4;
      return p;
    }
    static constexpr uint8_t kLeaByte[] = {0x48, 0x8d, 0x6c, 0x24}, kLeaWord[] = {0x48, 0x8d, 0xac, 0x24};
    bool byte = std::memcmp(&code[i], kLeaByte, 4) == 0, word = std::memcmp(&code[i], kLeaWord, 4) == 0;
    if (byte || word) {
      p.found = true;
      p.saved_by_move = true;
      p.push = start + i;
      p.done = start + i + (byte ? 5 : 8);
      return p;
    }
  }
  return p;
}

std::optional<symbols::GoFunction> FindGo(const Place& place, uint64_t pc) {
  const symbols::GoTable* table = place.elf ? place.elf->go_table() : nullptr;
  if (!table) return std::nullopt;
  return table->Find(pc);
}

std::optional<Row> FindRow(const Place& place, uint64_t pc) {
  const symbols::EhFrame* frames = place.elf ? place.elf->eh_frame() : nullptr;
  if (!frames) return std::nullopt;
  return frames->Find(pc);
}

bool HasFrame(const Row& row) {
  return !row.signal_frame && (row.cfa == Row::Cfa::kFramePointer || row.cfa == Row::Cfa::kRealigned);
}

}  // namespace

bool EndsInCall(std::span<const uint8_t> code) {
  size_t n = code.size();
  if (n >= 5 && code[n - 5] == 0xe8) return true;  // call rel32
  // call r/m64: ff /2, of 2, 3, 4, 6 or 7 bytes (a REX prefix before it does not matter)
  for (size_t length : {2, 3, 4, 6, 7}) {
    if (n < length || code[n - length] != 0xff) continue;
    uint8_t modrm = code[n - length + 1], mod = modrm >> 6, rm = modrm & 7;
    if (((modrm >> 3) & 7) != 2) continue;
    size_t expected = 2;
    if (mod != 3 && rm == 4) {
      if (length < 3) continue;
      uint8_t base = code[n - length + 2] & 7;
      expected += 1 + (mod == 0 && base == 5 ? 4 : 0);
    }
    if (mod == 0 && rm == 5) expected += 4;
    if (mod == 1) expected += 1;
    if (mod == 2) expected += 4;
    if (expected == length) return true;
  }
  return false;
}

LeafRule CheckLeaf(const Place& place) {
  using Kind = LeafRule::Kind;
  if (auto go = FindGo(place, place.pc)) {
    auto delta = place.elf->go_table()->StackDelta(place.pc);
    if (delta) return {Kind::kDelta, *delta};
    return {Kind::kNone, 0};
  }
  if (auto row = FindRow(place, place.pc)) {
    if (HasFrame(*row)) return {Kind::kChain, 0};
    bool at_border = row->cfa == Row::Cfa::kStackPointer && (row->cfa_offset == 8 || row->cfa_offset == 16) && row->return_address;
    auto delta = static_cast<uint32_t>(row->cfa_offset - 8);
    if (at_border && !row->signal_frame) {
      if (row->has_frame_pointer) return {Kind::kStack, delta};
      if (row->rbp == Row::Rbp::kSame) return {Kind::kBare, delta};
    }
    return {Kind::kNone, 0};
  }
  // No table: the function's own bytes.
  if (place.function_start == 0 || place.function_start > place.pc) return {Kind::kNone, 0};
  Prologue prologue = FindPrologue(place, place.function_start, place.function_start + kPrologueBytes);
  if (!prologue.readable) return {Kind::kUnreadable, 0};
  if (!prologue.found || prologue.saved_by_move) return {Kind::kNone, 0};
  if (place.pc <= prologue.push) return {Kind::kStack, 0};
  if (place.pc < prologue.done) return {Kind::kStack, 8};
  uint8_t byte;
  if (!ReadCode(place, place.pc, &byte, 1)) return {Kind::kUnreadable, 0};
  if (byte == 0xc3 || byte == 0xc2) return {Kind::kStack, 0};  // ret
  return {Kind::kChain, 0};
}

CallerRule CheckCaller(const Place& place) {
  CallerRule rule;
  if (auto go = FindGo(place, place.pc); go && go->top_frame) {  // goexit's return address was never pushed by a call
    rule.root = rule.follows_call = true;
    return rule;
  }
  std::array<uint8_t, 8> before{};
  size_t n = 0;
  for (size_t length : {8, 7, 6, 5, 4, 3, 2}) {  // fewer when a segment begins just before
    if (place.pc >= length && ReadCode(place, place.pc - length, before.data(), length)) {
      n = length;
      break;
    }
  }
  rule.readable = n > 0;
  rule.follows_call = EndsInCall({before.data(), n});
  if (!rule.follows_call) return rule;

  uint64_t call = place.pc - 1;  // in the call instruction: a call may be the last instruction of its function
  if (auto go = FindGo(place, call)) {
    rule.root = go->top_frame;
    auto prologue = FindPrologue(place, go->start, go->end);
    rule.frame_pointer = prologue.found && prologue.done <= call;
    return rule;
  }
  if (auto row = FindRow(place, call)) {
    rule.frame_pointer = HasFrame(*row);
    rule.root = row->outermost;
    rule.keeps_rbp = !rule.frame_pointer && !row->signal_frame && row->rbp == Row::Rbp::kSame;
    return rule;
  }
  if (place.function_start == 0 || place.function_start > call) return rule;
  Prologue prologue = FindPrologue(place, place.function_start, place.function_start + kPrologueBytes);
  rule.frame_pointer = prologue.found && !prologue.saved_by_move && prologue.done <= call;
  return rule;
}

}  // namespace borescope::unwind
