// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/kube/rest.h"

namespace borescope::cli {

// The flags that every command on a cluster has.
struct ClusterFlags {
  std::string kubeconfig = {}, context = {}, ns = {};
  std::string store_namespace = "borescope-system";
  std::string program = "borescope";  // as the person called it: "kubectl borescope"
};

// A call that failed, as a person sees it.
struct Wanted {
  std::string_view verb = {};      // "create"
  std::string_view resource = {};  // "profilingsessions"
  std::string_view ns = {};        // empty: cluster-scoped
  std::string_view name = {};      // of the object; empty: none
  std::string_view role = {};      // the ClusterRole that grants it
};
// One sentence or two: what was refused, to whom, and the command that grants it or shows more.
Error ExplainFailure(const Error& error, const kube::KubeError& details, const Wanted& wanted, const kube::Config& config, std::string_view program);

// One word for a POSIX shell.
std::string ShellWord(std::string_view text);

// A cluster as a person reaches it.
class Cluster {
 public:
  static Result<std::unique_ptr<Cluster>> Open(const ClusterFlags& flags);

  kube::RestClient& api() { return *api_; }
  const std::string& ns() const { return api_->config().ns; }
  const ClusterFlags& flags() const { return flags_; }
  Error Explain(const Error& error, const kube::KubeError& details, const Wanted& wanted) const {
    return ExplainFailure(error, details, wanted, api_->config(), flags_.program);
  }
  // "kubectl borescope open NAME -n NS", with the context if it was given.
  std::string Command(std::string_view verb, std::string_view name) const;

 private:
  Cluster(ClusterFlags flags, std::unique_ptr<kube::RestClient> api) : flags_(std::move(flags)), api_(std::move(api)) {}
  const ClusterFlags flags_;
  const std::unique_ptr<kube::RestClient> api_;
};

}  // namespace borescope::cli
