// SPDX-License-Identifier: Apache-2.0
#include "common/kube/events.h"

#include <nlohmann/json.hpp>
#include <random>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr size_t kMaxQueue = 256, kMaxSeries = 1024, kMaxNoteBytes = 1000;
constexpr int64_t kSeriesNs = 6LL * 60 * 1'000'000'000;
constexpr int kMaxTries = 12;

std::string Hex(int64_t n) {
  char buffer[20];
  snprintf(buffer, sizeof buffer, "%llx", static_cast<unsigned long long>(n));
  return buffer;
}

const Resource& Events() {
  static const Resource resource{"events.k8s.io", "v1", "events"};
  return resource;
}

}  // namespace

EventRecorder::EventRecorder(RestClient* client, std::string controller, std::string instance)
    : client_(client), controller_(std::move(controller)), instance_(SanitizeName(instance, 128)), thread_([this] { Run(); }) {}

EventRecorder::~EventRecorder() { Stop(); }

void EventRecorder::Normal(const ObjectReference& regarding, std::string reason, std::string action, std::string note) {
  Add({regarding, "Normal", std::move(reason), std::move(action), std::move(note), NowNs(CLOCK_REALTIME), 0});
}

void EventRecorder::Warning(const ObjectReference& regarding, std::string reason, std::string action, std::string note) {
  Add({regarding, "Warning", std::move(reason), std::move(action), std::move(note), NowNs(CLOCK_REALTIME), 0});
}

void EventRecorder::Add(Event event) {
  std::lock_guard lock(mutex_);
  if (queue_.size() >= kMaxQueue) {
    queue_.pop_front();
    ++stats_.dropped;
  }
  event.id = next_id_++;
  queue_.push_back(std::move(event));
  changed_.notify_all();
}

void EventRecorder::Stop(milliseconds grace) {
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, grace, [this] { return queue_.empty(); });
  }
  canceller_.Cancel();
  if (thread_.joinable()) thread_.join();
}

EventStats EventRecorder::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void EventRecorder::Run() {
  while (true) {
    Event event;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      event = queue_.front();
    }
    bool go_on = Write(event);
    std::lock_guard lock(mutex_);
    if (!go_on) {
      stats_.dropped += queue_.size();
      return;
    }
    // The front may have been pushed out meanwhile, and counted as dropped; the next one must not go with it.
    if (!queue_.empty() && queue_.front().id == event.id) queue_.pop_front();
    changed_.notify_all();
  }
}

bool EventRecorder::Write(const Event& event) {
  const ObjectReference& about = event.regarding;
  std::string ns = about.ns.empty() ? "default" : about.ns;
  std::string key = about.uid + '\0' + about.name + '\0' + event.type + '\0' + event.reason + '\0' + event.action;
  json regarding = {{"apiVersion", about.api_version}, {"kind", about.kind}, {"name", about.name}};
  if (!about.ns.empty()) regarding["namespace"] = about.ns;
  if (!about.uid.empty()) regarding["uid"] = about.uid;
  for (int tries = 1;; ++tries) {
    auto known = series_.find(key);
    bool repeat = known != series_.end() && event.time_ns - known->second.last_ns < kSeriesNs;
    CallOptions options;
    options.canceller = &canceller_;
    options.timeout = std::chrono::seconds(10);
    Status status;
    Series fresh{ns, about.name.substr(0, 200) + "." + Hex(event.time_ns), event.time_ns, 1};
    if (repeat) {
      json patch = {{"series", {{"count", known->second.count + 1}, {"lastObservedTime", FormatMicroTime(event.time_ns)}}}};
      status = client_->Patch(Events(), ns, known->second.name, patch, options).status();
    } else {
      json object = {{"apiVersion", "events.k8s.io/v1"},
                     {"kind", "Event"},
                     {"metadata", {{"name", fresh.name}, {"namespace", ns}}},
                     {"eventTime", FormatMicroTime(event.time_ns)},
                     {"reportingController", controller_},
                     {"reportingInstance", instance_},
                     {"action", SanitizeName(event.action, 128)},
                     {"reason", SanitizeName(event.reason, 128)},
                     {"type", event.type},
                     {"note", SanitizeName(event.note, kMaxNoteBytes)},
                     {"regarding", regarding}};
      status = client_->Create(Events(), ns, object, options).status();
    }
    if (canceller_.cancelled()) return false;
    if (status.ok()) {
      if (repeat) {
        ++known->second.count;
        known->second.last_ns = event.time_ns;
      } else {
        Remember(key, std::move(fresh));
      }
      std::lock_guard lock(mutex_);
      ++(repeat ? stats_.repeated : stats_.created);
      return true;
    }
    ErrorCode code = status.error().code;
    if (repeat && code == ErrorCode::kNotFound) {
      series_.erase(known);  // the server has expired it: a new one
      continue;
    }
    bool again = code == ErrorCode::kUnavailable || code == ErrorCode::kExhausted;
    if (!again || tries >= kMaxTries) {
      Log(LogLevel::kWarning, "an event could not be written", {{"object", about.name}, {"reason", event.reason}, {"error", status.error().message}});
      std::lock_guard lock(mutex_);
      ++stats_.dropped;
      return true;
    }
    static thread_local std::mt19937_64 random{std::random_device{}()};
    if (canceller_.WaitFor(milliseconds(std::uniform_int_distribution<int>(7'500, 12'500)(random)))) return false;
  }
}

void EventRecorder::Remember(const std::string& key, Series series) {
  if (series_.size() >= kMaxSeries) {
    int64_t oldest = series.last_ns - kSeriesNs;
    std::erase_if(series_, [oldest](const auto& entry) { return entry.second.last_ns < oldest; });
    if (series_.size() >= kMaxSeries) series_.erase(series_.begin());
  }
  series_[key] = std::move(series);
}

}  // namespace borescope::kube
