// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/base/result.h"
#include "common/http/canceller.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "common/kube/config.h"
#include "common/kube/events.h"
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
};

// The operator: watches of the three kinds (and of pods where a session looks) feed the inbox, one
// thread runs the loop.
//
//   reflectors ─► Inbox ─► Loop (plans) ─► KubeApi ─► API server
class Program {
 public:
  static Result<std::unique_ptr<Program>> Create(ProgramOptions options);
  ~Program();
  Status Start();
  // Orderly: what is written is whole, events that are queued get a moment.
  void Stop();
  int port() const { return server_.port(); }

 private:
  Program(ProgramOptions options, std::unique_ptr<kube::RestClient> client,
          std::unique_ptr<http::Client> store);
  void Run();
  void WatchKinds();
  void Tick(int64_t now);
  void Publish();
  // The API server's wall clock as far as it is known: deadlines are written for many nodes.
  int64_t Now() const;

  const ProgramOptions options_;
  std::unique_ptr<kube::RestClient> client_;
  std::unique_ptr<http::Client> store_;
  http::Canceller canceller_;
  kube::EventRecorder events_;
  Inbox inbox_;
  KubeApi api_;
  Loop loop_;
  metrics::Registry registry_;
  http::Server server_;
  std::unique_ptr<kube::Reflector> samplers_, sessions_, reports_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ready_{false};
  std::atomic<int64_t> last_tick_{0};  // CLOCK_MONOTONIC
  int lists_ = 0;                      // of the three kinds, how many have come (loop's thread)
  bool cut_off_ = false;               // the watch of the reports is broken (loop's thread)
  std::thread thread_;
};

}  // namespace borescope::op
