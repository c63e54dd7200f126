// SPDX-License-Identifier: Apache-2.0
#include "sampler/guard/guard.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/strings.h"

namespace borescope::guard {
namespace {

// The run time of a thread in ns: the first number of its schedstat, more exact than the ticks of stat.
int64_t ThreadNs(const std::string& folder) {
  Result<std::string> text = ReadFile(folder + "/schedstat", 256);
  if (!text.ok()) return 0;
  return static_cast<int64_t>(ParseUint(Split(Trim(*text), ' ').front()).value_or(0));
}

}  // namespace

Cost MeasureCost(const engine::Counters& counters, int64_t children_ns, const std::string& proc_root) {
  Cost cost;
  cost.user_space_ns = NowNs(CLOCK_PROCESS_CPUTIME_ID) + children_ns;
  if (children_ns > 0) cost.by_thread["compiler"] = children_ns;
  cost.bpf_ns = counters.bpf_ns;
  cost.map_bytes = static_cast<int64_t>(counters.map_bytes);
  std::error_code error;
  std::filesystem::directory_iterator it(proc_root + "/self/task", error), end;
  for (; !error && it != end; it.increment(error)) {
    std::string folder = it->path().native();
    Result<std::string> name = ReadFile(folder + "/comm", 64);
    // The first thread carries the program's name, and is the one that reads the engine.
    bool first = it->path().filename().native() == std::to_string(::getpid());
    if (name.ok()) cost.by_thread[first ? "engine" : SanitizeName(Trim(*name), 32)] += ThreadNs(folder);
  }
  Result<std::string> statm = ReadFile(proc_root + "/self/statm", 256);
  if (statm.ok()) {
    std::vector<std::string_view> fields = Split(Trim(*statm), ' ');
    if (fields.size() > 1) cost.resident_bytes = static_cast<int64_t>(ParseUint(fields[1]).value_or(0)) * ::sysconf(_SC_PAGESIZE);
    cost.resident_bytes = std::max<int64_t>(0, cost.resident_bytes - static_cast<int64_t>(counters.mapped_bytes));
  }
  return cost;
}

void Ledger::Account(const Cost& cost, const std::map<std::string, uint64_t>& samples_by_job, int64_t mono_ns) {
  int64_t cpu_ns = cost.user_space_ns + cost.bpf_ns;
  int64_t spent = last_cpu_ns_ < 0 ? 0 : std::max<int64_t>(0, cpu_ns - last_cpu_ns_);
  int64_t elapsed = last_cpu_ns_ < 0 ? 0 : std::max<int64_t>(1, mono_ns - last_mono_ns_);
  int64_t ticked = last_cpu_ns_ < 0 ? 0 : std::max<int64_t>(0, cost.tick_ns - last_tick_ns_);
  last_cpu_ns_ = cpu_ns;
  last_tick_ns_ = cost.tick_ns;
  last_mono_ns_ = mono_ns;
  uint64_t all_samples = 0;
  std::map<std::string, uint64_t> fresh;
  for (const auto& [id, samples] : samples_by_job) {
    Job& job = jobs_[id];
    fresh[id] = samples - std::min(samples, job.samples);
    job.samples = samples;
    all_samples += fresh[id];
  }
  if (elapsed == 0) return;
  for (const auto& [id, count] : fresh) {
    Job& job = jobs_[id];
    double part = all_samples > 0 ? static_cast<double>(count) / static_cast<double>(all_samples) : 1.0 / static_cast<double>(fresh.size());
    int64_t share = static_cast<int64_t>(static_cast<double>(spent) * part);
    Overhead& overhead = job.overhead;
    overhead.cpu_ns += share;
    job.armed_ns += elapsed;
    // A short interval (a tick that came early) is too coarse for a peak.
    if (elapsed >= 500'000'000) overhead.peak_cpu_millis = std::max(overhead.peak_cpu_millis, share * 1000 / elapsed);
    overhead.average_cpu_millis = overhead.cpu_ns * 1000 / job.armed_ns;
    overhead.peak_cpu_millis = std::max(overhead.peak_cpu_millis, overhead.average_cpu_millis);
    overhead.tick_ns += static_cast<int64_t>(static_cast<double>(ticked) * part);
    overhead.tick_millis = (overhead.tick_ns * 1000 + job.armed_ns - 1) / job.armed_ns;
    overhead.peak_memory_bytes = std::max(overhead.peak_memory_bytes, cost.resident_bytes + cost.map_bytes);
  }
}

Overhead Ledger::Of(const std::string& job_id) const {
  auto it = jobs_.find(job_id);
  return it == jobs_.end() ? Overhead() : it->second.overhead;
}

}  // namespace borescope::guard
