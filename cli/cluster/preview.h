// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/cluster/lookup.h"

namespace borescope::cli {

struct PreviewText {
  std::string text;
  bool possible = false;  // some pod can be sampled, as far as it is known
};

// What a session would do, without doing it: which pods, how they are found, which nodes lack a sampler, how many samples to expect.
PreviewText RenderPreview(const api::ProfilingSession& session, const PodsFound& pods, const SamplersFound& samplers, size_t width);
Result<PreviewText> Preview(Cluster& cluster, const api::ProfilingSession& session, size_t width);

}  // namespace borescope::cli
