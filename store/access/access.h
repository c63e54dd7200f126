// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/http/message.h"
#include "common/metrics/metrics.h"
#include "store/access/reviewer.h"

namespace borescope::store {

// Who may do what. One of three ways:
// - token_file: whoever has the shared token may do all;
// - reviewer: ServiceAccounts by their own tokens. `borescope-reader` of a namespace reads what has its label, the sampler pushes,
//   the operator puts session records, and none of them does more;
// - neither: everybody may do all (the store listens on loopback).
// The token is in the header Borescope-Token (the API server takes Authorization away from what it proxies), else in
// "Authorization: Bearer". Thread-safe.
class Access {
 public:
  static constexpr std::string_view kTokenHeader = "Borescope-Token";
  static constexpr std::string_view kWhoAmI = "/borescope/v1/whoami";

  struct Options {
    std::string token_file = {};
    TokenReviewer* reviewer = nullptr;
    std::string sampler_account = {}, operator_account = {};  // full user names; with a reviewer
  };
  Access(Options options, metrics::Registry* metrics);

  // Nothing, or the 401, 403 or 503 that refuses the request, as whole sentences. Sets its scope, which a View takes.
  std::optional<http::Response> Authorize(http::Request& head);
  // GET kWhoAmI: {"user", "role": reader|sampler|operator, "namespace", "until"}; without a reviewer {"role": "any"}. Senders ask
  // ahead of time, so that the answer is remembered when the API server is down later.
  http::Response WhoAmI(const http::Request& request);

 private:
  enum class Role { kReader, kSampler, kOperator };
  struct Caller {
    Account account;
    Role role;
    std::string ns;
  };

  std::optional<http::Response> AuthorizeShared(const http::Request& head) const;
  std::optional<http::Response> AuthorizeAccount(http::Request& head);
  // kDenied, kUnavailable: as the reviewer's. kUnsupported: the account is none of ours.
  Result<Caller> WhoIs(const http::Request& request);

  const Options options_;
  metrics::Family& denied_;
};

// "system:serviceaccount:NAMESPACE:NAME" apart; nothing when it is no such name.
struct ServiceAccountName {
  std::string_view ns, name;
};
std::optional<ServiceAccountName> ParseServiceAccountName(std::string_view user);

// The bearer token in a file, without spaces around it.
Result<std::string> ReadToken(const std::string& file);

}  // namespace borescope::store
