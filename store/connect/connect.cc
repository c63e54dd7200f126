// SPDX-License-Identifier: Apache-2.0
#include "store/connect/connect.h"

#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::store {
namespace {

struct Code {
  int status;
  std::string_view name;
};

Code CodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid: return {400, "invalid_argument"};
    case ErrorCode::kNotFound: return {404, "not_found"};
    case ErrorCode::kConflict: return {409, "aborted"};
    case ErrorCode::kDenied: return {403, "permission_denied"};
    case ErrorCode::kExhausted: return {429, "resource_exhausted"};
    case ErrorCode::kUnavailable: return {503, "unavailable"};
    case ErrorCode::kUnsupported: return {501, "unimplemented"};
    case ErrorCode::kGone:
    case ErrorCode::kInternal: break;
  }
  return {500, "internal"};
}

std::string_view CodeOfStatus(int status) {
  switch (status) {
    case 401: return "unauthenticated";
    case 403: return "permission_denied";
    case 404: return "not_found";
    case 405:
    case 415:
    case 501: return "unimplemented";
    case 413:
    case 429: return "resource_exhausted";
    case 503: return "unavailable";
    default: return status < 500 ? "invalid_argument" : "internal";
  }
}

http::Response Answer(int status, std::string_view code, std::string_view message) {
  return http::Response::Json(status, "{\"code\":" + JsonQuote(code) + ",\"message\":" + JsonQuote(message) + "}");
}

}  // namespace

http::Response ConnectError(const Error& error) {
  Code code = CodeOf(error.code);
  return Answer(code.status, code.name, error.message);
}

http::Response ConnectRefusal(int status, std::string_view message) { return Answer(status, CodeOfStatus(status), message); }

std::optional<Encoding> EncodingOf(const http::Request& request) {
  std::string_view type = request.Header("Content-Type");
  type = Trim(type.substr(0, type.find(';')));
  if (type == "application/proto") return Encoding::kProto;
  if (type == "application/json") return Encoding::kJson;
  return std::nullopt;
}

std::string_view ContentTypeOf(Encoding encoding) { return encoding == Encoding::kJson ? "application/json" : "application/proto"; }

http::Response WrongContentType(const http::Request& request, std::string_view accepted) {
  http::Response response = ConnectRefusal(415, "Content-Type is " + JsonQuote(SanitizeName(request.Header("Content-Type"), 64)) + ": send " +
                                                    std::string(accepted));
  response.headers["Accept-Post"] = std::string(accepted);
  return response;
}

}  // namespace borescope::store
