// SPDX-License-Identifier: Apache-2.0
// The API server is a fake here, to force its faults; e2e/tests/reading.py has a real one.
#include "store/access/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/fd.h"
#include "common/base/strings.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "store/connect/connect.h"
#include "temporary_directory.h"
#include "tests/unit/common_kube/fake_api.h"

namespace borescope::store {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using nlohmann::json;

constexpr const char* kSampler = "system:serviceaccount:borescope-sampler:borescope-sampler";
constexpr const char* kOperator = "system:serviceaccount:borescope-system:borescope-operator";
constexpr int64_t kSecond = 1'000'000'000;

class SetClock : public Clock {
 public:
  int64_t RealtimeNs() const override { return now; }
  int64_t MonotonicNs() const override { return now; }
  std::atomic<int64_t> now{1'790'000'000 * kSecond};
};

std::string Base64Url(std::string_view s) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (unsigned char c : s) {
    bits = bits << 8 | c;
    for (count += 8; count >= 6;) out += kDigits[bits >> (count -= 6) & 63];
  }
  if (count > 0) out += kDigits[bits << (6 - count) & 63];
  return out;
}

// A store that asks a fake API server, with the routes that matter.
class AccessTest : public ::testing::Test {
 protected:
  AccessTest()
      : api_([this](test::RawConnection& c, const test::RawRequest& request) { return Answer(c, request); }),
        client_(kube::ClientOf(api_)) {}

  void SetUp() override { Start({}); }
  void Start(TokenReviewer::Options options) {
    options.lasting = {kSampler, kOperator};
    server_.reset();
    reviewer_.emplace(client_.get(), &registry_, &clock_, options);
    access_.emplace(Access::Options{"", &*reviewer_, kSampler, kOperator}, &registry_);
    Serve();
  }
  void Serve() {
    http::ServerOptions options;
    options.workers = 8;
    options.authorize = [this](http::Request& head) { return access_->Authorize(head); };
    options.refuse = ConnectRefusal;
    server_.emplace(options);
    auto scope = [](const http::Request& request) { return http::Response::Text(200, "scope " + request.scope); };
    server_->Handle("GET", "/pyroscope/render", scope);
    server_->Handle("POST", "/querier.v1.QuerierService/Series", scope);
    server_->Handle("POST", "/push.v1.PusherService/Push", scope);
    server_->Handle("PUT", "/api/v1/sessions/*", scope);
    server_->Handle("GET", "/api/v1/sessions/*", scope);
    server_->Handle("GET", "/metrics", scope);
    server_->Handle("GET", "/healthz", scope);
    server_->Handle("GET", std::string(Access::kWhoAmI), [this](const http::Request& request) { return access_->WhoAmI(request); });
    ASSERT_TRUE(server_->Start("127.0.0.1:0").ok());
    http_ = *http::Client::Create({.base_url = "http://127.0.0.1:" + std::to_string(server_->port())});
  }

  // A token whose signature is random. The fake knows whose it is.
  std::string Token(const std::string& user, int64_t lives_s = 600, const std::string& audience = "borescope-store") {
    json claims = {{"aud", {audience}}, {"exp", clock_.now / kSecond + lives_s}, {"kubernetes.io", {{"namespace", "x"}}}};
    std::string token = Base64Url(R"({"alg":"RS256"})") + "." + Base64Url(claims.dump()) + "." + RandomHex(32);
    std::lock_guard lock(mutex_);
    users_[token] = user;
    return token;
  }
  static std::string Reader(const std::string& ns) { return "system:serviceaccount:" + ns + ":borescope-reader"; }

  http::Response Call(const std::string& method, const std::string& path, const std::string& token, bool bearer = false) {
    http::Request request;
    request.method = method;
    request.path = path;
    if (method != "GET") request.body = "{}";
    if (!token.empty()) request.headers[bearer ? "Authorization" : "Borescope-Token"] = (bearer ? "Bearer " : "") + token;
    auto response = http_->Send(request);
    EXPECT_TRUE(response.ok()) << response.error().message;
    return response.ok() ? *response : http::Response::Text(0, "");
  }
  http::Response Read(const std::string& token) { return Call("GET", "/pyroscope/render", token); }
  http::Response Push(const std::string& token) { return Call("POST", "/push.v1.PusherService/Push", token, true); }
  size_t reviews() const { return api_.requests().size(); }

  bool Answer(test::RawConnection& c, const test::RawRequest& request) {
    if (down_) return c.Reply(500, kube::StatusBody(500, "InternalError", "etcd is gone"));
    if (forbidden_) return c.Reply(403, kube::StatusBody(403, "Forbidden", "no"));
    if (hang_) {
      c.Hang();
      return false;
    }
    EXPECT_EQ(request.target, "/apis/authentication.k8s.io/v1/tokenreviews");
    json review = json::parse(request.body);
    EXPECT_EQ(review["spec"]["audiences"], json({"borescope-store"}));
    std::string token = review["spec"]["token"];
    std::lock_guard lock(mutex_);
    auto user = users_.find(token);
    json status;
    if (user != users_.end() && !user->second.empty()) {
      status = {{"authenticated", true}, {"user", {{"username", user->second}}}};
      if (!blind_) status["audiences"] = {"borescope-store"};
    } else {
      status = {{"authenticated", false}, {"error", repeats_ ? "invalid: " + token : "[invalid bearer token]"}};
    }
    return c.Reply(201, json{{"kind", "TokenReview"}, {"status", status}}.dump());
  }

  SetClock clock_;
  std::mutex mutex_;
  std::map<std::string, std::string> users_;
  std::atomic<bool> down_{false}, hang_{false}, forbidden_{false}, blind_{false}, repeats_{false};
  test::RawServer api_;
  std::unique_ptr<kube::RestClient> client_;
  metrics::Registry registry_;
  std::optional<TokenReviewer> reviewer_;
  std::optional<Access> access_;
  std::optional<http::Server> server_;
  std::unique_ptr<http::Client> http_;
};

TEST_F(AccessTest, AReaderReadsItsNamespaceAndDoesNothingElse) {
  std::string token = Token(Reader("shop"));
  EXPECT_EQ(Read(token).body, "scope shop\n");
  EXPECT_EQ(Call("GET", "/pyroscope/render", token, true).body, "scope shop\n") << "in either header";
  EXPECT_EQ(Call("POST", "/querier.v1.QuerierService/Series", token).body, "scope shop\n");
  EXPECT_EQ(Call("GET", "/api/v1/sessions/shop/a/b", token).body, "scope shop\n");
  http::Response push = Push(token);
  EXPECT_EQ(push.status, 403);
  EXPECT_THAT(push.body, AllOf(HasSubstr("system:serviceaccount:shop:borescope-reader"), HasSubstr(std::string("pushing takes one of ") + kSampler)));
  EXPECT_EQ(Call("PUT", "/api/v1/sessions/shop/a/b", token).status, 403);
  EXPECT_EQ(reviews(), 1u) << "one question for one token";
}

TEST_F(AccessTest, SamplersPushAndTheOperatorPuts) {
  std::string sampler = Token(kSampler), op = Token(kOperator);
  EXPECT_EQ(Push(sampler).status, 200);
  EXPECT_EQ(Call("PUT", "/api/v1/sessions/shop/a/b", op, true).status, 200);
  for (const std::string& token : {sampler, op}) {
    http::Response read = Call("GET", "/pyroscope/render", token, true);
    EXPECT_EQ(read.status, 403);
    EXPECT_THAT(read.body, HasSubstr("reading takes one of ServiceAccount borescope-reader"));
    EXPECT_EQ(json::parse(read.body)["code"], "permission_denied");
  }
  EXPECT_EQ(Push(op).status, 403);
  EXPECT_EQ(Call("PUT", "/api/v1/sessions/shop/a/b", sampler, true).status, 403);
}

TEST_F(AccessTest, OthersAreToldWhoTheyAre) {
  for (const std::string& user : {std::string("system:serviceaccount:shop:default"), std::string("alice"), std::string("system:serviceaccount::borescope-reader")}) {
    http::Response response = Read(Token(user));
    EXPECT_EQ(response.status, 403) << user;
    EXPECT_THAT(response.body, HasSubstr("the token is of " + user));
    EXPECT_THAT(response.body, HasSubstr("borescope-reader"));
  }
  http::Response none = Read("");
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(none.headers.at("WWW-Authenticate"), "Bearer");
  EXPECT_THAT(none.body, HasSubstr("kubectl create token borescope-reader"));
  EXPECT_EQ(Call("GET", "/healthz", "").status, 200);
  EXPECT_EQ(Call("GET", "/metrics", "").status, 200);
}

TEST_F(AccessTest, WhoAmI) {
  json reader = json::parse(Call("GET", "/borescope/v1/whoami", Token(Reader("shop"))).body);
  EXPECT_EQ(reader["role"], "reader");
  EXPECT_EQ(reader["namespace"], "shop");
  EXPECT_EQ(reader["user"], Reader("shop"));
  EXPECT_EQ(json::parse(Call("GET", "/borescope/v1/whoami", Token(kSampler), true).body)["role"], "sampler");
  EXPECT_EQ(json::parse(Call("GET", "/borescope/v1/whoami", Token(kOperator), true).body)["role"], "operator");
  EXPECT_EQ(Call("GET", "/borescope/v1/whoami", Token("alice")).status, 403);
  EXPECT_EQ(Call("GET", "/borescope/v1/whoami", "").status, 401);
}

TEST_F(AccessTest, WhatCanBeNoTokenOfOursCostsTheApiServerNothing) {
  http::Response foreign = Read(Token(Reader("shop"), 600, "https://kubernetes.default.svc"));
  EXPECT_EQ(foreign.status, 401);
  EXPECT_THAT(foreign.body, AllOf(HasSubstr("https://kubernetes.default.svc"), HasSubstr("borescope-store")));
  EXPECT_EQ(Read("hunter2").status, 401);
  EXPECT_EQ(Read("a.b.c").status, 401);
  EXPECT_EQ(reviews(), 0u);
}

TEST_F(AccessTest, RefusedTokensAreRememberedForAShortTime) {
  std::string token = Token("");  // the API server does not take it
  EXPECT_THAT(Read(token).body, HasSubstr("invalid bearer token"));
  EXPECT_EQ(Read(token).status, 401);
  EXPECT_EQ(reviews(), 1u);
  clock_.now += 11 * kSecond;
  EXPECT_EQ(Read(token).status, 401);
  EXPECT_EQ(reviews(), 2u);
  std::string old = Token("", -30);
  EXPECT_THAT(Read(old).body, HasSubstr("the token ended at "));
}

TEST_F(AccessTest, AnApiServerThatKnowsNoAudiencesVouchesForNobody) {
  blind_ = true;
  EXPECT_EQ(Read(Token(Reader("shop"))).status, 401);
}

TEST_F(AccessTest, AnswersHoldUntilTheTokenEndsForReadersTenMinutes) {
  std::string reader = Token(Reader("shop"), 86'400), brief = Token(Reader("shop"), 120), sampler = Token(kSampler, 3'600);
  Read(reader), Read(brief), Push(sampler);
  ASSERT_EQ(reviews(), 3u);
  down_ = true;
  clock_.now += 119 * kSecond;
  EXPECT_EQ(Read(brief).status, 200);
  clock_.now += 480 * kSecond;  // 599 s
  EXPECT_EQ(Read(reader).status, 200);
  EXPECT_EQ(Read(brief).status, 503) << "its answer ended with it";
  clock_.now += 2 * kSecond;  // 601 s
  EXPECT_EQ(Read(reader).status, 503) << "a reader's answer holds 10 minutes";
  clock_.now += 2'998 * kSecond;  // 3 599 s
  EXPECT_EQ(Push(sampler).status, 200) << "a sampler's until its token ends";
  clock_.now += 2 * kSecond;
  EXPECT_EQ(Push(sampler).status, 503);
}

TEST_F(AccessTest, WithoutTheApiServerKnownTokensGoOnAndNewOnesAreToldWhy) {
  std::string known = Token(kSampler);
  ASSERT_EQ(Push(known).status, 200);
  down_ = true;
  http::Response later = Read(Token(Reader("shop")));
  EXPECT_EQ(later.status, 503);
  EXPECT_EQ(later.headers.at("Retry-After"), "1");
  EXPECT_THAT(later.body, AllOf(HasSubstr("does not answer"), HasSubstr("this one is new")));
  EXPECT_EQ(Push(known).status, 200);
  // It is left alone for a moment.
  size_t before = reviews();
  EXPECT_EQ(Read(Token(Reader("shop"))).status, 503);
  EXPECT_EQ(reviews(), before);
  clock_.now += 3 * kSecond;
  down_ = false;
  EXPECT_EQ(Read(Token(Reader("shop"))).status, 200);
  forbidden_ = true;
  EXPECT_THAT(Read(Token(Reader("shop"))).body, HasSubstr("create on tokenreviews"));
}

TEST_F(AccessTest, AnApiServerThatHangsHoldsUpOnlyNewTokens) {
  Start({.timeout = 400ms});
  std::string known = Token(kSampler);
  ASSERT_EQ(Push(known).status, 200);
  hang_ = true;
  std::vector<std::thread> newcomers;
  std::atomic<int> refused{0};
  for (int i = 0; i < 8; ++i) {
    newcomers.emplace_back([&, token = Token(Reader("shop"))] {
      if (Read(token).status == 503) ++refused;
    });
  }
  ASSERT_TRUE(test::Eventually([&] { return reviews() >= 2; }));
  EXPECT_EQ(Push(known).status, 200);
  for (std::thread& thread : newcomers) thread.join();
  EXPECT_EQ(refused, 8);
  EXPECT_LE(reviews(), 5u) << "at most four at a time";
}

TEST_F(AccessTest, WhatIsRememberedIsBounded) {
  Start({.max_remembered = 8});
  std::string sampler = Token(kSampler, 60);
  Push(sampler);
  // The oldest go, of both kinds; a flood of refused ones leaves the accepted alone, and of readers the samplers'.
  for (int i = 0; i < 20; ++i) Read(Token("", 600 + i));
  for (int i = 0; i < 20; ++i) Read(Token(Reader("shop"), 600 + i));
  size_t before = reviews();
  EXPECT_EQ(Push(sampler).status, 200);
  EXPECT_EQ(reviews(), before);
}

// Tokens are secrets: whatever becomes of them, no text of ours may hold one.
TEST_F(AccessTest, ATokenIsInNoTextOfOurs) {
  ::testing::internal::CaptureStderr();
  repeats_ = true;  // an API server that writes the token into its error
  std::vector<std::string> tokens = {Token(Reader("shop")), Token("alice"), Token(""), Token(Reader("shop"), 600, "other"), "planted-secret-7f3a", "x.planted-secret-7f3a.y"};
  std::string said;
  for (int round = 0; round < 2; ++round) {
    for (const std::string& token : tokens) {
      for (bool bearer : {false, true}) {
        said += Call("GET", "/pyroscope/render", token, bearer).body;
        said += Call("POST", "/push.v1.PusherService/Push", token, bearer).body;
        said += Call("GET", "/borescope/v1/whoami", token, bearer).body;
      }
    }
    down_ = true;
    clock_.now += 700 * kSecond;
  }
  said += registry_.Expose() + ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("does not answer"));
  for (const std::string& token : tokens) {
    for (std::string_view part : Split(token, '.')) {
      if (part.size() < 8 || part.starts_with("eyJhbGci")) continue;  // the header is the same in all
      EXPECT_THAT(said, Not(HasSubstr(std::string(part)))) << "a token was said";
      EXPECT_THAT(said, Not(HasSubstr(std::string(part.substr(0, 16))))) << "a part of a token was said";
    }
  }
}

TEST_F(AccessTest, TheSharedTokenFileStays) {
  borescope::testing::TemporaryDirectory directory;
  std::string file = directory.path() + "/token";
  ASSERT_TRUE(WriteFileAtomically(file, "secret\n").ok());
  server_.reset();
  access_.emplace(Access::Options{.token_file = file}, &registry_);
  Serve();
  EXPECT_EQ(Call("GET", "/pyroscope/render", "secret", true).body, "scope *\n");
  EXPECT_EQ(Call("POST", "/push.v1.PusherService/Push", "secret", true).status, 200);
  EXPECT_EQ(Call("GET", "/borescope/v1/whoami", "secret", true).body, "{\"role\":\"any\"}");
  EXPECT_EQ(Call("GET", "/pyroscope/render", "Secret", true).status, 401);
  EXPECT_EQ(Call("GET", "/metrics", "").status, 401);
  ASSERT_TRUE(WriteFileAtomically(file, "rotated\n").ok());
  EXPECT_EQ(Call("GET", "/pyroscope/render", "secret", true).status, 401);
  EXPECT_EQ(Call("GET", "/pyroscope/render", "rotated", true).status, 200);
}

}  // namespace
}  // namespace borescope::store
