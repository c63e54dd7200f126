// SPDX-License-Identifier: Apache-2.0
#include "common/kube/rest.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/strings.h"

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// Our own limit, a guard against our own faults: what a fair share is, the server decides (429).
constexpr double kRequestsPerSecond = 20, kBurst = 40;
constexpr auto kMaxRetryWait = std::chrono::seconds(32);

ErrorCode CodeOf(int status) {
  switch (status) {
    case 401:
    case 403: return ErrorCode::kDenied;
    case 404: return ErrorCode::kNotFound;
    case 405:
    case 501: return ErrorCode::kUnsupported;
    case 409: return ErrorCode::kConflict;
    case 410: return ErrorCode::kGone;
    case 429: return ErrorCode::kExhausted;
    default: return status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kInvalid;
  }
}

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

std::optional<int64_t> ParseHttpDate(const std::string& text) {
  tm parts{};
  const char* end = ::strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return static_cast<int64_t>(::timegm(&parts));
}

// False: cancelled.
bool Sleep(milliseconds duration, http::Canceller* canceller) {
  if (canceller != nullptr) return !canceller->WaitFor(duration);
  std::this_thread::sleep_for(duration);
  return true;
}

}  // namespace

std::string Resource::Path(std::string_view ns, std::string_view name, std::string_view subresource) const {
  std::string path = group.empty() ? "/api/" + version : "/apis/" + group + "/" + version;
  if (!ns.empty()) path += "/namespaces/" + http::PercentEncode(ns);
  path += "/" + plural;
  if (!name.empty()) path += "/" + http::PercentEncode(name);
  if (!subresource.empty()) path += "/" + std::string(subresource);
  return path;
}

Error ErrorOfResponse(std::string_view what, const http::Response& response, KubeError* details) {
  KubeError ours;
  KubeError& out = details != nullptr ? *details : ours;
  out = {};
  out.http_status = response.status;
  auto seconds = ParseUint(Trim(response.Header("Retry-After")));
  out.retry_after = std::chrono::seconds(std::min<uint64_t>(seconds.value_or(0), 3600));
  json status = json::parse(response.body, nullptr, false);
  if (Text(status, "kind") == "Status") {
    out.reason = SanitizeName(Text(status, "reason"), 128);
    out.message = SanitizeName(Text(status, "message"), 2048);
    const json& causes = Member(Member(status, "details"), "causes");
    if (causes.is_array()) {
      for (const json& cause : causes) {
        if (Text(cause, "reason") == "ResourceVersionTooLarge") out.resource_version_too_large = true;
      }
    }
  } else if (Member(status, "code").is_string()) {
    out.reason = SanitizeName(Text(status, "code"), 128);
    out.message = SanitizeName(Text(status, "message"), 2048);
  }
  std::string message = std::string(what) + ": HTTP " + std::to_string(response.status);
  if (!out.reason.empty()) message += " " + out.reason;
  if (!out.message.empty()) message += ": " + out.message;
  return {CodeOf(response.status), std::move(message)};
}

Result<std::unique_ptr<RestClient>> RestClient::Create(Config config, std::string user_agent) {
  http::ClientOptions options;
  options.base_url = config.server;
  options.user_agent = std::move(user_agent);
  options.tls = [ca = config.ca, certificate = config.client_certificate, key = config.client_key]() -> Result<http::TlsMaterial> {
    http::TlsMaterial material;
    ASSIGN_OR_RETURN(material.ca, ca.Load());
    ASSIGN_OR_RETURN(material.client_certificate, certificate.Load());
    ASSIGN_OR_RETURN(material.client_key, key.Load());
    return material;
  };
  if (config.token) options.bearer = [token = config.token] { return token->Get(); };
  ASSIGN_OR_RETURN(auto http, http::Client::Create(std::move(options)));
  return std::unique_ptr<RestClient>(new RestClient(std::move(config), std::move(http)));
}

RestClient::RestClient(Config config, std::unique_ptr<http::Client> http)
    : config_(std::move(config)), http_(std::move(http)), tokens_(kBurst), refilled_(std::chrono::steady_clock::now()) {}

RestClient::~RestClient() = default;

Status RestClient::TakeToken(const CallOptions& options) {
  milliseconds wait{0};
  {
    std::lock_guard lock(mutex_);
    auto now = std::chrono::steady_clock::now();
    double elapsed = std::chrono::duration<double>(now - refilled_).count();
    tokens_ = std::min(kBurst, tokens_ + elapsed * kRequestsPerSecond) - 1;
    refilled_ = now;
    // Below zero: everybody before us has one promised; ours comes after theirs.
    if (tokens_ < 0) wait = milliseconds(static_cast<int64_t>(-tokens_ / kRequestsPerSecond * 1000) + 1);
    stats_.throttled_ms += static_cast<uint64_t>(wait.count());
  }
  if (wait.count() > 0 && !Sleep(wait, options.canceller)) return Error{ErrorCode::kUnavailable, "cancelled"};
  return OkStatus();
}

void RestClient::Observe(const http::Response& response, int64_t sent_ns, int64_t received_ns) {
  auto date = ParseHttpDate(std::string(response.Header("Date")));
  std::lock_guard lock(mutex_);
  ++stats_.responses[response.status];
  if (date) offset_.Observe(*date, sent_ns, received_ns);
}

Result<http::Response> RestClient::Call(http::Request request, const CallOptions& options) {
  const std::string what = request.method + " " + request.path;
  if (options.error != nullptr) *options.error = {};
  if (options.dry_run) request.query["dryRun"] = "All";
  if (!request.body.empty() && request.Header("Content-Type").empty()) request.headers["Content-Type"] = "application/json";
  request.headers.emplace("Accept", "application/json");
  Backoff backoff(milliseconds(250), milliseconds(8'000));
  bool token_renewed = false;
  for (int tries = 1;; ++tries) {
    RETURN_IF_ERROR(TakeToken(options).WithContext(what));
    int64_t sent_ns = NowNs(CLOCK_REALTIME);
    auto response = http_->Send(request, {options.timeout, options.canceller});
    if (!response.ok()) {
      std::lock_guard lock(mutex_);
      ++stats_.responses[0];
      return response;
    }
    Observe(*response, sent_ns, NowNs(CLOCK_REALTIME));
    const int status = response->status;
    if (status >= 200 && status < 300) return response;
    KubeError details;
    Error error = ErrorOfResponse(what, *response, &details);
    if (options.error != nullptr) *options.error = details;
    bool retry = status == 429 || (status >= 500 && (details.retry_after.count() > 0 || request.method == "GET"));
    if (details.resource_version_too_large) retry = false;
    milliseconds wait = backoff.Next();
    if (status == 401 && config_.token && !token_renewed) {
      // The token may have been renewed since we read it.
      config_.token->Invalidate();
      token_renewed = retry = true;
      wait = milliseconds(0);
    }
    if (!retry || tries >= options.max_tries) return error;
    if (details.retry_after.count() > 0) wait += std::min<milliseconds>(details.retry_after, kMaxRetryWait);
    {
      std::lock_guard lock(mutex_);
      ++stats_.retries;
    }
    if (!Sleep(wait, options.canceller)) return error;
  }
}

namespace {

Result<json> ParseObject(const http::Response& response, std::string_view what) {
  json object = json::parse(response.body, nullptr, false);
  if (!object.is_object()) return Error{ErrorCode::kUnavailable, std::string(what) + ": the answer is no JSON object"};
  return object;
}

}  // namespace

Result<json> RestClient::Get(const Resource& resource, std::string_view ns, std::string_view name, const CallOptions& options) {
  http::Request request;
  request.path = resource.Path(ns, name, options.subresource);
  ASSIGN_OR_RETURN(http::Response response, Call(request, options));
  return ParseObject(response, "GET " + request.path);
}

Result<ObjectList> RestClient::List(const Resource& resource, const ListOptions& list, const CallOptions& options) {
  Projection page_projection{"metadata.resourceVersion", "metadata.continue"};
  page_projection.Merge(list.projection.Under("items"));
  http::Request request;
  request.path = resource.Path(list.ns);
  if (!list.label_selector.empty()) request.query["labelSelector"] = list.label_selector;
  if (!list.field_selector.empty()) request.query["fieldSelector"] = list.field_selector;
  int page_size = list.page_size;
  ObjectList out;
  for (int restarts = 0;;) {
    if (page_size > 0) request.query["limit"] = std::to_string(page_size);
    CallOptions call = options;
    KubeError details;
    call.error = &details;
    auto response = Call(request, call);
    if (options.error != nullptr) *options.error = details;
    if (!response.ok()) {
      // The snapshot behind the pages is gone: from the start, the second time in one piece.
      if (response.error().code != ErrorCode::kGone || !request.query.contains("continue") || ++restarts > 2) return response.error();
      if (restarts == 2) page_size = 0, request.query.erase("limit");
      request.query.erase("continue");
      out = {};
      continue;
    }
    auto page = page_projection.Parse(response->body);
    if (!page.ok()) return Error{ErrorCode::kUnavailable, "GET " + request.path + ": " + page.error().message};
    const json& metadata = Member(*page, "metadata");
    out.resource_version = Text(metadata, "resourceVersion");
    if (json& items = (*page)["items"]; items.is_array()) {
      for (json& item : items) out.items.push_back(std::move(item));
    }
    std::string more = Text(metadata, "continue");
    if (more.empty()) return out;
    request.query["continue"] = more;
  }
}

Result<json> RestClient::Create(const Resource& resource, std::string_view ns, const json& object, const CallOptions& options) {
  http::Request request;
  request.method = "POST";
  request.path = resource.Path(ns);
  request.body = object.dump(-1, ' ', false, json::error_handler_t::replace);
  ASSIGN_OR_RETURN(http::Response response, Call(request, options));
  return ParseObject(response, "POST " + request.path);
}

Result<json> RestClient::Patch(const Resource& resource, std::string_view ns, std::string_view name, const json& merge_patch,
                               const CallOptions& options) {
  http::Request request;
  request.method = "PATCH";
  request.path = resource.Path(ns, name, options.subresource);
  request.headers["Content-Type"] = "application/merge-patch+json";
  request.body = merge_patch.dump(-1, ' ', false, json::error_handler_t::replace);
  ASSIGN_OR_RETURN(http::Response response, Call(request, options));
  return ParseObject(response, "PATCH " + request.path);
}

Status RestClient::Delete(const Resource& resource, std::string_view ns, std::string_view name, const Preconditions& preconditions,
                          const CallOptions& options) {
  http::Request request;
  request.method = "DELETE";
  request.path = resource.Path(ns, name);
  json body = {{"apiVersion", "v1"}, {"kind", "DeleteOptions"}, {"propagationPolicy", "Background"}};
  if (!preconditions.uid.empty()) body["preconditions"]["uid"] = preconditions.uid;
  if (!preconditions.resource_version.empty()) body["preconditions"]["resourceVersion"] = preconditions.resource_version;
  request.body = body.dump();
  return Call(std::move(request), options).status();
}

Status RestClient::Watch(const std::string& path, milliseconds idle_timeout, http::Canceller* canceller,
                         const std::function<bool(std::string_view bytes)>& on_data, KubeError* error) {
  constexpr size_t kMaxErrorBytes = 64 << 10;
  *error = {};
  http::Request request;
  request.path = path;
  request.headers["Accept"] = "application/json";
  http::Response head;
  head.status = 0;
  int64_t sent_ns = NowNs(CLOCK_REALTIME);
  http::Client::StreamHandler handler;
  handler.on_head = [&](const http::Response& response) {
    head = response;
    Observe(head, sent_ns, NowNs(CLOCK_REALTIME));
    return true;
  };
  handler.on_data = [&](std::string_view bytes) {
    if (head.status == 200) return on_data(bytes);
    head.body.append(bytes);
    return head.body.size() < kMaxErrorBytes;
  };
  Status status = http_->Stream(request, idle_timeout, canceller, handler);
  if (head.status == 0) {
    std::lock_guard lock(mutex_);
    ++stats_.responses[0];
    return status;
  }
  if (head.status == 200) return status;
  if (head.status == 401 && config_.token) config_.token->Invalidate();
  return ErrorOfResponse("watch " + path.substr(0, path.find('?')), head, error);
}

ClockOffset::Estimate RestClient::clock_offset() const {
  std::lock_guard lock(mutex_);
  return offset_.estimate();
}

RestStats RestClient::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace borescope::kube
