// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/api/types.h"
#include "operator/fleet/node_spec.h"
#include "operator/session/world.h"

namespace borescope::op {

// No Accepted entry in the report this long after the job was written: SamplerNotResponding.
inline constexpr int64_t kAnswerTime = 3'000'000'000;
// A sampler that has not said how its job ended this long after the end is lost. Covers a restart
// and the back-off of its client.
inline constexpr int64_t kSilenceGrace = 20'000'000'000;
// Figures of a running session are written no oftener.
inline constexpr int64_t kProgressPeriod = 2'000'000'000;

struct EventNote {
  bool warning = false;
  std::string reason;
  std::string note;
  bool operator==(const EventNote&) const = default;
};

// What is to be done for one session.
struct SessionPlan {
  std::optional<api::ProfilingSessionStatus>
      status;                     // to write, fenced by the session's resourceVersion
  std::vector<EventNote> events;  // true once that write has succeeded
  std::map<std::string, Assignment>
      assignments;  // node -> its job, by what the API server holds (not by `status`)
  std::vector<Lookup> lookups;
  bool list_pods = false;
  int64_t requeue_at = 0;  // plan again then even if nothing happens; 0 = never
  SessionMemory memory;    // to keep
  std::string progress;    // memory.progress once `status` is written
};

// Pure: the same world, session and time give the same plan. Level-triggered: whatever was written
// before a crash, plans made from the objects alone lead to the same end. The order of writes is
// the contract: an accepted status, then jobs; a terminal status, then no jobs, then the samplers
// prune their reports.
SessionPlan PlanSession(const World& world, const api::ProfilingSession& session, int64_t now);

// For a finished session.
struct FinishedPlan {
  bool restamp = false;  // a later generation is to be acknowledged
  bool remove = false;   // its time to live is over
  int64_t requeue_at = 0;
};
FinishedPlan PlanFinished(const FinishedSession& session, int64_t now);

// The status of a finished session with all observedGenerations at its generation.
api::ProfilingSessionStatus Restamped(const api::ProfilingSession& session);

bool IsFinished(const api::ProfilingSession& session);
FinishedSession Summarize(const api::ProfilingSession& session);

}  // namespace borescope::op
