// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/access.h"

#include <algorithm>

#include "common/base/strings.h"

namespace borescope::cli {
namespace {

// Of `… is forbidden: User "alice" cannot create resource …`.
std::string UserOf(std::string_view message) {
  constexpr std::string_view kBefore = "User \"";
  const size_t begin = message.find(kBefore);
  if (begin == message.npos) return "";
  const std::string_view rest = message.substr(begin + kBefore.size());
  const size_t end = rest.find('"');
  return end == rest.npos ? "" : std::string(rest.substr(0, end));
}

std::string Grant(std::string_view user, const Wanted& wanted) {
  constexpr std::string_view kAccount = "system:serviceaccount:";
  std::string_view last = user.substr(user.rfind(':') + 1);
  std::string binding = std::string(wanted.role);
  // A name that the API server takes: of mail addresses what stands before the "@".
  std::string person;
  for (char c : last.substr(0, last.find('@'))) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) person += c;
    if (c >= 'A' && c <= 'Z') person += static_cast<char>(c - 'A' + 'a');
  }
  if (!person.empty()) binding += "-" + person;
  std::string who = user.starts_with(kAccount) ? "--serviceaccount=" + std::string(user.substr(kAccount.size())) : "--user=" + ShellWord(user);
  return wanted.ns.empty() ? "kubectl create clusterrolebinding " + binding + " --clusterrole=" + std::string(wanted.role) + " " + who
                           : "kubectl create rolebinding " + binding + " -n " + std::string(wanted.ns) + " --clusterrole=" + std::string(wanted.role) + " " + who;
}

}  // namespace

std::string ShellWord(std::string_view text) {
  constexpr std::string_view kPlain = "-_./:@%+=,";
  const bool plain = !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || kPlain.find(c) != kPlain.npos;
  });
  if (plain) return std::string(text);
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

Error ExplainFailure(const Error& error, const kube::KubeError& details, const Wanted& wanted, const kube::Config& config, std::string_view program) {
  const std::string context = config.context.empty() ? "" : " (context " + SanitizeName(config.context, 128) + ")";
  const std::string in = wanted.ns.empty() ? "" : " in namespace " + std::string(wanted.ns);
  switch (details.http_status) {
    case 0:  // not answered
      if (error.code == ErrorCode::kUnavailable) {
        return {error.code, "the API server " + config.server + context + " cannot be reached: " + error.message + "; compare with: kubectl version"};
      }
      return error;
    case 401:
      return {error.code, "the API server " + config.server + context +
                              " does not accept your credentials: they have expired or are of another cluster; log in again, then compare with: kubectl auth whoami"};
    case 403: {
      const std::string user = UserOf(details.message);
      if (user.empty() || details.message.find(" cannot ") == std::string::npos || wanted.role.empty()) break;  // not RBAC: quota, a policy, a namespace that goes
      return {error.code, SanitizeName(user) + " may not " + std::string(wanted.verb) + " " + std::string(wanted.resource) + in +
                              ": the role " + std::string(wanted.role) + " is missing. An administrator grants it with: " + Grant(user, wanted)};
    }
    case 404:
      if (details.message.starts_with("namespaces ")) {
        return {error.code, "there is no namespace \"" + std::string(wanted.ns) + "\"" + context + ": see kubectl get namespaces"};
      }
      // No such kind, or no such object of it.
      if (details.message.empty() || details.message.find("could not find the requested resource") != std::string::npos) {
        return {error.code, "the cluster at " + config.server + context + " does not know " + std::string(wanted.resource) +
                                ": Borescope is not installed there (see its README), or this is another cluster than you mean"};
      }
      if (wanted.resource == "profilingsessions") {
        return {error.code, "there is no session \"" + SanitizeName(wanted.name) + "\"" + in + ": see " + std::string(program) + " list" +
                                (wanted.ns.empty() ? "" : " -n " + std::string(wanted.ns)) + ", or -A for all namespaces"};
      }
      break;
    default: break;
  }
  if (!details.message.empty()) return {error.code, details.message};
  return error;
}

Result<std::unique_ptr<Cluster>> Cluster::Open(const ClusterFlags& flags) {
  ASSIGN_OR_RETURN(kube::Config config, kube::LoadUserConfig(flags.kubeconfig, flags.context, flags.ns));
  ASSIGN_OR_RETURN(auto api, kube::RestClient::Create(std::move(config), "kubectl-borescope"));
  return std::unique_ptr<Cluster>(new Cluster(flags, std::move(api)));
}

std::string Cluster::Command(std::string_view verb, std::string_view name) const {
  std::string out = flags_.program + " " + std::string(verb);
  if (!name.empty()) out += " " + std::string(name);
  out += " -n " + ns();
  if (!flags_.context.empty()) out += " --context " + ShellWord(flags_.context);
  return out;
}

}  // namespace borescope::cli
