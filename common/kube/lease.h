// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "common/base/result.h"
#include "common/http/canceller.h"
#include "common/kube/rest.h"

namespace borescope::kube {

struct LeaseOptions {
  std::string ns;
  std::string name;
  std::string identity;                       // of this process, unlike all others': the pod's name
  std::chrono::seconds duration{15};          // a holder who has not renewed for that long has lost it
  std::chrono::seconds renew_deadline{10};    // a holder who could not renew for that long gives up by itself
  std::chrono::milliseconds retry{2'000};      // between two looks
  std::function<int64_t()> boot_clock = {};   // ns; the machine's CLOCK_BOOTTIME when empty
};

// Who of several equal processes leads, by a coordination.k8s.io/v1 Lease as client-go keeps it (fields and semantics), so that
// `kubectl get lease` shows it. Nobody's clock is trusted but one's own: a holder counts as gone when its record has not changed
// for leaseDurationSeconds *as seen from here*. The writes are fenced by resourceVersion. Not thread-safe but for Holds.
class LeaderLease {
 public:
  // `client` outlives it; one of its own, so that no other call is in the way of a renewal.
  LeaderLease(RestClient* client, LeaseOptions options);

  // Takes or renews it if possible. True: ours. `error` says why it is not when the server was no help; empty: another holds it.
  bool Step(std::string* error, http::Canceller* canceller = nullptr);
  // Gives it up at once, so that a successor need not wait. Without effect when it is not ours.
  Status Release(http::Canceller* canceller = nullptr);

  // It is ours, and nobody can have taken it yet: the last renewal began less than the renew deadline ago. From any thread.
  bool Holds() const;
  const std::string& holder() const { return holder_; }  // as last seen
  int64_t transitions() const { return transitions_; }   // changes of the holder, as the record counts them

 private:
  struct Spec {
    std::string holder;
    std::string acquire_time;
    int64_t transitions = 0;
    int64_t duration_seconds = 0;
  };
  int64_t Now() const;
  Status Write(const nlohmann::json& spec, int64_t began, http::Canceller* canceller);
  void Observe(const nlohmann::json& object);

  RestClient* const client_;
  const LeaseOptions options_;
  std::string version_;      // resourceVersion of the record seen last
  std::string record_;       // its spec as text
  Spec spec_;
  int64_t changed_at_ = 0;   // boot clock: when the record was first seen as it is
  std::string holder_;
  int64_t transitions_ = 0;
  std::atomic<int64_t> held_until_{0};  // boot clock; 0: not ours
};

// Runs a LeaderLease on a thread of its own.
class LeaderElection {
 public:
  struct Seen {
    bool leading = false;
    std::string holder;
    int64_t transitions = 0;  // the record's
    int64_t taken = 0, lost = 0;  // by this process
    std::string error;        // why the lease can't be read or written; empty while all is well
  };

  // `on_change` is called on the election's thread whenever leading changes, and must only take note.
  LeaderElection(std::unique_ptr<RestClient> client, LeaseOptions options, std::function<void(bool leading)> on_change);
  ~LeaderElection();  // Stop()
  void Start();
  // Gives the lease up (what it fenced must have ended) and ends.
  void Stop();
  bool Holds() const { return lease_.Holds(); }
  Seen seen() const;

 private:
  void Run();

  const std::unique_ptr<RestClient> client_;
  const LeaseOptions options_;
  const std::function<void(bool)> on_change_;
  LeaderLease lease_;  // thread_'s, but for Holds
  http::Canceller canceller_;
  mutable std::mutex mutex_;
  Seen seen_;
  std::thread thread_;
};

}  // namespace borescope::kube
