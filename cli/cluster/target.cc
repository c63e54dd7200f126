// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/target.h"

#include <algorithm>
#include <array>

#include "common/base/strings.h"

namespace borescope::cli {
namespace {

struct Kind {
  std::string_view name;    // as the API has it; empty: a pod
  std::string_view short_name;
  std::array<std::string_view, 4> words;
};
constexpr Kind kKinds[] = {
    {"", "pod", {"pod", "pods", "po"}},
    {"Deployment", "deploy", {"deploy", "deployment", "deployments", "deployment.apps"}},
    {"StatefulSet", "sts", {"sts", "statefulset", "statefulsets", "statefulset.apps"}},
    {"DaemonSet", "ds", {"ds", "daemonset", "daemonsets", "daemonset.apps"}},
    {"ReplicaSet", "rs", {"rs", "replicaset", "replicasets", "replicaset.apps"}},
    {"Job", "job", {"job", "jobs", "job.batch"}},
};
constexpr size_t kSuffix = 5;

bool IsSuffix(std::string_view s) {
  return s.size() == kSuffix && std::ranges::all_of(s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

Result<api::Target> ParseTarget(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string_view word = text.substr(0, slash);
  const std::string_view name = slash == text.npos ? std::string_view() : text.substr(slash + 1);
  for (const Kind& kind : kKinds) {
    if (std::ranges::find(kind.words, word) == kind.words.end() || name.empty() || word.empty()) continue;
    if (name.size() > 253 || !std::ranges::all_of(name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.'; })) {
      return Error{ErrorCode::kInvalid, "\"" + SanitizeName(text) + "\" is no name of a Kubernetes object: give " + std::string(kind.short_name) + "/NAME"};
    }
    api::Target target;
    if (kind.name.empty()) {
      target.pod_name = name;
    } else {
      target.workload_ref = api::WorkloadRef{std::string(kind.name), std::string(name)};
    }
    return target;
  }
  return Error{ErrorCode::kInvalid, "\"" + SanitizeName(text) + "\" is no target: give pod/NAME, deploy/NAME, sts/NAME, ds/NAME, rs/NAME or job/NAME in a cluster, and " +
                                        "--pid PID, --all or -- COMMAND on this machine"};
}

std::string DescribeTarget(const api::Target& target) {
  if (!target.pod_name.empty()) return "pod/" + target.pod_name;
  if (target.workload_ref) {
    for (const Kind& kind : kKinds) {
      if (kind.name == target.workload_ref->kind) return std::string(kind.short_name) + "/" + target.workload_ref->name;
    }
    return target.workload_ref->kind + "/" + target.workload_ref->name;
  }
  std::string out;
  if (target.pod_selector) {
    for (const auto& [key, value] : target.pod_selector->match_labels) out += (out.empty() ? "" : ",") + key + "=" + value;
    for (const auto& requirement : target.pod_selector->match_expressions) {
      out += (out.empty() ? "" : ",") + requirement.key + " " + requirement.op;
      for (size_t i = 0; i < requirement.values.size(); ++i) out += (i == 0 ? " (" : ", ") + requirement.values[i];
      if (!requirement.values.empty()) out += ")";
    }
  }
  return "pods of " + out;
}

std::string NewSessionName(std::string_view base) {
  if (size_t dash = base.rfind('-'); dash != base.npos && dash > 0 && IsSuffix(base.substr(dash + 1))) base = base.substr(0, dash);
  base = base.substr(0, api::kMaxSessionNameBytes - 1 - kSuffix);
  while (!base.empty() && (base.back() == '-' || base.back() == '.')) base.remove_suffix(1);
  return std::string(base) + "-" + RandomHex(3).substr(0, kSuffix);
}

}  // namespace borescope::cli
