// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/preview.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/cluster/target.h"
#include "cli/text/table.h"

namespace borescope::cli {

PreviewText RenderPreview(const api::ProfilingSession& session, const PodsFound& found, const SamplersFound& samplers, size_t width) {
  PreviewText out;
  const api::ProfilingSessionSpec& spec = session.spec;
  const api::Profile& profile = spec.profiles.front();
  const auto& wanted = spec.target.container_names;
  const size_t most = static_cast<size_t>(spec.target.max_pods);
  std::string head = fmt::format("{} in namespace {}: {} pod{}, {}", DescribeTarget(spec.target), session.metadata.namespace_name, found.pods.size(),
                                 found.pods.size() == 1 ? "" : "s", found.how);
  if (found.ended > 0) head += fmt::format("; {} more have ended or go", found.ended);
  if (found.pods.size() > most) head += fmt::format("; the operator chooses {} of them, spread over nodes and versions", most);
  out.text = Wrap(head + ".", width, "");
  std::vector<std::vector<std::string>> rows;
  std::set<std::string> troubles, names;
  for (const PodInfo& pod : found.pods) {
    std::string containers;
    for (const std::string& name : pod.containers) {
      names.insert(name);
      if (!wanted.empty() && std::ranges::find(wanted, name) == wanted.end()) continue;
      containers += (containers.empty() ? "" : ",") + name;
    }
    std::string sampler = "?";
    if (pod.node.empty()) {
      sampler = "not bound yet";
    } else if (samplers.unreadable.empty()) {
      const std::string trouble = NodeTrouble(samplers, pod.node, ProfileKindName(profile.kind));
      sampler = trouble.empty() ? "ready" : "no";
      if (!trouble.empty()) troubles.insert("Node " + pod.node + ": " + trouble + ".");
    }
    if (containers.empty()) containers = "-";
    out.possible |= containers != "-" && (sampler == "ready" || sampler == "?");
    rows.push_back({pod.name, pod.node.empty() ? "-" : pod.node, containers, sampler});
  }
  if (!rows.empty()) out.text += RenderColumns({"POD", "NODE", "CONTAINERS", "SAMPLER"}, rows, width, 0);
  for (const std::string& trouble : troubles) out.text += Wrap(trouble, width, "");
  if (!samplers.unreadable.empty()) out.text += Wrap("Whether the nodes have samplers is not known: " + samplers.unreadable, width, "");
  for (const std::string& container : wanted) {
    if (found.pods.empty() || names.contains(container)) continue;
    std::string have;
    for (const std::string& name : names) have += (have.empty() ? "" : ", ") + name;
    out.text += Wrap("No container \"" + container + "\" is in them; there are: " + have + ".", width, "");
    out.possible = false;
  }
  if (profile.frequency_hertz > 0) {
    const int64_t samples = int64_t{profile.frequency_hertz} * spec.duration_seconds;
    out.text += Wrap(fmt::format("{} s at {} Hz: {} samples for each CPU that they keep busy; with one busy CPU a share of 50 % is known to ±{:.1f} points.",
                                 spec.duration_seconds, profile.frequency_hertz, samples, 100 * api::ShareError(0.5, static_cast<double>(samples))),
                     width, "");
  }
  out.text += out.possible ? "Nothing was made: this was a dry run.\n" : "As it stands, nothing would be sampled. Nothing was made: this was a dry run.\n";
  return out;
}

Result<PreviewText> Preview(Cluster& cluster, const api::ProfilingSession& session, size_t width) {
  ASSIGN_OR_RETURN(PodsFound pods, FindPods(cluster, session.spec.target));
  return RenderPreview(session, pods, FindSamplers(cluster), width);
}

}  // namespace borescope::cli
