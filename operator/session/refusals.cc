// SPDX-License-Identifier: Apache-2.0
#include "operator/session/refusals.h"

#include <algorithm>
#include <set>

namespace borescope::op {
namespace {

// What this build takes; the others of the API come with later ones.
const std::vector<std::string> kSupportedKinds = {"cpu"};

bool Contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

std::string Quote(std::string_view s) {
  return "'" + std::string(s) + "'";
}

std::string Count(size_t n, std::string_view what) {
  return std::to_string(n) + " " + std::string(what) + (n == 1 ? "" : "s");
}

std::string List(const std::vector<std::string>& texts, size_t most) {
  std::string out;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i == most) return out + " and " + std::to_string(texts.size() - most) + " more";
    out += (i == 0 ? "" : ", ") + Quote(texts[i]);
  }
  return out.empty() ? "none" : out;
}

std::vector<std::string> NamesOf(const std::vector<const Pod*>& pods) {
  std::vector<std::string> names;
  for (const Pod* pod : pods) names.push_back(pod->name);
  return names;
}

std::optional<Problem> Unsupported(const api::ProfilingSessionSpec& spec) {
  for (size_t i = 0; i < spec.profiles.size(); ++i) {
    std::string kind(api::ProfileKindName(spec.profiles[i].kind));
    if (Contains(kSupportedKinds, kind)) continue;
    return Problem{"KindNotSupported", "`spec.profiles[" + std::to_string(i) + "]` (name " +
                                           Quote(spec.profiles[i].name) + ") is of kind " +
                                           Quote(kind) + ": this build takes " +
                                           List(kSupportedKinds) +
                                           "; remove it, or use one of those"};
  }
  if (spec.lookback_seconds > 0) {
    return Problem{"FieldNotSupported", "`spec.lookbackSeconds` is " +
                                            std::to_string(spec.lookback_seconds) +
                                            ": this build keeps no past samples; set it to 0"};
  }
  if (!spec.program_labels.empty()) {
    return Problem{"FieldNotSupported",
                   "`spec.programLabels` names " + List(spec.program_labels) +
                       ": this build reads no labels from programs; leave it empty"};
  }
  return std::nullopt;
}

std::string NothingMatched(const World& world, const api::ProfilingSession& session,
                           const Match& match) {
  const api::Target& target = session.spec.target;
  const std::string& ns = session.metadata.namespace_name;
  auto it = world.namespaces.find(ns);
  size_t total = it == world.namespaces.end() ? 0 : static_cast<size_t>(it->second.total);
  std::string_view field = target.workload_ref   ? "workloadRef"
                           : target.pod_selector ? "podSelector"
                                                 : "podName";
  std::string text = "`spec.target." + std::string(field) + "`: ";
  if (!match.missing.empty()) {
    text += match.missing;
  } else if (match.ended > 0) {
    text += "all " + Count(match.ended, "pod") + " of " + DescribeTarget(target) +
            " in namespace " + Quote(ns) + " have ended or are being deleted";
  } else {
    text += DescribeTarget(target) + " matches none of the " + Count(total, "pod") +
            " in namespace " + Quote(ns);
  }
  std::string_view kinds =
      target.workload_ref ? "pods,deployments,statefulsets,daemonsets,jobs" : "pods --show-labels";
  return text + "; compare with `kubectl get " + std::string(kinds) + " -n " + ns +
         "`, or set `spec.target.waitSeconds` to wait for a pod";
}

std::optional<std::string> UnknownContainer(const api::Target& target,
                                            const std::vector<const Pod*>& pods) {
  std::set<std::string> names;
  for (const Pod* pod : pods) {
    for (const PodContainerState& container : pod->containers) names.insert(container.name);
  }
  for (size_t i = 0; i < target.container_names.size(); ++i) {
    const std::string& name = target.container_names[i];
    if (names.contains(name)) continue;
    return "`spec.target.containerNames[" + std::to_string(i) + "]` is " + Quote(name) +
           ": the containers of " + DescribeTarget(target) + " (" + Count(pods.size(), "pod") +
           ") are " + List({names.begin(), names.end()}, 20) + "; use one of those";
  }
  return std::nullopt;
}

std::optional<Problem> NodeProblem(const World& world, const api::ProfilingSessionSpec& spec,
                                   const Pod& pod) {
  const std::string& node = pod.node;
  const std::string describe = "; see `kubectl describe nodesampler " + node + "`";
  const std::string sampler_on = "the sampler on node " + Quote(node);
  auto it = world.samplers.find(node);
  if (it == world.samplers.end()) {
    std::vector<std::string> others;
    for (const auto& [name, sampler] : world.samplers) others.push_back(name);
    return Problem{"NoSamplerOnNode",
                   "pod " + Quote(pod.name) + " is on node " + Quote(node) +
                       ", which has no NodeSampler (nodes that have one: " + List(others) +
                       "); is the sampler's pod running there? See `kubectl get nodesamplers` "
                       "and the sampler's DaemonSet"};
  }
  const api::NodeSamplerStatus& status = it->second.status;
  const api::Condition* guarded = api::FindCondition(status.conditions, "Protected");
  const api::Condition* ready = api::FindCondition(status.conditions, "Ready");
  if (guarded == nullptr || guarded->status == "Unknown") {
    return Problem{"SamplerNotReady",
                   sampler_on + " has not said yet that its writes are tied to its node" +
                       describe + " and its log",
                   true};
  }
  if (guarded->status != "True") {
    return Problem{"SamplerNotProtected",
                   sampler_on + " takes no jobs, because nothing ties its writes to its node (" +
                       guarded->reason + ": " + guarded->message +
                       "); install the ValidatingAdmissionPolicy of Borescope and its binding, see "
                       "`kubectl get validatingadmissionpolicies`"};
  }
  if (ready != nullptr && ready->status == "False") {
    return Problem{"SamplerNotReady", sampler_on + " is not ready (" + ready->reason + ": " +
                                          ready->message + ")" + describe};
  }
  for (size_t i = 0; i < spec.sink_names.size(); ++i) {
    const std::string& sink = spec.sink_names[i];
    if (Contains(status.sink_names, sink)) continue;
    return Problem{
        "UnknownSink",
        "`spec.sinkNames[" + std::to_string(i) + "]` is " + Quote(sink) + ": " + sampler_on +
            " has " + List(status.sink_names, 20) +
            "; use one of those, or let the administrator add it to the samplers' sinks file"};
  }
  for (size_t i = 0; i < spec.profiles.size(); ++i) {
    std::string kind(api::ProfileKindName(spec.profiles[i].kind));
    if (Contains(status.kinds, kind)) continue;
    return Problem{"KindNotSupported", "`spec.profiles[" + std::to_string(i) + "]` is of kind " +
                                           Quote(kind) + ": " + sampler_on + " takes " +
                                           List(status.kinds, 20) + describe};
  }
  return std::nullopt;
}

}  // namespace borescope::op
