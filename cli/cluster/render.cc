// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bpf/abi/loss.h"
#include "cli/cluster/target.h"
#include "cli/text/table.h"
#include "common/base/clock.h"
#include "common/base/strings.h"

namespace borescope::cli {
namespace {

using api::ProfilingSession;

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }
std::string Time(int64_t ns) { return FormatSeconds(Seconds(ns)); }

std::string PhaseOf(const ProfilingSession& session) { return session.status.phase ? std::string(PhaseName(*session.status.phase)) : "New"; }

std::string Pods(const api::TargetCounts& targets) {
  return fmt::format("{}/{}", std::max(targets.sampling, targets.succeeded), targets.selected > 0 ? targets.selected : targets.matched);
}

std::vector<TopLine> Lines(const ProfilingSession& session, const std::string& profile, size_t rows) {
  std::vector<TopLine> lines;
  for (const api::TopFunction& top : session.status.top) {
    if (top.profile != profile || lines.size() == rows) continue;
    lines.push_back({.own = static_cast<double>(top.own_per_mille) / 1000,
                     .error = static_cast<double>(top.error_per_mille) / 1000,
                     .total = static_cast<double>(top.total_per_mille) / 1000,
                     .cores = static_cast<double>(top.cpu_millis) / 1000,
                     .function = SanitizeName(top.function),
                     .location = SanitizeName(top.location)});
  }
  return lines;
}

std::string Rate(const api::ProfilingSessionSpec& spec) {
  std::string out;
  for (const api::Profile& profile : spec.profiles) {
    out += (out.empty() ? "" : ", ") + std::string(ProfileKindName(profile.kind));
    if (profile.frequency_hertz > 0) out += fmt::format(" at {} Hz", profile.frequency_hertz);
  }
  return out;
}

// Of the window; as long as it runs, until now.
int64_t WindowNs(const ProfilingSession& session) {
  return session.status.start_time > 0 ? std::max<int64_t>(0, session.status.end_time - session.status.start_time) : 0;
}

std::string LostText(const api::ProfilingSessionStatus& status) {
  std::string out;
  struct Row {
    const char *name, *text;
    bool lost;
  };
  enum { LOST = 1, TRUNCATED = 0 };
  static constexpr Row kRows[] = {
#define BORESCOPE_LOSS(enumerator, name, text, kind) {name, text, kind == LOST},
      BORESCOPE_LOSS_TABLE(BORESCOPE_LOSS)
#undef BORESCOPE_LOSS
  };
  for (const Row& row : kRows) {
    auto it = status.lost_ns.find(row.name);
    if (row.lost && it != status.lost_ns.end() && it->second > 0) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", Time(it->second), row.text);
  }
  return out.empty() ? "" : " (" + out + ")";
}

// What stands inside `…` of Markdown.
std::string Code(const std::string& text) {
  std::string out = SanitizeName(text, 120);
  std::replace(out.begin(), out.end(), '`', '\'');
  return "`" + out + "`";
}

}  // namespace

const api::Condition* Trouble(const ProfilingSession& session) {
  const auto& conditions = session.status.conditions;
  for (const char* type : {"Failed", "Degraded"}) {
    if (api::IsTrue(conditions, type)) return api::FindCondition(conditions, type);
  }
  return nullptr;
}

std::string RenderAccount(const ProfilingSession& session, size_t width) {
  const api::ProfilingSessionStatus& status = session.status;
  std::set<std::string> nodes;
  for (const auto& detail : status.target_details) nodes.insert(detail.node);
  nodes.erase("");
  std::string out = Wrap(fmt::format("{} in {}: {} pods{}, {} of {}, session {}.", DescribeTarget(session.spec.target), session.metadata.namespace_name,
                                     Pods(status.targets), nodes.empty() ? "" : fmt::format(" on {} node{}", nodes.size(), nodes.size() == 1 ? "" : "s"),
                                     FormatSeconds(Seconds(WindowNs(session))), Rate(session.spec), session.metadata.name),
                         width, "");
  out += Wrap(fmt::format("Sampled {} of {} CPU time used, {} lost{}, {} unexplained.", Time(status.cpu.sampled_ns), Time(status.cpu.used_ns),
                          Time(status.cpu.lost_ns), LostText(status), Time(status.cpu.unexplained_ns)),
              width, "");
  const api::SampleCounts& samples = status.samples;
  if (samples.collected > 0) {
    const double whole = 100.0 * static_cast<double>(samples.collected - std::min(samples.truncated, samples.collected)) / static_cast<double>(samples.collected);
    // Never "100 %" of what is not whole.
    std::string text = samples.truncated == 0 ? "100 %" : fmt::format("{:.2f} %", std::min(whole, 99.99));
    out += fmt::format("Whole stacks: {} of {}.\n", text, samples.collected);
  }
  if (status.overhead.peak_memory_bytes > 0) {
    out += Wrap(fmt::format("Cost on the node where it was most: {}m of CPU (peak {}m), {} of memory; the bare clock interrupt {}m.", status.overhead.average_cpu_millis,
                            status.overhead.peak_cpu_millis, FormatBytes(static_cast<uint64_t>(status.overhead.peak_memory_bytes)), status.overhead.tick_millis),
                width, "");
  }
  for (const auto& result : status.results) {
    if (result.state == "Failed") out += Wrap("Not stored in sink " + SanitizeName(result.sink) + ": " + SanitizeName(result.message, 512), width, "");
  }
  if (const api::Condition* trouble = Trouble(session)) out += Wrap(trouble->type + " (" + trouble->reason + "): " + SanitizeName(trouble->message, 1024), width, "");
  return out;
}

std::string RenderSession(const ProfilingSession& session, size_t width, size_t rows) {
  std::string out;
  for (const api::Profile& profile : session.spec.profiles) {
    auto lines = Lines(session, profile.name, rows);
    if (lines.empty()) continue;
    if (session.spec.profiles.size() > 1) out += profile.name + ":\n";
    out += RenderTop(lines, width) + "\n";
  }
  return out + RenderAccount(session, width);
}

std::vector<std::string> RenderProgress(const ProfilingSession& session, int64_t now_ns, size_t width, size_t max_targets) {
  const api::ProfilingSessionStatus& status = session.status;
  const int64_t window = WindowNs(session);
  const int64_t done = std::clamp<int64_t>(now_ns - status.start_time, 0, window);
  // At its end: what matters most stands first.
  auto cut = [&](const std::string& line) {
    if (Characters(line) <= width) return line;
    size_t bytes = 0;
    for (size_t characters = 0; bytes < line.size(); ++bytes) {
      if ((static_cast<unsigned char>(line[bytes]) & 0xc0) != 0x80 && ++characters == width) break;
    }
    return line.substr(0, bytes) + "…";
  };
  std::string head = session.metadata.name + "  " + PhaseOf(session);
  if (window > 0) head += fmt::format("  {:.0f} of {:.0f} s", Seconds(done), Seconds(window));
  if (status.targets.matched > 0) head += "  " + Pods(status.targets) + " pods";
  if (status.overhead.average_cpu_millis > 0) head += fmt::format("  cost {}m", status.overhead.average_cpu_millis);
  if (status.cpu.used_ns > 0) head += fmt::format("  lost {}", Time(status.cpu.lost_ns));
  if (!status.top.empty()) head += "  " + api::TopDisplay(status.top[0]);
  std::vector<std::string> lines{cut(head)};
  constexpr int kBar = 24;
  for (const auto& detail : status.target_details) {
    if (lines.size() > max_targets) {
      lines.push_back(fmt::format("  and {} more", status.target_details.size() - max_targets));
      break;
    }
    double share = detail.state == "Succeeded" ? 1 : detail.state == "Sampling" && window > 0 ? static_cast<double>(done) / static_cast<double>(window) : 0;
    const int full = static_cast<int>(std::lround(share * kBar));
    std::string bar;
    for (int i = 0; i < kBar; ++i) bar += i < full ? "█" : "░";
    std::string text = "  " + bar + "  " + detail.pod + (detail.container.empty() ? "" : "/" + detail.container) + "  " + detail.state;
    if (detail.state == "Failed") text = "  " + std::string(kBar, '-') + "  " + detail.pod + "  " + detail.reason + ": " + detail.message;
    lines.push_back(cut(SanitizeName(text, 512)));
  }
  return lines;
}

std::string RenderList(std::vector<ProfilingSession> sessions, int64_t now_ns, bool namespaces, size_t width) {
  std::ranges::stable_sort(sessions, [](const auto& a, const auto& b) { return a.metadata.creation_time > b.metadata.creation_time; });
  std::vector<std::string> headings{"NAME", "PHASE", ">PODS", "TOP (own time)", ">COST", ">LOST", ">AGE"};
  if (namespaces) headings.insert(headings.begin(), "NAMESPACE");
  std::vector<std::vector<std::string>> rows;
  for (const ProfilingSession& session : sessions) {
    const api::ProfilingSessionStatus& status = session.status;
    // A session that failed has no answer but its reason.
    const api::Condition* failed = api::IsTrue(status.conditions, "Failed") ? api::FindCondition(status.conditions, "Failed") : nullptr;
    std::vector<std::string> row{session.metadata.name,
                                 PhaseOf(session),
                                 Pods(status.targets),
                                 failed != nullptr ? failed->reason : status.top.empty() ? "" : api::TopDisplay(status.top[0]),
                                 status.overhead.average_cpu_millis > 0 ? fmt::format("{}m", status.overhead.average_cpu_millis) : "",
                                 status.cpu.used_ns > 0 ? Time(status.cpu.lost_ns) : "",
                                 FormatAge((now_ns - session.metadata.creation_time) / 1'000'000'000)};
    if (namespaces) row.insert(row.begin(), session.metadata.namespace_name);
    rows.push_back(std::move(row));
  }
  return RenderColumns(headings, rows, width, namespaces ? 4 : 3);
}

std::string RenderShare(const ProfilingSession& session, std::string_view open) {
  const api::ProfilingSessionStatus& status = session.status;
  std::string out = fmt::format("**{} of {}** in {}: {} pods, {} from {}\n", Rate(session.spec), Code(DescribeTarget(session.spec.target)),
                                Code(session.metadata.namespace_name), Pods(status.targets), FormatSeconds(Seconds(WindowNs(session))),
                                status.start_time > 0 ? FormatTime(status.start_time) : "(not begun)");
  const std::string& profile = session.spec.profiles.front().name;
  auto lines = Lines(session, profile, 3);
  for (size_t i = 0; i < 3; ++i) {
    if (i < lines.size()) {
      const TopLine& line = lines[i];
      out += fmt::format("{}. **{:.1f} %** ±{:.1f} ({}) {}{}\n", i + 1, line.own * 100, line.error * 100, FormatCores(line.cores), Code(line.function),
                         line.location.empty() ? "" : " " + Code(line.location));
    } else {
      out += fmt::format("{}. {}\n", i + 1, lines.empty() && i == 0 ? "nothing was sampled" : "-");
    }
  }
  return out + fmt::format("Sampled {} of {} CPU time, {} lost; cost {}m CPU a node. Flame graph: `{}`\n", Time(status.cpu.sampled_ns), Time(status.cpu.used_ns),
                           Time(status.cpu.lost_ns), status.overhead.average_cpu_millis, open);
}

}  // namespace borescope::cli
