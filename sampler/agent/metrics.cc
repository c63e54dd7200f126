// SPDX-License-Identifier: Apache-2.0
#include "sampler/agent/metrics.h"

namespace borescope::agent {
namespace {

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

}  // namespace

Metrics::Metrics(metrics::Registry& r)
    : samples_(r.Counter("borescope_sampler_samples_total", "Samples of all sessions by outcome")),
      session_samples_(r.Counter("borescope_sampler_session_samples_total", "Samples of a running session by outcome")),
      lost_(r.Counter("borescope_sampler_lost_seconds_total", "CPU time of samples that are gone, by reason")),
      session_lost_(r.Counter("borescope_sampler_session_lost_seconds_total", "CPU time of a running session's samples that are gone, by reason")),
      truncated_(r.Counter("borescope_sampler_truncated_samples_total", "Samples whose stack is cut, by reason")),
      cpu_accounted_(r.Counter("borescope_sampler_target_cpu_seconds_total", "CPU time of the chosen containers: used, sampled and lost")),
      coverage_(r.Gauge("borescope_sampler_coverage_ratio", "Sampled and lost CPU time divided by used CPU time, all sessions")),
      session_coverage_(r.Gauge("borescope_sampler_session_coverage_ratio", "Sampled and lost CPU time divided by used CPU time of a running session")),
      own_cpu_(r.Counter("borescope_sampler_cpu_seconds_total", "The sampler's own CPU time by part: bpf, or a thread of user space")),
      session_cpu_(r.Counter("borescope_sampler_session_cpu_seconds_total", "A running session's part of the sampler's own CPU time")),
      resident_(r.Gauge("borescope_sampler_resident_memory_bytes", "Resident memory of the sampler, without BPF maps and ring buffers")),
      maps_(r.Gauge("borescope_sampler_map_memory_bytes", "Memory of BPF maps and ring buffers")),
      stacks_(r.Gauge("borescope_sampler_stacks_memory_bytes", "Memory of interned stacks and symbols")),
      runs_(r.Counter("borescope_sampler_bpf_runs_total", "Ticks of the clock that the BPF program saw")),
      walks_(r.Counter("borescope_sampler_stack_walks_total", "User stacks walked in the kernel")),
      jobs_(r.Gauge("borescope_sampler_jobs", "Jobs of this node by state")),
      requests_(r.Counter("borescope_sampler_api_requests_total", "Answers of the API server by HTTP status; 0: none came")),
      throttled_(r.Counter("borescope_sampler_api_throttled_seconds_total", "Time that requests waited for our own limit")),
      connected_(r.Gauge("borescope_sampler_watch_connected", "1 while the watch of our NodeSampler stands")),
      protected_(r.Gauge("borescope_sampler_protected", "1 while the admission policy is known to be in force")),
      offset_(r.Gauge("borescope_sampler_clock_offset_seconds", "The API server's clock minus ours")),
      pushes_(r.Counter("borescope_sampler_pushes_total", "Windows sent to a sink by outcome")),
      queue_(r.Gauge("borescope_sampler_publish_queue_bytes", "Profiles that wait for a sink")),
      unknown_containers_(r.Counter("borescope_sampler_unknown_containers_total", "Containers whose name could not be found out")),
      names_(r.Counter("borescope_sampler_names_total",
                       "Addresses in files by what became of their names: line, symbol, a reason why not, or late (published before the name came)")),
      names_waiting_(r.Gauge("borescope_sampler_names_waiting", "Addresses in files whose names are being looked for")),
      names_cpu_(r.Counter("borescope_sampler_names_cpu_seconds_total", "CPU time of the processes that name")),
      names_peak_(r.Gauge("borescope_sampler_names_peak_memory_bytes", "Resident memory that a process that names had at most")),
      tables_(r.Counter("borescope_sampler_unwind_tables_total", "Unwind tables by outcome: compiled, from_disk, damaged (on disk), evicted")),
      table_bytes_(r.Gauge("borescope_sampler_unwind_table_bytes", "Memory of unwind tables by place: kernel, user_space")),
      table_files_(r.Gauge("borescope_sampler_unwind_files", "Files of the targets by state: known, placed, failed, without_room")),
      untracked_(r.Counter("borescope_sampler_untracked_total", "Processes, mappings and perf maps beyond the limits of what is kept: they have no names")),
      kernel_findings_(r.Gauge("borescope_sampler_kernel_findings", "What is known of this node's kernel, by name and action: Refused, Overridden, Warned, Avoided")),
      kernel_unsafe_(r.Gauge("borescope_sampler_kernel_unsafe", "1 after a fault of the kernel with a BPF program on the stack while jobs ran")),
      kernel_watched_(r.Gauge("borescope_sampler_kernel_log_watched", "1 when the kernel's log is followed while jobs run")),
      kernel_log_missed_(r.Counter("borescope_sampler_kernel_log_missed_total", "Records of the kernel's log that were overwritten before they were read")) {}

void Metrics::Grow(metrics::Family& family, const std::string& label, const std::string& value, double now, double& seen) {
  if (now > seen) family.Add({{label, value}}, now - seen);
  seen = std::max(seen, now);
}

void Metrics::SetJob(const std::string& job_id, const std::string& session, const JobFigures& figures, const stacks::JobStats& user,
                     const guard::Overhead& overhead) {
  Seen& seen = seen_[job_id];
  const api::SampleCounts& counts = figures.samples();
  for (const auto& [outcome, count] : {std::pair{"collected", counts.collected}, std::pair{"lost", counts.lost},
                                       std::pair{"truncated", counts.truncated}, std::pair{"unsymbolized", counts.unsymbolized}}) {
    session_samples_.Set({{"session", session}, {"outcome", outcome}}, static_cast<double>(count));
    Grow(samples_, "outcome", outcome, static_cast<double>(count), seen.samples[outcome]);
  }
  for (const auto& [reason, ns] : figures.lost_ns()) {
    session_lost_.Set({{"session", session}, {"reason", reason}}, Seconds(ns));
    Grow(lost_, "reason", reason, Seconds(ns), seen.lost_seconds[reason]);
  }
  for (int reason = LOSS_NONE + 1; reason < LOSS_MAX; ++reason) {
    auto index = static_cast<size_t>(reason);
    if (IsLost(reason)) continue;
    // User space has the last word: what the kernel had no tables for may have been unwound there.
    double count = static_cast<double>(user.loss[index].count);
    std::string name(LossName(reason));
    if (count > 0) Grow(truncated_, "reason", name, count, seen.truncated[name]);
  }
  const api::CpuAccount& cpu = figures.cpu();
  double used_before = seen.used_seconds, covered_before = seen.sampled_seconds + seen.lost_all_seconds;
  Grow(cpu_accounted_, "part", "used", Seconds(cpu.used_ns), seen.used_seconds);
  Grow(cpu_accounted_, "part", "sampled", Seconds(cpu.sampled_ns), seen.sampled_seconds);
  Grow(cpu_accounted_, "part", "lost", Seconds(cpu.lost_ns), seen.lost_all_seconds);
  used_total_ += seen.used_seconds - used_before;
  covered_total_ += seen.sampled_seconds + seen.lost_all_seconds - covered_before;
  if (used_total_ > 0) coverage_.Set({}, covered_total_ / used_total_);
  if (cpu.used_ns > 0) session_coverage_.Set({{"session", session}}, Seconds(cpu.sampled_ns + cpu.lost_ns) / Seconds(cpu.used_ns));
  session_cpu_.Set({{"session", session}}, Seconds(overhead.cpu_ns));
}

void Metrics::Resume(const std::string& job_id, const api::JobReport& before, const JobFigures& figures) {
  Seen& seen = seen_[job_id];
  const api::SampleCounts& counts = figures.samples();
  for (const auto& [outcome, count] : {std::pair{"collected", counts.collected}, std::pair{"lost", counts.lost},
                                       std::pair{"truncated", counts.truncated}, std::pair{"unsymbolized", counts.unsymbolized}}) {
    seen.samples[outcome] = static_cast<double>(count);
  }
  int64_t lost_ns = 0;
  for (const auto& [reason, ns] : before.lost_ns) {
    if (!figures.lost_ns().contains(reason)) continue;  // cut, not lost
    seen.lost_seconds[reason] = Seconds(ns);
    lost_ns += ns;
  }
  // The gap itself is news.
  seen.lost_all_seconds = Seconds(lost_ns);
  seen.used_seconds = Seconds(figures.cpu().used_ns - (figures.cpu().lost_ns - lost_ns));
  seen.sampled_seconds = Seconds(figures.cpu().sampled_ns);
}

void Metrics::RemoveJob(const std::string& job_id, const std::string& session) {
  seen_.erase(job_id);
  for (metrics::Family* family : {&session_samples_, &session_lost_, &session_coverage_, &session_cpu_}) family->RemoveWhere("session", session);
}

void Metrics::SetEngine(const engine::Counters& counters, size_t stacks_bytes, uint64_t untracked) {
  runs_.Set({}, static_cast<double>(counters.runs));
  walks_.Set({}, static_cast<double>(counters.stack_walks));
  stacks_.Set({}, static_cast<double>(stacks_bytes));
  untracked_.Set({}, static_cast<double>(untracked));
}

void Metrics::SetJobs(const std::map<api::JobState, int>& by_state) {
  for (api::JobState state : {api::JobState::kAccepted, api::JobState::kWaiting, api::JobState::kSampling, api::JobState::kSampled,
                              api::JobState::kPublished, api::JobState::kFailed}) {
    auto it = by_state.find(state);
    jobs_.Set({{"state", std::string(api::JobStateName(state))}}, it == by_state.end() ? 0 : it->second);
  }
}

void Metrics::SetCost(const guard::Cost& cost) {
  own_cpu_.Set({{"part", "bpf"}}, Seconds(cost.bpf_ns));
  for (const auto& [thread, ns] : cost.by_thread) own_cpu_.Set({{"part", thread}}, Seconds(ns));
  resident_.Set({}, static_cast<double>(cost.resident_bytes));
  maps_.Set({}, static_cast<double>(cost.map_bytes));
}

void Metrics::SetPublisher(const publish::PublisherStats& stats) {
  for (const auto& [sink, outcomes] : stats.pushes) {
    for (const auto& [outcome, count] : outcomes) pushes_.Set({{"sink", sink}, {"outcome", outcome}}, static_cast<double>(count));
  }
  queue_.Set({}, static_cast<double>(stats.queued_bytes));
}

void Metrics::SetApi(const kube::RestStats& requests, bool watch_connected, bool is_protected, int64_t clock_offset_ns) {
  for (const auto& [status, count] : requests.responses) requests_.Set({{"code", std::to_string(status)}}, static_cast<double>(count));
  throttled_.Set({}, static_cast<double>(requests.throttled_ms) / 1e3);
  connected_.Set({}, watch_connected ? 1 : 0);
  protected_.Set({}, is_protected ? 1 : 0);
  offset_.Set({}, Seconds(clock_offset_ns));
}

void Metrics::SetTables(const unwind::Tables::Stats& stats) {
  for (const auto& [outcome, count] : {std::pair{"compiled", stats.compiled}, std::pair{"from_disk", stats.from_disk},
                                       std::pair{"damaged", stats.damaged}, std::pair{"evicted", stats.evictions}}) {
    tables_.Set({{"outcome", outcome}}, static_cast<double>(count));
  }
  table_bytes_.Set({{"place", "kernel"}}, static_cast<double>(stats.chunk_bytes));
  table_bytes_.Set({{"place", "user_space"}}, static_cast<double>(stats.user_bytes));
  for (const auto& [state, count] : {std::pair{"known", stats.files}, std::pair{"placed", stats.placed_files}, std::pair{"failed", stats.failed},
                                     std::pair{"without_room", stats.not_placed}}) {
    table_files_.Set({{"state", state}}, static_cast<double>(count));
  }
}

void Metrics::SetKernel(const engine::KernelReport& report) {
  for (const engine::KernelFinding& finding : report.findings) {
    kernel_findings_.Set({{"name", finding.name}, {"action", std::string(engine::VerdictName(finding.verdict))}}, 1);
  }
}

void Metrics::SetKernelWatch(bool watched, uint64_t missed, bool is_unsafe) {
  kernel_watched_.Set({}, watched ? 1 : 0);
  kernel_log_missed_.Set({}, static_cast<double>(missed));
  kernel_unsafe_.Set({}, is_unsafe ? 1 : 0);
}

void Metrics::SetNames(const naming::Names::Stats& stats, uint64_t late) {
  for (size_t i = 0; i < naming::kOutcomes; ++i) {
    if (stats.addresses[i] > 0) names_.Set({{"outcome", std::string(naming::OutcomeLabel(static_cast<naming::Outcome>(i)))}}, static_cast<double>(stats.addresses[i]));
  }
  if (late > 0) names_.Set({{"outcome", "late"}}, static_cast<double>(late));
  names_waiting_.Set({}, static_cast<double>(stats.waiting));
  names_cpu_.Set({}, Seconds(stats.cpu_ns));
  names_peak_.Set({}, static_cast<double>(stats.peak_bytes));
}

void Metrics::SetUnknownContainers(uint64_t total) { unknown_containers_.Set({}, static_cast<double>(total)); }

}  // namespace borescope::agent
