// SPDX-License-Identifier: Apache-2.0
#include "store/query/label_query.h"

#include <querier/v1/querier.pb.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/strings.h"
#include "store/query/time_range.h"

namespace borescope::store {
namespace {

using nlohmann::json;

constexpr size_t kMaxBodyBytes = 64 << 10;
constexpr size_t kMaxSelectors = 32, kMaxLabelNames = 64;

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

std::string_view NameOfMethod(LabelMethod method) {
  switch (method) {
    case LabelMethod::kProfileTypes: return "ProfileTypes";
    case LabelMethod::kLabelNames: return "LabelNames";
    case LabelMethod::kLabelValues: return "LabelValues";
    case LabelMethod::kSeries: return "Series";
  }
  return "";
}

// What all forms of all methods hold, as it was sent.
struct Raw {
  std::string name;
  std::vector<std::string> matchers, label_names;
  int64_t start_ms = 0, end_ms = 0;
};

Result<LabelQuery> Check(LabelMethod method, Raw raw) {
  LabelQuery query;
  if (raw.matchers.size() > kMaxSelectors) return Invalid("matchers: more than " + std::to_string(kMaxSelectors) + " selectors");
  if (raw.label_names.size() > kMaxLabelNames) return Invalid("labelNames: more than " + std::to_string(kMaxLabelNames) + " names");
  if (method == LabelMethod::kLabelValues && raw.name.empty()) return Invalid("name: it is empty: give the label whose values you want");
  query.name = std::move(raw.name);
  query.label_names = std::move(raw.label_names);
  for (const std::string& text : raw.matchers) {
    ASSIGN_OR_RETURN(auto matchers, ParseSelector(Trim(text).empty() ? "{}" : Trim(text)));
    query.selectors.push_back(std::move(matchers));
  }
  return query;
}

Result<LabelQuery> CheckWithTimes(LabelMethod method, Raw raw) {
  constexpr int64_t kMaxMs = INT64_MAX / 1'000'000;
  int64_t start = raw.start_ms, end = raw.end_ms;
  if (start < 0 || start > kMaxMs || end < 0 || end > kMaxMs || start > end) {
    return Invalid("start is " + std::to_string(start) + ", end is " + std::to_string(end) +
                   ": give milliseconds since 1970, start before end, or 0 and 0");
  }
  ASSIGN_OR_RETURN(LabelQuery query, Check(method, std::move(raw)));
  if (end > 0) query.from_ns = start * 1'000'000, query.until_ns = end * 1'000'000;
  return query;
}

template <typename Message>
bool Parse(std::string_view body, Message* message) {
  return message->ParseFromArray(body.data(), static_cast<int>(body.size()));
}

Result<Raw> FromProto(LabelMethod method, std::string_view body) {
  Raw raw;
  Error bad = Invalid("the body of " + std::to_string(body.size()) + " bytes is no querier.v1." + std::string(NameOfMethod(method)) + "Request");
  auto times = [&](const auto& message) { raw.start_ms = message.start(), raw.end_ms = message.end(); };
  auto matchers = [&](const auto& message) { raw.matchers.assign(message.matchers().begin(), message.matchers().end()); };
  switch (method) {
    case LabelMethod::kProfileTypes: {
      querier::v1::ProfileTypesRequest message;
      if (!Parse(body, &message)) return bad;
      times(message);
      break;
    }
    case LabelMethod::kLabelNames: {
      querier::v1::LabelNamesRequest message;
      if (!Parse(body, &message)) return bad;
      times(message), matchers(message);
      break;
    }
    case LabelMethod::kLabelValues: {
      querier::v1::LabelValuesRequest message;
      if (!Parse(body, &message)) return bad;
      times(message), matchers(message);
      raw.name = message.name();
      break;
    }
    case LabelMethod::kSeries: {
      querier::v1::SeriesRequest message;
      if (!Parse(body, &message)) return bad;
      times(message), matchers(message);
      raw.label_names.assign(message.label_names().begin(), message.label_names().end());
      break;
    }
  }
  return raw;
}

// int64 is a text in protobuf's JSON; senders write numbers too.
Result<int64_t> Milliseconds(const json& value, const char* key) {
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string()) {
    auto number = ParseUint(value.get_ref<const std::string&>());
    if (number && *number <= INT64_MAX) return static_cast<int64_t>(*number);
  }
  return Invalid(std::string(key) + ": give milliseconds since 1970 as a number");
}

Result<std::vector<std::string>> Texts(const json& value, const char* key) {
  std::vector<std::string> texts;
  bool ok = value.is_array();
  for (size_t i = 0; ok && i < value.size(); ++i) {
    ok = value[i].is_string();
    if (ok) texts.push_back(value[i].get<std::string>());
  }
  if (!ok) return Invalid(std::string(key) + ": give a list of texts");
  return texts;
}

Result<Raw> FromJson(std::string_view body) {
  json object = body.empty() ? json::object() : json::parse(body, nullptr, false);
  if (!object.is_object()) return Invalid("the body is no JSON object");
  Raw raw;
  // Both spellings are protobuf's; keys that are not known are left alone, as its parsers do.
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    if (key == "start") {
      ASSIGN_OR_RETURN(raw.start_ms, Milliseconds(value, "start"));
    } else if (key == "end") {
      ASSIGN_OR_RETURN(raw.end_ms, Milliseconds(value, "end"));
    } else if (key == "matchers") {
      ASSIGN_OR_RETURN(raw.matchers, Texts(value, "matchers"));
    } else if (key == "labelNames" || key == "label_names") {
      ASSIGN_OR_RETURN(raw.label_names, Texts(value, "labelNames"));
    } else if (key == "name") {
      if (!value.is_string()) return Invalid("name: give a text");
      raw.name = value.get<std::string>();
    }
  }
  return raw;
}

}  // namespace

Result<LabelQuery> ParseLabelQuery(LabelMethod method, Encoding encoding, std::string_view body) {
  if (body.size() > kMaxBodyBytes) {
    return Invalid("the body has " + std::to_string(body.size()) + " bytes, the limit is " + std::to_string(kMaxBodyBytes));
  }
  ASSIGN_OR_RETURN(Raw raw, encoding == Encoding::kJson ? FromJson(body) : FromProto(method, body));
  return CheckWithTimes(method, std::move(raw));
}

Result<LabelQuery> ParseLabelQuery(LabelMethod method, const http::Request& get, int64_t now_ns) {
  Raw raw;
  raw.name = get.Query("name");
  if (std::string_view matchers = get.Query("matchers"); !matchers.empty()) raw.matchers.emplace_back(matchers);
  if (std::string_view names = get.Query("labelNames"); !names.empty()) {
    for (std::string_view name : Split(names, ',')) raw.label_names.emplace_back(name);
  }
  ASSIGN_OR_RETURN(LabelQuery query, Check(method, std::move(raw)));
  for (auto [name, time] : {std::pair{"from", &query.from_ns}, {"until", &query.until_ns}}) {
    std::string_view text = get.Query(name);
    if (text.empty()) continue;
    auto parsed = ParseQueryTime(text, now_ns);
    if (!parsed.ok()) return parsed.error().WithContext(name);
    *time = *parsed;
  }
  return query;
}

}  // namespace borescope::store
