// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operator/session/targets.h"
#include "operator/session/world.h"

// Why a session can't be had. Each message holds the field or thing, the value found and the next
// step.
namespace borescope::op {

struct Problem {
  std::string reason;
  std::string message;
  bool passing = false;  // a sampler that is just starting
};

// What the API has and this build has not.
std::optional<Problem> Unsupported(const api::ProfilingSessionSpec& spec);

// For a target that names no live pod.
std::string NothingMatched(const World& world, const api::ProfilingSession& session,
                           const Match& match);

// For the first of containerNames that none of the pods has.
std::optional<std::string> UnknownContainer(const api::Target& target,
                                            const std::vector<const Pod*>& pods);

// Why the node of this pod can't take the job.
std::optional<Problem> NodeProblem(const World& world, const api::ProfilingSessionSpec& spec,
                                   const Pod& pod);

// ---- Parts of sentences
// ----------------------------------------------------------------------------------------------------

std::string Quote(std::string_view s);               // 'a'
std::string Count(size_t n, std::string_view what);  // "1 pod", "3 pods"
// "'a', 'b' and 3 more"; "none"
std::string List(const std::vector<std::string>& texts, size_t most = 5);
std::vector<std::string> NamesOf(const std::vector<const Pod*>& pods);

}  // namespace borescope::op
