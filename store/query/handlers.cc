// SPDX-License-Identifier: Apache-2.0
#include "store/query/handlers.h"

#include <querier/v1/querier.pb.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/codec/collapsed.h"
#include "common/codec/flamebearer.h"
#include "common/codec/pprof.h"
#include "store/connect/connect.h"
#include "store/query/labels.h"
#include "store/query/query.h"
#include "store/query/time_range.h"

namespace borescope::store {
namespace {

http::Response Body(std::string_view content_type, std::string body) {
  http::Response response;
  response.headers["Content-Type"] = content_type;
  response.body = std::move(body);
  return response;
}

}  // namespace

QueryService::QueryService(Database* database, metrics::Registry* metrics, const Clock* clock)
    : database_(database),
      clock_(clock),
      queries_(metrics->Counter("borescope_store_queries_total", "Queries answered, by route and HTTP status.")),
      seconds_(metrics->Counter("borescope_store_query_duration_seconds_total", "Time spent on queries, by route.")) {}

http::Response QueryService::Finish(std::string_view route, int64_t began_ns, Result<http::Response> result) {
  http::Response response = result.ok() ? *std::move(result) : ConnectError(result.error());
  queries_.Add({{"route", std::string(route)}, {"status", std::to_string(response.status)}});
  seconds_.Add({{"route", std::string(route)}}, static_cast<double>(clock_->MonotonicNs() - began_ns) / 1e9);
  return response;
}

http::Response QueryService::Render(const http::Request& request) {
  int64_t began = clock_->MonotonicNs();
  return Finish("render", began, TryRender(request));
}

http::Response QueryService::SelectMergeProfile(const http::Request& request) {
  int64_t began = clock_->MonotonicNs();
  if (EncodingOf(request) != Encoding::kProto) return Finish("SelectMergeProfile", began, WrongContentType(request, "application/proto"));
  return Finish("SelectMergeProfile", began, TrySelectMergeProfile(request));
}

http::Response QueryService::AnswerLabels(LabelMethod method, const http::Request& request) {
  int64_t began = clock_->MonotonicNs();
  std::string_view route = std::ranges::find(kLabelMethods, method, &std::pair<std::string_view, LabelMethod>::second)->first;
  if (request.method == "POST" && !EncodingOf(request)) {
    return Finish(route, began, WrongContentType(request, "application/proto, application/json"));
  }
  return Finish(route, began, TryLabels(method, request));
}

Result<http::Response> QueryService::TryLabels(LabelMethod method, const http::Request& request) {
  bool post = request.method == "POST";
  Encoding encoding = post ? EncodingOf(request).value_or(Encoding::kJson) : Encoding::kJson;
  ASSIGN_OR_RETURN(LabelQuery query, post ? ParseLabelQuery(method, encoding, request.body) : ParseLabelQuery(method, request, clock_->RealtimeNs()));
  ASSIGN_OR_RETURN(std::string answer, AnswerLabelQuery(method, encoding, View(database_, request.scope), query));
  return Body(ContentTypeOf(encoding), std::move(answer));
}

Result<http::Response> QueryService::TryRender(const http::Request& request) {
  int64_t now = clock_->RealtimeNs();
  auto time = [&](std::string_view name, std::string_view otherwise) -> Result<int64_t> {
    std::string_view text = request.Query(name);
    auto parsed = ParseQueryTime(text.empty() ? otherwise : text, now);
    if (!parsed.ok()) return parsed.error().WithContext(name);
    return parsed;
  };
  ASSIGN_OR_RETURN(int64_t from, time("from", "now-1h"));
  ASSIGN_OR_RETURN(int64_t until, time("until", "now"));
  std::string_view format = request.Query("format");
  if (!format.empty() && format != "json" && format != "pprof" && format != "collapsed") {
    return Error{ErrorCode::kInvalid, "format: it is " + JsonQuote(SanitizeName(format, 64)) + ": give json, pprof or collapsed"};
  }
  ASSIGN_OR_RETURN(Query query, ParseQuery(request.Query("query"), from, until));
  ASSIGN_OR_RETURN(profile::Profile profile, Select(View(database_, request.scope), query));
  if (format == "pprof") {
    http::Response response = Body("application/octet-stream", codec::EncodePprofGzip(profile));
    response.headers["Content-Disposition"] = "attachment; filename=\"profile.pb.gz\"";
    return response;
  }
  size_t value = profile.DefaultValue();
  if (format == "collapsed") return Body("text/plain; charset=utf-8", codec::EncodeCollapsed(profile, value));
  return Body("application/json", codec::EncodeFlamebearer(profile, value, profile.sample_types[value].type));
}

Result<http::Response> QueryService::TrySelectMergeProfile(const http::Request& request) {
  querier::v1::SelectMergeProfileRequest message;
  if (request.body.size() > 64 << 10 || !message.ParseFromString(request.body)) {
    return Error{ErrorCode::kInvalid, "the body of " + std::to_string(request.body.size()) +
                                          " bytes is no querier.v1.SelectMergeProfileRequest of at most 65536 bytes"};
  }
  constexpr int64_t kMaxMs = INT64_MAX / 1'000'000;
  if (message.start() < 0 || message.start() > kMaxMs || message.end() < 0 || message.end() > kMaxMs) {
    return Error{ErrorCode::kInvalid, "start is " + std::to_string(message.start()) + ", end is " + std::to_string(message.end()) +
                                          ": give milliseconds since 1970"};
  }
  ASSIGN_OR_RETURN(ProfileType type, ProfileType::Parse(message.profile_typeid()));
  std::string selector = message.label_selector().empty() ? "{}" : message.label_selector();
  ASSIGN_OR_RETURN(Query query, ParseQuery(selector, message.start() * 1'000'000, message.end() * 1'000'000));
  query.type = std::move(type);
  ASSIGN_OR_RETURN(profile::Profile profile, Select(View(database_, request.scope), query));
  return Body("application/proto", codec::EncodePprof(profile));
}

}  // namespace borescope::store
