// SPDX-License-Identifier: Apache-2.0
#include "store/ingest/ingest.h"

#include <algorithm>
#include <cstdlib>

#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::store {
namespace {

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

bool IsText(std::string_view s) {
  return SanitizeUtf8(s) == s && std::ranges::none_of(s, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

// For messages: what a sender gave, made harmless.
std::string Quoted(std::string_view s) { return JsonQuote(SanitizeName(s, 64)); }

Result<Labels> CheckLabels(Labels labels, const IngestLimits& limits) {
  for (const auto& [name, value] : labels) {
    if (name.empty() || !IsText(name)) return Invalid("a label's name is empty or no printable UTF-8 text: " + Quoted(name));
    if (name.size() > limits.max_label_name_bytes) {
      return Invalid("the name of label " + Quoted(name) + " has " + std::to_string(name.size()) + " bytes, the limit is " +
                     std::to_string(limits.max_label_name_bytes) + ": shorten it");
    }
    if (!IsText(value)) return Invalid("the value of label " + Quoted(name) + " is no printable UTF-8 text: " + Quoted(value));
    if (value.size() > limits.max_label_value_bytes) {
      return Invalid("the value of label " + Quoted(name) + " has " + std::to_string(value.size()) + " bytes, the limit is " +
                     std::to_string(limits.max_label_value_bytes) + ": shorten it");
    }
  }
  std::erase_if(labels, [](const auto& label) {
    return label.second.empty() || (label.first.starts_with("__") && label.first != "__name__" && label.first != "__session_id__");
  });
  std::ranges::sort(labels);
  for (size_t i = 1; i < labels.size(); ++i) {
    if (labels[i].first == labels[i - 1].first) return Invalid("label " + Quoted(labels[i].first) + " stands twice on one series: send it once");
  }
  for (std::string_view required : {"__name__", "service_name"}) {
    if (std::ranges::none_of(labels, [&](const auto& label) { return label.first == required; })) {
      return Invalid("a series without label \"" + std::string(required) + "\": send it, not empty");
    }
  }
  return labels;
}

Result<Window> DecodeWindow(codec::PushWindow raw, const Labels& labels, int64_t now_ns, const IngestLimits& limits) {
  if (raw.id.size() > limits.max_id_bytes || !IsText(raw.id)) {
    return Invalid("the ID of a profile has " + std::to_string(raw.id.size()) + " bytes or is no text: at most " +
                   std::to_string(limits.max_id_bytes) + " are taken, a UUID is usual");
  }
  auto decoded = codec::DecodePprof(raw.pprof, limits.pprof);
  if (!decoded.ok()) return decoded.error();
  profile::Profile profile = *std::move(decoded);
  for (const profile::ValueType& type : profile.sample_types) {
    if (type.type.empty() || !IsText(type.type) || !IsText(type.unit) || type.type.find_first_of("-:") != std::string::npos) {
      return Invalid("sample type " + Quoted(type.type) + " is empty or holds one of \"-:\" or a control character: write it with \"_\"");
    }
  }
  if (!IsText(profile.period_type.type) || !IsText(profile.period_type.unit)) return Invalid("the period type is no printable text");
  for (const profile::Sample& sample : profile.samples()) {
    for (int64_t value : sample.values) {
      if (value < 0) return Invalid("a sample has value " + std::to_string(value) + "; values below 0 are not taken: send no differences");
    }
  }
  if (profile.time_ns == 0) profile.time_ns = now_ns;
  int64_t age_ns = now_ns - profile.time_ns;
  if (age_ns > limits.max_age.count() || -age_ns > limits.max_ahead.count()) {
    return Invalid("the profile's time " + FormatTime(profile.time_ns) + " is " + std::to_string(std::abs(age_ns) / 1'000'000'000) + " s " +
                   (age_ns > 0 ? "in the past" : "in the future") + "; taken is from " +
                   std::to_string(limits.max_age.count() / 1'000'000'000) + " s before to " +
                   std::to_string(limits.max_ahead.count() / 1'000'000'000) + " s after now: check the sender's clock (time_nanos)");
  }
  Window window;
  window.series = {labels, profile.sample_types, profile.period_type};
  window.id = std::move(raw.id);
  window.start_ns = profile.time_ns;
  window.end_ns = profile::SaturatingAdd(profile.time_ns, profile.duration_ns);
  window.pprof = codec::EncodePprof(profile);
  return window;
}

}  // namespace

Result<std::vector<Window>> DecodeWindows(std::string_view body, int64_t now_ns, Encoding encoding, const IngestLimits& limits) {
  ASSIGN_OR_RETURN(std::vector<codec::PushSeries> all,
                   encoding == Encoding::kJson ? codec::DecodePushJson(body, limits.push) : codec::DecodePush(body, limits.push));
  std::vector<Window> windows;
  for (size_t i = 0; i < all.size(); ++i) {
    std::string context = "series " + std::to_string(i);
    for (const auto& [name, value] : all[i].labels) {
      if (name == "service_name") context += " (service_name=" + Quoted(value) + ")";
    }
    auto labels = CheckLabels(std::move(all[i].labels), limits);
    if (!labels.ok()) return labels.error().WithContext(context);
    for (codec::PushWindow& raw : all[i].windows) {
      auto window = DecodeWindow(std::move(raw), *labels, now_ns, limits);
      if (!window.ok()) return window.error().WithContext(context);
      windows.push_back(*std::move(window));
    }
  }
  return windows;
}

Ingester::Ingester(Database* database, metrics::Registry* metrics, const Clock* clock)
    : database_(database),
      clock_(clock),
      windows_(metrics->Counter("borescope_store_windows_total", "Windows received, by outcome: stored, or duplicate of a stored one.")),
      refused_(metrics->Counter("borescope_store_push_refused_requests_total", "Push requests that were refused, by HTTP status.")),
      bytes_(metrics->Counter("borescope_store_push_received_bytes_total", "Bytes of push requests after their gzip coding.")) {
  windows_.Add({{"outcome", "stored"}}, 0);
  windows_.Add({{"outcome", "duplicate"}}, 0);
}

http::Response Ingester::Refuse(const Error& error) {
  http::Response response = ConnectError(error);
  refused_.Add({{"status", std::to_string(response.status)}});
  Log(LogLevel::kWarning, "push refused", {{"status", response.status}, {"error", error.message}});
  return response;
}

http::Response Ingester::Push(const http::Request& request) {
  auto encoding = EncodingOf(request);
  if (!encoding) return WrongContentType(request, "application/proto, application/json");
  bytes_.Add({}, static_cast<double>(request.body.size()));
  auto windows = DecodeWindows(request.body, clock_->RealtimeNs(), *encoding);
  if (!windows.ok()) {
    // A limit that the same request meets again is not "try later" (429).
    return Refuse({ErrorCode::kInvalid, windows.error().message});
  }
  auto stored = database_->Insert(*windows);
  if (!stored.ok()) return Refuse(stored.error());
  windows_.Add({{"outcome", "stored"}}, static_cast<double>(*stored));
  windows_.Add({{"outcome", "duplicate"}}, static_cast<double>(static_cast<int64_t>(windows->size()) - *stored));
  http::Response response;
  response.headers["Content-Type"] = ContentTypeOf(*encoding);
  if (encoding == Encoding::kJson) response.body = "{}";
  return response;
}

}  // namespace borescope::store
