// SPDX-License-Identifier: Apache-2.0
#include "common/kube/exec_credential.h"

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/strings.h"

namespace borescope::kube {
namespace {

using nlohmann::json;

const json& Member(const json& object, std::string_view key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  auto it = object.find(key);
  return it != object.end() ? *it : kNull;
}

std::string Text(const json& object, std::string_view key) {
  const json& value = Member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

Result<ExecCredential> ParseExecCredential(std::string_view text, std::string_view api_version) {
  json object = json::parse(text, nullptr, false);
  if (Text(object, "kind") != "ExecCredential") return Error{ErrorCode::kInvalid, "its output is no ExecCredential in JSON"};
  if (Text(object, "apiVersion") != api_version) {
    return Error{ErrorCode::kInvalid, "it printed apiVersion \"" + SanitizeName(Text(object, "apiVersion"), 64) + "\", the kubeconfig asks for \"" +
                                          SanitizeName(api_version, 64) + "\""};
  }
  const json& status = Member(object, "status");
  ExecCredential out{.token = Text(status, "token"), .certificate = Text(status, "clientCertificateData"), .key = Text(status, "clientKeyData")};
  if (out.certificate.empty() != out.key.empty()) return Error{ErrorCode::kInvalid, "it gave only one of clientCertificateData and clientKeyData"};
  if (out.token.empty() && out.certificate.empty()) return Error{ErrorCode::kInvalid, "it gave neither status.token nor a client certificate"};
  if (std::string expires = Text(status, "expirationTimestamp"); !expires.empty()) {
    auto time = ParseTime(expires);
    if (!time.ok()) return time.error().WithContext("status.expirationTimestamp");
    out.expires_ns = *time;
  }
  return out;
}

}  // namespace borescope::kube
