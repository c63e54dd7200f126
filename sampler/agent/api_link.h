// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/api/types.h"
#include "common/base/backoff.h"
#include "common/base/result.h"
#include "common/http/canceller.h"
#include "common/kube/rest.h"
#include "common/kube/watch.h"

namespace borescope::agent {

// Our two objects in the API server: makes them, follows the NodeSampler, writes its status and the report, and checks that the
// policy that protects other nodes' objects from us is in force. Nothing here blocks its caller: calls are made on threads of its own.
class ApiLink {
 public:
  struct Options {
    std::string node;            // empty: the token's
    std::function<void()> wake;  // something is in the inbox; called on any thread
    std::chrono::milliseconds call_timeout{10'000};
    // How often the protection is checked while it holds, and while it does not.
    std::chrono::seconds protected_interval{600}, unprotected_interval{5};
  };

  // What has arrived since the last Take().
  struct Inbox {
    std::optional<api::NodeSampler> sampler;                   // the newest state
    std::optional<api::NodeSamplerReportStatus> report_found;  // once: what an earlier incarnation left, maybe nothing
    std::optional<bool> is_protected;                          // the last check's outcome
    std::string unprotected_why;
    bool gone = false;  // our NodeSampler was deleted: no jobs
  };

  // kInvalid: no node in the token and none given, or they differ.
  static Result<std::unique_ptr<ApiLink>> Create(kube::Config config, Options options);
  ~ApiLink();
  void Start();
  // Sends what is to be sent, at most that long, and ends the threads.
  void Stop(std::chrono::milliseconds grace);

  Inbox Take();
  // What the report and the status shall be. Sent at once, as the difference to what was sent last; repeated until it is.
  void SetReport(api::NodeSamplerReportStatus report);
  void SetStatus(api::NodeSamplerStatus status);

  const std::string& node() const { return options_.node; }
  bool connected() const { return watch_->connected(); }
  // The API server's wall clock minus ours.
  kube::ClockOffset::Estimate clock_offset() const { return client_->clock_offset(); }
  kube::RestStats requests() const { return client_->stats(); }

 private:
  ApiLink(Options options, std::string node_uid, std::unique_ptr<kube::RestClient> client);
  void OnSampler(const nlohmann::json& object);
  void OnGone();
  void Run();
  // An error leads to a pause and another try.
  Status EnsureReport();
  Status EnsureSampler();
  Status CheckProtection();
  Status SendReport();
  Status SendStatus();
  Status CreateOwn(std::string_view kind, const kube::Resource& resource);
  enum Step { kEnsureReport, kSendReport, kEnsureSampler, kCheckProtection, kSendStatus, kSteps };  // the order in which a job needs them
  bool Due(Step step) const;                 // with mutex_ held
  Status Do(Step step);

  const Options options_;
  const std::string node_uid_;
  std::unique_ptr<kube::RestClient> client_;
  std::unique_ptr<kube::NamedWatch> watch_;
  http::Canceller canceller_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  Inbox inbox_;
  bool have_report_ = false, have_sampler_ = false;
  std::optional<api::NodeSamplerReportStatus> want_report_;
  api::NodeSamplerReportStatus sent_report_;
  std::optional<api::NodeSamplerStatus> want_status_;
  std::optional<api::NodeSamplerStatus> seen_status_;  // as the server has it
  std::chrono::steady_clock::time_point next_check_{};
  std::optional<bool> protected_;
  // One that fails does not hold the others up.
  struct Retry {
    std::chrono::steady_clock::time_point at{};
    Backoff backoff{std::chrono::milliseconds(500), std::chrono::milliseconds(15'000)};
  };
  std::array<Retry, kSteps> retries_;
};

}  // namespace borescope::agent
