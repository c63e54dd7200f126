// SPDX-License-Identifier: Apache-2.0
#include "sampler/agent/job_figures.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "common/api/json.h"

namespace borescope::agent {
namespace {

constexpr size_t kMaxFunctions = 20'000;  // kept of a job; the rarest go
constexpr size_t kMaxContainers = 110;    // as many as a node has pods
constexpr size_t kMaxWindowsInFlight = 1000;

enum LossClass { LOST, TRUNCATED };

struct LossRow {
  std::string_view name;
  LossClass kind;
};
constexpr std::array<LossRow, LOSS_MAX> kLossRows = {{
#define BORESCOPE_LOSS(enumerator, name, text, kind) {name, kind},
    BORESCOPE_LOSS_TABLE(BORESCOPE_LOSS)
#undef BORESCOPE_LOSS
}};

// Whether the samples of a reason in an entry are gone; what a later version may have written counts as gone.
bool IsLost(const std::string& name) {
  auto row = std::find_if(kLossRows.begin(), kLossRows.end(), [&](const LossRow& r) { return r.name == name; });
  return row == kLossRows.end() || row->kind == LOST;
}

}  // namespace

std::string_view LossName(int reason) { return kLossRows[static_cast<size_t>(reason)].name; }
bool IsLost(int reason) { return kLossRows[static_cast<size_t>(reason)].kind == LOST; }

JobFigures::JobFigures(std::string profile_name, const api::JobReport* before) : profile_name_(std::move(profile_name)) {
  if (before == nullptr) return;
  before_ = *before;
  resumed_ = true;
  cpu_at_arm_ns_ = before_.cpu_at_arm_ns;
  cpu_at_last_window_ns_ = before_.cpu_at_last_window_ns;
  for (const api::ReportedFunction& f : before_.top) {
    auto [file, line] = api::SplitLocation(f.location);
    functions_.times[{f.function, std::string(file), f.language}] = {f.total_ns, f.own_ns, {{line, f.own_ns}}};
  }
  auto of_profile = [&](const std::map<std::string, int64_t>& map) {
    auto it = map.find(profile_name_);
    return it == map.end() ? int64_t{0} : it->second;
  };
  functions_.ns = of_profile(before_.sums);
  const double ns = static_cast<double>(functions_.ns);
  functions_.squares = ns * ns / static_cast<double>(std::max<int64_t>(1, of_profile(before_.effective_samples)));
  for (const api::ReportedContainer& c : before_.containers) containers_[{c.pod_uid, c.pod, c.container}] = c;
  windows_ = before_.windows;
  windows_.pending = 0;
  sinks_ = before_.sinks;
  Recount();
}

void JobFigures::Functions::Add(const profile::Profile& profile, const std::string& language) {
  for (profile::TopRow& row : profile::Top(profile, 1, kMaxFunctions)) {
    Times& sum = times[{profile::TopFunctionName(row), std::move(row.file), language}];
    sum.total += row.total;
    sum.own += row.own;
    sum.lines[row.line] += row.line_own;
  }
  ns += profile.Total(1);
  squares += profile.squares;
  if (times.size() <= kMaxFunctions) return;
  std::vector<int64_t> totals;
  for (const auto& [key, sum] : times) totals.push_back(sum.total);
  auto middle = totals.begin() + static_cast<std::ptrdiff_t>(totals.size() / 2);
  std::nth_element(totals.begin(), middle, totals.end());
  std::erase_if(times, [limit = *middle](const auto& entry) { return entry.second.total <= limit; });
}

void JobFigures::OnWindow(const ContainerRef& container, const stacks::Window& window) {
  functions_.Add(window.profile, window.language);
  if (!containers_.contains(container) && containers_.size() >= kMaxContainers) return;
  api::ReportedContainer& reported = containers_[container];
  reported.pod_uid = container.pod_uid;
  reported.pod = container.pod;
  reported.container = container.container;
  if (window.language != "unknown" || reported.language.empty()) reported.language = window.language;
  reported.state = "Sampled";
  reported.cpu_ns += window.profile.Total(1);
  reported.samples += window.profile.Total(0);
}

void JobFigures::AddLost(std::string_view reason, int64_t ns) {
  added_lost_ns_[std::string(reason)] += ns;
  Recount();
}

void JobFigures::DropWindow(const stacks::Window& window, bool lost) {
  int64_t ns = window.profile.Total(1), samples = window.profile.Total(0);
  dropped_ns_ += ns;
  dropped_samples_ += samples;
  if (lost) {
    dropped_lost_samples_ += samples;
    AddLost(LossName(LOSS_UNKNOWN_CONTAINER), ns);
  } else {
    foreign_ns_ += ns;
    Recount();
  }
}

void JobFigures::SetCounters(const engine::JobCounters& kernel, const stacks::JobStats& user, int64_t used_before_ns) {
  kernel_ = kernel;
  user_ = user;
  used_before_ns_ = used_before_ns;
  Recount();
}

void JobFigures::Recount() {
  lost_ns_.clear();
  cut_ns_.clear();
  for (const auto& [name, ns] : before_.lost_ns) (IsLost(name) ? lost_ns_ : cut_ns_)[name] = ns;
  int64_t lost_count = dropped_lost_samples_;
  for (int reason = LOSS_NONE + 1; reason < LOSS_MAX; ++reason) {
    const engine::Loss& kernel = kernel_.loss[static_cast<size_t>(reason)];
    const engine::Loss& user = user_.loss[static_cast<size_t>(reason)];
    if (!IsLost(reason)) {  // the kernel counts those too that were unwound here afterwards
      if (user.ns > 0) cut_ns_[std::string(LossName(reason))] += user.ns;
      continue;
    }
    lost_count += static_cast<int64_t>(kernel.count + user.count);
    if (int64_t ns = kernel.ns + user.ns; ns > 0) lost_ns_[std::string(LossName(reason))] += ns;
  }
  for (const auto& [reason, ns] : added_lost_ns_) {
    if (ns > 0) lost_ns_[reason] += ns;
  }
  if (publish_lost_ns_ > 0) lost_ns_[std::string(LossName(LOSS_PUBLISH_FAILED))] += publish_lost_ns_;
  cpu_.lost_ns = 0;
  for (const auto& [reason, ns] : lost_ns_) cpu_.lost_ns += ns;
  cpu_.used_ns = before_.cpu.used_ns + std::max<int64_t>(0, kernel_.used_ns - used_before_ns_ - foreign_ns_);
  if (auto gap = added_lost_ns_.find(std::string(LossName(LOSS_SAMPLER_RESTART))); gap != added_lost_ns_.end()) {
    cpu_.used_ns += gap->second;  // nobody measured it while it was used
  }
  cpu_.sampled_ns = before_.cpu.sampled_ns + user_.sampled_ns - dropped_ns_ - publish_lost_ns_;
  cpu_.unexplained_ns = cpu_.used_ns - cpu_.sampled_ns - cpu_.lost_ns;
  samples_.collected = before_.samples.collected + static_cast<int64_t>(user_.collected) - dropped_samples_;
  samples_.lost = before_.samples.lost + lost_count;
  samples_.truncated = before_.samples.truncated + static_cast<int64_t>(user_.truncated);
  samples_.unsymbolized = before_.samples.unsymbolized + static_cast<int64_t>(user_.unsymbolized);
}

void JobFigures::SetSinks(const std::map<std::string, publish::SinkProgress>& progress, const std::vector<std::string>& sink_names,
                          const std::map<std::string, std::string>& urls) {
  auto before_of = [&](const std::string& name) {
    auto it = std::find_if(before_.sinks.begin(), before_.sinks.end(), [&](const api::ReportedSink& s) { return s.name == name; });
    return it == before_.sinks.end() ? int64_t{0} : it->stored;
  };
  sinks_.clear();
  int64_t stored = INT64_MAX, pending = 0, last = INT64_MAX;
  publish_lost_ns_ = 0;
  for (const std::string& name : sink_names) {
    auto it = progress.find(name);
    publish::SinkProgress state = it == progress.end() ? publish::SinkProgress() : it->second;
    api::ReportedSink sink;
    sink.name = name;
    sink.state = state.failed > 0 ? "Failed" : state.pending > 0 ? "Pending" : state.stored > 0 ? "Published" : "Pending";
    sink.message = state.message;
    if (auto url = urls.find(name); url != urls.end()) sink.url = url->second;
    sink.stored = state.stored + before_of(name);
    sink.pending = state.pending;
    stored = std::min(stored, sink.stored);
    pending = std::max(pending, state.pending);
    last = std::min(last, state.last_stored_start_ns);
    publish_lost_ns_ = std::max(publish_lost_ns_, state.lost_ns);
    sinks_.push_back(std::move(sink));
  }
  if (sink_names.empty()) stored = last = 0;
  windows_.stored = stored;
  windows_.pending = pending;
  windows_.last_stored_start = std::max(last, before_.windows.last_stored_start);
  while (!cpu_at_window_.empty() && cpu_at_window_.front().first <= windows_.last_stored_start) {
    cpu_at_last_window_ns_ = cpu_at_window_.front().second;
    cpu_at_window_.pop_front();
  }
  Recount();
}

void JobFigures::SetCpuAtArm(std::optional<int64_t> ns) {
  if (resumed_ && cpu_at_arm_ns_ != 0) return;
  cpu_at_arm_ns_ = cpu_at_last_window_ns_ = ns.value_or(0);
}

void JobFigures::SetCpuAtWindow(int64_t window_start_real_ns, std::optional<int64_t> ns) {
  if (!ns || cpu_at_window_.size() >= kMaxWindowsInFlight) return;
  cpu_at_window_.emplace_back(window_start_real_ns, *ns);
}

// Of what the entry says was sampled, only what was in closed windows, and at most `most_ns`, has outlived its memory.
void JobFigures::KeepOnly(int64_t most_ns) {
  int64_t cpu_ns = 0, samples = 0;
  for (const api::ReportedContainer& container : before_.containers) {
    cpu_ns += container.cpu_ns;
    samples += container.samples;
  }
  before_.cpu.sampled_ns = std::min({before_.cpu.sampled_ns, most_ns, cpu_ns});
  before_.cpu.used_ns = before_.cpu.sampled_ns + before_.cpu.lost_ns;
  int64_t collected = before_.samples.collected;
  if (samples >= collected || collected == 0) return;
  double part = static_cast<double>(samples) / static_cast<double>(collected);
  before_.samples.collected = samples;
  for (int64_t* count : {&before_.samples.truncated, &before_.samples.unsymbolized}) *count = static_cast<int64_t>(static_cast<double>(*count) * part);
}

void JobFigures::CountRestartGap(std::optional<int64_t> cpu_now, bool all_containers, int64_t start_real_ns, int64_t now_real_ns,
                                 int64_t resume_real_ns) {
  constexpr int64_t kWindowNs = 10'000'000'000;
  int64_t stored_end = before_.windows.last_stored_start != 0 ? before_.windows.last_stored_start + kWindowNs : start_real_ns;
  double gap_ns = static_cast<double>(std::max<int64_t>(0, resume_real_ns - stored_end));
  double until_now_ns = static_cast<double>(std::max<int64_t>(1, now_real_ns - stored_end));
  double in_time = resume_real_ns >= now_real_ns ? 1.0 : std::min(1.0, gap_ns / until_now_ns);
  double stored_ns = static_cast<double>(std::max<int64_t>(1, stored_end - start_real_ns));
  int64_t pods_before = before_.cpu_at_last_window_ns - before_.cpu_at_arm_ns;
  bool readable = cpu_now && before_.cpu_at_arm_ns > 0 && *cpu_now >= before_.cpu_at_last_window_ns;
  double part = 1;
  if (!all_containers && pods_before > 0) part = std::min(1.0, static_cast<double>(before_.cpu.used_ns) / static_cast<double>(pods_before));
  int64_t used_before = before_.cpu.used_ns;
  if (before_.windows.stored == 0) {
    KeepOnly(0);
  } else if (before_.windows.pending == 0) {
    KeepOnly(INT64_MAX);  // all closed windows were stored
  } else {
    KeepOnly(static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, pods_before - before_.cpu.lost_ns)) * part));
  }
  int64_t lost = 0;
  if (readable) {
    lost = static_cast<int64_t>(static_cast<double>(*cpu_now - before_.cpu_at_last_window_ns) * part * in_time);
  } else if (before_.windows.last_stored_start != 0) {
    lost = static_cast<int64_t>(static_cast<double>(used_before) / stored_ns * gap_ns);
  } else {
    lost = used_before;  // what is known of it; nothing of it was stored
  }
  AddLost(LossName(LOSS_SAMPLER_RESTART), lost);
}

void JobFigures::Fill(api::JobReport& report, const std::vector<stacks::Window>& open) const {
  report.cpu_at_arm_ns = cpu_at_arm_ns_;
  report.cpu_at_last_window_ns = cpu_at_last_window_ns_;
  report.windows = windows_;
  report.cpu = cpu_;
  report.samples = samples_;
  report.lost_ns = lost_ns_;
  report.lost_ns.insert(cut_ns_.begin(), cut_ns_.end());
  Functions functions = functions_;
  for (const stacks::Window& window : open) functions.Add(window.profile, window.language);
  std::vector<std::pair<const Functions::Key*, const Functions::Times*>> sorted;
  for (const auto& [key, times] : functions.times) sorted.emplace_back(&key, &times);
  size_t shown = std::min(sorted.size(), api::kMaxTopPerProfile);
  std::partial_sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(shown), sorted.end(), [](const auto& a, const auto& b) {
    return std::tie(a.second->own, a.second->total) > std::tie(b.second->own, b.second->total);
  });
  report.top.clear();
  for (size_t i = 0; i < shown; ++i) {
    const auto& [name, file, language] = *sorted[i].first;
    const Functions::Times& times = *sorted[i].second;
    profile::TopRow row;
    row.file = file;
    row.line = std::ranges::max_element(times.lines, {}, [](const auto& line) { return line.second; })->first;
    report.top.push_back({profile_name_, name, profile::TopLocation(row), language, times.total, times.own});
  }
  report.top_truncated = false;
  report.sums[profile_name_] = functions.ns;
  const double ns = static_cast<double>(functions.ns);
  report.effective_samples[profile_name_] = functions.squares > 0 ? static_cast<int64_t>(ns * ns / functions.squares) : 0;
  report.containers.clear();
  for (const auto& [ref, container] : containers_) report.containers.push_back(container);
  report.sinks = sinks_;
}

void FitReport(api::NodeSamplerReportStatus& status, size_t max_bytes) {
  auto size = [&] {
    api::NodeSamplerReport report;
    report.status = status;
    return api::ToJson(report).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size();
  };
  size_t bytes = size();
  for (size_t keep = api::kMaxTopPerProfile / 2; bytes > max_bytes; keep /= 2) {
    for (auto& [id, job] : status.jobs) {
      std::map<std::string, size_t> kept;
      size_t before = job.top.size();
      std::erase_if(job.top, [&](const api::ReportedFunction& f) { return ++kept[f.profile] > keep; });
      if (job.top.size() != before) job.top_truncated = true;
    }
    bytes = size();
    if (keep == 0) break;
  }
  for (size_t keep = 32; bytes > max_bytes; keep /= 2) {
    for (auto& [id, job] : status.jobs) {
      std::stable_sort(job.containers.begin(), job.containers.end(), [](const auto& a, const auto& b) { return a.cpu_ns > b.cpu_ns; });
      if (job.containers.size() > keep) job.containers.resize(keep);
      if (job.message.size() > 4 * keep + 32) job.message.resize(4 * keep + 32);
      for (api::ReportedSink& sink : job.sinks) {
        if (sink.message.size() > 4 * keep + 32) sink.message.resize(4 * keep + 32);
      }
    }
    bytes = size();
    if (keep == 0) break;
  }
}

}  // namespace borescope::agent
