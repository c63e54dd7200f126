// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace prometheus {
struct MetricFamily;
}

namespace borescope::metrics {

using Labels = std::map<std::string, std::string>;

// All series of one name. Thread-safe. At most kMaxSeries: a value for one more is dropped and counted
// (borescope_metrics_dropped_series_total), so that hostile label values can't fill the memory.
class Family {
 public:
  static constexpr size_t kMaxSeries = 2000;

  void Add(const Labels& labels, double delta = 1);
  // For a counter: what somebody else counts; never goes down, unless the series is removed.
  void Set(const Labels& labels, double value);
  // Forgets all series that carry this label value (a session that ended).
  void RemoveWhere(std::string_view label, std::string_view value);

 private:
  friend class Registry;
  enum class Kind { kCounter, kGauge };
  Family(Kind kind, std::string name, std::string help) : kind_(kind), name_(std::move(name)), help_(std::move(help)) {}
  double* Find(const Labels& labels);  // with mutex_ held; nullptr when full
  void Collect(std::vector<prometheus::MetricFamily>& out, uint64_t& dropped) const;

  const Kind kind_;
  const std::string name_, help_;
  mutable std::mutex mutex_;
  std::map<Labels, double> series_;
  uint64_t dropped_ = 0;
};

// What a program shows at /metrics.
class Registry {
 public:
  // `name` starts with "borescope_" and ends with its unit ("_seconds_total", "_bytes"); a second call gives the same family.
  Family& Counter(std::string name, std::string help);
  Family& Gauge(std::string name, std::string help);

  // Text exposition format 0.0.4. Families without series are left out.
  std::string Expose() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  Family& Get(Family::Kind kind, std::string name, std::string help);

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Family>> families_;
};

}  // namespace borescope::metrics
