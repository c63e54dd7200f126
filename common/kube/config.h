// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/http/client.h"
#include "common/kube/exec.h"

namespace borescope::kube {

// A bearer token, from memory, from a file that something else renews (a projected token), or from a credential plugin.
class TokenSource {
 public:
  static std::shared_ptr<TokenSource> Fixed(std::string token);
  static std::shared_ptr<TokenSource> FromFile(std::string path);
  static std::shared_ptr<TokenSource> FromExec(std::shared_ptr<ExecSource> exec);

  // The token; the file is read again when the copy is older than 60 s. When that fails the old copy stays in use. "": a plugin gave a
  // certificate only.
  Result<std::string> Get();
  // Read again at the next Get (after a 401).
  void Invalidate();

 private:
  std::mutex mutex_;
  std::shared_ptr<ExecSource> exec_;
  std::string path_;
  std::string token_;
  std::chrono::steady_clock::time_point read_at_{};
};

// A PEM text: given, read from a file each time it is needed, or a plugin's.
struct PemSource {
  std::string data = {};
  std::string path = {};
  std::shared_ptr<ExecSource> exec = nullptr;
  std::string ExecCredential::*part = nullptr;
  Result<std::string> Load() const;  // "" when none is set
};

// How to reach an API server and as whom.
struct Config {
  std::string server;  // https://HOST:PORT
  PemSource ca;
  PemSource client_certificate;
  PemSource client_key;
  std::shared_ptr<TokenSource> token;  // null: none
  std::string ns = "default";          // the identity's own namespace
  std::string context;                 // of a kubeconfig
};

// What the flags of a program say. Exactly one way wins: kubeconfig when set, else the folder.
struct ConfigFlags {
  std::string kubeconfig = {};
  std::string in_cluster_dir = "/var/run/secrets/kubernetes.io/serviceaccount";
  std::string api_server = {};  // overrides the server of either
};
Result<Config> LoadConfig(const ConfigFlags& flags);

// token, ca.crt, namespace in `dir`; the server from `api_server`, else KUBERNETES_SERVICE_HOST and _PORT.
Result<Config> LoadInCluster(const std::string& dir, const std::string& api_server);

// One file; the current context unless `context` is given. Proxies and insecure-skip-tls-verify are refused by name (kUnsupported).
Result<Config> LoadKubeconfig(const std::string& path, const std::string& context = "");

// As kubectl finds a person's cluster: `kubeconfig` when set, else the files of $KUBECONFIG (the first that has a name wins; those that are
// not there are left out), else ~/.kube/config, else the folder of a pod. `context` and `ns` win over what stands in them.
Result<Config> LoadUserConfig(const std::string& kubeconfig, const std::string& context, const std::string& ns);

// The claims of the token that matter here, not verified: who we are is the server's to decide.
struct TokenClaims {
  std::string ns, service_account, pod_name, pod_uid, node_name, node_uid;
  std::vector<std::string> audiences;
  int64_t expires_ns = 0;  // since the epoch; 0: it does not say
};
Result<TokenClaims> ReadTokenClaims(std::string_view token);

}  // namespace borescope::kube
