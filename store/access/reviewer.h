// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/kube/rest.h"
#include "common/metrics/metrics.h"

namespace borescope::store {

// Whose a token is, as the API server says.
struct Account {
  std::string user;        // "system:serviceaccount:NAMESPACE:NAME"
  int64_t until_ns = 0;    // the answer holds until then, since the epoch; in the past: asked anew each time
};

// Asks the API server whose a token is (TokenReview for the audience "borescope-store") and remembers the answer: a yes until the
// token ends, for accounts that are not `lasting` 10 minutes at most; a no for 10 s. While the API server does not answer, what is
// remembered goes on. Tokens are kept as hashes only, and are in no message. Thread-safe.
class TokenReviewer {
 public:
  static constexpr std::string_view kAudience = "borescope-store";

  struct Options {
    std::set<std::string> lasting = {};  // user names
    size_t max_remembered = 4096;        // of each answer
    size_t max_questions = 4;            // at a time; more tokens that are not known are told to come again
    std::chrono::milliseconds timeout{3'000};
    std::chrono::milliseconds rest{2'000};  // after the API server did not answer, in which it is not asked
  };
  TokenReviewer(kube::RestClient* client, metrics::Registry* metrics, const Clock* clock, Options options);

  // kDenied: the API server does not take the token; kUnavailable: it cannot be asked just now. Whole sentences.
  Result<Account> Review(std::string_view token);

 private:
  struct Answer {
    int64_t until_ns = 0;
    Result<std::string> user;
  };
  using Answers = std::map<std::string, Answer, std::less<>>;

  Result<Account> Ask(std::string_view token, const std::string& hash);
  void Remember(Answers* answers, const std::string& hash, Answer answer);

  kube::RestClient* const client_;
  const Clock* const clock_;
  const Options options_;
  metrics::Family& reviews_;
  std::mutex mutex_;
  Answers accepted_, refused_;  // by the token's SHA-256: what is refused never pushes out what is accepted
  size_t asking_ = 0;
  int64_t rests_until_ns_ = 0;  // CLOCK_MONOTONIC
};

}  // namespace borescope::store
