// SPDX-License-Identifier: Apache-2.0
#include "store/sessions/sessions.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/base/strings.h"
#include "store/connect/connect.h"

namespace borescope::store {
namespace {

Result<SessionKey> KeyOf(const http::Request& request) {
  std::vector<std::string_view> parts = Split(std::string_view(request.path).substr(SessionRecords::kPrefix.size()), '/');
  // What Kubernetes allows in names, no more.
  auto is_name = [](std::string_view s) {
    return !s.empty() && s.size() <= 253 &&
           std::ranges::all_of(s, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.'; });
  };
  if (parts.size() != 3 || !std::ranges::all_of(parts, is_name)) {
    return Error{ErrorCode::kInvalid, "path " + JsonQuote(SanitizeName(request.path, 100)) + ": the form is " +
                                          std::string(SessionRecords::kPrefix) + "NAMESPACE/NAME/UID"};
  }
  return SessionKey{parts[0], parts[1], parts[2]};
}

bool IsObject(std::string_view json) { return Trim(json).starts_with('{') && nlohmann::json::accept(json); }

}  // namespace

http::Response SessionRecords::Put(const http::Request& request) {
  auto key = KeyOf(request);
  if (!key.ok()) return ConnectError(key.error());
  if (request.body.size() > kMaxBytes) {
    return ConnectRefusal(413, "the record has " + std::to_string(request.body.size()) + " bytes, the limit is " +
                                   std::to_string(kMaxBytes) + ": shorten its lists");
  }
  if (!IsObject(request.body)) return ConnectError({ErrorCode::kInvalid, "the record is no JSON object: send the session as kubectl -o json shows it"});
  Status status = database_->PutSession(*key, request.body, clock_->RealtimeNs());
  if (!status.ok()) return ConnectError(status.error());
  return http::Response::Json(200, "{}");
}

http::Response SessionRecords::Get(const http::Request& request) {
  auto key = KeyOf(request);
  if (!key.ok()) return ConnectError(key.error());
  auto json = View(database_, request.scope).GetSession(*key);
  if (!json.ok()) return ConnectError(json.error());
  if (!json->has_value()) {
    return ConnectError({ErrorCode::kNotFound, "no record of session " + std::string(key->namespace_name) + "/" + std::string(key->name) +
                                                   " with uid " + std::string(key->uid) +
                                                   ": it has not finished, or is older than --retention"});
  }
  return http::Response::Json(200, **std::move(json));
}

}  // namespace borescope::store
