// SPDX-License-Identifier: Apache-2.0
#include "store/access/access.h"

#include <nlohmann/json.hpp>

#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/http/server.h"
#include "store/connect/connect.h"

namespace borescope::store {
namespace {

constexpr std::string_view kReaderName = "borescope-reader";

std::string_view TokenOf(const http::Request& request) {
  if (std::string_view token = Trim(request.Header(Access::kTokenHeader)); !token.empty()) return token;
  constexpr std::string_view kScheme = "bearer ";
  std::string_view given = request.Header("Authorization");
  if (given.size() <= kScheme.size()) return "";
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((given[i] | 0x20) != kScheme[i]) return "";
  }
  return Trim(given.substr(kScheme.size()));
}

http::Response Unauthenticated(std::string_view message) {
  http::Response response = ConnectRefusal(401, message);
  response.headers["WWW-Authenticate"] = "Bearer";
  return response;
}

http::Response Later(std::string_view message) {
  http::Response response = ConnectRefusal(503, message);
  response.headers["Retry-After"] = "1";
  return response;
}

}  // namespace

std::optional<ServiceAccountName> ParseServiceAccountName(std::string_view user) {
  auto parts = Split(user, ':');
  if (parts.size() != 4 || parts[0] != "system" || parts[1] != "serviceaccount" || parts[2].empty() || parts[3].empty()) return std::nullopt;
  return ServiceAccountName{parts[2], parts[3]};
}

Result<std::string> ReadToken(const std::string& file) {
  ASSIGN_OR_RETURN(std::string content, ReadFile(file, 64 << 10));
  std::string token(Trim(content));
  if (token.empty()) return Error{ErrorCode::kInvalid, file + " is empty: write the bearer token into it"};
  return token;
}

Access::Access(Options options, metrics::Registry* metrics)
    : options_(std::move(options)),
      denied_(metrics->Counter("borescope_store_denied_requests_total",
                               "Requests without a token that permits them, by HTTP status; 503: it could not be checked.")) {}

std::optional<http::Response> Access::Authorize(http::Request& head) {
  if (head.path == "/healthz" || head.path == "/readyz") return std::nullopt;
  std::optional<http::Response> refusal;
  if (options_.reviewer != nullptr) {
    // Counts without a name in them; they are scraped by who has no token for us.
    if (head.path == "/metrics") return std::nullopt;
    refusal = AuthorizeAccount(head);
  } else {
    refusal = AuthorizeShared(head);
    if (!refusal) head.scope = "*";
  }
  if (refusal) denied_.Add({{"status", std::to_string(refusal->status)}});
  return refusal;
}

// The file is read each time, so that a rotated token counts at once.
std::optional<http::Response> Access::AuthorizeShared(const http::Request& head) const {
  if (options_.token_file.empty()) return std::nullopt;
  auto token = ReadToken(options_.token_file);
  if (!token.ok()) {
    Log(LogLevel::kError, "cannot read the token", {{"error", token.error().message}});
    return Later("the store cannot read its token file just now");
  }
  if (!http::RequireBearer(head, *token)) return std::nullopt;
  return Unauthenticated("no or another token: send \"Authorization: Bearer TOKEN\" with the store's token");
}

Result<Access::Caller> Access::WhoIs(const http::Request& request) {
  std::string_view token = TokenOf(request);
  if (token.empty()) {
    return Error{ErrorCode::kDenied, "no token: send one of ServiceAccount borescope-reader in the namespace that you want to read, in the header "
                                     "Borescope-Token; kubectl create token borescope-reader -n NAMESPACE --audience borescope-store makes one"};
  }
  ASSIGN_OR_RETURN(Account account, options_.reviewer->Review(token));
  if (account.user == options_.sampler_account) return Caller{account, Role::kSampler, ""};
  if (account.user == options_.operator_account) return Caller{account, Role::kOperator, ""};
  auto name = ParseServiceAccountName(account.user);
  if (name && name->name == kReaderName) return Caller{account, Role::kReader, std::string(name->ns)};
  return Error{ErrorCode::kUnsupported,
               "the token is of " + SanitizeName(account.user, 300) + ", which has no part here: reading takes one of ServiceAccount borescope-reader "
               "in the namespace that you want to read, pushing one of " + options_.sampler_account};
}

std::optional<http::Response> Access::AuthorizeAccount(http::Request& head) {
  auto caller = WhoIs(head);
  if (!caller.ok()) {
    const Error& error = caller.error();
    if (error.code == ErrorCode::kUnavailable) return Later(error.message);
    return error.code == ErrorCode::kDenied ? Unauthenticated(error.message) : ConnectRefusal(403, error.message);
  }
  if (head.path == kWhoAmI) return std::nullopt;
  // The server has found a route for the request already, so its method is one of these.
  Role needed = head.method == "POST" && head.path.starts_with("/push.") ? Role::kSampler : head.method == "PUT" ? Role::kOperator : Role::kReader;
  if (caller->role == needed) {
    head.scope = caller->ns;
    return std::nullopt;
  }
  std::string who = needed == Role::kSampler    ? "pushing takes one of " + options_.sampler_account
                    : needed == Role::kOperator ? "putting a session's record takes one of " + options_.operator_account
                                                : "reading takes one of ServiceAccount borescope-reader in the namespace that you want to read";
  return ConnectRefusal(403, "the token is of " + SanitizeName(caller->account.user, 300) + "; " + who);
}

http::Response Access::WhoAmI(const http::Request& request) {
  if (options_.reviewer == nullptr) return http::Response::Json(200, "{\"role\":\"any\"}");
  auto caller = WhoIs(request);
  if (!caller.ok()) return ConnectError(caller.error());  // let in a moment ago: its answer has just lapsed
  nlohmann::json answer = {{"user", caller->account.user},
                           {"role", caller->role == Role::kReader ? "reader" : caller->role == Role::kSampler ? "sampler" : "operator"},
                           {"until", FormatTime(caller->account.until_ns)}};
  if (caller->role == Role::kReader) answer["namespace"] = caller->ns;
  return http::Response::Json(200, answer.dump());
}

}  // namespace borescope::store
