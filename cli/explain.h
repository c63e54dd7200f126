// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bpf/abi/loss.h"
#include "sampler/engine/engine.h"
#include "sampler/stacks/aggregator.h"
#include "sampler/naming/names.h"
#include "sampler/unwind/tables.h"

namespace borescope::cli {

// CPU time of the samples that are gone, in ns.
int64_t LostNs(const engine::JobCounters& kernel, const stacks::JobStats& user);

// How far the profile can be trusted, two lines:
// "Whole stacks: 99.7 % of 4712. Cut: 0.2 % no unwind information, 0.1 % tables not ready."
// "Lost: 0.2 s ring buffer full."
std::string QualityLines(const engine::JobCounters& kernel, const stacks::JobStats& user);

// What would mend stacks that end in `cut`; `file`: what is known of the unwind table of its file, may be null.
std::string Mend(const stacks::Cut& cut, const unwind::Tables::FileInfo* file);

// For each executable and reason: samples that end there, an example, what would mend it; then what the unwind tables cost.
// At most max_rows; lines of at most `width` columns.
std::string Explain(const std::vector<stacks::Cut>& cuts, const std::vector<unwind::Tables::FileInfo>& files,
                    const unwind::Tables::Stats& tables, uint64_t collected, size_t width, size_t max_rows = 40);

// What became of the names of addresses in files, and which files lack names or lines, and why.
// late: addresses that the profile holds without the names that were still looked for.
std::string ExplainNames(const std::vector<naming::Names::FileInfo>& files, const naming::Names::Stats& names, uint64_t late, size_t width,
                         size_t max_rows = 20);

}  // namespace borescope::cli
