// SPDX-License-Identifier: Apache-2.0
#include "common/kube/watch.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "common/base/backoff.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/kube/framer.h"

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using SteadyTime = std::chrono::steady_clock::time_point;
SteadyTime Now() { return std::chrono::steady_clock::now(); }

const json& Member(const json& object, std::string_view key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  auto it = object.find(key);
  return it != object.end() ? *it : kNull;
}

std::string Text(const json& object, std::string_view key) {
  const json& value = Member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

int64_t Integer(const json& object, std::string_view key) {
  const json& value = Member(object, key);
  return value.is_number_integer() ? value.get<int64_t>() : 0;
}

// What the watch itself needs to know of each object.
Projection WithIdentity(const Projection& wanted) {
  Projection projection{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion", "metadata.generation"};
  projection.Merge(wanted);
  return projection;
}

Projection Envelope(const Projection& object) {
  Projection projection{"type"};
  projection.Merge(object.Under("object"));
  return projection;
}

int DrawSeconds(const WatchTiming& timing) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return static_cast<int>(
      std::uniform_int_distribution<int64_t>(timing.min_life.count(), std::max(timing.min_life, timing.max_life).count())(random));
}

// How one watch went.
struct Outcome {
  Status status;          // of the transport, of the server's answer, or of an ERROR event
  bool relist = false;    // the position is lost
  bool idle = false;
  uint64_t heard = 0;     // events and bookmarks
  milliseconds lived{0};
  milliseconds wait{0};   // what the server asked for (Retry-After)
};

struct EventSink {
  std::function<void(EventType type, json object)> on_event;
  std::function<void(const json& object)> on_bookmark;
};

// One watch request to its end.
Outcome WatchOnce(RestClient* client, const std::string& path, const Projection& envelope, const WatchTiming& timing,
                  http::Canceller* canceller, const EventSink& sink, const std::function<void(bool bookmark, bool skipped)>& count) {
  Outcome outcome;
  const SteadyTime begin = Now();
  SteadyTime last = begin;
  WatchFramer framer;
  std::optional<Error> broken;
  auto on_object = [&](std::string_view text) {
    auto event = envelope.Parse(text);
    std::string type = event.ok() ? Text(*event, "type") : "";
    if (!event.ok()) {
      // What changed is not known: only a list can tell.
      count(false, true);
      broken = Error{ErrorCode::kUnavailable, "an event of the watch is " + event.error().message};
      outcome.relist = true;
      return false;
    }
    json& object = (*event)["object"];
    if (type == "ADDED" || type == "MODIFIED" || type == "DELETED") {
      ++outcome.heard;
      count(false, false);
      sink.on_event(type == "ADDED" ? EventType::kAdded : type == "MODIFIED" ? EventType::kModified : EventType::kDeleted, std::move(object));
    } else if (type == "BOOKMARK") {
      ++outcome.heard;
      count(true, false);
      sink.on_bookmark(object);
    } else if (type == "ERROR") {
      http::Response response;
      Projection whole_status;
      auto raw = whole_status.Parse(text);
      if (raw.ok()) {
        const json& status = Member(*raw, "object");
        response.body = status.dump(-1, ' ', false, json::error_handler_t::replace);
        response.status = static_cast<int>(std::clamp<int64_t>(Integer(status, "code"), 0, 999));
      }
      if (response.status < 400) response.status = 500;
      KubeError details;
      broken = ErrorOfResponse("watch " + path.substr(0, path.find('?')), response, &details);
      outcome.relist = broken->code == ErrorCode::kGone || details.reason == "Expired" || details.reason == "Gone" ||
                       details.resource_version_too_large;
      outcome.wait = details.retry_after;
      return false;
    } else {
      count(false, true);
      Log(LogLevel::kWarning, "a watch event of an unknown type was skipped", {{"type", SanitizeName(type, 64)}});
    }
    return !canceller->cancelled();
  };
  auto on_data = [&](std::string_view bytes) {
    last = Now();
    Status framed = framer.Feed(bytes, on_object);
    if (!framed.ok()) {
      broken = framed.error();
      outcome.relist = true;
    }
    return !broken && !canceller->cancelled();
  };
  KubeError details;
  outcome.status = client->Watch(path, timing.idle_timeout, canceller, on_data, &details);
  outcome.idle = !outcome.status.ok() && details.http_status == 0 && Now() - last >= timing.idle_timeout;
  if (!outcome.status.ok()) {
    if (outcome.status.error().code == ErrorCode::kGone || outcome.status.error().code == ErrorCode::kNotFound ||
        details.resource_version_too_large) {
      outcome.relist = true;
    }
    outcome.wait = details.retry_after;
  }
  if (broken) outcome.status = *std::move(broken);
  outcome.lived = std::chrono::duration_cast<milliseconds>(Now() - begin);
  return outcome;
}

// How long to wait before the next request, after `outcome`; an error is put into *stats.
class Pacer {
 public:
  explicit Pacer(const WatchTiming& timing) : timing_(timing), backoff_(timing.first_backoff, timing.max_backoff) {}

  milliseconds After(const Outcome& outcome, WatchStats* stats) {
    const bool brief = outcome.lived < timing_.very_short;
    if (outcome.heard > 0 && !brief) backoff_.Reset();
    if (outcome.idle) {
      ++stats->idle_closed;
      return milliseconds(0);
    }
    // A stream that ended or broke after it was of use is the normal course of things.
    const bool broke_off = !outcome.status.ok() && outcome.heard > 0 && outcome.status.error().code == ErrorCode::kUnavailable;
    if (!brief && (outcome.status.ok() || broke_off)) {
      stats->last_error.clear();
      said_.clear();
      return milliseconds(0);
    }
    ++stats->errors;
    stats->last_error = outcome.status.ok() ? "the watch ended at once" : outcome.status.error().message;
    Say(stats->last_error);
    // The position is lost: that is cured by the list that follows, at once unless it happens again and again.
    return std::max(outcome.relist && std::exchange(relist_is_new_, false) ? milliseconds(0) : backoff_.Next(), outcome.wait);
  }
  milliseconds AfterListError(const Error& error, milliseconds asked, WatchStats* stats) {
    ++stats->errors;
    stats->last_error = error.message;
    Say(stats->last_error);
    return std::max(backoff_.Next(), asked);
  }
  void Heard() { relist_is_new_ = true; }

 private:
  // Once for each new reason: a watch that does not work must not do so in silence, nor fill the log.
  void Say(const std::string& error) {
    if (error == said_) return;
    said_ = error;
    Log(LogLevel::kWarning, "a watch does not work; it is tried again", {{"error", error}});
  }

  const WatchTiming timing_;
  Backoff backoff_;
  bool relist_is_new_ = true;
  std::string said_;
};

}  // namespace

Reflector::Reflector(RestClient* client, Options options, Handler handler)
    : client_(client), options_(std::move(options)), handler_(std::move(handler)), projection_(WithIdentity(options_.projection)) {}

Reflector::~Reflector() { Stop(); }

void Reflector::Start() { thread_ = std::thread([this] { Run(); }); }

void Reflector::Stop() {
  canceller_.Cancel();
  if (thread_.joinable()) thread_.join();
}

WatchStats Reflector::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Reflector::Run() {
  const Projection envelope = Envelope(projection_);
  Pacer pacer(options_.timing);
  bool have_list = false;
  std::string resource_version;
  const EventSink sink{
      [&](EventType type, json object) {
        std::string version = Text(Member(object, "metadata"), "resourceVersion");
        if (!version.empty()) resource_version = version;
        pacer.Heard();
        handler_.on_event(type, std::move(object));
      },
      [&](const json& object) {
        std::string version = Text(Member(object, "metadata"), "resourceVersion");
        if (!version.empty()) resource_version = version;
        pacer.Heard();
      }};
  auto count = [this](bool bookmark, bool skipped) {
    std::lock_guard lock(mutex_);
    ++(skipped ? stats_.skipped : bookmark ? stats_.bookmarks : stats_.events);
    if (!skipped) stats_.last_error.clear();
  };
  while (!canceller_.cancelled()) {
    milliseconds wait{0};
    if (!have_list) {
      KubeError details;
      CallOptions call;
      call.timeout = std::chrono::seconds(60);
      call.canceller = &canceller_;
      call.error = &details;
      // Without a resourceVersion: the most recent state, never one older than what was seen.
      ListOptions list;
      list.ns = options_.ns;
      list.label_selector = options_.label_selector;
      list.field_selector = options_.field_selector;
      list.projection = projection_;
      auto found = client_->List(options_.resource, list, call);
      if (canceller_.cancelled()) return;
      if (found.ok()) {
        have_list = true;
        resource_version = found->resource_version;
        handler_.on_list(std::move(found->items));
        std::lock_guard lock(mutex_);
        if (synced_.exchange(true)) ++stats_.relists;
      } else {
        std::lock_guard lock(mutex_);
        wait = pacer.AfterListError(found.error(), details.retry_after, &stats_);
      }
    }
    if (have_list) {
      std::map<std::string, std::string, std::less<>> query{{"watch", "true"},
                                                            {"allowWatchBookmarks", "true"},
                                                            {"resourceVersion", resource_version},
                                                            {"timeoutSeconds", std::to_string(DrawSeconds(options_.timing))}};
      if (!options_.label_selector.empty()) query["labelSelector"] = options_.label_selector;
      if (!options_.field_selector.empty()) query["fieldSelector"] = options_.field_selector;
      {
        std::lock_guard lock(mutex_);
        ++stats_.connects;
      }
      Outcome outcome = WatchOnce(client_, options_.resource.Path(options_.ns) + "?" + http::EncodeQuery(query), envelope,
                                  options_.timing, &canceller_, sink, count);
      if (canceller_.cancelled()) return;
      if (outcome.relist) have_list = false;
      std::lock_guard lock(mutex_);
      wait = pacer.After(outcome, &stats_);
    }
    if (wait.count() > 0 && canceller_.WaitFor(wait)) return;
  }
}

NamedWatch::NamedWatch(RestClient* client, Options options, Handler handler)
    : client_(client), options_(std::move(options)), handler_(std::move(handler)), projection_(WithIdentity(options_.projection)) {}

NamedWatch::~NamedWatch() { Stop(); }

void NamedWatch::Start() { thread_ = std::thread([this] { Run(); }); }

void NamedWatch::Stop() {
  canceller_.Cancel();
  if (thread_.joinable()) thread_.join();
}

WatchStats NamedWatch::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

std::string NamedWatch::RequestPath(const Options& options, int timeout_seconds) {
  return options.resource.Path(options.ns) + "?" +
         http::EncodeQuery({{"watch", "true"},
                            {"fieldSelector", "metadata.name=" + options.name},
                            {"resourceVersion", "0"},
                            {"allowWatchBookmarks", "true"},
                            {"timeoutSeconds", std::to_string(timeout_seconds)}});
}

void NamedWatch::Run() {
  const Projection envelope = Envelope(projection_);
  Pacer pacer(options_.timing);
  std::string uid;  // of the object as last handed over; empty: none
  int64_t generation = 0;
  bool seen = false;  // on this connection
  auto gone = [&] {
    uid.clear();
    generation = 0;
    handler_.on_deleted();
  };
  const EventSink sink{
      [&](EventType type, json object) {
        connected_ = true;
        const json& metadata = Member(object, "metadata");
        std::string object_uid = Text(metadata, "uid");
        int64_t object_generation = Integer(metadata, "generation");
        if (Text(metadata, "name") != options_.name) return;  // a proxy without field selectors
        if (type == EventType::kDeleted) {
          if (object_uid == uid) gone();
          return;
        }
        seen = true;
        // Another API server's cache may be behind the one that we were connected to.
        if (object_uid == uid && object_generation < generation) return;
        uid = object_uid;
        generation = object_generation;
        handler_.on_object(std::move(object));
      },
      [&](const json&) {
        connected_ = true;
        // All that existed when the watch began has been said by now.
        if (!seen && !uid.empty()) gone();
      }};
  auto count = [this](bool bookmark, bool skipped) {
    std::lock_guard lock(mutex_);
    ++(skipped ? stats_.skipped : bookmark ? stats_.bookmarks : stats_.events);
    if (!skipped) stats_.last_error.clear();
  };
  while (!canceller_.cancelled()) {
    {
      std::lock_guard lock(mutex_);
      ++stats_.connects;
    }
    seen = false;
    Outcome outcome = WatchOnce(client_, RequestPath(options_, DrawSeconds(options_.timing)), envelope, options_.timing, &canceller_,
                                sink, count);
    connected_ = false;
    if (canceller_.cancelled()) return;
    outcome.relist = false;  // it has no position to lose
    milliseconds wait;
    {
      std::lock_guard lock(mutex_);
      wait = pacer.After(outcome, &stats_);
    }
    if (wait.count() > 0 && canceller_.WaitFor(wait)) return;
  }
}

}  // namespace borescope::kube
