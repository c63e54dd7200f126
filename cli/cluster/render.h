// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/types.h"

// Sessions as a person reads them. Names of functions and files come from tenants' programs: the API's bounds hold for them, control
// characters have left.
namespace borescope::cli {

// The top table of each profile, then what was sampled, lost and paid for. Empty `top`: only the latter.
std::string RenderSession(const api::ProfilingSession& session, size_t width, size_t rows);
// The accounts below the table.
std::string RenderAccount(const api::ProfilingSession& session, size_t width);

// How far it is: a line of the whole, then a bar for each target. Each line has at most `width` columns.
std::vector<std::string> RenderProgress(const api::ProfilingSession& session, int64_t now_ns, size_t width, size_t max_targets = 8);

// NAME PHASE PODS TOP COST LOST AGE, newest first.
std::string RenderList(std::vector<api::ProfilingSession> sessions, int64_t now_ns, bool namespaces, size_t width);

// Five lines of Markdown for an incident's channel; `open`: the command that opens the profile.
std::string RenderShare(const api::ProfilingSession& session, std::string_view open);

// The condition that says why a session failed or is not whole; nullptr when all is well.
const api::Condition* Trouble(const api::ProfilingSession& session);

}  // namespace borescope::cli
