// SPDX-License-Identifier: Apache-2.0
#include "common/kube/rest.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "common/gzip/gzip.h"
#include "fake_api.h"

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using test::RawConnection;
using test::RawRequest;
using test::RawServer;
using ::testing::HasSubstr;

TEST(Resource, Paths) {
  EXPECT_EQ(kPods.Path("shop", "a"), "/api/v1/namespaces/shop/pods/a");
  EXPECT_EQ(kPods.Path(""), "/api/v1/pods");
  EXPECT_EQ(kSessions.Path("shop", "a b", "status"), "/apis/profiling.borescope.dev/v1alpha1/namespaces/shop/profilingsessions/a%20b/status");
  EXPECT_EQ(kSessions.Path("", "../x"), "/apis/profiling.borescope.dev/v1alpha1/profilingsessions/..%2Fx");
}

TEST(Rest, SendsWhatTheVerbsMean) {
  RawServer server([](RawConnection& c, const RawRequest&) { return c.Reply(200, R"({"a":1})"); });
  auto client = ClientOf(server, TokenSource::Fixed("tok"));
  EXPECT_EQ((*client->Get(kSessions, "shop", "x"))["a"], 1);
  EXPECT_TRUE(client->Create(kSessions, "shop", json{{"k", "v"}}, {.dry_run = true}).ok());
  EXPECT_TRUE(client->Patch(kSessions, "shop", "x", json{{"status", 1}}, {.subresource = "status"}).ok());
  EXPECT_TRUE(client->Delete(kSessions, "shop", "x", {.uid = "u", .resource_version = "7"}).ok());
  auto seen = server.requests();
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0].method + " " + seen[0].target, "GET /apis/profiling.borescope.dev/v1alpha1/namespaces/shop/profilingsessions/x");
  EXPECT_TRUE(seen[0].Has("Authorization: Bearer tok\r\n"));
  EXPECT_TRUE(seen[0].Has("Accept: application/json\r\n"));
  EXPECT_TRUE(seen[0].Has("User-Agent: test\r\n"));
  EXPECT_EQ(seen[1].method + " " + seen[1].target, "POST /apis/profiling.borescope.dev/v1alpha1/namespaces/shop/profilingsessions?dryRun=All");
  EXPECT_EQ(seen[1].body, R"({"k":"v"})");
  EXPECT_TRUE(seen[1].Has("Content-Type: application/json\r\n"));
  EXPECT_EQ(seen[2].method + " " + seen[2].target, "PATCH /apis/profiling.borescope.dev/v1alpha1/namespaces/shop/profilingsessions/x/status");
  EXPECT_TRUE(seen[2].Has("Content-Type: application/merge-patch+json\r\n"));
  EXPECT_EQ(seen[3].method, "DELETE");
  EXPECT_EQ(json::parse(seen[3].body)["preconditions"], (json{{"uid", "u"}, {"resourceVersion", "7"}}));
  EXPECT_EQ(server.connections(), 1);
  EXPECT_EQ(client->stats().responses[200], 4u);
}

TEST(Rest, MapsErrors) {
  struct Case {
    int status;
    std::string reason;
    ErrorCode code;
  };
  const std::vector<Case> cases = {{400, "BadRequest", ErrorCode::kInvalid},     {403, "Forbidden", ErrorCode::kDenied},
                                   {404, "NotFound", ErrorCode::kNotFound},      {405, "MethodNotAllowed", ErrorCode::kUnsupported},
                                   {409, "AlreadyExists", ErrorCode::kConflict}, {410, "Expired", ErrorCode::kGone},
                                   {413, "RequestEntityTooLarge", ErrorCode::kInvalid}, {422, "Invalid", ErrorCode::kInvalid},
                                   {401, "Unauthorized", ErrorCode::kDenied},    {500, "InternalError", ErrorCode::kUnavailable}};
  for (const Case& c : cases) {
    RawServer server([&](RawConnection& connection, const RawRequest&) {
      return connection.Reply(c.status, StatusBody(c.status, c.reason, "spec.x: bad value"));
    });
    KubeError details;
    auto result = ClientOf(server)->Create(kSessions, "ns", json::object(), {.error = &details});
    ASSERT_FALSE(result.ok()) << c.status;
    EXPECT_EQ(result.error().code, c.code) << c.status;
    EXPECT_THAT(result.error().message, HasSubstr("HTTP " + std::to_string(c.status) + " " + c.reason + ": spec.x: bad value"));
    EXPECT_EQ(details.http_status, c.status);
    EXPECT_EQ(details.reason, c.reason);
    EXPECT_EQ(details.message, "spec.x: bad value");
    EXPECT_EQ(server.requests().size(), 1u) << c.status;  // no blind second try of a POST
  }
}

TEST(Rest, SurvivesAnswersThatAreNoObjects) {
  for (std::string body : {"", "[]", "nonsense", "{\"a\":"}) {
    RawServer server([&](RawConnection& c, const RawRequest&) { return c.Reply(200, body); });
    EXPECT_EQ(ClientOf(server)->Get(kPods, "ns", "x").error().code, ErrorCode::kUnavailable) << body;
    RawServer errors([&](RawConnection& c, const RawRequest&) { return c.Reply(422, body); });
    EXPECT_EQ(ClientOf(errors)->Get(kPods, "ns", "x").error().code, ErrorCode::kInvalid) << body;
  }
}

TEST(Rest, TriesAgainWhenToldTo) {
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest&) {
    return ++n < 2 ? c.Reply(429, StatusBody(429, "TooManyRequests", "slow down"), "Retry-After: 0\r\n") : c.Reply(200, "{}");
  });
  auto client = ClientOf(server);
  EXPECT_TRUE(client->Create(kSessions, "ns", json::object()).ok());
  EXPECT_EQ(server.requests().size(), 2u);
  EXPECT_EQ(client->stats().retries, 1u);
}

TEST(Rest, WaitsAsLongAsRetryAfterSaysAndCanBeCancelled) {
  RawServer server([&](RawConnection& c, const RawRequest&) { return c.Reply(503, "", "Retry-After: 1\r\n"); });
  auto client = ClientOf(server);
  http::Canceller canceller;
  KubeError details;
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(700));
    canceller.Cancel();
  });
  auto time = test::TimeOf([&] {
    EXPECT_EQ(client->Create(kSessions, "ns", json::object(), {.canceller = &canceller, .error = &details}).error().code, ErrorCode::kUnavailable);
  });
  other.join();
  EXPECT_EQ(server.requests().size(), 1u);
  EXPECT_EQ(details.retry_after.count(), 1);
  EXPECT_LT(time, milliseconds(800));
}

TEST(Rest, RenewsTheTokenOnce) {
  std::string path = ::testing::TempDir() + "kube-rest-token";
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    return r.Has("Bearer new\r\n") ? c.Reply(200, "{}") : c.Reply(401, StatusBody(401, "Unauthorized", "who?"));
  });
  auto token = TokenSource::FromFile(path);
  auto client = ClientOf(server, token);
  EXPECT_EQ(client->Get(kPods, "ns", "x").error().code, ErrorCode::kDenied);
  EXPECT_EQ(server.requests().size(), 2u);
  ASSERT_TRUE(WriteFileAtomically(path, "new").ok());
  EXPECT_TRUE(client->Get(kPods, "ns", "x").ok());
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST(Rest, ListsPages) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    if (!r.Has("continue=")) return c.Reply(200, ListJson("100", {ObjectJson("a", "1"), ObjectJson("b", "2")}, "t/1"));
    if (r.Has("continue=t%2F1")) return c.Reply(200, gzip::Gzip(ListJson("100", {}, "t2")), "Content-Encoding: gzip\r\n");
    return c.Reply(200, ListJson("100", {ObjectJson("c", "3")}));
  });
  auto list = ClientOf(server)->List(kPods, {.ns = "ns", .label_selector = "app=x", .page_size = 2, .projection = {"metadata.name"}});
  ASSERT_TRUE(list.ok()) << list.error().ToString();
  EXPECT_EQ(list->resource_version, "100");
  EXPECT_EQ(json(list->items), json::parse(R"([{"metadata":{"name":"a"}},{"metadata":{"name":"b"}},{"metadata":{"name":"c"}}])"));
  auto seen = server.requests();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].target, "/api/v1/namespaces/ns/pods?labelSelector=app%3Dx&limit=2");
  EXPECT_EQ(seen[1].target, "/api/v1/namespaces/ns/pods?continue=t%2F1&labelSelector=app%3Dx&limit=2");
}

TEST(Rest, AnExpiredContinueTokenStartsTheListAnew) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    if (r.Has("continue=")) return c.Reply(410, StatusBody(410, "Expired", "too old"));
    if (r.Has("limit=")) return c.Reply(200, ListJson("100", {ObjectJson("a", "1")}, "t"));
    return c.Reply(200, ListJson("200", {ObjectJson("a", "1"), ObjectJson("b", "2")}));
  });
  auto list = ClientOf(server)->List(kPods, {});
  ASSERT_TRUE(list.ok()) << list.error().ToString();
  EXPECT_EQ(list->items.size(), 2u);
  EXPECT_EQ(list->resource_version, "200");
  auto seen = server.requests();
  ASSERT_EQ(seen.size(), 5u);
  EXPECT_EQ(seen[0].target, "/api/v1/pods?limit=500");
  EXPECT_EQ(seen[4].target, "/api/v1/pods");
}

TEST(Rest, ListErrorsAreErrors) {
  RawServer gone([](RawConnection& c, const RawRequest&) { return c.Reply(410, StatusBody(410, "Expired", "x")); });
  KubeError details;
  EXPECT_EQ(ClientOf(gone)->List(kPods, {}, {.error = &details}).error().code, ErrorCode::kGone);
  EXPECT_EQ(details.http_status, 410);
  RawServer cut([](RawConnection& c, const RawRequest&) { return c.Reply(200, R"({"metadata":{},"items":[{)"); });
  EXPECT_EQ(ClientOf(cut)->List(kPods, {}).error().code, ErrorCode::kUnavailable);
  RawServer odd([](RawConnection& c, const RawRequest&) { return c.Reply(200, R"({"metadata":7,"items":"x"})"); });
  auto list = ClientOf(odd)->List(kPods, {});
  EXPECT_TRUE(list.ok() && list->items.empty());
}

TEST(Rest, LearnsTheServersClock) {
  time_t now = time(nullptr) + 3600;
  char date[64];
  tm parts{};
  strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime_r(&now, &parts));
  RawServer server([&](RawConnection& c, const RawRequest&) { return c.Reply(200, "{}", date); });
  auto client = ClientOf(server);
  EXPECT_FALSE(client->clock_offset().known);
  ASSERT_TRUE(client->Get(kPods, "ns", "x").ok());
  auto offset = client->clock_offset();
  EXPECT_TRUE(offset.known);
  EXPECT_NEAR(static_cast<double>(offset.offset_ns), 3600e9, 1.6e9);
  EXPECT_LE(offset.error_ns, 1'200'000'000);
}

TEST(Rest, ThrottlesItself) {
  RawServer server([&](RawConnection& c, const RawRequest&) { return c.Reply(200, "{}"); });
  auto client = ClientOf(server);
  auto burst = test::TimeOf([&] {
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(client->Get(kPods, "ns", "x").ok());
  });
  EXPECT_LT(burst, milliseconds(400));
  auto rest = test::TimeOf([&] {
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(client->Get(kPods, "ns", "x").ok());
  });
  EXPECT_GT(rest, milliseconds(500) - burst - milliseconds(100));
  EXPECT_GT(client->stats().throttled_ms, 0u);
}

}  // namespace
}  // namespace borescope::kube
