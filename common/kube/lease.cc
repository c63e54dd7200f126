// SPDX-License-Identifier: Apache-2.0
#include "common/kube/lease.h"

#include <pthread.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

const Resource kLeases{"coordination.k8s.io", "v1", "leases"};
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kMaxDurationSeconds = 3600;
constexpr milliseconds kReleaseTime{2'000};

std::string Text(const json& object, const char* key) {
  auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}
int64_t Number(const json& object, const char* key) {
  auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

}  // namespace

LeaderLease::LeaderLease(RestClient* client, LeaseOptions options) : client_(client), options_(std::move(options)) {}

int64_t LeaderLease::Now() const { return options_.boot_clock ? options_.boot_clock() : NowNs(CLOCK_BOOTTIME); }

bool LeaderLease::Holds() const { return Now() < held_until_.load(); }

void LeaderLease::Observe(const json& object) {
  auto metadata = object.find("metadata");
  auto spec = object.find("spec");
  version_ = metadata != object.end() && metadata->is_object() ? Text(*metadata, "resourceVersion") : "";
  const json value = spec != object.end() && spec->is_object() ? *spec : json::object();
  std::string record = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (changed_at_ == 0 || record != record_) {
    record_ = std::move(record);
    // When it was seen, not when it was asked for: the holder may have renewed in between.
    changed_at_ = Now();
  }
  spec_ = {.holder = Text(value, "holderIdentity"),
           .acquire_time = Text(value, "acquireTime"),
           .transitions = std::max<int64_t>(0, Number(value, "leaseTransitions")),
           .duration_seconds = std::clamp<int64_t>(Number(value, "leaseDurationSeconds"), 0, kMaxDurationSeconds)};
  holder_ = SanitizeName(spec_.holder, 253);
  transitions_ = spec_.transitions;
}

Status LeaderLease::Write(const json& spec, int64_t began, http::Canceller* canceller) {
  CallOptions call;
  call.timeout = std::max<milliseconds>(options_.renew_deadline / 2, milliseconds(1'000));
  call.canceller = canceller;
  call.max_tries = 1;  // the next look is the next try
  Result<json> written = Error{ErrorCode::kInternal, ""};
  if (version_.empty()) {
    written = client_->Create(kLeases, options_.ns,
                              json{{"apiVersion", "coordination.k8s.io/v1"},
                                   {"kind", "Lease"},
                                   {"metadata", {{"name", options_.name}, {"namespace", options_.ns}}},
                                   {"spec", spec}},
                              call);
  } else {
    written = client_->Patch(kLeases, options_.ns, options_.name, json{{"metadata", {{"resourceVersion", version_}}}, {"spec", spec}}, call);
  }
  RETURN_IF_ERROR(written.status());
  Observe(*written);
  // From before the call: later, the server may long have begun to count.
  held_until_ = spec_.holder == options_.identity ? began + std::chrono::nanoseconds(options_.renew_deadline).count() : 0;
  return OkStatus();
}

bool LeaderLease::Step(std::string* error, http::Canceller* canceller) {
  error->clear();
  const int64_t began = Now();
  const std::string wall = FormatMicroTime(NowNs(CLOCK_REALTIME));
  const int64_t duration = options_.duration.count();
  if (held_until_ != 0) {
    if (!Holds()) {
      // Stopped, or cut off, for so long that a successor may be at work: what we know is void, whatever the record says.
      held_until_ = 0;
      return false;
    }
    // The fast path: nobody else has written.
    Status renewed = Write(json{{"renewTime", wall}}, began, canceller);
    if (renewed.ok()) return true;
    *error = renewed.error().message;
  }
  CallOptions call;
  call.timeout = std::max<milliseconds>(options_.renew_deadline / 2, milliseconds(1'000));
  call.canceller = canceller;
  call.max_tries = 1;
  auto live = client_->Get(kLeases, options_.ns, options_.name, call);
  if (live.ok()) {
    Observe(*live);
  } else if (live.error().code == ErrorCode::kNotFound) {
    version_.clear();
    spec_ = {};
  } else {
    *error = live.error().message;
    if (!Holds()) held_until_ = 0;
    return Holds();  // nobody takes it from us before the deadline
  }
  error->clear();
  const bool ours = spec_.holder == options_.identity;
  if (!spec_.holder.empty() && !ours) {
    held_until_ = 0;
    if (Now() < changed_at_ + spec_.duration_seconds * kSecondNs) return false;
  }
  json spec = {{"holderIdentity", options_.identity}, {"leaseDurationSeconds", duration}, {"renewTime", wall}};
  if (!ours) {
    spec["acquireTime"] = wall;
    // The first holder of all is no change of holders.
    spec["leaseTransitions"] = version_.empty() ? 0 : spec_.transitions + 1;
  }
  Status written = Write(spec, began, canceller);
  if (!written.ok()) {
    // Somebody was faster: that is an answer, no trouble.
    if (written.error().code != ErrorCode::kConflict) *error = written.error().message;
    if (!Holds()) held_until_ = 0;
  }
  return Holds();
}

Status LeaderLease::Release(http::Canceller* canceller) {
  if (held_until_ == 0) return OkStatus();
  held_until_ = 0;
  const std::string wall = FormatMicroTime(NowNs(CLOCK_REALTIME));
  CallOptions call;
  call.timeout = kReleaseTime;
  call.canceller = canceller;
  call.max_tries = 1;
  // An empty holder for one second: who looks next takes it.
  return client_
      ->Patch(kLeases, options_.ns, options_.name,
              json{{"metadata", {{"resourceVersion", version_}}},
                   {"spec", {{"holderIdentity", ""}, {"leaseDurationSeconds", 1}, {"renewTime", wall}, {"acquireTime", wall}}}},
              call)
      .status();
}

LeaderElection::LeaderElection(std::unique_ptr<RestClient> client, LeaseOptions options, std::function<void(bool)> on_change)
    : client_(std::move(client)), options_(options), on_change_(std::move(on_change)), lease_(client_.get(), std::move(options)) {}

LeaderElection::~LeaderElection() { Stop(); }

void LeaderElection::Start() {
  thread_ = std::thread([this] { Run(); });
}

void LeaderElection::Stop() {
  canceller_.Cancel();
  if (thread_.joinable()) thread_.join();
}

LeaderElection::Seen LeaderElection::seen() const {
  std::lock_guard lock(mutex_);
  return seen_;
}

void LeaderElection::Run() {
  ::pthread_setname_np(::pthread_self(), "lease");
  bool leading = false;
  std::string error, last_error;
  do {
    const bool now_leading = lease_.Step(&error, &canceller_);
    {
      std::lock_guard lock(mutex_);
      seen_.leading = now_leading;
      seen_.holder = lease_.holder();
      seen_.transitions = lease_.transitions();
      seen_.error = error;
      if (now_leading && !leading) ++seen_.taken;
      if (!now_leading && leading) ++seen_.lost;
    }
    if (now_leading != leading) {
      leading = now_leading;
      Log(LogLevel::kInfo, leading ? "leading" : "not leading any more",
          {{"lease", options_.ns + "/" + options_.name}, {"identity", options_.identity}, {"holder", lease_.holder()}});
      on_change_(leading);
    }
    if (error != last_error && !error.empty() && !canceller_.cancelled()) {
      Log(LogLevel::kWarning, "the lease can't be kept", {{"lease", options_.ns + "/" + options_.name}, {"error", error}});
    }
    last_error = error;
    // Several followers that look at the same instants would only get in each other's way.
  } while (!canceller_.WaitFor(options_.retry + milliseconds(leading ? 0 : NowNs(CLOCK_MONOTONIC) / 1000 % 200)));
  if (Status released = lease_.Release(nullptr); !released.ok()) {
    Log(LogLevel::kWarning, "the lease was not given up; a successor waits until it has run out", {{"error", released.error().message}});
  }
}

}  // namespace borescope::kube
