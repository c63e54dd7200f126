// SPDX-License-Identifier: Apache-2.0
#include "sampler/agent/api_link.h"

#include <pthread.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/api/json.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::agent {
namespace {

using std::chrono::steady_clock;

kube::Resource Samplers() { return {std::string(api::kGroup), std::string(api::kVersion), std::string(api::kNodeSamplers)}; }
kube::Resource Reports() { return {std::string(api::kGroup), std::string(api::kVersion), std::string(api::kNodeSamplerReports)}; }

// Whatever node we are on, not this one.
constexpr std::string_view kForeignName = "borescope-protection-check.invalid";

}  // namespace

ApiLink::ApiLink(Options options, std::string node_uid, std::unique_ptr<kube::RestClient> client)
    : options_(std::move(options)), node_uid_(std::move(node_uid)), client_(std::move(client)) {
  kube::NamedWatch::Options watch;
  watch.resource = Samplers();
  watch.name = options_.node;
  watch.projection = {"apiVersion", "kind", "metadata.name", "spec", "status"};
  watch_ = std::make_unique<kube::NamedWatch>(client_.get(), watch,
                                              kube::NamedWatch::Handler{.on_object = [this](nlohmann::json object) { OnSampler(object); },
                                                                        .on_deleted = [this] { OnGone(); }});
  Log(LogLevel::kInfo, "following our NodeSampler", {{"request", kube::NamedWatch::RequestPath(watch, 3600)}});
}

Result<std::unique_ptr<ApiLink>> ApiLink::Create(kube::Config config, Options options) {
  kube::TokenClaims claims;
  if (config.token) {
    ASSIGN_OR_RETURN(std::string token, config.token->Get());
    Result<kube::TokenClaims> read = kube::ReadTokenClaims(token);
    if (read.ok()) claims = *read;
  }
  if (options.node.empty()) options.node = claims.node_name;
  if (options.node.empty()) {
    return Error{ErrorCode::kInvalid,
                 "node: found none in the token (kubernetes.io.node.name) and no --node; use the projected token of a pod on the node"};
  }
  if (!claims.node_name.empty() && claims.node_name != options.node) {
    return Error{ErrorCode::kInvalid, "--node: found \"" + options.node + "\", but the token is of node \"" + claims.node_name +
                                          "\"; leave --node out or use the token of a pod on that node"};
  }
  ASSIGN_OR_RETURN(std::unique_ptr<kube::RestClient> client, kube::RestClient::Create(std::move(config), "borescope-sampler"));
  return std::unique_ptr<ApiLink>(new ApiLink(std::move(options), claims.node_uid, std::move(client)));
}

ApiLink::~ApiLink() { Stop(std::chrono::milliseconds(0)); }

void ApiLink::Start() {
  thread_ = std::thread([this] { Run(); });
  watch_->Start();
}

void ApiLink::Stop(std::chrono::milliseconds grace) {
  {
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    if (thread_.joinable()) {
      changed_.wait_for(lock, grace, [this] { return have_report_ && (!want_report_ || *want_report_ == sent_report_); });
    }
    stopping_ = true;
    changed_.notify_all();
  }
  canceller_.Cancel();
  watch_->Stop();
  if (thread_.joinable()) thread_.join();
}

ApiLink::Inbox ApiLink::Take() {
  std::lock_guard lock(mutex_);
  return std::exchange(inbox_, {});
}

void ApiLink::SetReport(api::NodeSamplerReportStatus report) {
  std::lock_guard lock(mutex_);
  want_report_ = std::move(report);
  changed_.notify_all();
}

void ApiLink::SetStatus(api::NodeSamplerStatus status) {
  std::lock_guard lock(mutex_);
  want_status_ = std::move(status);
  changed_.notify_all();
}

void ApiLink::OnSampler(const nlohmann::json& object) {
  Result<api::NodeSampler> sampler = api::ParseNodeSampler(object);
  if (!sampler.ok()) {
    Log(LogLevel::kError, "our NodeSampler can't be understood; jobs stay as they were", {{"error", sampler.error().message}});
    return;
  }
  {
    std::lock_guard lock(mutex_);
    have_sampler_ = true;
    seen_status_ = sampler->status;
    inbox_.sampler = *std::move(sampler);
    inbox_.gone = false;
    changed_.notify_all();
  }
  options_.wake();
}

void ApiLink::OnGone() {
  {
    std::lock_guard lock(mutex_);
    have_sampler_ = false;
    seen_status_.reset();
    inbox_.sampler.reset();
    inbox_.gone = true;
    changed_.notify_all();
  }
  options_.wake();
}

Status ApiLink::CreateOwn(std::string_view kind, const kube::Resource& resource) {
  kube::KubeError error;
  nlohmann::json object = api::NewNodeObject(kind, options_.node, node_uid_);
  if (node_uid_.empty()) object["metadata"].erase("ownerReferences");  // a kubeconfig's identity knows no node
  Result<nlohmann::json> made =
      client_->Create(resource, "", object, {.subresource = "", .timeout = options_.call_timeout, .canceller = &canceller_, .error = &error});
  if (made.ok() || error.reason == "AlreadyExists") return OkStatus();
  return made.error().WithContext("creating our " + std::string(kind));
}

Status ApiLink::EnsureReport() {
  RETURN_IF_ERROR(CreateOwn(api::kNodeSamplerReportKind, Reports()));
  // We may not read reports; a patch that changes nothing answers with our own.
  Result<nlohmann::json> found = client_->Patch(Reports(), "", options_.node, nlohmann::json::object(),
                                                {.subresource = "", .timeout = options_.call_timeout, .canceller = &canceller_});
  if (!found.ok()) return found.error().WithContext("reading our NodeSamplerReport by an empty patch");
  Result<api::NodeSamplerReport> report = api::ParseNodeSamplerReport(*found);
  if (!report.ok()) {
    Log(LogLevel::kError, "what an earlier incarnation reported can't be understood; starting anew", {{"error", report.error().message}});
  }
  {
    std::lock_guard lock(mutex_);
    have_report_ = true;
    sent_report_ = report.ok() ? report->status : api::NodeSamplerReportStatus();
    inbox_.report_found = sent_report_;
    changed_.notify_all();
  }
  options_.wake();
  return OkStatus();
}

Status ApiLink::EnsureSampler() {
  RETURN_IF_ERROR(CreateOwn(api::kNodeSamplerKind, Samplers()));
  std::lock_guard lock(mutex_);
  have_sampler_ = true;
  return OkStatus();
}

Status ApiLink::CheckProtection() {
  std::string why;
  for (const auto& [kind, resource] : {std::pair{api::kNodeSamplerKind, Samplers()}, std::pair{api::kNodeSamplerReportKind, Reports()}}) {
    kube::KubeError error;
    nlohmann::json object = {{"apiVersion", api::kApiVersion}, {"kind", kind}, {"metadata", {{"name", kForeignName}}}};
    Result<nlohmann::json> made = client_->Create(
        resource, "", object,
        {.subresource = "", .dry_run = true, .timeout = options_.call_timeout, .canceller = &canceller_, .error = &error, .max_tries = 1});
    if (!made.ok() && error.http_status == 403 && error.message.find(api::kAdmissionPolicyMessage) != std::string::npos) continue;
    if (!made.ok() && error.http_status != 403 && error.http_status != 409 && error.http_status != 422) {
      return made.error().WithContext("checking that the admission policy protects other nodes");  // says nothing either way
    }
    why = "a " + std::string(kind) + " of another node could have been written: the ValidatingAdmissionPolicy borescope-sampler-own-node or " +
          "its binding is missing (the dry run answered " + (made.ok() ? std::string("201") : std::to_string(error.http_status) + ": " + SanitizeName(error.message, 120)) +
          "); apply it, the sampler looks again every " + std::to_string(options_.unprotected_interval.count()) + " s";
    break;
  }
  bool now_protected = why.empty();
  {
    std::lock_guard lock(mutex_);
    if (protected_ != now_protected) {
      if (now_protected) {
        Log(LogLevel::kInfo, "the admission policy is in force: jobs are taken");
      } else {
        Log(LogLevel::kError, "unprotected: no jobs are taken", {{"why", why}});
      }
    }
    protected_ = now_protected;
    inbox_.is_protected = now_protected;
    inbox_.unprotected_why = why;
    next_check_ = steady_clock::now() + (now_protected ? options_.protected_interval : options_.unprotected_interval);
  }
  options_.wake();
  return OkStatus();
}

Status ApiLink::SendReport() {
  api::NodeSamplerReportStatus before, want;
  {
    std::lock_guard lock(mutex_);
    before = sent_report_;
    want = *want_report_;
  }
  nlohmann::json patch = api::ReportPatch(before, want);
  if (!patch.empty()) {
    kube::KubeError error;
    Result<nlohmann::json> answer = client_->Patch(Reports(), "", options_.node, patch,
                                                   {.subresource = "", .timeout = options_.call_timeout, .canceller = &canceller_, .error = &error});
    if (!answer.ok()) {
      if (error.http_status == 404) {  // somebody deleted it: make it anew, with all that there is
        std::lock_guard lock(mutex_);
        have_report_ = false;
      }
      return answer.error().WithContext("writing our NodeSamplerReport");
    }
  }
  std::lock_guard lock(mutex_);
  sent_report_ = std::move(want);
  changed_.notify_all();
  return OkStatus();
}

Status ApiLink::SendStatus() {
  api::NodeSamplerStatus before, want;
  {
    std::lock_guard lock(mutex_);
    before = seen_status_.value_or(api::NodeSamplerStatus());
    want = *want_status_;
  }
  nlohmann::json patch = api::NodeSamplerStatusPatch(before, want);
  if (!patch.empty()) {
    kube::KubeError error;
    Result<nlohmann::json> answer = client_->Patch(Samplers(), "", options_.node, patch,
                                                   {.subresource = "status", .timeout = options_.call_timeout, .canceller = &canceller_, .error = &error});
    if (!answer.ok()) {
      if (error.http_status == 404) {
        std::lock_guard lock(mutex_);
        have_sampler_ = false;
      }
      return answer.error().WithContext("writing our NodeSampler's status");
    }
  }
  std::lock_guard lock(mutex_);
  seen_status_ = std::move(want);
  return OkStatus();
}

bool ApiLink::Due(Step step) const {
  switch (step) {
    case kEnsureReport: return !have_report_;
    case kSendReport: return have_report_ && want_report_ && *want_report_ != sent_report_;
    case kEnsureSampler: return !have_sampler_;
    case kCheckProtection: return steady_clock::now() >= next_check_;
    case kSendStatus: return have_sampler_ && want_status_ && (!seen_status_ || *want_status_ != *seen_status_);
    case kSteps: break;
  }
  return false;
}

Status ApiLink::Do(Step step) {
  switch (step) {
    case kEnsureReport: return EnsureReport();
    case kSendReport: return SendReport();
    case kEnsureSampler: return EnsureSampler();
    case kCheckProtection: return CheckProtection();
    case kSendStatus: return SendStatus();
    case kSteps: break;
  }
  return OkStatus();
}

void ApiLink::Run() {
  ::pthread_setname_np(::pthread_self(), "api");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    auto now = steady_clock::now();
    auto wake_at = next_check_ > now ? next_check_ : now + std::chrono::hours(1);
    int chosen = kSteps;
    for (int step = 0; step < kSteps && chosen == kSteps; ++step) {
      if (!Due(static_cast<Step>(step))) continue;
      if (retries_[step].at <= now) {
        chosen = step;
      } else {
        wake_at = std::min(wake_at, retries_[step].at);
      }
    }
    if (chosen == kSteps) {
      changed_.wait_until(lock, wake_at);
      continue;
    }
    lock.unlock();
    Status status = Do(static_cast<Step>(chosen));
    lock.lock();
    Retry& retry = retries_[chosen];
    if (status.ok()) {
      retry.backoff.Reset();
      retry.at = {};
      continue;
    }
    if (stopping_) break;
    std::chrono::milliseconds pause = retry.backoff.Next();
    retry.at = steady_clock::now() + pause;
    Log(LogLevel::kWarning, "the API server did not do what we asked; trying again",
        {{"error", status.error().message}, {"pause_ms", static_cast<int64_t>(pause.count())}});
  }
}

}  // namespace borescope::agent
