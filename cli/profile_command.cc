// SPDX-License-Identifier: Apache-2.0
#include "cli/profile_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/explain.h"
#include "cli/text/duration.h"
#include "cli/text/table.h"
#include "common/api/json.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/strings.h"
#include "common/codec/collapsed.h"
#include "common/codec/html.h"
#include "common/codec/pprof.h"
#include "common/kube/yaml.h"
#include "sampler/engine/engine.h"
#include "sampler/guard/kernel_watch.h"
#include "sampler/naming/names.h"
#include "sampler/publish/samples_file.h"
#include "sampler/stacks/aggregator.h"
#include "sampler/unwind/tables.h"

namespace borescope::cli {
namespace {

constexpr char kTableCache[] = "/var/cache/borescope/unwind-tables";
constexpr int64_t kArmNs = 200'000'000;  // at the start, for the unwind tables of processes that run: so many samples could not all wait for them
constexpr int64_t kWaitForNamesNs = 5'000'000'000;   // at the end, for names that are still looked for
constexpr int64_t kWaitForTablesNs = 2'000'000'000;  // at the end, for samples that came before their unwind tables

#ifdef BORESCOPE_FIXED_PERIOD
constexpr bool kFixedPeriod = true;  // the test build that shows what the jitter is for
#else
constexpr bool kFixedPeriod = false;
#endif

std::atomic<bool> g_interrupted{false};
void OnSignal(int) { g_interrupted = true; }

// Stops everything when the kernel reports a fault with a BPF program on the stack.
class FaultStop {
 public:
  // `go_on`: it is only told. A log that cannot be read is told, too.
  FaultStop(engine::Engine& engine, bool go_on) : engine_(engine), go_on_(go_on) {
    auto watch = guard::KernelWatch::Open("/dev/kmsg", [this](const guard::KernelFault& fault) { OnFault(fault); });
    if (!watch.ok()) {
      fmt::print(stderr, "warning: {}\n", watch.error().message);
      return;
    }
    watch_ = *std::move(watch);
    watch_->Arm();
  }
  // After it, what has been sampled is to be dropped and the engine to be destroyed.
  Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  void OnFault(const guard::KernelFault& fault) {
    if (!go_on_) engine_.Halt();
    std::string what = fmt::format("the kernel reported a fault with a BPF program on the stack ({}; {})", fault.headline, fault.program);
    if (go_on_) {
      fmt::print(stderr, "warning: {}; sampling goes on by --kernel-override\n", what);
      return;
    }
    std::lock_guard lock(mutex_);
    status_ = Error{ErrorCode::kUnsupported, what + ": sampling was stopped; look at dmesg, best restart the machine before you sample again"};
  }

  engine::Engine& engine_;
  const bool go_on_;
  mutable std::mutex mutex_;
  Status status_;
  std::unique_ptr<guard::KernelWatch> watch_;  // last: its thread uses the rest
};

int Fail(const Error& error) {
  fmt::print(stderr, "error: {}\n", error.message);
  return 2;
}

// A child that waits to be released before it becomes the command, so that its first instruction is sampled.
class Command {
 public:
  static Result<std::unique_ptr<Command>> Start(const std::vector<std::string>& argv) {
    int go[2], failed[2];
    if (::pipe2(go, O_CLOEXEC) != 0 || ::pipe2(failed, O_CLOEXEC) != 0) return ErrnoError("pipe");
    pid_t pid = ::fork();
    if (pid < 0) return ErrnoError("fork");
    if (pid == 0) {
      ::close(go[1]);
      char byte;
      if (::read(go[0], &byte, 1) != 1) ::_exit(127);  // we gave up before the start
      std::signal(SIGPIPE, SIG_DFL);                    // that we ignore it is no matter of the command's
      std::vector<char*> args;
      for (const auto& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
      args.push_back(nullptr);
      ::execvp(args[0], args.data());
      int error_number = errno;
      [[maybe_unused]] ssize_t n = ::write(failed[1], &error_number, sizeof error_number);
      ::_exit(127);
    }
    auto command = std::unique_ptr<Command>(new Command);
    command->name_ = argv[0];
    command->pid_ = pid;
    command->go_ = UniqueFd(go[1]);
    command->failed_ = UniqueFd(failed[0]);
    ::close(go[0]);
    ::close(failed[1]);
    return command;
  }

  // The sampler ends before its command does only when the user asked for a duration or pressed Ctrl-C: the command goes on then
  // in the first case, and gets the terminal's own signal in the second.
  ~Command() {
    go_.Reset();
    if (!released_ && pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }

  Status Release() {
    released_ = true;
    if (::write(go_.get(), "x", 1) != 1) return ErrnoError("start " + name_);
    int error_number = 0;
    // The pipe closes at a successful exec.
    if (::read(failed_.get(), &error_number, sizeof error_number) == sizeof error_number) {
      ::waitpid(pid_, nullptr, 0);
      return ErrnoError("start " + name_, error_number);
    }
    return OkStatus();
  }

  bool Ended() {
    if (!ended_) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        ended_ = true;
        status_ = status;
      }
    }
    return ended_;
  }

  std::string Outcome() const {
    if (WIFEXITED(status_)) return fmt::format("{} exited with {}", name_, WEXITSTATUS(status_));
    return fmt::format("{} was ended by signal {}", name_, WTERMSIG(status_));
  }

  pid_t pid() const { return pid_; }

 private:
  Command() = default;
  std::string name_;
  pid_t pid_ = 0;
  UniqueFd go_, failed_;
  bool released_ = false, ended_ = false;
  int status_ = 0;
};

Result<api::ProfilingSessionSpec> ReadSession(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, 1 << 20));
  ASSIGN_OR_RETURN(nlohmann::json json, kube::YamlToJson(text));
  ASSIGN_OR_RETURN(api::ProfilingSession session, api::ParseProfilingSession(json));
  RETURN_IF_ERROR(api::ValidateWithoutTarget(session.spec));
  if (session.spec.profiles.size() != 1 || session.spec.profiles[0].kind != api::ProfileKind::kCpu) {
    std::string found;
    for (const auto& profile : session.spec.profiles) found += (found.empty() ? "" : ", ") + std::string(api::ProfileKindName(profile.kind));
    return Error{ErrorCode::kUnsupported, "spec.profiles: found " + found + "; this version takes one profile of the kind cpu"};
  }
  return session.spec;
}

// Own CPU time of this process, user and kernel, in ns.
int64_t OwnCpuNs() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto ns = [](const timeval& t) { return t.tv_sec * 1'000'000'000LL + t.tv_usec * 1000LL; };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

std::string Limited(int hertz, int asked) {
  return fmt::format("sampled at {} Hz, not {} Hz: kernel.perf_event_max_sample_rate must be twice the frequency (sysctl -w kernel.perf_event_max_sample_rate={})",
                     hertz, asked, 2 * asked);
}

struct Outcome {
  int frequency = 0;
  profile::Profile profile;
  engine::JobCounters kernel;
  stacks::JobStats user;
  std::vector<stacks::Cut> cuts;
  std::vector<unwind::Tables::FileInfo> files;
  unwind::Tables::Stats tables;
  std::vector<naming::Names::FileInfo> named_files;
  naming::Names::Stats names;
  uint64_t late_names = 0;
  double wall_seconds = 0;
  int64_t own_cpu_ns = 0;
  uint64_t memory_bytes = 0;
};

// One profile of all processes; which sample is whose stands in the label "process".
profile::Profile MergeWindows(std::vector<stacks::Window> windows, int frequency) {
  profile::Profile merged;
  merged.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
  merged.default_sample_type = "cpu";
  merged.period_type = {"cpu", "nanoseconds"};
  merged.period = 1'000'000'000 / frequency;
  for (const auto& window : windows) {
    const profile::Profile& p = window.profile;
    merged.squares += p.squares;
    std::vector<uint32_t> mappings, functions, locations;
    for (const auto& mapping : p.mappings()) mappings.push_back(merged.AddMapping(mapping));
    for (const auto& function : p.functions()) functions.push_back(merged.AddFunction(function));
    for (profile::Location location : p.locations()) {
      if (location.mapping != profile::kNone) location.mapping = mappings[location.mapping];
      for (auto& line : location.lines) line.function = functions[line.function];
      locations.push_back(merged.AddLocation(location));
    }
    for (const auto& sample : p.samples()) {
      std::vector<uint32_t> stack;
      for (uint32_t location : sample.locations) stack.push_back(locations[location]);
      merged.AddSample(stack, sample.values, {{"process", SanitizeName(window.comm, 64)}});
    }
  }
  return merged;
}

// What was sampled, for the title of the page.
std::string Subject(const ProfileOptions& options) {
  if (options.all) return "all processes";
  if (!options.command.empty()) return options.command[0];
  std::string out;
  for (int pid : options.pids) {
    auto comm = ReadFile("/proc/" + std::to_string(pid) + "/comm", 4096);
    out += (out.empty() ? "" : ", ") + (comm.ok() ? SanitizeName(Trim(*comm), 64) + " " : std::string()) + "(pid " + std::to_string(pid) + ")";
  }
  return out;
}

Status WriteOutput(const ProfileOptions& options, const std::string& subject, const Outcome& outcome) {
  if (options.output.empty()) return OkStatus();
  const profile::Profile& profile = outcome.profile;
  if (options.format == "collapsed") return WriteFileAtomically(options.output, codec::EncodeCollapsed(profile, /*value_index=*/0));
  if (options.format == "pprof") return WriteFileAtomically(options.output, codec::EncodePprofGzip(profile));
  codec::HtmlPage page;
  page.title = subject;
  utsname host{};
  ::uname(&host);
  page.facts = {std::string("on ") + host.nodename, FormatTime(profile.time_ns),
                fmt::format("{} at {} Hz", FormatSeconds(outcome.wall_seconds), outcome.frequency)};
  page.notes = {QualityLines(outcome.kernel, outcome.user)};
  page.wall_seconds = outcome.wall_seconds;
  return WriteFileAtomically(options.output, codec::EncodeHtml(profile, /*value_index=*/1, page));
}

void Print(const ProfileOptions& options, const Outcome& outcome) {
  TableInput input;
  input.rows = profile::Top(outcome.profile, 1, static_cast<size_t>(options.top));
  for (auto& row : input.rows) {
    if (row.file == "[kernel.kallsyms]") row.file = "[kernel]";
  }
  input.total_ns = outcome.profile.Total(1);
  input.effective_samples = profile::EffectiveSamples(outcome.profile);
  input.wall_seconds = outcome.wall_seconds;
  input.width = TerminalWidth();
  const double used = static_cast<double>(outcome.kernel.used_ns) / 1e9;
  const double sampled = static_cast<double>(outcome.kernel.sampled_ns) / 1e9;
  const double lost = static_cast<double>(LostNs(outcome.kernel, outcome.user)) / 1e9;
  fmt::print("{}\n", RenderTable(input));
  fmt::print("{} samples in {} (± is three standard errors of {:.0f} effective ones);\nsampled {} of {} CPU time used, {} lost, {} unexplained.\n",
             outcome.profile.Total(0), FormatSeconds(outcome.wall_seconds), input.effective_samples, FormatSeconds(sampled), FormatSeconds(used),
             FormatSeconds(lost), FormatSeconds(used - sampled - lost));
  fmt::print("{}\n", QualityLines(outcome.kernel, outcome.user));
  if (options.explain) {
    fmt::print("\n{}\n", Explain(outcome.cuts, outcome.files, outcome.tables, outcome.user.collected, input.width));
    fmt::print("{}\n", ExplainNames(outcome.named_files, outcome.names, outcome.late_names, input.width));
  } else if (outcome.user.truncated > 0) {
    fmt::print("What cuts stacks and what would mend it: --explain\n");
  }
  if (outcome.kernel.lowest_hz < outcome.frequency) {
    std::string limited = Limited(outcome.kernel.lowest_hz, outcome.frequency);
    limited[0] = 'S';
    fmt::print("{}.\n", limited);
  }
  fmt::print("Cost: {} of CPU, {} of memory.\n", FormatCores(static_cast<double>(outcome.own_cpu_ns) / 1e9 / std::max(outcome.wall_seconds, 1e-3)),
             FormatBytes(outcome.memory_bytes));
  if (!options.output.empty()) {
    if (options.format == "pprof") {
      fmt::print("Profile: {} (open it with: go tool pprof -http=: {})\n", options.output, options.output);
    } else {
      fmt::print("Profile: {}\n", options.output);
    }
  }
}

uint64_t ResidentBytes() {
  auto status = ReadFile("/proc/self/statm");
  if (!status.ok()) return 0;
  auto fields = Split(*status, ' ');
  return fields.size() < 2 ? 0 : ParseUint(fields[1]).value_or(0) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

int RunProfile(const ProfileOptions& options) {
  if ((options.all ? 1 : 0) + (options.pids.empty() ? 0 : 1) + (options.command.empty() ? 0 : 1) != 1) {
    return Fail({ErrorCode::kInvalid, "say what to sample with exactly one of --pid PID, --all or -- COMMAND on this machine, or with a target such as deploy/NAME in a cluster; see borescope profile --help"});
  }
  for (const char* format : {"html", "pprof", "collapsed"}) {
    if (options.output == format) return Fail({ErrorCode::kInvalid, fmt::format("-o {0}: on this machine -o names the file; give --format {0} -o FILE", format)});
  }
  api::ProfilingSessionSpec spec;
  spec.duration_seconds = 10;
  if (!options.session_file.empty()) {
    auto session = ReadSession(options.session_file);
    if (!session.ok()) return Fail(session.error().WithContext(options.session_file));
    spec = *std::move(session);
  }
  const int frequency = options.frequency > 0 ? options.frequency : spec.profiles[0].frequency_hertz;
  int64_t duration_ns = spec.duration_seconds * 1'000'000'000LL;
  bool until_command_ends = !options.command.empty() && options.duration.empty() && options.session_file.empty();
  if (!options.duration.empty()) {
    auto parsed = ParseDuration(options.duration);
    if (!parsed.ok()) return Fail(parsed.error());
    duration_ns = *parsed;
  }
  if (until_command_ends) duration_ns = 3'600'000'000'000;

  engine::Options engine_options{.fixed_period = kFixedPeriod};
  engine_options.kernel_overrides = {options.kernel_overrides.begin(), options.kernel_overrides.end()};
  if (auto known = engine::CheckOverrides(engine_options.kernel_overrides); !known.ok()) return Fail(known.error().WithContext("--kernel-override"));
  engine::KernelReport kernel;
  auto engine = engine::Engine::Open(engine_options, &kernel);
  if (!engine.ok()) return Fail(engine.error());
  for (const engine::KernelFinding& finding : kernel.findings) {
    if (finding.verdict == engine::Verdict::kOverridden || finding.verdict == engine::Verdict::kWarned) fmt::print(stderr, "warning: {}\n", finding.message);
  }
  std::unique_ptr<publish::SamplesFile> samples;
  unwind::Tables::Options table_options;
  table_options.memory = &(*engine)->table_memory();
  table_options.budget_bytes = static_cast<size_t>(options.unwind_memory_mib) << 20;
  table_options.cache_directory = kTableCache;
  auto tables = unwind::Tables::Create(std::move(table_options));
  if (!tables.ok()) return Fail(tables.error());
  auto names = naming::Names::Create({});
  if (!names.ok()) return Fail(names.error());
  stacks::Options stack_options;
  stack_options.tables = tables->get();
  stack_options.names = names->get();
  if (!options.samples_file.empty()) {
    auto file = publish::SamplesFile::Open(options.samples_file);
    if (!file.ok()) return Fail(file.error());
    samples = *std::move(file);
    stack_options.on_sample = [&](const stacks::NamedSample& sample) { samples->Write(sample, "local"); };
  }
  stack_options.kernel_names = [&](uint64_t address) { return (*engine)->NameKernel(address); };
  auto aggregator = stacks::Aggregator::Create(std::move(stack_options));

  std::unique_ptr<Command> command;
  if (!options.command.empty()) {
    auto started = Command::Start(options.command);
    if (!started.ok()) return Fail(started.error());
    command = *std::move(started);
  }

  const std::string subject = Subject(options);  // while they are there
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  const int64_t own_cpu_start = OwnCpuNs();
  FaultStop fault_stop(**engine, engine_options.kernel_overrides.contains(std::string(engine::kKernelFault)));
  auto job = (*engine)->AddJob({.frequency_hz = frequency, .kernel_stacks = spec.kernel_stacks == api::KernelStacks::kAuto});  // its window is opened below
  if (!job.ok()) return Fail(job.error());
  if (const int hz = (*engine)->counters(*job).lowest_hz; hz < frequency) {
    fmt::print(stderr, "warning: {}\n", Limited(hz, frequency));
  }
  if (options.all) {
    if (auto status = (*engine)->AddAllProcesses(*job); !status.ok()) return Fail(status.error());
  }
  for (int pid : options.pids) {
    if (auto status = (*engine)->AddProcess(*job, pid); !status.ok()) {
      return Fail({status.error().code, fmt::format("--pid {}: {}", pid, status.error().message)});
    }
  }
  if (command) {
    if (auto status = (*engine)->AddProcess(*job, command->pid()); !status.ok()) return Fail(status.error());
  }

  auto drain = [&]() -> Status {
    RETURN_IF_ERROR(fault_stop.status());
    RETURN_IF_ERROR((*engine)->Drain(*aggregator));
    aggregator->Poll(NowNs(CLOCK_MONOTONIC));
    return OkStatus();
  };
  auto wait = [&](int ms) {
    pollfd wake[] = {{(*engine)->wake_fd(), POLLIN, 0}, {(*tables)->wake_fd(), POLLIN, 0}, {(*names)->wake_fd(), POLLIN, 0}};
    ::poll(wake, std::size(wake), ms);
    return drain();
  };
  if (auto status = drain(); !status.ok()) return Fail(status.error());
  for (int64_t ready = NowNs(CLOCK_MONOTONIC) + kArmNs; (*tables)->stats().under_way != 0 && NowNs(CLOCK_MONOTONIC) < ready && !g_interrupted;) {
    if (auto status = wait(10); !status.ok()) return Fail(status.error());
  }
  const int64_t start_mono = NowNs(CLOCK_MONOTONIC), start_boot = NowNs(CLOCK_BOOTTIME);
  aggregator->StartJob(*job, {.start_mono_ns = start_mono, .window_ns = 7'200'000'000'000, .frequency_hz = frequency, .split_by_process = true});
  (*engine)->SetWindow(*job, start_boot, start_boot + duration_ns);
  if (command) {
    if (auto status = command->Release(); !status.ok()) return Fail(status.error());
  }

  const bool progress = ::isatty(STDERR_FILENO) == 1;
  int64_t end_mono = start_mono + duration_ns;
  int64_t next_progress = start_mono;
  while (true) {
    int64_t now = NowNs(CLOCK_MONOTONIC);
    if (now >= end_mono || g_interrupted || (command && command->Ended())) break;
    if (auto status = wait(static_cast<int>(std::min<int64_t>(100, (end_mono - now) / 1'000'000 + 1))); !status.ok()) return Fail(status.error());
    if (progress && now >= next_progress) {
      next_progress = now + 500'000'000;
      fmt::print(stderr, "\r{:>6} of {}, {} samples ", FormatSeconds(static_cast<double>(now - start_mono) / 1e9),
                 until_command_ends ? "the command's run" : FormatSeconds(static_cast<double>(duration_ns) / 1e9), aggregator->stats(*job).collected);
    }
  }
  end_mono = std::min(end_mono, NowNs(CLOCK_MONOTONIC));
  (*engine)->SetWindow(*job, start_boot, start_boot + (end_mono - start_mono));
  Outcome outcome;
  outcome.kernel = (*engine)->counters(*job);
  // One drain brings what the programs had still under way; more of them what waits for its tables.
  (*engine)->Quiesce();
  if (auto status = drain(); !status.ok()) return Fail(status.error());
  while (true) {
    const int64_t late = NowNs(CLOCK_MONOTONIC) - end_mono;
    const bool tables_missing = aggregator->held(*job) > 0 && late < kWaitForTablesNs;
    if (!tables_missing && (late >= kWaitForNamesNs || !aggregator->AwaitsNames(*job, INT64_MAX, true))) break;
    if (auto status = wait(30); !status.ok()) return Fail(status.error());
  }
  if (progress) fmt::print(stderr, "\r{:60}\r", "");
  const int64_t used_ns = outcome.kernel.used_ns;
  outcome.kernel = (*engine)->counters(*job);
  outcome.kernel.used_ns = used_ns;  // as at the end of the window
  outcome.profile = MergeWindows(aggregator->CloseWindows(*job, NowNs(CLOCK_MONOTONIC), true), frequency);
  outcome.profile.time_ns = NowNs(CLOCK_REALTIME) - (NowNs(CLOCK_MONOTONIC) - start_mono);
  outcome.profile.duration_ns = end_mono - start_mono;
  outcome.user = aggregator->stats(*job);
  outcome.cuts = aggregator->cuts(*job);
  outcome.files = (*tables)->files();
  outcome.tables = (*tables)->stats();
  outcome.named_files = (*names)->files();
  outcome.names = (*names)->stats();
  outcome.late_names = aggregator->late_names();
  outcome.frequency = frequency;
  outcome.wall_seconds = static_cast<double>(end_mono - start_mono) / 1e9;
  outcome.own_cpu_ns = OwnCpuNs() - own_cpu_start + (*engine)->counters().bpf_ns + outcome.tables.compile_cpu_ns + outcome.names.cpu_ns;
  const engine::Counters counters = (*engine)->counters();
  outcome.memory_bytes = ResidentBytes() + counters.map_bytes - counters.mapped_bytes;

  if (command && command->Ended()) fmt::print(stderr, "{}\n", command->Outcome());
  if (outcome.profile.samples().empty()) {
    fmt::print(stderr,
               "error: no samples in {}: what was chosen used {} of CPU; choose a busy process (top shows them), a longer --duration or a higher --frequency\n",
               FormatSeconds(outcome.wall_seconds), FormatSeconds(static_cast<double>(outcome.kernel.used_ns) / 1e9));
    return 1;
  }
  if (auto status = WriteOutput(options, subject, outcome); !status.ok()) return Fail(status.error());
  Print(options, outcome);
  return 0;
}

}  // namespace borescope::cli
