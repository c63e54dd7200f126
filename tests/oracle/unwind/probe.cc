// SPDX-License-Identifier: Apache-2.0
// unwind_probe PID PAIRS SECONDS: samples a living process at 999 Hz through the engine and judges what the kernel unwound. It begins to
// count when the tables of all that is mapped are there, and ends after PAIRS samples, or SECONDS.
//  - Each sample carries registers and stack besides its frames: elfutils unwinds the same bytes, and must find the same program counters.
//  - Each pair of neighbours must be a call and its callee.
// Prints one JSON object. Root and BPF.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "call_sites.h"
#include "common/base/clock.h"
#include "elfutils.h"
#include "sampler/engine/engine.h"
#include "sampler/symbols/files.h"
#include "sampler/symbols/proc_maps.h"
#include "sampler/unwind/tables.h"

namespace borescope::oracle {
namespace {

constexpr uint64_t kInterrupted = 1ull << 63;

constexpr const char* kLossNames[] = {
#define BORESCOPE_LOSS(enumerator, name, text, kind) name,
    BORESCOPE_LOSS_TABLE(BORESCOPE_LOSS)
#undef BORESCOPE_LOSS
};

struct Taken {
  std::vector<uint64_t> pcs;
  borescope_loss end = LOSS_NONE;
  bool raw = false;
  unwind_regs regs{};
  uint64_t stack_start = 0;
  std::vector<std::byte> stack;
};

class Probe : public engine::Observer {
 public:
  Probe(pid_t pid, unwind::Tables& tables) : pid_(pid), tables_(tables), files_("/proc", 4096) {}

  // All that is mapped now.
  void WantAll() {
    unwind_file_key vdso = {};
    vdso.inode = UNWIND_VDSO_INODE;
    tables_.Want(vdso, files_.Vdso());
    auto text = ReadFile("/proc/" + std::to_string(pid_) + "/maps");
    if (!text.ok()) return;
    for (const auto& line : symbols::ParseMaps(*text, 65536)) {
      if (line.inode == 0) continue;
      auto file = Open(pid_, line.start, line.end, {line.device_major, line.device_minor, line.inode}, line.path);
      struct stat s {};
      if (stat(("/proc/" + std::to_string(pid_) + "/root" + line.path).c_str(), &s) != 0) continue;
      unwind_file_key key = {};
      key.inode = s.st_ino;
      key.size = static_cast<uint64_t>(s.st_size);
      key.mtime_sec = s.st_mtim.tv_sec;
      key.device = static_cast<uint32_t>(major(s.st_dev)) << 20 | static_cast<uint32_t>(minor(s.st_dev));
      if (file->elf) tables_.Want(key, file);
    }
  }

  void OnSample(const engine::Sample& s) override {
    if (s.missing != nullptr) {
      if (s.missing->key.inode == UNWIND_VDSO_INODE && s.missing->key.size == 0) {
        tables_.Want(s.missing->key, files_.Vdso());
      } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/%d/map_files/%" PRIx64 "-%" PRIx64, s.tgid, s.missing->start, s.missing->end);
        auto file = Open(s.tgid, s.missing->start, s.missing->end, {s.missing->key.device >> 20, s.missing->key.device & 0xfffff, s.missing->key.inode}, "");
        if (file->elf) tables_.Want(s.missing->key, file);
        else ++problems["no file for " + std::string(link) + ": " + file->problem];
      }
    }
    if (!collecting || s.user_pcs.empty()) return;
    Taken t;
    t.pcs.assign(s.user_pcs.begin(), s.user_pcs.end());
    t.end = s.end_reason;
    if (s.raw != nullptr) {
      t.raw = true;
      t.regs = s.raw->regs;
      t.stack_start = s.raw->start;
      t.stack.assign(s.raw->stack.begin(), s.raw->stack.end());
    }
    taken.push_back(std::move(t));
  }
  void OnMmap(const engine::Mmap&) override {}
  void OnFork(const engine::Fork&) override {}
  void OnExec(const engine::Exec&) override {}
  void OnExit(const engine::Exit&) override {}
  void OnFound(const engine::Found&) override {}
  void OnCgroup(const engine::Cgroup&) override {}

  bool collecting = false;
  std::vector<Taken> taken;
  std::map<std::string, int> problems;

 private:
  std::shared_ptr<symbols::MappedFile> Open(pid_t pid, uint64_t start, uint64_t end, const symbols::FileId& id, std::string_view path) {
    symbols::FileRequest request;
    request.pid = pid;
    request.start = start;
    request.end = end;
    request.id = id;
    request.path = path;
    return files_.Get(request);
  }

  pid_t pid_;
  unwind::Tables& tables_;
  symbols::FileCache files_;
};

std::string Show(const Elfutils& names, const std::vector<uint64_t>& pcs) {
  std::string text;
  for (size_t i = 0; i < pcs.size() && i < 40; ++i) text += (i ? " <- " : "") + names.Describe(pcs[i] & ~kInterrupted);
  return text;
}

template <typename T>
T Must(Result<T> result) {
  if (result.ok()) return *std::move(result);
  fprintf(stderr, "error: %s\n", result.error().message.c_str());
  exit(2);
}

void Must(const Status& status) {
  if (status.ok()) return;
  fprintf(stderr, "error: %s\n", status.error().message.c_str());
  exit(2);
}

bool AnyPending(const unwind::Tables& tables) {
  for (const auto& file : tables.files()) {
    if (file.state == unwind::Tables::State::kPending) return true;
  }
  return false;
}

int Run(pid_t pid, size_t wanted, int64_t seconds) {
  engine::Options options;
  options.ring_bytes = 64 << 20;
  options.raw_every = 1;
  auto engine = Must(engine::Engine::Open(options));
  unwind::Tables::Options table_options;
  table_options.memory = &engine->table_memory();
  table_options.budget_bytes = 256 << 20;
  table_options.compiler = TABLE_COMPILER;
  auto tables = Must(unwind::Tables::Create(table_options));
  Probe probe(pid, *tables);
  const int64_t start = NowNs(CLOCK_MONOTONIC), boot = NowNs(CLOCK_BOOTTIME), end = start + seconds * 1'000'000'000;
  const engine::JobId job = Must(engine->AddJob({.frequency_hz = 999, .kernel_stacks = false, .start_boot_ns = boot, .deadline_boot_ns = boot + (seconds + 60) * 1'000'000'000}));
  Must(engine->AddProcess(job, pid));
  probe.WantAll();
  int64_t ready_ns = 0;
  while (NowNs(CLOCK_MONOTONIC) < end && probe.taken.size() < wanted && kill(pid, 0) == 0) {
    pollfd wake{engine->wake_fd(), POLLIN, 0};
    poll(&wake, 1, 20);
    Must(engine->Drain(probe));
    tables->Poll();
    // What was missing when a sample was taken is asked for when it is drained.
    if (ready_ns == 0 && NowNs(CLOCK_MONOTONIC) > start + 500'000'000 && !AnyPending(*tables)) {
      ready_ns = NowNs(CLOCK_MONOTONIC);
      usleep(100'000);
      Must(engine->Drain(probe));
      probe.collecting = true;
    }
  }
  kill(pid, SIGSTOP);
  engine->SetWindow(job, boot, boot + 1);
  usleep(50'000);
  Must(engine->Drain(probe));
  Must(engine->Drain(probe));

  Elfutils elfutils(pid);
  CallSites calls(pid);
  std::map<std::string, int> ends;
  int whole = 0, pairs = 0, equal = 0, truth_whole = 0, undescribed = 0, not_ready = 0, elfutils_failed = 0, in_longjmp = 0;
  int64_t right = 0, unknown = 0, impossible = 0, frames = 0;
  std::map<std::string, std::pair<int, std::string>> unequal, failures, wrong_calls;
  auto note = [](auto& map, const std::string& key, const std::string& example) {
    auto& [count, text] = map[key];
    if (count++ == 0) text = example;
  };
  for (const Taken& t : probe.taken) {
    ++ends[kLossNames[t.end]];
    whole += t.end == LOSS_NONE;
    frames += static_cast<int64_t>(t.pcs.size());
    for (size_t i = 0; i + 1 < t.pcs.size(); ++i) {
      if ((t.pcs[i + 1] & kInterrupted) || calls.IsTrampoline(t.pcs[i + 1])) continue;
      const bool interrupted = i == 0 || (t.pcs[i] & kInterrupted);
      const auto pair = calls.Check((t.pcs[i] & ~kInterrupted) - (interrupted ? 0 : 1), t.pcs[i + 1]);
      right += pair.verdict == CallSites::Verdict::kRight;
      unknown += pair.verdict == CallSites::Verdict::kUnknown;
      if (pair.verdict == CallSites::Verdict::kImpossible) {
        ++impossible;
        note(wrong_calls, elfutils.Describe(t.pcs[i] & ~kInterrupted) + " <- " + elfutils.Describe(t.pcs[i + 1]), pair.why + ": " + Show(elfutils, t.pcs));
      }
    }
    if (!t.raw) continue;
    if (t.end == LOSS_TABLES_NOT_READY) {
      ++not_ready;
      continue;
    }
    // Its caller stands in the jump buffer, which need not be on the stack: we say that we do not know.
    if (t.end == LOSS_UNSUPPORTED_RULE && t.pcs.size() == 1 && elfutils.Describe(t.pcs[0]).starts_with("__longjmp")) {
      ++in_longjmp;
      continue;
    }
    ++pairs;
    const TrueStack truth = elfutils.Unwind(t.regs, t.stack_start, t.stack);
    bool same = t.pcs.size() >= truth.frames.size() && (!truth.whole || (t.pcs.size() == truth.frames.size() && t.end == LOSS_NONE));
    size_t i = 0;
    while (i < std::min(t.pcs.size(), truth.frames.size()) && (t.pcs[i] & ~kInterrupted) == truth.frames[i].pc) ++i;
    same = same && i == truth.frames.size();
    equal += same;
    truth_whole += truth.whole;
    const std::string last = elfutils.Describe(truth.frames.empty() ? t.pcs[0] : truth.frames.back().pc);
    if (!truth.problem.empty()) {
      ++elfutils_failed;
      note(failures, truth.problem + " above " + last, Show(elfutils, t.pcs));
    } else {
      undescribed += !truth.whole;
    }
    if (!same) {
      std::vector<uint64_t> pcs;
      for (const auto& f : truth.frames) pcs.push_back(f.pc);
      note(unequal, std::string(kLossNames[t.end]) + " above " + elfutils.Describe(i == 0 ? t.pcs[0] & ~kInterrupted : truth.frames[i - 1].pc),
           "ours: " + Show(elfutils, t.pcs) + "; true" + (truth.whole ? ", whole: " : ": ") + Show(elfutils, pcs));
    }
  }
  kill(pid, SIGCONT);

  auto list = [](const auto& map) {
    std::vector<std::pair<int, std::string>> order;
    for (const auto& [key, value] : map) order.push_back({value.first, key + "\n          " + value.second});
    std::sort(order.rbegin(), order.rend());
    if (order.size() > 8) order.resize(8);
    nlohmann::json out = nlohmann::json::array();
    for (const auto& [count, text] : order) out.push_back(std::to_string(count) + " x " + text);
    return out;
  };
  const auto counters = engine->counters(job);
  const auto stats = tables->stats();
  nlohmann::json out = {
      {"samples", probe.taken.size()}, {"whole", whole}, {"frames", frames}, {"ends", ends}, {"pairs", pairs}, {"equal", equal}, {"truth_whole", truth_whole},
      {"undescribed", undescribed}, {"not_ready", not_ready}, {"in_longjmp", in_longjmp}, {"elfutils_failed", elfutils_failed}, {"unequal", list(unequal)}, {"failures", list(failures)},
      {"calls_right", right}, {"calls_unknown", unknown}, {"calls_impossible", impossible}, {"wrong_calls", list(wrong_calls)}, {"problems", probe.problems},
      {"sampled_ns", counters.sampled_ns}, {"used_ns", counters.used_ns}, {"ready_s", static_cast<double>(ready_ns - start) / 1e9}, {"tables", stats.placed_files}, {"tables_failed", stats.failed}};
  printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return 0;
}

}  // namespace
}  // namespace borescope::oracle

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: unwind_probe PID PAIRS SECONDS\n");
    return 2;
  }
  return borescope::oracle::Run(atoi(argv[1]), static_cast<size_t>(atoll(argv[2])), atoll(argv[3]));
}
