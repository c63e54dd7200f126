// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "common/base/result.h"
#include "common/http/canceller.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "common/kube/config.h"
#include "common/kube/events.h"
#include "common/kube/lease.h"
#include "common/kube/rest.h"
#include "common/kube/watch.h"
#include "common/metrics/metrics.h"
#include "operator/controller/inbox.h"
#include "operator/controller/kube_api.h"
#include "operator/controller/loop.h"

namespace borescope::op {

struct ProgramOptions {
  kube::ConfigFlags kube;
  std::string listen = "127.0.0.1:8081";  // /metrics /healthz /readyz
  std::string cluster;                    // label of every profile; may be empty
  std::string store_url;         // where people read profiles, and where records go; may be empty
  std::string store_token_file;  // for records; may be empty
  std::string lease_namespace;   // of the Lease that names the leader; empty: this is the only operator
  std::string identity;          // in that Lease; the pod's name. Empty: the host name, which is that
};

// The operator: watches of the three kinds (and of pods where a session looks) feed the inbox, one
// thread runs the loop.
//
//   reflectors ─► Inbox ─► Loop (plans) ─► KubeApi ─► API server
//
// Of several, the one that holds the Lease does that; the others watch nothing but the Lease. A
// takeover is a start: everything is listed anew, in the order that a start needs, so that what a
// predecessor wrote last is seen before anything is written.
class Program {
 public:
  static Result<std::unique_ptr<Program>> Create(ProgramOptions options);
  ~Program();
  Status Start();
  // Orderly: what is written is whole, events that are queued get a moment.
  void Stop();
  int port() const { return server_.port(); }

 private:
  // From becoming the leader to being it no longer: all that is known, and who told it.
  struct Reign {
    Reign(kube::RestClient* client, kube::EventRecorder* events, Inbox* inbox, http::Client* store,
          std::function<bool()> may_write, const ProgramOptions& options)
        : api(client, events, inbox, &canceller, store, std::move(may_write)),
          loop(&api, options.cluster, options.store_url) {}
    http::Canceller canceller;
    KubeApi api;
    Loop loop;
    std::unique_ptr<kube::Reflector> samplers, sessions, reports;
    int lists = 0;         // of the three kinds, how many have come
    bool cut_off = false;  // the watch of the reports is broken
  };
  using Counts = std::map<std::pair<std::string, std::string>, uint64_t>;

  Program(ProgramOptions options, std::unique_ptr<kube::RestClient> client,
          std::unique_ptr<http::Client> store, std::unique_ptr<kube::RestClient> lease_client);
  void Run();
  bool Leads() const;
  void StandBy();
  void Begin();
  void Rule();
  void End();
  void CancelReign();
  void WatchKinds();
  void Tick(int64_t now);
  void Publish();
  // Sums of the present reign: {writes|watch|…, of what} is added to what earlier ones counted.
  std::map<std::string, Counts> CountsOfReign() const;
  // The API server's wall clock as far as it is known: deadlines are written for many nodes.
  int64_t Now() const;

  const ProgramOptions options_;
  std::unique_ptr<kube::RestClient> client_;
  std::unique_ptr<http::Client> store_;
  kube::EventRecorder events_;
  Inbox inbox_;
  metrics::Registry registry_;
  http::Server server_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ready_{false};
  std::atomic<bool> elected_{false};
  std::atomic<int64_t> last_tick_{0};  // CLOCK_MONOTONIC
  mutable std::mutex reign_mutex_;     // of the pointer, for other threads than the loop's
  std::unique_ptr<Reign> reign_;       // null: somebody else leads
  std::map<std::string, Counts> past_;  // of reigns that are over (loop's thread)
  std::unique_ptr<kube::LeaderElection> election_;  // null: none is held
  std::thread thread_;
};

}  // namespace borescope::op
