// SPDX-License-Identifier: Apache-2.0
#include "common/kube/config.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/base64.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/http/server.h"
#include "common/kube/yaml.h"

namespace borescope::kube {
namespace {

using nlohmann::json;

constexpr auto kTokenAge = std::chrono::seconds(60);
constexpr size_t kMaxFileBytes = 1 << 20;

std::string Text(const json& object, std::string_view key) {
  if (!object.is_object()) return "";
  auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

const json& Member(const json& object, std::string_view key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  auto it = object.find(key);
  return it != object.end() ? *it : kNull;
}

// Of {"clusters": [{"name": N, "cluster": {…}}]}: what stands under `name`.
Result<json> Named(const json& root, const char* list, const char* part, const std::string& name) {
  const json& items = Member(root, list);
  if (items.is_array()) {
    for (const json& item : items) {
      if (Text(item, "name") == name && Member(item, part).is_object()) return Member(item, part);
    }
  }
  return Error{ErrorCode::kInvalid, "there is no \"" + SanitizeName(name) + "\" in its " + list};
}

bool IsSet(const json& value) { return !(value.is_null() || value == false || value == ""); }

Status Refuse(const json& object, std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    if (IsSet(Member(object, field))) {
      return Error{ErrorCode::kUnsupported, std::string("\"") + field + "\" is not supported; give a token or a client certificate and a certificate authority"};
    }
  }
  return OkStatus();
}

Result<PemSource> Pem(const json& object, const std::string& field, const std::string& folder) {
  PemSource source;
  source.path = Text(object, field);
  if (!source.path.empty() && source.path[0] != '/') source.path = folder + "/" + source.path;
  std::string data = Text(object, field + "-data");
  if (data.empty()) return source;
  auto decoded = Base64Decode(data);
  if (!decoded) return Error{ErrorCode::kInvalid, field + "-data is no base64"};
  return PemSource{*decoded, ""};
}

Status CheckServer(const Config& config) {
  http::ClientOptions options;
  options.base_url = config.server;
  RETURN_IF_ERROR(http::Client::Create(options).status());
  if (config.server.starts_with("https://")) return OkStatus();
  // In the clear only where nobody else listens, for example to `kubectl proxy`.
  std::string_view rest = std::string_view(config.server).substr(7);
  auto where = http::ParseHostPort(rest);
  std::string_view host = where.ok() ? std::string_view(where->host) : rest;
  if (!http::IsLoopback(host)) {
    return Error{ErrorCode::kInvalid, "the server " + SanitizeName(config.server) + " would get the credentials unencrypted; use https"};
  }
  return OkStatus();
}

Result<Config> ReadKubeconfig(const std::string& path, const std::string& wanted) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(json root, YamlToJson(text));
  size_t slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  std::string context_name = wanted.empty() ? Text(root, "current-context") : wanted;
  if (context_name.empty()) return Error{ErrorCode::kInvalid, "current-context is not set"};
  ASSIGN_OR_RETURN(json context, Named(root, "contexts", "context", context_name));
  ASSIGN_OR_RETURN(json cluster, Named(root, "clusters", "cluster", Text(context, "cluster")));
  json user = json::object();
  if (!Text(context, "user").empty()) {
    ASSIGN_OR_RETURN(user, Named(root, "users", "user", Text(context, "user")));
  }
  RETURN_IF_ERROR(Refuse(cluster, {"insecure-skip-tls-verify", "proxy-url", "tls-server-name"}));
  RETURN_IF_ERROR(Refuse(user, {"exec", "auth-provider", "username", "password", "as"}));
  Config config;
  config.server = Text(cluster, "server");
  ASSIGN_OR_RETURN(config.ca, Pem(cluster, "certificate-authority", folder));
  ASSIGN_OR_RETURN(config.client_certificate, Pem(user, "client-certificate", folder));
  ASSIGN_OR_RETURN(config.client_key, Pem(user, "client-key", folder));
  if (std::string file = Text(user, "tokenFile"); !file.empty()) {
    config.token = TokenSource::FromFile(file[0] == '/' ? file : folder + "/" + file);
  } else if (std::string token = Text(user, "token"); !token.empty()) {
    config.token = TokenSource::Fixed(token);
  }
  if (std::string ns = Text(context, "namespace"); !ns.empty()) config.ns = ns;
  return config;
}

}  // namespace

std::shared_ptr<TokenSource> TokenSource::Fixed(std::string token) {
  auto source = std::make_shared<TokenSource>();
  source->token_ = std::move(token);
  return source;
}

std::shared_ptr<TokenSource> TokenSource::FromFile(std::string path) {
  auto source = std::make_shared<TokenSource>();
  source->path_ = std::move(path);
  return source;
}

Result<std::string> TokenSource::Get() {
  std::lock_guard lock(mutex_);
  auto now = std::chrono::steady_clock::now();
  if (path_.empty() || (!token_.empty() && now - read_at_ < kTokenAge)) return token_;
  auto content = ReadFile(path_, kMaxFileBytes);
  std::string_view token = content.ok() ? Trim(*content) : std::string_view();
  if (token.empty()) {
    Error error = content.ok() ? Error{ErrorCode::kInvalid, "the token file " + path_ + " is empty"} : content.error();
    if (token_.empty()) return error;
    Log(LogLevel::kWarning, "the token could not be read again; the old one stays in use", {{"error", error.message}});
  } else {
    token_ = token;
  }
  read_at_ = now;
  return token_;
}

void TokenSource::Invalidate() {
  std::lock_guard lock(mutex_);
  read_at_ = {};
}

Result<std::string> PemSource::Load() const {
  if (!data.empty() || path.empty()) return data;
  return ReadFile(path, kMaxFileBytes);
}

Result<Config> LoadInCluster(const std::string& dir, const std::string& api_server) {
  Config config;
  config.server = api_server;
  if (config.server.empty()) {
    const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
    const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
    if (host == nullptr || port == nullptr || *host == '\0' || *port == '\0') {
      return Error{ErrorCode::kInvalid,
                   "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod; use --api-server or --kubeconfig"};
    }
    std::string name = host;
    config.server = "https://" + (name.find(':') != std::string::npos ? "[" + name + "]" : name) + ":" + port;
  }
  config.token = TokenSource::FromFile(dir + "/token");
  RETURN_IF_ERROR(config.token->Get().status());
  config.ca.path = dir + "/ca.crt";
  RETURN_IF_ERROR(config.ca.Load().status());
  auto ns = ReadFile(dir + "/namespace", 4096);
  if (ns.ok() && !Trim(*ns).empty()) config.ns = Trim(*ns);
  RETURN_IF_ERROR(CheckServer(config));
  return config;
}

Result<Config> LoadKubeconfig(const std::string& path, const std::string& context) {
  auto config = ReadKubeconfig(path, context);
  if (!config.ok()) return config.error().WithContext("kubeconfig " + path);
  if (Status status = CheckServer(*config); !status.ok()) return status.error().WithContext("kubeconfig " + path);
  return config;
}

Result<Config> LoadConfig(const ConfigFlags& flags) {
  if (flags.kubeconfig.empty()) return LoadInCluster(flags.in_cluster_dir, flags.api_server);
  ASSIGN_OR_RETURN(Config config, LoadKubeconfig(flags.kubeconfig));
  if (!flags.api_server.empty()) {
    config.server = flags.api_server;
    RETURN_IF_ERROR(CheckServer(config));
  }
  return config;
}

Result<TokenClaims> ReadTokenClaims(std::string_view token) {
  Error bad{ErrorCode::kInvalid, "the token is no JSON web token of a service account"};
  auto parts = Split(token, '.');
  if (parts.size() != 3) return bad;
  auto payload = Base64Decode(parts[1]);
  if (!payload) return bad;
  json claims = json::parse(*payload, nullptr, false);
  const json& kubernetes = Member(claims, "kubernetes.io");
  if (!kubernetes.is_object()) return bad;
  TokenClaims out;
  out.ns = Text(kubernetes, "namespace");
  out.service_account = Text(Member(kubernetes, "serviceaccount"), "name");
  out.pod_name = Text(Member(kubernetes, "pod"), "name");
  out.pod_uid = Text(Member(kubernetes, "pod"), "uid");
  out.node_name = Text(Member(kubernetes, "node"), "name");
  out.node_uid = Text(Member(kubernetes, "node"), "uid");
  const json& audience = Member(claims, "aud");  // one text, or a list of them
  if (audience.is_string()) out.audiences.push_back(audience.get<std::string>());
  if (audience.is_array()) {
    for (const json& one : audience) {
      if (one.is_string()) out.audiences.push_back(one.get<std::string>());
    }
  }
  const json& expires = Member(claims, "exp");
  constexpr int64_t kMaxSeconds = INT64_MAX / 1'000'000'000;
  if (expires.is_number_integer() && expires.get<int64_t>() > 0 && expires.get<int64_t>() <= kMaxSeconds) {
    out.expires_ns = expires.get<int64_t>() * 1'000'000'000;
  }
  return out;
}

}  // namespace borescope::kube
