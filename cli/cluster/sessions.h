// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/cluster/access.h"
#include "common/api/types.h"
#include "common/profile/profile.h"

// Sessions in the API server and their profiles in the store. Errors are the sentence that a person needs.
namespace borescope::cli {

inline const kube::Resource kSessions{std::string(api::kGroup), std::string(api::kVersion), std::string(api::kProfilingSessions)};

struct Stored {
  api::ProfilingSession session;
  std::string json;  // as the server has it, for people: indented, without managedFields
};

std::string CleanJson(nlohmann::json object);

// `spec` as it stands in a manifest. dry_run: checked by the server, and not kept.
Result<Stored> CreateSession(Cluster& cluster, const std::string& name, const nlohmann::json& spec, bool dry_run);
Result<Stored> GetSession(Cluster& cluster, const std::string& name);
// desiredState Stop.
Result<Stored> StopSession(Cluster& cluster, const std::string& name);
struct SessionList {
  std::vector<api::ProfilingSession> sessions;
  std::string json;  // a List, as kubectl -o json prints it
};
Result<SessionList> ListSessions(Cluster& cluster, bool all_namespaces);

// The session's profile from the store, gzipped pprof, through the API server with a token of borescope-reader. `which` names one of
// spec.profiles; empty: the first. kNotFound: the store has nothing of it (yet).
Result<std::string> FetchPprof(Cluster& cluster, const api::ProfilingSession& session, std::string_view which);

}  // namespace borescope::cli
