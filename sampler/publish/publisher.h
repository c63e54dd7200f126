// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/http/canceller.h"
#include "sampler/publish/sinks.h"

namespace borescope::http {
class Client;
}

namespace borescope::publish {

// One part of one window of one series, ready to go. A repetition is byte for byte the same.
struct Upload {
  std::string job_id;
  std::string id;  // WindowId
  std::map<std::string, std::string> labels;
  std::string pprof_gzip;
  int64_t window_start_ns = 0;  // wall clock, on the window's grid
  int64_t sampled_ns = 0;       // what is lost when it never arrives
  std::vector<std::string> sinks;
};

// How a job stands with one sink.
struct SinkProgress {
  int64_t stored = 0, pending = 0, failed = 0;  // parts
  int64_t lost_ns = 0;                          // of the failed ones
  int64_t last_stored_start_ns = 0;             // nothing up to this window is queued any more
  std::string message;                          // the last refusal or the present trouble; empty while all is well
  bool operator==(const SinkProgress&) const = default;
};

struct PublisherStats {
  std::map<std::string, std::map<std::string, uint64_t>> pushes;  // sink -> outcome ("stored", "refused", "retried", "expired", "dropped")
  size_t queued_bytes = 0;
};

// Sends uploads to the sinks, one thread each, oldest first. What a sink can't take just now (no connection, 401, 403, 408, 429, 5xx) is
// repeated with growing pauses until the job's deadline; any other 4xx is final. Thread-safe.
class Publisher {
 public:
  struct Options {
    size_t max_queue_bytes = 64 << 20;  // of all sinks; beyond it the oldest of the fullest sink's queue are dropped and counted
    std::chrono::milliseconds first_backoff{500}, max_backoff{30'000};
    std::chrono::milliseconds push_timeout{10'000};
    std::function<void()> on_change;  // progress was made; called on a sink's thread
  };

  static Result<std::unique_ptr<Publisher>> Create(std::vector<Sink> sinks, Options options);
  ~Publisher();

  const std::vector<Sink>& sinks() const { return sinks_; }
  bool Knows(const std::string& sink) const;

  // Sinks that are not known are left out.
  void Enqueue(Upload upload);
  // From that moment on, boot clock, what is pending of the job has failed.
  void SetDeadline(const std::string& job_id, int64_t deadline_boot_ns);
  // By sink; only those that the job has used.
  std::map<std::string, SinkProgress> Progress(const std::string& job_id) const;
  // Drops the book-keeping of a job once nothing of it is pending.
  void Forget(const std::string& job_id);
  // Waits until nothing is pending, at most that long. Then ends all threads.
  void Stop(std::chrono::milliseconds grace);

  PublisherStats stats() const;

 private:
  struct Worker;
  struct Job {
    int64_t deadline_boot_ns = INT64_MAX;
    bool forgotten = false;
    std::map<std::string, SinkProgress> sinks;
    std::map<std::string, int64_t> latest_stored_start_ns;  // by sink; older windows may still be queued
  };

  Publisher(std::vector<Sink> sinks, Options options);
  void Run(Worker& worker);
  // With mutex_ held.
  void Finish(Worker& worker, const Upload& upload, bool stored, const std::string& outcome, const std::string& message);
  void DropOldest();
  void DropExpired(Worker& worker);
  size_t QueuedBytes() const;

  const std::vector<Sink> sinks_;
  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::map<std::string, Job> jobs_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace borescope::publish
