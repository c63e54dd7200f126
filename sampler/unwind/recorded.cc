// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/recorded.h"

#include "bpf/lib/unwind.h"

namespace borescope::unwind {
namespace {

#ifdef BORESCOPE_PLANTED_FAULT  // tests/fuzz shows that such a fault is found
constexpr size_t kTooFar = 8;
#else
constexpr size_t kTooFar = 0;
#endif

// Whether the walk may go on at u->pc, and by which rule.
bool FindRule(struct unwind* u, CodeMap& code, bool after_syscall, const unwind_rule** rule) {
  static constexpr unwind_rule kNone = {};
  CodePlace place = code.Find(unwind_lookup_pc(u) - (after_syscall ? 1 : 0));
  *rule = &kNone;
  if (place.kind == CodePlace::Kind::kProbe) {
    unwind_stop(u, LOSS_URETPROBE);
    return false;
  }
  if (place.kind == CodePlace::Kind::kNowhere) {
    unwind_stop(u, u->guessed ? LOSS_NO_UNWIND_INFO : LOSS_NOT_CODE);
    return u->interrupted;  // such a pc is a frame in any case: the call of a wild pointer ends up there
  }
  if (place.pending) {
    unwind_stop(u, LOSS_TABLES_NOT_READY);
    return true;
  }
  if (place.table) *rule = &place.table->Find(place.file_offset);
  if (u->guessed && (*rule)->kind != UNWIND_RULE_SIGNAL) {
    uint64_t before = 0;
    if (!code.ReadCode(u->pc - sizeof(before), &before, sizeof(before)) || !unwind_is_caller(u, before)) {
      unwind_stop(u, LOSS_NO_UNWIND_INFO);
      return false;
    }
  }
  return true;
}

}  // namespace

borescope_loss UnwindRecorded(const unwind_regs& regs, uint64_t stack_start, std::span<const std::byte> stack, CodeMap& code,
                              std::vector<uint64_t>* pcs, size_t max_frames, bool after_syscall) {
  pcs->clear();
  struct unwind u = {};
  unwind_begin(&u, &regs);
  u.reader.bytes = reinterpret_cast<const unsigned char*>(stack.data());
  u.reader.address = stack_start;
  u.reader.size = stack.size() + kTooFar;
  while (!u.done) {
    if (pcs->size() == max_frames) {
      unwind_stop(&u, LOSS_TOO_DEEP);
      break;
    }
    const unwind_rule* rule;
    if (FindRule(&u, code, after_syscall && pcs->empty(), &rule)) pcs->push_back(u.pc | (u.interrupted && !pcs->empty() ? USER_FRAME_INTERRUPTED : 0));
    if (u.done) break;
    if (rule->kind == UNWIND_RULE_NONE) {
      uint64_t bytes = 0;
      if (u.interrupted && !code.ReadCode(u.pc, &bytes, sizeof(bytes))) bytes = 0;
      unwind_guess(&u, bytes);
    } else {
      unwind_up(&u, rule);
    }
  }
  return static_cast<borescope_loss>(u.end);
}

}  // namespace borescope::unwind
