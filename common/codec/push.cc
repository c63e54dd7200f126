// SPDX-License-Identifier: Apache-2.0
#include "common/codec/push.h"

#include "common/codec/wire.h"

namespace borescope::codec {
namespace {

Error Malformed() { return {ErrorCode::kInvalid, "push: the body is no push.v1.PushRequest: cut short or malformed"}; }

Error TooMany(size_t limit, std::string_view what, std::string_view next) {
  return {ErrorCode::kExhausted, "push: more than " + std::to_string(limit) + " " + std::string(what) + ", the limit: " + std::string(next)};
}

std::string ServiceName(const Labels& labels) {
  for (const auto& [name, value] : labels) {
    if (name == "service_name") return " (service_name=\"" + value.substr(0, 64) + "\")";
  }
  return "";
}

Result<PushSeries> DecodeSeries(std::string_view bytes, const PushLimits& limits, size_t* windows) {
  PushSeries series;
  WireReader in(bytes);
  while (in.Next()) {
    if (in.field() == 1) {
      std::pair<std::string, std::string> label;
      WireReader pair(in.Bytes());
      while (pair.Next()) {
        if (pair.field() == 1) label.first = pair.Bytes();
        if (pair.field() == 2) label.second = pair.Bytes();
      }
      if (!pair.ok()) return Malformed();
      if (series.labels.size() >= limits.max_labels) {
        return TooMany(limits.max_labels, "labels on one series" + ServiceName(series.labels), "send fewer labels");
      }
      series.labels.push_back(std::move(label));
    } else if (in.field() == 2) {
      if (++*windows > limits.max_windows) return TooMany(limits.max_windows, "profiles in one request", "send several requests");
      PushWindow window;
      WireReader sample(in.Bytes());
      while (sample.Next()) {
        if (sample.field() == 1) window.pprof = sample.Bytes();
        if (sample.field() == 2) window.id = sample.Bytes();
      }
      if (!sample.ok()) return Malformed();
      series.windows.push_back(std::move(window));
    }
  }
  if (!in.ok()) return Malformed();
  return series;
}

}  // namespace

std::string EncodePush(const std::vector<PushSeries>& all) {
  std::string out, series_bytes, message;
  WireWriter w(&out), s(&series_bytes), m(&message);
  for (const PushSeries& series : all) {
    series_bytes.clear();
    for (const auto& [name, value] : series.labels) {
      message.clear();
      m.Bytes(1, name);
      m.Bytes(2, value);
      s.Entry(1, message);
    }
    for (const PushWindow& window : series.windows) {
      message.clear();
      m.Bytes(1, window.pprof);
      m.Bytes(2, window.id);
      s.Entry(2, message);
    }
    w.Entry(1, series_bytes);
  }
  return out;
}

Result<std::vector<PushSeries>> DecodePush(std::string_view bytes, const PushLimits& limits) {
  std::vector<PushSeries> all;
  size_t windows = 0;
  WireReader in(bytes);
  while (in.Next()) {
    if (in.field() != 1) continue;
    if (all.size() >= limits.max_series) return TooMany(limits.max_series, "series in one request", "send several requests");
    ASSIGN_OR_RETURN(PushSeries series, DecodeSeries(in.Bytes(), limits, &windows));
    all.push_back(std::move(series));
  }
  if (!in.ok()) return Malformed();
  return all;
}

}  // namespace borescope::codec
