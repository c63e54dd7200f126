// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/kernel_gate.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <sys/utsname.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <span>

#include "common/base/fd.h"
#include "common/base/strings.h"

namespace borescope::engine {
namespace {

// "6.1.137-1" -> 6.1.137; at least two numbers.
std::optional<KernelVersion> ParseNumbers(std::string_view text) {
  std::array<int, 3> numbers{};
  size_t count = 0;
  while (count < numbers.size()) {
    size_t digits = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
    auto value = ParseUint(text.substr(0, digits));
    if (!value || *value > 100000) break;
    numbers[count++] = static_cast<int>(*value);
    text.remove_prefix(digits);
    if (text.empty() || text[0] != '.') break;
    text.remove_prefix(1);
  }
  if (count < 2) return std::nullopt;
  return KernelVersion{numbers[0], numbers[1], numbers[2]};
}

// ---- what is needed ----

struct FeatureRow {
  Feature feature;
  const char* name;  // of the finding
  const char* text;  // what is missing, and since when upstream has it
};

constexpr FeatureRow kFeatures[] = {
    {Feature::kTypes, "btf", "readable type information (/sys/kernel/btf/vmlinux): use a kernel built with CONFIG_DEBUG_INFO_BTF=y, and make /sys visible to the sampler"},
    {Feature::kRingBuffer, "ring-buffer", "BPF ring buffers (bpf_ringbuf_output, Linux 5.8)"},
    {Feature::kReadKernel, "read-kernel", "reading of kernel memory by BPF (bpf_probe_read_kernel, Linux 5.5; refused under kernel lockdown \"confidentiality\")"},
    {Feature::kReadUser, "read-user", "reading of user memory by BPF (bpf_probe_read_user, Linux 5.5)"},
    {Feature::kBootClock, "boot-clock", "the boot clock in BPF (bpf_ktime_get_boot_ns, Linux 5.8)"},
    {Feature::kKernelStack, "kernel-stack", "kernel stacks in BPF (bpf_get_stack, Linux 4.18)"},
    {Feature::kCurrentTask, "current-task", "the typed current task (bpf_get_current_task_btf, Linux 5.11)"},
    {Feature::kTaskStorage, "task-storage", "task storage in tracing programs (bpf_task_storage_get, Linux 5.12)"},
    {Feature::kFormat, "format", "formatting in BPF (bpf_snprintf, Linux 5.13)"},
    {Feature::kAttachCookies, "attach-cookies", "attach cookies of perf events (bpf_get_attach_cookie, Linux 5.15)"},
    {Feature::kTaskRegisters, "task-registers", "a task's user registers (bpf_task_pt_regs, Linux 5.15)"},
    {Feature::kSyscallPrograms, "syscall-programs", "BPF programs that are run by a system call (BPF_PROG_TYPE_SYSCALL, Linux 5.14)"},
    {Feature::kTaskIterator, "task-iterator", "the iterator over tasks (iter/task, Linux 5.8)"},
    {Feature::kTracepoints, "tracepoints", "typed tracepoints of tasks and cgroups (tp_btf, CONFIG_CGROUPS, Linux 5.5)"},
    {Feature::kMappings, "mappings", "a form of the tree of a process's mappings that we know (mm_struct.mm_mt or vm_area_struct.vm_rb)"},
    {Feature::kFileTimes, "file-times", "a form of a file's time of change that we know (inode.i_mtime_sec, __i_mtime or i_mtime)"},
    {Feature::kTaskFields, "task-fields", "a field of a task, its pid or its cgroup that we read (task_struct.thread_pid, css_set.dfl_cgrp, kernfs_node.id)"},
};

// ---- what is known to go wrong: upstream's versions, read through the distributions' names ----

struct Range {
  KernelVersion first, fixed;  // from `first` up to, not including, `fixed`
};
constexpr KernelVersion kNewest = {100000, 0, 0};

struct FaultRow {
  const char* name;
  Verdict verdict;
  bool overridable;  // of a kRefused one
  const char* text;  // what the kernel does, what we do, what to do
  std::vector<Range> ranges;                    // empty: any version, `applies` alone tells
  bool (*applies)(const KernelFacts&) = nullptr;  // besides the version
};

const std::vector<FaultRow>& Faults() {
  static const std::vector<FaultRow> kRows = {
      {"hardened-usercopy", Verdict::kRefused, true,
       "the whole node can lock up when a BPF program reads user memory in an interrupt (with CONFIG_HARDENED_USERCOPY, fixed in 6.1.36, 6.3.10 and 6.4): update the kernel, or "
       "boot it with hardened_usercopy=off",
       {{{5, 19, 0}, {6, 1, 36}}, {{6, 2, 0}, {6, 3, 10}}},
       [](const KernelFacts& f) { return f.hardened_usercopy; }},
      {"uprobe-callchain", Verdict::kAvoided, false,
       "the kernel's own walk of a user stack can crash beside another tool's uprobes (fixed in 6.13); we never ask for it",
       {{{6, 6, 0}, {6, 7, 0}}, {{6, 11, 0}, {6, 13, 0}}}},
      {"uretprobe-seccomp", Verdict::kAvoided, false,
       "a return probe is a system call, for which seccomp kills the target (fixed in 6.14); we set none",
       {{{6, 11, 0}, {6, 14, 0}}},
       [](const KernelFacts& f) { return f.machine == "x86_64"; }},
      {"cpu-clock-throttle", Verdict::kRefused, true,
       "the machine hangs when a cpu-clock event is throttled (fixed in 6.18), and kernel.perf_event_max_sample_rate is low enough for that: raise it to 4000 or more, or use 6.18",
       {{{6, 16, 0}, {6, 18, 0}}},
       [](const KernelFacts& f) { return f.max_sample_rate < kSafeSampleRate; }},
      {"cpu-clock-throttle", Verdict::kAvoided, false,
       "the machine hangs when a cpu-clock event is throttled (fixed in 6.18); we stay at 999 Hz or less and set no limits on events, and stop should kernel.perf_event_max_sample_rate fall below 4000",
       {{{6, 16, 0}, {6, 18, 0}}},
       [](const KernelFacts& f) { return f.max_sample_rate >= kSafeSampleRate; }},
      {"cpu-clock-count", Verdict::kAvoided, false,
       "cpu-clock events count 0 (fixed in 6.18); CPU time comes from the scheduler, a sample's weight from its period",
       {{{6, 16, 0}, {6, 18, 0}}}},
      {"perf-cgroup", Verdict::kAvoided, false,
       "perf events of a cgroup leave a dangling pointer (up to 6.16-rc2, and stable kernels that took the change over); we open none, cgroups are told apart by the BPF program",
       {{{6, 6, 0}, {6, 7, 0}}, {{6, 12, 0}, {6, 13, 0}}, {{6, 14, 0}, {6, 16, 1}}}},
      {"task-storage-allocation", Verdict::kAvoided, false,
       "task storage that a tracing program creates can deadlock under the scheduler's lock (fixed in 6.4); ours is created at fork and by an iterator only",
       {{{0, 0, 0}, {6, 4, 0}}}},
      {"task-storage-free", Verdict::kWarned, false,
       "freeing a task storage map may wait for ever, and leave a stuck kworker when the sampler ends; the map is kept while the sampler runs",
       {{{7, 0, 0}, {7, 1, 0}}}},
      {"vma-iterator", Verdict::kAvoided, false,
       "BPF that iterates over mappings, or finds one by bpf_find_vma, holds a lock that reading the same task's memory takes again; we read the tree ourselves and take no lock",
       {{{5, 15, 0}, kNewest}}},
      {"rhel-nmi-lockup", Verdict::kWarned, false,
       "hard lockups under another BPF profiler's hardware events have been reported for RHEL 9.4's 5.14.0-427, cause unknown; we use the software clock there, no hardware events",
       {},
       [](const KernelFacts& f) { return f.release.starts_with("5.14.0-427."); }},
      {"preempt-rt", Verdict::kRefused, true,
       "it is a PREEMPT_RT kernel: locks that our programs take in the clock's interrupt sleep there: use a kernel without PREEMPT_RT on nodes that are to be profiled",
       {},
       [](const KernelFacts& f) { return f.preempt_rt; }},
      {"lockdown", Verdict::kRefused, false,
       "kernel lockdown is \"confidentiality\", under which BPF may not read kernel memory: boot with lockdown=integrity or none",
       {},
       [](const KernelFacts& f) { return f.lockdown == "confidentiality"; }},
      {"jit-off", Verdict::kRefused, true,
       "BPF programs are interpreted, some ten times slower and with interrupts off: set net.core.bpf_jit_enable to 1 (CONFIG_BPF_JIT=y)",
       {},
       [](const KernelFacts& f) { return f.jit == Answer::kNo; }},
      {"kptr-restrict", Verdict::kWarned, false,
       "kernel.kptr_restrict is 2: kernel functions have names, but no addresses in the profile: set it to 1",
       {},
       [](const KernelFacts& f) { return f.kptr_restrict >= 2; }},
      {"pmu-nmi", Verdict::kAvoided, false,
       "hardware events interrupt BPF's own locks and lose records (better since 6.1); only the software clock is used",
       {{{0, 0, 0}, {6, 1, 0}}}},
  };
  return kRows;
}

bool Applies(const FaultRow& row, const KernelFacts& facts) {
  if (!row.ranges.empty()) {
    if (!facts.version) return false;
    bool in = std::ranges::any_of(row.ranges, [&](const Range& r) { return *facts.version >= r.first && *facts.version < r.fixed; });
    if (!in) return false;
  }
  return row.applies == nullptr || row.applies(facts);
}

// ---- asking the kernel ----

std::string GunzipFile(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return "";
  std::string text;
  std::array<char, 16384> buffer;
  int n = 0;
  while (text.size() < (4u << 20) && (n = gzread(file, buffer.data(), buffer.size())) > 0) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  gzclose(file);
  return text;
}

int ReadNumber(const std::string& path, int missing) {
  auto text = ReadFile(path, 64);
  if (!text.ok()) return missing;
  std::string_view digits = Trim(*text);
  bool negative = digits.starts_with('-');
  auto value = ParseUint(digits.substr(negative ? 1 : 0));
  if (!value || *value > INT32_MAX) return missing;
  return negative ? -static_cast<int>(*value) : static_cast<int>(*value);
}

// "[none] integrity confidentiality" -> "none".
std::string Bracketed(std::string_view text) {
  size_t open = text.find('['), close = text.find(']');
  return open == std::string_view::npos || close == std::string_view::npos || close < open ? "" : std::string(text.substr(open + 1, close - open - 1));
}

Answer Load(bpf_prog_type type, std::span<const bpf_insn> code, uint32_t flags, UniqueFd* program = nullptr) {
  std::array<char, 4096> log{};
  LIBBPF_OPTS(bpf_prog_load_opts, options, .prog_flags = flags, .log_level = 1, .log_size = log.size(), .log_buf = log.data());
  UniqueFd fd(bpf_prog_load(type, "probe", "GPL", code.data(), code.size(), &options));
  int error = errno;
  if (fd.valid()) {
    if (program != nullptr) *program = std::move(fd);
    return Answer::kYes;
  }
  if (error == EPERM || error == ENOMEM || error == EAGAIN) return Answer::kUnknown;
  // The words of the verifier for a helper that it does not know, or not for this type of program. Any other complaint is about its arguments.
  std::string_view said(log.data(), strnlen(log.data(), log.size()));
  bool refused = said.empty() || said.find("invalid func ") != said.npos || said.find("unknown func ") != said.npos || said.find("cannot use helper ") != said.npos;
  return refused ? Answer::kNo : Answer::kYes;
}

constexpr bpf_insn kReturnZero[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .src_reg = 0, .off = 0, .imm = 0},
                                    {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};

Answer HasHelper(bpf_func_id helper) {
  const bpf_insn code[] = {{.code = BPF_JMP | BPF_CALL, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = helper}, kReturnZero[0], kReturnZero[1]};
  return Load(BPF_PROG_TYPE_PERF_EVENT, code, 0);
}

Answer IsCompiled() {
  UniqueFd program;
  if (Load(BPF_PROG_TYPE_PERF_EVENT, kReturnZero, 0, &program) != Answer::kYes) return Answer::kUnknown;
  bpf_prog_info info{};
  uint32_t size = sizeof(info);
  if (bpf_obj_get_info_by_fd(program.get(), &info, &size) != 0) return Answer::kUnknown;
  return info.jited_prog_len > 0 ? Answer::kYes : Answer::kNo;
}

// The kernel's types, as far as they are asked for.
class Types {
 public:
  explicit Types(const std::string& path) : btf_(btf__parse(path.c_str(), nullptr)) {
    if (!btf_) return;
    for (uint32_t id = 1; id < btf__type_cnt(btf_.get()); ++id) {
      const btf_type* type = btf__type_by_id(btf_.get(), id);
      if (type == nullptr || type->name_off == 0 || !(btf_is_struct(type) || btf_is_typedef(type))) continue;
      auto wanted = ids_.find(std::string_view(btf__name_by_offset(btf_.get(), type->name_off)));
      if (wanted != ids_.end() && wanted->second == 0) wanted->second = id;
    }
  }
  bool readable() const { return btf_ != nullptr; }
  bool Has(const char* name) const { return ids_.at(name) != 0; }
  bool Has(const char* structure, const char* field) const {
    uint32_t id = ids_.at(structure);
    return id != 0 && HasField(id, field, 0);
  }

 private:
  // Members of structures and unions without a name are their owner's.
  bool HasField(uint32_t id, const char* field, int depth) const {
    const btf_type* type = btf__type_by_id(btf_.get(), id);
    if (type == nullptr || !btf_is_composite(type) || depth > 8) return false;
    std::span<const btf_member> members(btf_members(type), btf_vlen(type));
    return std::ranges::any_of(members, [&](const btf_member& m) {
      if (m.name_off == 0) return HasField(m.type, field, depth + 1);
      return std::strcmp(btf__name_by_offset(btf_.get(), m.name_off), field) == 0;
    });
  }

  struct Free {
    void operator()(btf* b) const { btf__free(b); }
  };
  std::unique_ptr<btf, Free> btf_;
  std::map<std::string_view, uint32_t> ids_ = {{"bpf_iter__task", 0}, {"btf_trace_task_newtask", 0}, {"btf_trace_task_rename", 0}, {"btf_trace_sched_process_exit", 0},
                                               {"btf_trace_sched_process_free", 0}, {"btf_trace_cgroup_mkdir", 0}, {"btf_trace_cgroup_rmdir", 0}, {"btf_trace_cgroup_attach_task", 0},
                                               {"mm_struct", 0}, {"vm_area_struct", 0}, {"inode", 0}, {"task_struct", 0}, {"css_set", 0}, {"kernfs_node", 0}, {"cgroup", 0}, {"upid", 0}};
};

Answer AnswerOf(bool yes) { return yes ? Answer::kYes : Answer::kNo; }

}  // namespace

std::optional<KernelVersion> ParseKernelVersion(std::string_view release, std::string_view version, std::string_view signature) {
  signature = Trim(signature);
  if (size_t space = signature.rfind(' '); space != std::string_view::npos) {
    if (auto v = ParseNumbers(signature.substr(space + 1))) return v;
  }
  constexpr std::string_view kDebian = "Debian ";
  if (size_t at = version.find(kDebian); at != std::string_view::npos) {
    if (auto v = ParseNumbers(version.substr(at + kDebian.size()))) return v;
  }
  return ParseNumbers(release);
}

std::string MissingCapabilities(const std::string& proc_root) {
  constexpr std::pair<int, const char*> kNeeded[] = {{39, "CAP_BPF"}, {38, "CAP_PERFMON"}};
  auto status = ReadFile(proc_root + "/self/status");
  if (!status.ok()) return "";
  size_t at = status->find("CapEff:\t");
  if (at == std::string::npos) return "";
  auto effective = ParseUint(Trim(std::string_view(*status).substr(at + 8, 16)), 16);
  std::string missing;
  for (const auto& [bit, name] : kNeeded) {
    if (effective && !(*effective >> bit & 1) && !(*effective >> 21 & 1)) missing += (missing.empty() ? "" : ", ") + std::string(name);
  }
  return missing;
}

KernelFacts ReadKernelFacts(const std::string& proc_root, const std::string& sys_root) {
  KernelFacts facts;
  utsname names{};
  uname(&names);
  facts.release = names.release;
  facts.build = names.version;
  facts.machine = names.machine;
  auto signature = ReadFile(proc_root + "/version_signature", 4096);
  facts.version = ParseKernelVersion(names.release, names.version, signature.ok() ? *signature : "");
  facts.preempt_rt = facts.build.find("PREEMPT_RT") != std::string::npos || ReadNumber(sys_root + "/kernel/realtime", 0) == 1;

  std::string config = GunzipFile(proc_root + "/config.gz");
  // Reads plain files as well. In a container /boot is the image's own, and empty: with hostPID the node's is behind its first process.
  for (const std::string& root : {std::string(), proc_root + "/1/root"}) {
    if (config.empty()) config = GunzipFile(root + "/boot/config-" + names.release);
  }
  if (config.find("# CONFIG_HARDENED_USERCOPY is not set") != std::string::npos) facts.hardened_usercopy = false;
  if (auto line = ReadFile(proc_root + "/cmdline", 1 << 16); line.ok()) {
    for (std::string_view word : Split(Trim(*line), ' ')) {
      if (word == "hardened_usercopy=off" || word == "hardened_usercopy=0" || word == "hardened_usercopy=n") facts.hardened_usercopy = false;
    }
  }
  if (auto lockdown = ReadFile(sys_root + "/kernel/security/lockdown", 256); lockdown.ok()) facts.lockdown = Bracketed(*lockdown);
  facts.max_sample_rate = ReadNumber(proc_root + "/sys/kernel/perf_event_max_sample_rate", 0);
  facts.kptr_restrict = ReadNumber(proc_root + "/sys/kernel/kptr_restrict", 0);
  facts.perf_event_paranoid = ReadNumber(proc_root + "/sys/kernel/perf_event_paranoid", 0);
  facts.missing_capabilities = MissingCapabilities(proc_root);
  if (!facts.missing_capabilities.empty()) {
    LIBBPF_OPTS(bpf_prog_load_opts, options);
    UniqueFd program(bpf_prog_load(BPF_PROG_TYPE_PERF_EVENT, "probe", "GPL", kReturnZero, std::size(kReturnZero), &options));
    if (!program.valid()) facts.refusal = ErrnoError("loading a BPF program").message;
  }

  constexpr std::pair<Feature, bpf_func_id> kHelpers[] = {
      {Feature::kRingBuffer, BPF_FUNC_ringbuf_output},       {Feature::kReadKernel, BPF_FUNC_probe_read_kernel},
      {Feature::kReadUser, BPF_FUNC_probe_read_user},        {Feature::kBootClock, BPF_FUNC_ktime_get_boot_ns},
      {Feature::kKernelStack, BPF_FUNC_get_stack},           {Feature::kCurrentTask, BPF_FUNC_get_current_task_btf},
      {Feature::kTaskStorage, BPF_FUNC_task_storage_get},    {Feature::kFormat, BPF_FUNC_snprintf},
      {Feature::kAttachCookies, BPF_FUNC_get_attach_cookie}, {Feature::kTaskRegisters, BPF_FUNC_task_pt_regs},
  };
  for (auto [feature, helper] : kHelpers) facts.feature(feature) = HasHelper(helper);
  facts.feature(Feature::kSyscallPrograms) = Load(BPF_PROG_TYPE_SYSCALL, kReturnZero, BPF_F_SLEEPABLE);
  facts.jit = IsCompiled();

  Types types(sys_root + "/kernel/btf/vmlinux");
  facts.feature(Feature::kTypes) = AnswerOf(types.readable());
  if (!types.readable()) return facts;
  facts.feature(Feature::kTaskIterator) = AnswerOf(types.Has("bpf_iter__task"));
  facts.feature(Feature::kTracepoints) =
      AnswerOf(types.Has("btf_trace_task_newtask") && types.Has("btf_trace_task_rename") && types.Has("btf_trace_sched_process_exit") &&
               types.Has("btf_trace_sched_process_free") && types.Has("btf_trace_cgroup_mkdir") && types.Has("btf_trace_cgroup_rmdir") &&
               types.Has("btf_trace_cgroup_attach_task"));
  facts.feature(Feature::kMappings) = AnswerOf(types.Has("mm_struct", "mm_mt") || types.Has("vm_area_struct", "vm_rb"));
  facts.feature(Feature::kFileTimes) = AnswerOf(types.Has("inode", "i_mtime_sec") || types.Has("inode", "__i_mtime") || types.Has("inode", "i_mtime"));
  facts.feature(Feature::kTaskFields) = AnswerOf(types.Has("task_struct", "thread_pid") && types.Has("task_struct", "cgroups") && types.Has("css_set", "dfl_cgrp") &&
                                                 types.Has("kernfs_node", "id") && types.Has("cgroup", "kn") && types.Has("upid", "nr"));
  return facts;
}

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kRefused: return "Refused";
    case Verdict::kOverridden: return "Overridden";
    case Verdict::kWarned: return "Warned";
    case Verdict::kAvoided: break;
  }
  return "Avoided";
}

KernelReport JudgeKernel(const KernelFacts& facts, const std::set<std::string>& overrides) {
  KernelReport report;
  const std::string kernel = "kernel " + facts.release;
  if (!facts.missing_capabilities.empty()) {
    report.findings.push_back({"perf-event-paranoid", Verdict::kRefused,
                               "this process lacks " + facts.missing_capabilities + (facts.refusal.empty() ? "" : ": " + facts.refusal) + " (kernel.perf_event_paranoid is " +
                                   std::to_string(facts.perf_event_paranoid) + "); run as root, or add the capabilities",
                               true});
  }
  for (const FeatureRow& row : kFeatures) {
    if (facts.feature(row.feature) == Answer::kNo) report.findings.push_back({row.name, Verdict::kRefused, kernel + " lacks " + row.text});
  }
  for (const FaultRow& row : Faults()) {
    if (!Applies(row, facts)) continue;
    bool overridden = row.verdict == Verdict::kRefused && row.overridable && overrides.contains(row.name);
    std::string help = row.verdict == Verdict::kRefused && row.overridable ? std::string("; to sample all the same: --kernel-override ") + row.name : "";
    report.findings.push_back({row.name, overridden ? Verdict::kOverridden : row.verdict, kernel + ": " + row.text + (overridden ? "; allowed by --kernel-override" : help)});
  }
  return report;
}

Status KernelReport::Allowed() const {
  std::string text;
  ErrorCode code = ErrorCode::kDenied;
  for (const KernelFinding& finding : findings) {
    if (finding.verdict != Verdict::kRefused) continue;
    text += (text.empty() ? "" : "; ") + finding.message;
    if (!finding.capability) code = ErrorCode::kUnsupported;
  }
  return text.empty() ? OkStatus() : Status(Error{code, text});
}

std::vector<std::string> KernelOverrides() {
  std::vector<std::string> names;
  for (const FaultRow& row : Faults()) {
    if (row.overridable) names.emplace_back(row.name);
  }
  names.emplace_back(kKernelFault);
  return names;
}

Status CheckOverrides(const std::set<std::string>& overrides) {
  std::vector<std::string> known = KernelOverrides();
  for (const std::string& name : overrides) {
    if (std::ranges::find(known, name) != known.end()) continue;
    std::string list;
    for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
    return Error{ErrorCode::kInvalid, "found \"" + name + "\"; what can be overridden: " + list};
  }
  return OkStatus();
}

}  // namespace borescope::engine
