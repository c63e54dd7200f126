// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/publisher.h"

#include <pthread.h>

#include <algorithm>

#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/codec/push.h"
#include "common/http/client.h"
#include "sampler/publish/sink_client.h"

namespace borescope::publish {
namespace {

constexpr std::string_view kPushPath = "/push.v1.PusherService/Push";
constexpr size_t kMaxMessageBytes = 256;

// 401 and 403: a token that is being rotated on one side first; the publish deadline bounds it.
bool WorthRepeating(int status) { return status == 401 || status == 403 || status == 408 || status == 429 || status >= 500; }

// How long the server wants to be left alone, from Retry-After in seconds; at most 5 minutes.
std::chrono::milliseconds RetryAfter(const http::Response& response) {
  std::optional<uint64_t> seconds = ParseUint(response.Header("Retry-After"));
  return std::chrono::seconds(std::min<uint64_t>(seconds.value_or(0), 300));
}

}  // namespace

struct Publisher::Worker {
  Sink sink;
  std::unique_ptr<http::Client> client;
  http::Canceller canceller;
  std::thread thread;
  // With the publisher's mutex:
  std::deque<std::shared_ptr<const Upload>> queue;
  size_t queued_bytes = 0;
  bool sending = false;  // the front is on its way
  std::map<std::string, uint64_t> outcomes;
};

Publisher::Publisher(std::vector<Sink> sinks, Options options) : sinks_(std::move(sinks)), options_(std::move(options)) {}

Result<std::unique_ptr<Publisher>> Publisher::Create(std::vector<Sink> sinks, Options options) {
  std::unique_ptr<Publisher> publisher(new Publisher(std::move(sinks), std::move(options)));
  for (const Sink& sink : publisher->sinks_) {
    auto worker = std::make_unique<Worker>();
    worker->sink = sink;
    ASSIGN_OR_RETURN(worker->client, MakeSinkClient(sink, options.push_timeout));
    publisher->workers_.push_back(std::move(worker));
  }
  for (auto& worker : publisher->workers_) {
    worker->thread = std::thread([p = publisher.get(), w = worker.get()] { p->Run(*w); });
  }
  return publisher;
}

Publisher::~Publisher() { Stop(std::chrono::milliseconds(0)); }

bool Publisher::Knows(const std::string& sink) const {
  return std::any_of(sinks_.begin(), sinks_.end(), [&](const Sink& s) { return s.name == sink; });
}

void Publisher::Enqueue(Upload upload) {
  auto shared = std::make_shared<const Upload>(std::move(upload));
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  for (auto& worker : workers_) {
    if (std::find(shared->sinks.begin(), shared->sinks.end(), worker->sink.name) == shared->sinks.end()) continue;
    worker->queue.push_back(shared);
    worker->queued_bytes += shared->pprof_gzip.size();
    ++jobs_[shared->job_id].sinks[worker->sink.name].pending;
  }
  while (QueuedBytes() > options_.max_queue_bytes) DropOldest();
  changed_.notify_all();
}

void Publisher::SetDeadline(const std::string& job_id, int64_t deadline_boot_ns) {
  std::lock_guard lock(mutex_);
  Job& job = jobs_[job_id];
  job.deadline_boot_ns = deadline_boot_ns;
  job.forgotten = false;  // taken anew while something of it was pending
  changed_.notify_all();
}

std::map<std::string, SinkProgress> Publisher::Progress(const std::string& job_id) const {
  std::lock_guard lock(mutex_);
  auto it = jobs_.find(job_id);
  return it == jobs_.end() ? std::map<std::string, SinkProgress>() : it->second.sinks;
}

void Publisher::Forget(const std::string& job_id) {
  std::lock_guard lock(mutex_);
  auto it = jobs_.find(job_id);
  if (it == jobs_.end()) return;
  it->second.forgotten = true;
  bool pending = std::any_of(it->second.sinks.begin(), it->second.sinks.end(), [](const auto& s) { return s.second.pending > 0; });
  if (!pending) jobs_.erase(it);
}

void Publisher::Stop(std::chrono::milliseconds grace) {
  {
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    changed_.wait_for(lock, grace, [&] {
      return std::all_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->queue.empty(); });
    });
    stopping_ = true;
    changed_.notify_all();
  }
  for (auto& worker : workers_) worker->canceller.Cancel();
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

PublisherStats Publisher::stats() const {
  std::lock_guard lock(mutex_);
  PublisherStats stats;
  for (const auto& worker : workers_) stats.pushes[worker->sink.name] = worker->outcomes;
  stats.queued_bytes = QueuedBytes();
  return stats;
}

size_t Publisher::QueuedBytes() const {
  size_t bytes = 0;
  for (const auto& worker : workers_) bytes += worker->queued_bytes;
  return bytes;
}

void Publisher::Finish(Worker& worker, const Upload& upload, bool stored, const std::string& outcome, const std::string& message) {
  ++worker.outcomes[outcome];
  auto job = jobs_.find(upload.job_id);
  if (job == jobs_.end()) return;
  SinkProgress& progress = job->second.sinks[worker.sink.name];
  --progress.pending;
  if (stored) {
    ++progress.stored;
    progress.message.clear();
    int64_t& latest = job->second.latest_stored_start_ns[worker.sink.name];
    latest = std::max(latest, upload.window_start_ns);
    // A container whose name came late has older windows behind newer ones; and a window may have several parts.
    bool older = std::any_of(worker.queue.begin(), worker.queue.end(),
                             [&](const auto& queued) { return queued->job_id == upload.job_id && queued->window_start_ns <= latest; });
    if (!older) progress.last_stored_start_ns = latest;
  } else {
    ++progress.failed;
    progress.lost_ns += upload.sampled_ns;
    progress.message = message;
    Log(LogLevel::kError, "a window was not stored",
        {{"job", upload.job_id}, {"sink", worker.sink.name}, {"window", FormatMicroTime(upload.window_start_ns)}, {"error", message}});
  }
  bool pending = std::any_of(job->second.sinks.begin(), job->second.sinks.end(), [](const auto& s) { return s.second.pending > 0; });
  if (job->second.forgotten && !pending) jobs_.erase(job);
}

void Publisher::DropOldest() {
  auto fullest = std::max_element(workers_.begin(), workers_.end(), [](const auto& a, const auto& b) { return a->queued_bytes < b->queued_bytes; });
  Worker& worker = **fullest;
  size_t index = worker.sending && worker.queue.size() > 1 ? 1 : 0;
  if (worker.sending && index == 0) return;
  auto it = worker.queue.begin() + static_cast<std::ptrdiff_t>(index);
  std::shared_ptr<const Upload> upload = *it;
  worker.queue.erase(it);
  worker.queued_bytes -= upload->pprof_gzip.size();
  Finish(worker, *upload, false, "dropped", "the queue is full (" + std::to_string(options_.max_queue_bytes >> 20) + " MiB) because a sink does not take what is sent; see why that is");
}

void Publisher::DropExpired(Worker& worker) {
  int64_t now = NowNs(CLOCK_BOOTTIME);
  for (auto it = worker.queue.begin(); it != worker.queue.end();) {
    auto job = jobs_.find((*it)->job_id);
    if (job == jobs_.end() || job->second.deadline_boot_ns > now) {
      ++it;
      continue;
    }
    std::shared_ptr<const Upload> upload = *it;
    std::string trouble = job->second.sinks[worker.sink.name].message;
    it = worker.queue.erase(it);
    worker.queued_bytes -= upload->pprof_gzip.size();
    Finish(worker, *upload, false, "expired", trouble.empty() ? "not stored before publishDeadlineSeconds had passed" : trouble);
  }
}

void Publisher::Run(Worker& worker) {
  ::pthread_setname_np(::pthread_self(), "publish");
  Backoff backoff(options_.first_backoff, options_.max_backoff);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !worker.queue.empty(); });
    if (stopping_) return;
    size_t before = worker.queue.size();
    DropExpired(worker);
    if (worker.queue.size() != before) {
      changed_.notify_all();
      lock.unlock();
      if (options_.on_change) options_.on_change();
      lock.lock();
      continue;
    }
    std::shared_ptr<const Upload> upload = worker.queue.front();
    worker.sending = true;
    lock.unlock();

    http::Request request;
    request.method = "POST";
    request.path = worker.sink.path + std::string(kPushPath);
    request.headers["Content-Type"] = "application/proto";
    if (!worker.sink.tenant.empty()) request.headers["X-Scope-OrgID"] = worker.sink.tenant;
    request.body = codec::EncodePush({{.labels = {upload->labels.begin(), upload->labels.end()}, .windows = {{upload->pprof_gzip, upload->id}}}});
    Result<http::Response> response = worker.client->Send(request, {.timeout = options_.push_timeout, .canceller = &worker.canceller});
    bool stored = response.ok() && response->status == 200;
    bool repeat = !response.ok() || WorthRepeating(response->status);
    std::string message;
    std::chrono::milliseconds pause{0};
    if (!response.ok()) {
      message = response.error().message;
    } else if (!stored) {
      message = "HTTP " + std::to_string(response->status) + ": " + SanitizeName(Trim(response->body), kMaxMessageBytes);
      pause = RetryAfter(*response);
    }

    lock.lock();
    worker.sending = false;
    if (stored || !repeat) {
      worker.queue.pop_front();
      worker.queued_bytes -= upload->pprof_gzip.size();
      Finish(worker, *upload, stored, stored ? "stored" : "refused", message);
      backoff.Reset();
    } else {
      ++worker.outcomes["retried"];
      auto job = jobs_.find(upload->job_id);
      if (job != jobs_.end()) job->second.sinks[worker.sink.name].message = message;
    }
    changed_.notify_all();
    lock.unlock();
    if (options_.on_change) options_.on_change();
    lock.lock();
    if (!stored && repeat) {
      pause = std::max(pause, backoff.Next());
      // In slices, so that a deadline that passes meanwhile is seen.
      auto until = std::chrono::steady_clock::now() + pause;
      while (!stopping_ && std::chrono::steady_clock::now() < until) {
        changed_.wait_until(lock, std::min(until, std::chrono::steady_clock::now() + std::chrono::seconds(1)), [&] { return stopping_; });
        DropExpired(worker);
        if (worker.queue.empty()) break;
      }
      if (options_.on_change) {
        lock.unlock();
        options_.on_change();
        lock.lock();
      }
    }
  }
}

}  // namespace borescope::publish
