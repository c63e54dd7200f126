// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/http/client.h"
#include "common/kube/events.h"
#include "common/kube/rest.h"
#include "common/kube/watch.h"
#include "operator/controller/api_server.h"
#include "operator/controller/inbox.h"

namespace borescope::op {

kube::Resource ResourceOf(std::string_view plural);  // of our own group

// The real API server, and the store that keeps the records of finished sessions. Used by the
// loop's thread only.
class KubeApi : public ApiServer {
 public:
  // `store` may be null: no records are kept. `may_write` is asked before each write: a process
  // that was stopped for a while is no leader any more when it wakes (what it still gets off is
  // refused by the resourceVersion in it). All must outlive it.
  KubeApi(kube::RestClient* client, kube::EventRecorder* events, Inbox* inbox,
          http::Canceller* canceller, http::Client* store, std::function<bool()> may_write)
      : client_(client),
        events_(events),
        inbox_(inbox),
        canceller_(canceller),
        store_(store),
        may_write_(std::move(may_write)) {}

  Result<api::ProfilingSession> WriteStatus(const api::ProfilingSession& before,
                                            const api::ProfilingSessionStatus& status) override;
  Result<api::NodeSampler> WriteSpec(const api::NodeSampler& before,
                                     const api::NodeSamplerSpec& spec) override;
  Status DeleteSession(const api::ObjectMeta& session) override;
  Result<api::ProfilingSession> ReadSession(const std::string& ns,
                                            const std::string& name) override;
  Result<api::NodeSampler> ReadSampler(const std::string& node) override;
  Result<Workload> Look(const Lookup& lookup) override;
  Result<std::vector<Pod>> ListPods(const std::string& ns) override;
  void WatchPods(const std::string& ns) override;
  void UnwatchPods(const std::string& ns) override;
  void Emit(const api::ObjectMeta& session, const EventNote& event) override;
  Status MakeReader(const std::string& ns) override;
  void Keep(const api::ProfilingSession& session,
            const api::ProfilingSessionStatus& status) override;

  // Tells the loop of namespaces whose pods can't be listed.
  void CheckWatches();
  size_t pod_watches() const { return watches_.size(); }
  uint64_t records_lost() const { return records_lost_; }
  // When the last call began, CLOCK_MONOTONIC; 0 = none yet. From any thread.
  int64_t last_call() const { return last_call_; }

 private:
  struct PodWatch {
    std::shared_ptr<std::atomic<bool>>
        alive;  // false: what is still in the inbox is of a watch that has ended
    std::unique_ptr<kube::Reflector> reflector;
  };
  Status MayWrite() const;
  // For a call that is made now.
  kube::CallOptions Options(std::string subresource = "") const;

  kube::RestClient* const client_;
  kube::EventRecorder* const events_;
  Inbox* const inbox_;
  http::Canceller* const canceller_;
  http::Client* const store_;
  const std::function<bool()> may_write_;
  std::map<std::string, PodWatch> watches_;
  std::chrono::steady_clock::time_point store_rests_until_{};
  uint64_t records_lost_ = 0;
  mutable std::atomic<int64_t> last_call_{0};
};

}  // namespace borescope::op
