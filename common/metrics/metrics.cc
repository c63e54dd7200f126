// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>

namespace borescope::metrics {

double* Family::Find(const Labels& labels) {
  auto it = series_.find(labels);
  if (it != series_.end()) return &it->second;
  if (series_.size() >= kMaxSeries) {
    ++dropped_;
    return nullptr;
  }
  return &series_[labels];
}

void Family::Add(const Labels& labels, double delta) {
  std::lock_guard lock(mutex_);
  if (double* value = Find(labels)) *value += delta;
}

void Family::Set(const Labels& labels, double value) {
  std::lock_guard lock(mutex_);
  if (double* current = Find(labels)) *current = kind_ == Kind::kCounter ? std::max(*current, value) : value;
}

void Family::RemoveWhere(std::string_view label, std::string_view value) {
  std::lock_guard lock(mutex_);
  std::erase_if(series_, [&](const auto& entry) {
    auto it = entry.first.find(std::string(label));
    return it != entry.first.end() && it->second == value;
  });
}

void Family::Collect(std::vector<prometheus::MetricFamily>& out, uint64_t& dropped) const {
  std::lock_guard lock(mutex_);
  dropped += dropped_;
  if (series_.empty()) return;
  prometheus::MetricFamily family;
  family.name = name_;
  family.help = help_;
  family.type = kind_ == Kind::kCounter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  for (const auto& [labels, value] : series_) {
    prometheus::ClientMetric metric;
    for (const auto& [name, text] : labels) metric.label.push_back({name, text});
    (kind_ == Kind::kCounter ? metric.counter.value : metric.gauge.value) = value;
    family.metric.push_back(std::move(metric));
  }
  out.push_back(std::move(family));
}

Family& Registry::Counter(std::string name, std::string help) {
  return Get(Family::Kind::kCounter, std::move(name), std::move(help));
}

Family& Registry::Gauge(std::string name, std::string help) {
  return Get(Family::Kind::kGauge, std::move(name), std::move(help));
}

Family& Registry::Get(Family::Kind kind, std::string name, std::string help) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<Family>& family = families_[name];
  if (!family) family.reset(new Family(kind, std::move(name), std::move(help)));
  return *family;
}

std::string Registry::Expose() const {
  std::lock_guard lock(mutex_);
  std::vector<prometheus::MetricFamily> families;
  uint64_t dropped = 0;
  for (const auto& [name, family] : families_) family->Collect(families, dropped);
  if (dropped > 0) {
    prometheus::MetricFamily family;
    family.name = "borescope_metrics_dropped_series_total";
    family.help = "Values dropped because a metric had too many series";
    family.type = prometheus::MetricType::Counter;
    family.metric.emplace_back().counter.value = static_cast<double>(dropped);
    families.push_back(std::move(family));
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace borescope::metrics
