// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/http/client.h"
#include "common/kube/clock_offset.h"
#include "common/kube/config.h"
#include "common/kube/projection.h"

namespace borescope::kube {

// A kind as it stands in a URL: {"profiling.borescope.dev", "v1alpha1", "nodesamplers"}; the core group is "".
struct Resource {
  std::string group;
  std::string version;
  std::string plural;

  // "/apis/GROUP/VERSION[/namespaces/NS]/PLURAL[/NAME[/SUBRESOURCE]]"; empty parts are left out.
  std::string Path(std::string_view ns, std::string_view name = "", std::string_view subresource = "") const;
};

// What the server said besides the ErrorCode. All empty when it was not reached.
struct KubeError {
  int http_status = 0;
  std::string reason;   // "Conflict", "AlreadyExists", "Expired", "Invalid", "Forbidden" …
  std::string message;
  std::chrono::seconds retry_after{0};
  bool resource_version_too_large = false;
};

struct CallOptions {
  std::string subresource = {};  // "status"
  bool dry_run = false;     // dryRun=All
  std::chrono::milliseconds timeout{30'000};
  http::Canceller* canceller = nullptr;  // ends the call, also while it waits for its turn or for a retry
  KubeError* error = nullptr;      // filled when the call fails
  int max_tries = 5;               // of what the server refused with 429, or with 5xx and Retry-After
};

struct ListOptions {
  std::string ns = {};  // empty: all
  std::string label_selector = {};
  std::string field_selector = {};
  int page_size = 500;
  Projection projection = {};  // of each item
};

struct ObjectList {
  std::string resource_version;  // of the list, to watch from
  std::vector<nlohmann::json> items;
};

struct Preconditions {
  std::string uid = {};
  std::string resource_version = {};
};

struct RestStats {
  std::map<int, uint64_t> responses;  // by HTTP status; 0 = no answer
  uint64_t retries = 0;
  uint64_t throttled_ms = 0;  // waited for our own token bucket
};

// The API server's REST interface. Thread-safe. Error codes: 401 403 kDenied, 404 kNotFound, 409 kConflict (also "AlreadyExists"), 410
// kGone, 429 kExhausted, 405 501 kUnsupported, other 4xx kInvalid, other 5xx and no answer kUnavailable; KubeError has the rest.
class RestClient {
 public:
  static Result<std::unique_ptr<RestClient>> Create(Config config, std::string user_agent);
  ~RestClient();

  Result<nlohmann::json> Get(const Resource& resource, std::string_view ns, std::string_view name,
                             const CallOptions& options = {});
  // All pages. A continue token that expired restarts the list once, then without pages.
  Result<ObjectList> List(const Resource& resource, const ListOptions& list, const CallOptions& options = {});
  Result<nlohmann::json> Create(const Resource& resource, std::string_view ns, const nlohmann::json& object,
                                const CallOptions& options = {});
  // JSON merge patch. Put metadata.resourceVersion into it to be refused (kConflict) when somebody else wrote.
  Result<nlohmann::json> Patch(const Resource& resource, std::string_view ns, std::string_view name,
                               const nlohmann::json& merge_patch, const CallOptions& options = {});
  Status Delete(const Resource& resource, std::string_view ns, std::string_view name, const Preconditions& preconditions = {},
                const CallOptions& options = {});

  // Any other request (`path` as on the wire): what was answered with 2xx. What a service behind the API server refuses in JSON
  // ({code, message}) is told like the API server's own refusals.
  Result<http::Response> Call(http::Request request, const CallOptions& options = {});

  // A GET whose answer is a stream of events. Not counted against the token bucket. Fails with the server's error before the
  // first byte is handed over. `path` includes the query.
  Status Watch(const std::string& path, std::chrono::milliseconds idle_timeout, http::Canceller* canceller,
               const std::function<bool(std::string_view bytes)>& on_data, KubeError* error);

  // The server's wall clock minus ours, from its Date headers.
  ClockOffset::Estimate clock_offset() const;
  RestStats stats() const;
  const Config& config() const { return config_; }

 private:
  RestClient(Config config, std::unique_ptr<http::Client> http);
  Status TakeToken(const CallOptions& options);
  void Observe(const http::Response& response, int64_t sent_ns, int64_t received_ns);

  Config config_;
  std::unique_ptr<http::Client> http_;
  mutable std::mutex mutex_;
  ClockOffset offset_;
  RestStats stats_;
  double tokens_;
  std::chrono::steady_clock::time_point refilled_;
};

// The code and the details of a response that is no success; `what` names the call.
Error ErrorOfResponse(std::string_view what, const http::Response& response, KubeError* details);

}  // namespace borescope::kube
