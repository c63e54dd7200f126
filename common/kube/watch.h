// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/http/canceller.h"
#include "common/kube/projection.h"
#include "common/kube/rest.h"

namespace borescope::kube {

enum class EventType { kAdded, kModified, kDeleted };

struct WatchStats {
  uint64_t events = 0;
  uint64_t bookmarks = 0;
  uint64_t skipped = 0;      // of an unknown type, or not understood
  uint64_t connects = 0;     // watch requests made
  uint64_t relists = 0;      // lists after the first
  uint64_t idle_closed = 0;  // streams given up because nothing came
  uint64_t errors = 0;       // what was answered with a back-off
  std::string last_error;    // of those; empty while all is well
};

// Times that tests shorten.
struct WatchTiming {
  std::chrono::milliseconds idle_timeout{90'000};  // no event and no bookmark: the stream is dead
  std::chrono::seconds min_life{300}, max_life{600};  // timeoutSeconds is drawn between
  std::chrono::milliseconds first_backoff{800}, max_backoff{30'000};
  std::chrono::milliseconds very_short{1'000};     // a watch that lived shorter and said nothing is an error
};

// Keeps somebody informed of all objects of a kind (in a namespace, by a selector): a paged list, then a watch from there, for
// ever. Never goes back in time, resumes after a break, lists anew when the server has forgotten (410 in either form).
// The handlers run on the reflector's own thread and must only take the value and return: a slow reader is cut off by the server.
class Reflector {
 public:
  struct Options {
    Resource resource;
    std::string ns = {};  // empty: all
    std::string label_selector = {};
    std::string field_selector = {};
    // Kept of each object; metadata.{name,namespace,uid,resourceVersion,generation} always are.
    Projection projection = {};
    WatchTiming timing = {};
  };
  struct Handler {
    // The complete set: replaces whatever was known.
    std::function<void(std::vector<nlohmann::json> items)> on_list;
    // kDeleted carries the last state; with a selector it may only mean "no longer selected".
    std::function<void(EventType type, nlohmann::json object)> on_event;
  };

  // `client` outlives it.
  Reflector(RestClient* client, Options options, Handler handler);
  ~Reflector();  // Stop()
  void Start();
  void Stop();   // within 100 ms
  bool synced() const { return synced_; }  // the first list has been handed over
  WatchStats stats() const;

 private:
  void Run();

  RestClient* const client_;
  const Options options_;
  const Handler handler_;
  Projection projection_;
  http::Canceller canceller_;
  std::thread thread_;
  std::atomic<bool> synced_{false};
  mutable std::mutex mutex_;
  WatchStats stats_;
};

// Follows one object by its name with one request, O(1) for the API server: always from resourceVersion 0, never a list, so never
// a 410. Handlers as for Reflector.
class NamedWatch {
 public:
  struct Options {
    Resource resource;  // cluster-scoped, or `ns` set
    std::string ns = {};
    std::string name = {};
    Projection projection = {};
    WatchTiming timing{.min_life = std::chrono::seconds(1800), .max_life = std::chrono::seconds(3600)};
  };
  struct Handler {
    // The object as it is now. An older generation of the same uid than one already seen is not handed over.
    std::function<void(nlohmann::json object)> on_object;
    // It is gone: deleted, or no longer there when the watch came back.
    std::function<void()> on_deleted;
  };

  NamedWatch(RestClient* client, Options options, Handler handler);
  ~NamedWatch();
  void Start();
  void Stop();
  bool connected() const { return connected_; }  // a stream is open and was heard of within the idle time
  WatchStats stats() const;

  // The path and query of its request.
  static std::string RequestPath(const Options& options, int timeout_seconds);

 private:
  void Run();

  RestClient* const client_;
  const Options options_;
  const Handler handler_;
  Projection projection_;
  http::Canceller canceller_;
  std::thread thread_;
  std::atomic<bool> connected_{false};
  mutable std::mutex mutex_;
  WatchStats stats_;
};

}  // namespace borescope::kube
