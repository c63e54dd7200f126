// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/follow.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/cluster/render.h"
#include "cli/cluster/sessions.h"
#include "common/api/json.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/kube/watch.h"

namespace borescope::cli {

std::atomic<bool> g_interrupted{false};

void CatchInterrupt() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

Progress::Progress(FILE* stream)
    : stream_(stream), on_(::isatty(::fileno(stream)) == 1 && std::string_view(std::getenv("TERM") != nullptr ? std::getenv("TERM") : "dumb") != "dumb") {
  winsize size{};
  if (on_ && ::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
    width_ = size.ws_col - 1u;
    height_ = std::max<size_t>(size.ws_row, 4);
  }
}

void Progress::Draw(const std::vector<std::string>& lines) {
  if (!on_) return;
  std::string out = drawn_ > 0 ? fmt::format("\x1b[{}A", drawn_) : "";
  out += "\r\x1b[J";
  // What has left the screen at its top can not be drawn over.
  drawn_ = std::min(lines.size(), height_ - 1);
  for (size_t i = 0; i < drawn_; ++i) out += lines[i] + "\n";
  std::fwrite(out.data(), 1, out.size(), stream_);
  std::fflush(stream_);
}

void Progress::Clear() {
  if (drawn_ > 0) Draw({});
}

namespace {

constexpr int64_t kUnreadableNs = 12'000'000'000;
constexpr int64_t kAfterStopNs = 5'000'000'000;

// What the watch's thread brings.
struct Seen {
  std::mutex mutex;
  std::condition_variable changed;
  nlohmann::json object;
  uint64_t version = 0;
  bool deleted = false;
};

}  // namespace

Result<Followed> Follow(Cluster& cluster, const std::string& name, const FollowOptions& options) {
  Seen seen;
  kube::NamedWatch watch(&cluster.api(),
                         {.resource = kSessions, .ns = cluster.ns(), .name = name, .timing = {.first_backoff = std::chrono::milliseconds(300),
                                                                                            .max_backoff = std::chrono::milliseconds(3'000)}},
                         {.on_object =
                              [&](nlohmann::json object) {
                                std::lock_guard lock(seen.mutex);
                                seen.object = std::move(object);
                                ++seen.version;
                                seen.changed.notify_one();
                              },
                          .on_deleted =
                              [&] {
                                std::lock_guard lock(seen.mutex);
                                seen.deleted = true;
                                seen.changed.notify_one();
                              }});
  SetLogLevel(LogLevel::kError);  // a watch that comes back is no matter of a person's
  watch.Start();
  Progress progress(options.stream);
  Followed out;
  out.session.metadata.name = name;
  const std::string goes_on = "; the session goes on, see: " + cluster.Command("list", "");
  uint64_t version = 0;
  const int64_t began = NowNs(CLOCK_MONOTONIC);
  int64_t unreadable_since = 0, stopped_at = 0, drawn_at = 0;
  while (true) {
    bool deleted = false, changed = false;
    {
      std::unique_lock lock(seen.mutex);
      seen.changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return seen.version != version || seen.deleted; });
      deleted = seen.deleted;
      changed = seen.version != version;
      version = seen.version;
      if (changed) {
        if (auto session = api::ParseProfilingSession(seen.object); session.ok()) {
          out.session = *std::move(session);
          out.json = CleanJson(seen.object);
        }
      }
    }
    const int64_t now = NowNs(CLOCK_MONOTONIC);
    const auto offset = cluster.api().clock_offset();  // of Date headers, which are whole seconds
    const int64_t server_now = NowNs(CLOCK_REALTIME) + (std::abs(offset.offset_ns) > offset.error_ns ? offset.offset_ns : 0);
    const api::ProfilingSessionStatus& status = out.session.status;
    if (changed || now - drawn_at > 500'000'000) {
      drawn_at = now;
      progress.Draw(options.draw ? options.draw(out.session, server_now, progress.width()) : RenderProgress(out.session, server_now, progress.width()));
    }
    if (api::IsTrue(status.conditions, "Finished")) return out;
    if (options.enough && options.enough(out.session)) {
      out.ending = Ending::kEnough;
      return out;
    }
    if (deleted) {
      out.ending = Ending::kDeleted;
      return out;
    }
    if (status.end_time > 0 && server_now > status.end_time + options.after_end_ns) {
      out.ending = Ending::kLate;
      return out;
    }
    if (g_interrupted && stopped_at == 0) {
      if (!options.stop_on_interrupt) {
        out.ending = Ending::kLate;
        return out;
      }
      stopped_at = now;
      RETURN_IF_ERROR(StopSession(cluster, name).status());
    }
    if (stopped_at != 0 && now - stopped_at > kAfterStopNs) {
      out.ending = Ending::kLate;
      return out;
    }
    if (!status.phase && now - began > options.unanswered_ns) {
      const bool stopped = StopSession(cluster, name).ok();
      return Error{ErrorCode::kUnavailable, fmt::format("session {} was made, but nobody has taken it up in {} s{}: is the operator running? See kubectl get pods -n {}", name,
                                                        options.unanswered_ns / 1'000'000'000, stopped ? " (it is stopped now)" : "",
                                                        cluster.flags().store_namespace)};
    }
    const std::string error = watch.connected() ? "" : watch.stats().last_error;
    if (error.empty()) {
      unreadable_since = 0;
    } else if (unreadable_since == 0) {
      unreadable_since = now;
    } else if (now - unreadable_since > kUnreadableNs) {
      // Ask once more in the open, for the sentence that helps.
      kube::KubeError details;
      kube::CallOptions call;
      call.error = &details;
      call.max_tries = 1;
      call.timeout = std::chrono::seconds(5);
      auto got = cluster.api().Get(kSessions, cluster.ns(), name, call);
      Error why = got.ok() ? Error{ErrorCode::kUnavailable, error}
                           : cluster.Explain(got.error(), details, {.verb = "get", .resource = "profilingsessions", .ns = cluster.ns(), .name = name, .role = "borescope-view"});
      return Error{why.code, why.message + goes_on};
    }
  }
}

}  // namespace borescope::cli
