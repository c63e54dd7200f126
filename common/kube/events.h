// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "common/http/canceller.h"
#include "common/kube/rest.h"

namespace borescope::kube {

struct ObjectReference {
  std::string api_version;  // "profiling.borescope.dev/v1alpha1"
  std::string kind;
  std::string ns;  // empty: cluster-scoped, the event goes to "default"
  std::string name;
  std::string uid;
};

struct EventStats {
  uint64_t created = 0;
  uint64_t repeated = 0;  // patched into the series of an earlier one
  uint64_t dropped = 0;   // queue full, or refused for good
};

// Writes events.k8s.io/v1 Events from a thread of its own, so that nobody waits for it. The same event (object, type, reason,
// action) within 6 minutes becomes a series of the first.
class EventRecorder {
 public:
  EventRecorder(RestClient* client, std::string controller, std::string instance);
  ~EventRecorder();

  void Normal(const ObjectReference& regarding, std::string reason, std::string action, std::string note);
  void Warning(const ObjectReference& regarding, std::string reason, std::string action, std::string note);
  // Tries for at most `grace` to write what is queued, then ends.
  void Stop(std::chrono::milliseconds grace = std::chrono::milliseconds(0));
  EventStats stats() const;

 private:
  struct Event {
    ObjectReference regarding;
    std::string type, reason, action, note;
    int64_t time_ns = 0;
    uint64_t id = 0;  // of its place in the queue
  };
  struct Series {
    std::string ns, name;
    int64_t last_ns = 0;
    int count = 1;
  };
  void Add(Event event);
  void Run();
  bool Write(const Event& event);  // false: cancelled
  void Remember(const std::string& key, Series series);

  RestClient* const client_;
  const std::string controller_, instance_;
  http::Canceller canceller_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  uint64_t next_id_ = 1;
  std::deque<Event> queue_;
  EventStats stats_;
  std::map<std::string, Series> series_;  // thread_ only
  std::thread thread_;
};

}  // namespace borescope::kube
