// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/api/types.h"

namespace borescope::op {

// Adds the nodes' figures into status: cpu, samples, lost, overhead, top. Numbers come from nodes
// that may lie: sums saturate. Overhead is per node, as the budget is: each figure is that of the
// node where it is most. window_ns: the part of the window that has passed.
void SumReports(const std::vector<const api::JobReport*>& reports,
                const api::ProfilingSessionSpec& spec, int64_t window_ns,
                api::ProfilingSessionStatus& status);

// `top` of all profiles, by own time: at most kMaxTopPerProfile each. errorPerMille is that of
// ownPerMille: 95 % binomial, widened by what a node that did not name the function may hide: no
// more than the smallest that it did name.
std::vector<api::TopFunction> SumTop(const std::vector<const api::JobReport*>& reports,
                                     const api::ProfilingSessionSpec& spec, int64_t window_ns);

// One row per sink and profile: Pending until the session is `finished`, then Published when the
// sink has every window that was made for it, else Failed.
std::vector<api::SessionResult> MakeResults(const api::ProfilingSession& session,
                                            const api::ProfilingSessionStatus& status,
                                            const std::vector<const api::JobReport*>& reports,
                                            bool finished, const std::string& store_url);

}  // namespace borescope::op
