// SPDX-License-Identifier: Apache-2.0
#include "sampler/guard/kernel_fault.h"

#include "common/base/strings.h"

namespace borescope::guard {
namespace {

// A report is over after so much: those of several CPUs come one after the other, each with its registers, modules and stack.
constexpr uint64_t kReportUs = 10'000'000;
constexpr int kReportRecords = 2000;
constexpr size_t kHeadlineBytes = 160;
// Faults are told at KERN_WARNING or worse; what names tenants' processes (a segmentation fault) is KERN_INFO.
constexpr uint64_t kWarning = 4;

struct Record {
  uint64_t level, time_us;
  std::string_view text;
};

std::optional<Record> Parse(std::string_view record) {
  size_t end = record.find(';');
  if (end == record.npos) return std::nullopt;
  std::string_view head = record.substr(0, end), text = record.substr(end + 1);
  uint64_t fields[3];
  for (uint64_t& field : fields) {
    size_t comma = head.find(',');
    auto value = ParseUint(head.substr(0, comma));
    if (!value || comma == head.npos) return std::nullopt;
    field = *value;
    head.remove_prefix(comma + 1);
  }
  return Record{fields[0] & 7, fields[2], text.substr(0, text.find('\n'))};
}

bool Skip(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

bool IsHeadline(std::string_view text) {
  Skip(text, "watchdog: ");
  for (std::string_view start : {"BUG: ", "kernel BUG at ", "Oops: ", "Oops[", "general protection fault", "Internal error: ", "Unable to handle kernel ", "divide error: ",
                                 "invalid opcode: ", "stack segment: ", "double fault: ", "traps: PANIC: double fault", "int3: ", "page fault in NMI", "Watchdog detected hard LOCKUP",
                                 "NMI watchdog: Watchdog detected hard LOCKUP", "Kernel panic "}) {
    if (text.starts_with(start)) return true;
  }
  // "rcu: INFO: rcu_preempt self-detected stall on CPU", "… detected stalls on CPUs/tasks:", "… detected expedited stalls on CPUs/tasks: { … }";
  // older ones without "rcu: ".
  Skip(text, "rcu: ");
  return Skip(text, "INFO: rcu") && (text.find(" self-detected stall on CPU") != text.npos || text.find(" stalls on CPUs/tasks") != text.npos);
}

// The BPF program that a line of a stack, or of the registers, names: " bpf_prog_<16 hex>_name+0x1c/0x2f0", " ? …", "RIP: 0010:…", "pc : …".
std::string_view ProgramOn(std::string_view text) {
  while (Skip(text, " ")) {
  }
  if (!Skip(text, "? ")) {
    if (Skip(text, "RIP: ")) {  // with the code segment
      size_t colon = text.find(':');
      if (colon == text.npos || colon > 4) return {};
      text.remove_prefix(colon + 1);
    } else {
      Skip(text, "pc : ") || Skip(text, "lr : ");
    }
  }
  constexpr std::string_view kProgram = "bpf_prog_", kTrampoline = "bpf_trampoline_";
  constexpr size_t kTag = 16;
  std::string_view rest = text;
  if (Skip(rest, kProgram)) {
    if (rest.size() < kTag || rest.substr(0, kTag).find_first_not_of("0123456789abcdef") != rest.npos) return {};
    rest.remove_prefix(kTag);
    rest.remove_prefix(std::min(rest.find_first_not_of("_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789."), rest.size()));
  } else if (Skip(rest, kTrampoline)) {
    size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    if (digits == 0) return {};
    rest.remove_prefix(digits);
  } else {
    return {};
  }
  return rest.starts_with("+0x") ? text.substr(0, text.size() - rest.size()) : std::string_view();
}

}  // namespace

std::optional<KernelFault> FaultDetector::Read(std::string_view bytes) {
  std::optional<Record> record = Parse(bytes);
  if (!record) return std::nullopt;
  if (!headline_.empty() && (++records_ > kReportRecords || record->time_us - begun_us_ > kReportUs)) headline_.clear();
  if (record->level <= kWarning && IsHeadline(record->text)) {
    if (headline_.empty()) headline_ = SanitizeName(record->text, kHeadlineBytes);
    begun_us_ = record->time_us;
    records_ = 0;
    return std::nullopt;
  }
  if (headline_.empty()) return std::nullopt;
  std::string_view program = ProgramOn(record->text);
  if (program.empty()) return std::nullopt;
  KernelFault fault{headline_, SanitizeName(program, kHeadlineBytes)};
  headline_.clear();
  return fault;
}

}  // namespace borescope::guard
