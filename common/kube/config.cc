// SPDX-License-Identifier: Apache-2.0
#include "common/kube/config.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

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

std::string Base64Encode(std::string_view s) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < s.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < s.size() ? static_cast<unsigned char>(s[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k <= s.size() ? kAlphabet[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

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

// A kubeconfig as it was read; paths in it are relative to its folder.
struct File {
  json root;
  std::string folder;
};

struct Entry {
  json value;
  std::string folder;
};

// Of {"clusters": [{"name": N, "cluster": {…}}]}: what stands under `name`, in the first file that has it.
Result<Entry> Named(const std::vector<File>& files, const char* list, const char* part, const std::string& name) {
  for (const File& file : files) {
    const json& items = Member(file.root, list);
    if (!items.is_array()) continue;
    for (const json& item : items) {
      if (Text(item, "name") == name && Member(item, part).is_object()) return Entry{Member(item, part), file.folder};
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

// What is relative in a kubeconfig is so to its folder.
std::string PathIn(const std::string& folder, const std::string& path) { return path.empty() || path[0] == '/' ? path : folder + "/" + path; }

Result<PemSource> Pem(const Entry& entry, const std::string& field) {
  PemSource source{.path = PathIn(entry.folder, Text(entry.value, field))};
  std::string data = Text(entry.value, field + "-data");
  if (data.empty()) return source;
  auto decoded = Base64Decode(data);
  if (!decoded) return Error{ErrorCode::kInvalid, field + "-data is no base64"};
  return PemSource{.data = *decoded};
}

// users[].user.exec
Result<std::shared_ptr<ExecSource>> Plugin(const Entry& user, const Entry& cluster, const PemSource& ca) {
  const json& exec = Member(user.value, "exec");
  ExecPlugin plugin;
  plugin.api_version = Text(exec, "apiVersion");
  if (plugin.api_version != "client.authentication.k8s.io/v1" && plugin.api_version != "client.authentication.k8s.io/v1beta1") {
    return Error{ErrorCode::kUnsupported, "exec.apiVersion is \"" + SanitizeName(plugin.api_version, 64) + "\"; give client.authentication.k8s.io/v1"};
  }
  plugin.command = Text(exec, "command");
  if (plugin.command.empty()) return Error{ErrorCode::kInvalid, "exec.command is empty"};
  if (plugin.command.find('/') != std::string::npos) plugin.command = PathIn(user.folder, plugin.command);
  const json& args = Member(exec, "args");
  if (args.is_array()) {
    for (const json& arg : args) plugin.args.push_back(arg.is_string() ? arg.get<std::string>() : arg.dump());
  }
  const json& env = Member(exec, "env");
  if (env.is_array()) {
    for (const json& variable : env) plugin.env.emplace_back(Text(variable, "name"), Text(variable, "value"));
  }
  std::string mode = Text(exec, "interactiveMode");
  using Interactive = ExecPlugin::Interactive;
  if (!mode.empty() && mode != "Never" && mode != "IfAvailable" && mode != "Always") {
    return Error{ErrorCode::kInvalid, "exec.interactiveMode is \"" + SanitizeName(mode, 64) + "\"; give Never, IfAvailable or Always"};
  }
  plugin.interactive = mode == "Never" ? Interactive::kNever : mode == "Always" ? Interactive::kAlways : Interactive::kIfAvailable;
  plugin.install_hint = Text(exec, "installHint");
  if (Member(exec, "provideClusterInfo") == true) {
    json info = {{"server", Text(cluster.value, "server")}};
    ASSIGN_OR_RETURN(std::string pem, ca.Load());
    if (!pem.empty()) info["certificate-authority-data"] = Base64Encode(pem);
    const json& extensions = Member(cluster.value, "extensions");
    if (extensions.is_array()) {
      for (const json& extension : extensions) {
        if (Text(extension, "name") == "client.authentication.k8s.io/exec") info["config"] = Member(extension, "extension");
      }
    }
    plugin.cluster = info.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return std::make_shared<ExecSource>(std::move(plugin));
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

Result<File> ReadKubeconfig(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(json root, YamlToJson(text));
  size_t slash = path.rfind('/');
  return File{std::move(root), slash == std::string::npos ? "." : path.substr(0, slash)};
}

Result<Config> ConfigOf(const std::vector<File>& files, const std::string& wanted) {
  Config config;
  config.context = wanted;
  for (const File& file : files) {
    if (config.context.empty()) config.context = Text(file.root, "current-context");
  }
  if (config.context.empty()) return Error{ErrorCode::kInvalid, "current-context is not set"};
  ASSIGN_OR_RETURN(Entry context, Named(files, "contexts", "context", config.context));
  ASSIGN_OR_RETURN(Entry cluster, Named(files, "clusters", "cluster", Text(context.value, "cluster")));
  Entry user{json::object(), "."};
  if (std::string name = Text(context.value, "user"); !name.empty()) {
    ASSIGN_OR_RETURN(user, Named(files, "users", "user", name));
  }
  RETURN_IF_ERROR(Refuse(cluster.value, {"insecure-skip-tls-verify", "proxy-url", "tls-server-name"}));
  RETURN_IF_ERROR(Refuse(user.value, {"auth-provider", "username", "password", "as"}));
  config.server = Text(cluster.value, "server");
  ASSIGN_OR_RETURN(config.ca, Pem(cluster, "certificate-authority"));
  ASSIGN_OR_RETURN(config.client_certificate, Pem(user, "client-certificate"));
  ASSIGN_OR_RETURN(config.client_key, Pem(user, "client-key"));
  if (std::string file = Text(user.value, "tokenFile"); !file.empty()) {
    config.token = TokenSource::FromFile(PathIn(user.folder, file));
  } else if (std::string token = Text(user.value, "token"); !token.empty()) {
    config.token = TokenSource::Fixed(token);
  } else if (Member(user.value, "exec").is_object()) {
    ASSIGN_OR_RETURN(auto exec, Plugin(user, cluster, config.ca));
    config.token = TokenSource::FromExec(exec);
    if (config.client_certificate.data.empty() && config.client_certificate.path.empty()) {
      config.client_certificate = PemSource{.exec = exec, .part = &ExecCredential::certificate};
      config.client_key = PemSource{.exec = exec, .part = &ExecCredential::key};
    }
  }
  if (std::string ns = Text(context.value, "namespace"); !ns.empty()) config.ns = ns;
  RETURN_IF_ERROR(CheckServer(config));
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

std::shared_ptr<TokenSource> TokenSource::FromExec(std::shared_ptr<ExecSource> exec) {
  auto source = std::make_shared<TokenSource>();
  source->exec_ = std::move(exec);
  return source;
}

Result<std::string> TokenSource::Get() {
  if (exec_) {
    ASSIGN_OR_RETURN(ExecCredential credential, exec_->Get());
    return credential.token;
  }
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
  if (exec_) return exec_->Invalidate();
  std::lock_guard lock(mutex_);
  read_at_ = {};
}

Result<std::string> PemSource::Load() const {
  if (exec) {
    ASSIGN_OR_RETURN(ExecCredential credential, exec->Get());
    return credential.*part;
  }
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
  const std::string where = "kubeconfig " + path;
  auto file = ReadKubeconfig(path);
  if (!file.ok()) return file.error().WithContext(where);
  auto config = ConfigOf({*std::move(file)}, context);
  if (!config.ok()) return config.error().WithContext(where);
  return config;
}

Result<Config> LoadUserConfig(const std::string& kubeconfig, const std::string& context, const std::string& ns) {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  std::vector<std::string> paths;
  std::string where = kubeconfig;
  if (!kubeconfig.empty()) {
    paths.push_back(kubeconfig);
  } else if (where = variable("KUBECONFIG"); !where.empty()) {
    for (std::string_view path : Split(where, ':')) {
      if (!path.empty()) paths.emplace_back(path);
    }
  } else {
    where = variable("HOME") + "/.kube/config";
    paths.push_back(where);
  }
  std::vector<File> files;
  for (const std::string& path : paths) {
    auto file = ReadKubeconfig(path);
    if (file.ok()) {
      files.push_back(*std::move(file));
    } else if (file.error().code != ErrorCode::kNotFound || !kubeconfig.empty()) {
      return file.error().WithContext("kubeconfig " + path);
    }
  }
  Result<Config> config = Error{};
  if (!files.empty()) {
    config = ConfigOf(files, context);
    if (!config.ok()) return config.error().WithContext("kubeconfig " + where);
  } else if (!variable("KUBERNETES_SERVICE_HOST").empty()) {
    config = LoadInCluster(ConfigFlags{}.in_cluster_dir, "");
    if (!config.ok()) return config;
  } else {
    return Error{ErrorCode::kNotFound, "there is no kubeconfig at " + where + ": set KUBECONFIG or give --kubeconfig FILE"};
  }
  if (!ns.empty()) config->ns = ns;
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
