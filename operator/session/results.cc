// SPDX-License-Identifier: Apache-2.0
#include "operator/session/results.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <tuple>


namespace borescope::op {
namespace {

void AddTo(int64_t& sum, int64_t value) {
  if (__builtin_add_overflow(sum, value, &sum)) sum = value > 0 ? INT64_MAX : INT64_MIN;
}

int64_t PerMille(int64_t part, int64_t whole) {
  if (whole <= 0 || part <= 0) return 0;
  double share = static_cast<double>(part) / static_cast<double>(whole);
  return std::min<int64_t>(1000, std::llround(share * 1000));
}

struct Sum {
  int64_t total_ns = 0;
  int64_t own_ns = 0;
  int64_t named_hidden_ns = 0;  // of the nodes that named it, what they could hide of another
  std::map<int64_t, int64_t> lines;  // own time at the busiest line of each node
};

using FunctionKey =
    std::tuple<std::string, std::string, std::string>;  // function, file, language

void AppendTop(const std::vector<const api::JobReport*>& reports, const std::string& profile,
               int64_t window_ns, std::vector<api::TopFunction>& out) {
  std::map<FunctionKey, Sum> sums;
  int64_t whole_ns = 0, hidden_ns = 0;
  double squares = 0;  // of the weights of all samples
  for (const api::JobReport* report : reports) {
    auto sum = report->sums.find(profile);
    int64_t node_ns = sum == report->sums.end() ? 0 : sum->second;
    AddTo(whole_ns, node_ns);
    auto effective = report->effective_samples.find(profile);
    double node_samples = effective == report->effective_samples.end() ? 0 : static_cast<double>(effective->second);
    squares += static_cast<double>(node_ns) * static_cast<double>(node_ns) / std::max(1.0, node_samples);
    size_t named = 0;
    int64_t smallest = node_ns;
    std::vector<FunctionKey> keys;
    for (const api::ReportedFunction& f : report->top) {
      if (f.profile != profile) continue;
      ++named;
      int64_t own = std::clamp<int64_t>(f.own_ns, 0, node_ns);
      smallest = std::min(smallest, own);
      auto [file, line] = api::SplitLocation(f.location);
      FunctionKey key{f.function, std::string(file), f.language};
      Sum& entry = sums[key];
      AddTo(entry.own_ns, own);
      AddTo(entry.lines[line], own);
      AddTo(entry.total_ns, std::clamp<int64_t>(f.total_ns, own, node_ns));
      keys.push_back(std::move(key));
    }
    // A list that is not full names everything: nothing is hidden.
    bool full = named >= api::kMaxTopPerProfile || report->top_truncated;
    int64_t node_hidden = full ? smallest : 0;
    AddTo(hidden_ns, node_hidden);
    for (const FunctionKey& key : keys) AddTo(sums[key].named_hidden_ns, node_hidden);
  }
  std::vector<std::pair<FunctionKey, Sum>> order(sums.begin(), sums.end());
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tuple(-a.second.own_ns, -a.second.total_ns, a.first) <
           std::tuple(-b.second.own_ns, -b.second.total_ns, b.first);
  });
  if (order.size() > api::kMaxTopPerProfile) order.resize(api::kMaxTopPerProfile);
  for (const auto& [key, sum] : order) {
    if (whole_ns <= 0) break;
    double whole = static_cast<double>(whole_ns);
    double share = std::min(1.0, static_cast<double>(sum.own_ns) / whole);
    double error = api::ShareError(share, squares > 0 ? whole * whole / squares : 0) +
                   static_cast<double>(hidden_ns - sum.named_hidden_ns) / whole;
    api::TopFunction row;
    row.profile = profile;
    std::tie(row.function, row.location, row.language) = key;
    int64_t line = std::ranges::max_element(sum.lines, {}, [](const auto& entry) { return entry.second; })->first;
    if (line > 0) row.location += ":" + std::to_string(line);
    row.total_per_mille = PerMille(sum.total_ns, whole_ns);
    row.own_per_mille = PerMille(sum.own_ns, whole_ns);
    row.cpu_millis =
        window_ns > 0
            ? std::llround(static_cast<double>(sum.own_ns) * 1000 / static_cast<double>(window_ns))
            : 0;
    row.error_per_mille = static_cast<int64_t>(std::min(1000.0, std::ceil(error * 1000)));
    out.push_back(std::move(row));
  }
}

// A sink's address as a sampler reports it ends in a command that people paste into a shell: only
// what an address needs.
bool SafeUrl(std::string_view url) {
  if (!url.starts_with("http://") && !url.starts_with("https://")) return false;
  constexpr std::string_view kOthers = ":/.-_~%[]";
  return std::all_of(url.begin(), url.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != kOthers.npos;
  });
}

// As in a query string: all but RFC 3986 unreserved characters as %XX.
std::string Encode(std::string_view s) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  for (char c : s) {
    auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || std::string_view("-_.~").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

std::string OpenCommand(std::string_view store, const std::string& query,
                        const api::ProfilingSessionStatus& status) {
  while (store.ends_with('/')) store.remove_suffix(1);
  // Milliseconds, outwards: a window that touches either end belongs to the session.
  int64_t from = status.start_time / 1'000'000, until = (status.end_time + 999'999) / 1'000'000;
  // pprof's own client sends no bearer token.
  return "curl -sSf -H \"Authorization: Bearer $BORESCOPE_TOKEN\" -o profile.pb.gz '" +
         std::string(store) + "/pyroscope/render?query=" + Encode(query) +
         "&from=" + std::to_string(from) + "&until=" + std::to_string(until) +
         "&format=pprof' && go tool pprof -http=: profile.pb.gz";
}

}  // namespace

void SumReports(const std::vector<const api::JobReport*>& reports,
                const api::ProfilingSessionSpec& spec, int64_t window_ns,
                api::ProfilingSessionStatus& status) {
  status.cpu = {};
  status.samples = {};
  status.lost_ns.clear();
  status.overhead = {};
  for (const api::JobReport* report : reports) {
    AddTo(status.cpu.used_ns, report->cpu.used_ns);
    AddTo(status.cpu.sampled_ns, report->cpu.sampled_ns);
    AddTo(status.cpu.lost_ns, report->cpu.lost_ns);
    AddTo(status.cpu.unexplained_ns, report->cpu.unexplained_ns);
    AddTo(status.samples.collected, report->samples.collected);
    AddTo(status.samples.lost, report->samples.lost);
    AddTo(status.samples.truncated, report->samples.truncated);
    AddTo(status.samples.unsymbolized, report->samples.unsymbolized);
    for (const auto& [reason, ns] : report->lost_ns) AddTo(status.lost_ns[reason], ns);
    api::Overhead& overhead = status.overhead;
    overhead.peak_cpu_millis = std::max(overhead.peak_cpu_millis, report->overhead.peak_cpu_millis);
    overhead.peak_memory_bytes =
        std::max(overhead.peak_memory_bytes, report->overhead.peak_memory_bytes);
    overhead.tick_millis = std::max(overhead.tick_millis, report->overhead.tick_millis);
    overhead.average_cpu_millis =
        std::max(overhead.average_cpu_millis, report->overhead.average_cpu_millis);
  }
  status.top = SumTop(reports, spec, window_ns);
}

std::vector<api::TopFunction> SumTop(const std::vector<const api::JobReport*>& reports,
                                     const api::ProfilingSessionSpec& spec, int64_t window_ns) {
  std::vector<api::TopFunction> top;
  for (const api::Profile& profile : spec.profiles)
    AppendTop(reports, profile.name, window_ns, top);
  return top;
}

std::vector<api::SessionResult> MakeResults(const api::ProfilingSession& session,
                                            const api::ProfilingSessionStatus& status,
                                            const std::vector<const api::JobReport*>& reports,
                                            bool finished, const std::string& store_url) {
  std::string query = "process_cpu:cpu:nanoseconds:cpu:nanoseconds{namespace=\"" +
                      session.metadata.namespace_name + "\",profiling_session=\"" +
                      session.metadata.name + "\"}";
  bool published = std::any_of(reports.begin(), reports.end(), [](const api::JobReport* r) {
    return r->state == api::JobState::kPublished;
  });
  std::vector<api::SessionResult> results;
  for (const std::string& sink : session.spec.sink_names) {
    bool pending = false;
    std::string message, url = store_url;
    for (const api::JobReport* report : reports) {
      for (const api::ReportedSink& row : report->sinks) {
        if (row.name != sink) continue;
        pending |= row.pending > 0;
        if (message.empty()) message = row.message;
        if (url.empty() && SafeUrl(row.url)) url = row.url;
      }
    }
    for (const api::Profile& profile : session.spec.profiles) {
      api::SessionResult row;
      row.sink = sink;
      row.profile = profile.name;
      row.state = !finished ? "Pending" : published && !pending ? "Published" : "Failed";
      row.message = row.state == "Published" ? "" : message;
      row.query = query;
      if (!url.empty()) row.url = OpenCommand(url, query, status);
      results.push_back(std::move(row));
    }
  }
  return results;
}

}  // namespace borescope::op
