// SPDX-License-Identifier: Apache-2.0
#include "store/access/reviewer.h"

#include <openssl/sha.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/kube/config.h"

namespace borescope::store {
namespace {

using nlohmann::json;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kAcceptedNs = 600 * kSecond, kRefusedNs = 10 * kSecond;
constexpr size_t kMaxTokenBytes = 8192;
constexpr const char* kNewToken = "; make a new one: kubectl create token borescope-reader -n NAMESPACE --audience borescope-store";

std::string Hash(std::string_view token) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest);
  return {reinterpret_cast<const char*>(digest), sizeof digest};
}

Error Denied(std::string why) { return {ErrorCode::kDenied, std::move(why)}; }
Error Unavailable(std::string why) { return {ErrorCode::kUnavailable, std::move(why)}; }

const json& Member(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  auto it = object.find(key);
  return it != object.end() ? *it : kNull;
}

std::string Quoted(const std::string& text) { return JsonQuote(SanitizeName(text, 128)); }

// What the API server wrote is shown unless it repeats a part of the token.
std::string Reason(const std::string& error, std::string_view token) {
  for (std::string_view part : Split(token, '.')) {
    if (part.size() >= 8 && error.find(part.substr(0, 8)) != std::string::npos) return "";
  }
  return error.empty() ? "" : " (" + SanitizeName(error, 200) + ")";
}

}  // namespace

TokenReviewer::TokenReviewer(kube::RestClient* client, metrics::Registry* metrics, const Clock* clock, Options options)
    : client_(client),
      clock_(clock),
      options_(std::move(options)),
      reviews_(metrics->Counter("borescope_store_token_reviews_total",
                                "Tokens that the API server was asked about, by its answer: accepted, refused, unavailable.")) {
  for (const char* outcome : {"accepted", "refused", "unavailable"}) reviews_.Add({{"outcome", outcome}}, 0);
}

Result<Account> TokenReviewer::Review(std::string_view token) {
  // What cannot be one of ours is not asked about, so that junk costs the API server nothing. Nothing is believed here.
  auto claims = token.size() <= kMaxTokenBytes ? kube::ReadTokenClaims(token) : Error{ErrorCode::kInvalid, ""};
  if (!claims.ok()) return Denied("what was sent is no token of a ServiceAccount" + std::string(kNewToken));
  if (std::ranges::find(claims->audiences, kAudience) == claims->audiences.end()) {
    std::string audiences;
    for (const std::string& one : claims->audiences) audiences += (audiences.empty() ? "" : ", ") + Quoted(one);
    return Denied("the token is for the audience " + (audiences.empty() ? "of nobody" : SanitizeName(audiences, 300)) +
                  ", needed is \"borescope-store\"" + kNewToken);
  }

  std::string hash = Hash(token);
  {
    std::lock_guard lock(mutex_);
    int64_t now = clock_->RealtimeNs();
    for (const Answers* answers : {&accepted_, &refused_}) {
      auto it = answers->find(hash);
      if (it == answers->end() || it->second.until_ns <= now) continue;
      if (!it->second.user.ok()) return it->second.user.error();
      return Account{*it->second.user, it->second.until_ns};
    }
    if (clock_->MonotonicNs() < rests_until_ns_) {
      return Unavailable("the API server, which knows whose tokens are, did not answer a moment ago: tokens that were checked before go on, this one is new; try again soon");
    }
    if (asking_ >= options_.max_questions) return Unavailable("too many new tokens are being checked at once; try again in a second");
    ++asking_;
  }
  Result<Account> account = Ask(token, hash);
  std::lock_guard lock(mutex_);
  --asking_;
  return account;
}

Result<Account> TokenReviewer::Ask(std::string_view token, const std::string& hash) {
  const kube::Resource kReviews{"authentication.k8s.io", "v1", "tokenreviews"};
  kube::CallOptions call;
  call.timeout = options_.timeout;
  call.max_tries = 2;  // after a 401 our own token is read again
  auto review = client_->Create(kReviews, "", {{"apiVersion", "authentication.k8s.io/v1"},
                                               {"kind", "TokenReview"},
                                               {"spec", {{"token", token}, {"audiences", {kAudience}}}}}, call);
  if (!review.ok()) {
    reviews_.Add({{"outcome", "unavailable"}});
    {
      std::lock_guard lock(mutex_);
      rests_until_ns_ = clock_->MonotonicNs() + std::chrono::nanoseconds(options_.rest).count();
    }
    // Its own words may hold what was sent; the code alone is safe.
    if (review.error().code == ErrorCode::kDenied) {
      Log(LogLevel::kError, "the store may not ask whose a token is: grant its ServiceAccount create on tokenreviews.authentication.k8s.io");
      return Unavailable("the store may not ask the API server whose a token is: its ServiceAccount needs create on tokenreviews.authentication.k8s.io");
    }
    Log(LogLevel::kWarning, "a token could not be checked", {{"code", ErrorCodeName(review.error().code)}});
    return Unavailable("the API server, which knows whose tokens are, does not answer: tokens that were checked before go on, this one is new; try again soon");
  }
  const json& status = Member(*review, "status");
  const json& audiences = Member(status, "audiences");
  const json& user = Member(Member(status, "user"), "username");
  bool authenticated = Member(status, "authenticated") == true && user.is_string();
  // An API server that knows no audiences says yes to tokens for itself.
  bool ours = audiences.is_array() && std::ranges::find(audiences, json(kAudience)) != audiences.end();
  auto claims = kube::ReadTokenClaims(token);
  int64_t now = clock_->RealtimeNs(), expires = claims.ok() ? claims->expires_ns : 0;
  if (!authenticated || !ours) {
    reviews_.Add({{"outcome", "refused"}});
    const json& text = Member(status, "error");
    std::string why = expires > 0 && expires <= now
                          ? "the token ended at " + FormatTime(expires)
                          : "the API server does not take the token" + Reason(text.is_string() ? text.get<std::string>() : "", token);
    Error error = Denied(why + kNewToken);
    std::lock_guard lock(mutex_);
    Remember(&refused_, hash, {now + kRefusedNs, error});
    return error;
  }
  reviews_.Add({{"outcome", "accepted"}});
  Account account{user.get<std::string>(), expires > 0 ? expires : INT64_MAX};
  if (expires == 0 || !options_.lasting.contains(account.user)) account.until_ns = std::min(account.until_ns, now + kAcceptedNs);
  std::lock_guard lock(mutex_);
  Remember(&accepted_, hash, {account.until_ns, account.user});
  return account;
}

void TokenReviewer::Remember(Answers* answers, const std::string& hash, Answer answer) {
  answers->insert_or_assign(hash, std::move(answer));
  if (answers->size() <= options_.max_remembered) return;
  int64_t now = clock_->RealtimeNs();
  std::erase_if(*answers, [&](const auto& entry) { return entry.second.until_ns <= now; });
  if (answers->size() <= options_.max_remembered) return;
  // A full cache loses those of lasting accounts last: they are asked about when the API server may be down.
  auto first = std::ranges::min_element(*answers, {}, [&](const auto& entry) {
    return std::pair(entry.second.user.ok() && options_.lasting.contains(*entry.second.user), entry.second.until_ns);
  });
  answers->erase(first);
}

}  // namespace borescope::store
