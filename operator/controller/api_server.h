// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "operator/session/reconcile.h"
#include "operator/session/world.h"

namespace borescope::op {

// What the loop asks of the API server. Errors: kConflict (somebody wrote first), kNotFound,
// kDenied, others are retried.
class ApiServer {
 public:
  virtual ~ApiServer() = default;

  // Both fenced by the resourceVersion of `before`. The object as the server has it afterwards.
  virtual Result<api::ProfilingSession> WriteStatus(const api::ProfilingSession& before,
                                                    const api::ProfilingSessionStatus& status) = 0;
  virtual Result<api::NodeSampler> WriteSpec(const api::NodeSampler& before,
                                             const api::NodeSamplerSpec& spec) = 0;
  // Only if it still is that very object.
  virtual Status DeleteSession(const api::ObjectMeta& session) = 0;

  virtual Result<api::ProfilingSession> ReadSession(const std::string& ns,
                                                    const std::string& name) = 0;
  virtual Result<api::NodeSampler> ReadSampler(const std::string& node) = 0;
  // found = false is an answer, not an error.
  virtual Result<Workload> Look(const Lookup& lookup) = 0;
  virtual Result<std::vector<Pod>> ListPods(const std::string& ns) = 0;

  // From now on the pods of a namespace are told to the loop: first all of them, then each change;
  // and no longer.
  virtual void WatchPods(const std::string& ns) = 0;
  virtual void UnwatchPods(const std::string& ns) = 0;

  virtual void Emit(const api::ObjectMeta& session, const EventNote& event) = 0;
  // Makes the ServiceAccount whose tokens read a namespace's profiles from the store, unless it is
  // there. kDenied: we may not, or a quota is used up.
  virtual Status MakeReader(const std::string& ns) = 0;
  // Hands the record of a session that is about to be finished to the store, where it lives as long
  // as the profiles. Best effort, and before the terminal status is written: after a crash in
  // between it is simply done again.
  virtual void Keep(const api::ProfilingSession& session,
                    const api::ProfilingSessionStatus& status) = 0;
};

}  // namespace borescope::op
