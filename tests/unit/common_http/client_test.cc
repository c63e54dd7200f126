// SPDX-License-Identifier: Apache-2.0
#include "common/http/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/gzip/gzip.h"
#include "raw_server.h"

namespace borescope::http {
namespace {

using std::chrono::milliseconds;
using test::RawConnection;
using test::RawRequest;
using test::RawServer;
using ::testing::HasSubstr;

std::unique_ptr<Client> ClientOf(const RawServer& server, ClientOptions options = {}) {
  options.base_url = server.url();
  auto client = Client::Create(std::move(options));
  EXPECT_TRUE(client.ok());
  return *std::move(client);
}

Request Get(std::string path) {
  Request request;
  request.path = std::move(path);
  return request;
}

Request Post(std::string body) {
  Request request;
  request.method = "POST";
  request.path = "/p";
  request.body = std::move(body);
  return request;
}

TEST(Client, RefusesAddressesThatAreNone) {
  for (const char* bad : {"", "ftp://x", "http://", "https://x:y", "http://x/path", "http://u@x", "http://[::1", "http://x:0"}) {
    EXPECT_EQ(Client::Create({.base_url = bad}).status().ok(), false) << bad;
  }
  for (const char* good : {"http://x", "https://x:6443", "https://[::1]:6443", "https://[::1]", "http://10.0.0.1/"}) {
    EXPECT_TRUE(Client::Create({.base_url = good}).ok()) << good;
  }
}

TEST(Client, SendsAndReceives) {
  RawServer server([](RawConnection& c, const RawRequest& r) { return c.Reply(201, r.method + r.target + r.body, "X-A: 1\r\nX-A: 2\r\nDate: D\r\n"); });
  int calls = 0;
  auto client = ClientOf(server, {.bearer = [&]() -> Result<std::string> { return "token" + std::to_string(calls++); }, .user_agent = "me/1"});
  Request request = Post("body");
  request.query = {{"b", "2 3"}, {"a", "1"}};
  request.headers["Content-Type"] = "application/merge-patch+json";
  auto response = client->Send(request);
  ASSERT_TRUE(response.ok()) << response.error().ToString();
  EXPECT_EQ(response->status, 201);
  EXPECT_EQ(response->body, "POST/p?a=1&b=2%203body");
  EXPECT_EQ(response->Header("Date"), "D");
  EXPECT_THAT(std::string(response->Header("x-a")), HasSubstr(", "));
  ASSERT_TRUE(client->Send(request).ok());
  auto seen = server.requests();
  EXPECT_TRUE(seen[0].Has("Authorization: Bearer token0\r\n"));
  EXPECT_TRUE(seen[0].Has("User-Agent: me/1\r\n"));
  EXPECT_TRUE(seen[0].Has("Content-Type: application/merge-patch+json\r\n"));
  EXPECT_TRUE(seen[1].Has("Authorization: Bearer token1\r\n"));
  EXPECT_EQ(server.connections(), 1);
}

// CVE-2026-21428
TEST(Client, RefusesToSendWhatWouldEndTheLine) {
  RawServer server([](RawConnection& c, const RawRequest&) { return c.Reply(200, ""); });
  auto client = ClientOf(server);
  for (const char* path : {"", "x", "/a b", "/a\r\nX: y", "/\xc3\xbc"}) EXPECT_EQ(client->Send(Get(path)).error().code, ErrorCode::kInvalid) << path;
  Request request = Get("/");
  request.headers["X"] = "a\r\nEvil: 1";
  EXPECT_EQ(client->Send(request).error().code, ErrorCode::kInvalid);
  request = Get("/");
  request.headers["X\r\nEvil"] = "1";
  EXPECT_EQ(client->Send(request).error().code, ErrorCode::kInvalid);
  auto bad_token = ClientOf(server, {.bearer = []() -> Result<std::string> { return std::string("a\r\nEvil: 1"); }});
  EXPECT_EQ(bad_token->Send(Get("/")).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(server.connections(), 0);
}

// CVE-2026-32627, CVE-2026-33745: what a redirect would get
TEST(Client, FollowsNoRedirect) {
  RawServer other([](RawConnection& c, const RawRequest&) { return c.Reply(200, "stolen"); });
  RawServer server([&](RawConnection& c, const RawRequest&) { return c.Reply(302, "", "Location: " + other.url() + "/\r\n"); });
  auto client = ClientOf(server, {.bearer = []() -> Result<std::string> { return std::string("t"); }});
  auto response = client->Send(Get("/"));
  ASSERT_TRUE(response.ok());
  EXPECT_EQ(response->status, 302);
  EXPECT_EQ(other.connections(), 0);
}

TEST(Client, RetriesOnlyAGetOnAStaleConnection) {
  std::atomic<int> n{0};
  // Answers the first request of a connection; then closes when the second one comes.
  RawServer server([&](RawConnection& c, const RawRequest&) {
    bool first = n++ % 2 == 0;
    return first && c.Reply(200, "ok");
  });
  auto client = ClientOf(server);
  ASSERT_TRUE(client->Send(Get("/1")).ok());
  auto second = client->Send(Get("/2"));  // dies on the pooled connection, is sent again on a new one
  ASSERT_TRUE(second.ok()) << second.error().ToString();
  EXPECT_EQ(server.requests().size(), 3u);
  auto post = client->Send(Post("x"));
  EXPECT_EQ(post.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST(Client, AFreshConnectionThatDiesIsAnError) {
  RawServer server([](RawConnection&, const RawRequest&) { return false; });
  auto client = ClientOf(server);
  EXPECT_EQ(client->Send(Get("/")).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(Client, BoundsTheResponse) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    if (r.target == "/length") return c.Reply(200, std::string(2000, 'a'));
    if (r.target == "/gzip") return c.Reply(200, gzip::Gzip(std::string(1 << 20, 'a')), "Content-Encoding: gzip\r\n");
    if (r.target == "/huge") return c.Send("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\nabc");
    c.BeginChunks();
    while (c.Chunk(std::string(500, 'a'))) {
    }
    return false;
  });
  auto client = ClientOf(server, {.max_response_bytes = 1000});
  for (const char* path : {"/length", "/gzip", "/endless"}) {
    EXPECT_EQ(client->Send(Get(path)).error().code, ErrorCode::kExhausted) << path;
  }
  EXPECT_FALSE(client->Send(Get("/huge"), {.timeout = milliseconds(200)}).ok());
}

TEST(Client, ReadsGzipOfSeveralMembers) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    EXPECT_TRUE(r.Has("Accept-Encoding: gzip\r\n"));
    return c.Reply(200, gzip::Gzip("one ") + gzip::Gzip("two"), "Content-Encoding: gzip\r\n");
  });
  auto client = ClientOf(server);
  EXPECT_EQ(client->Send(Get("/"))->body, "one two");
}

// CVE-2026-31870 and others: a server that answers nonsense
TEST(Client, SurvivesBrokenResponses) {
  std::string status_line = "HTTP/1.1 200 " + std::string(60000, 'a') + "\r\n\r\n";
  for (std::string answer : {std::string("nonsense\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
                             std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n"), status_line,
                             std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
                             std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"),
                             std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), std::string("HTTP/1.1 200 OK\r\nX: y"),
                             std::string("HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\na"),
                             std::string("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na")}) {
    RawServer server([&](RawConnection& c, const RawRequest&) {
      c.Send(answer);
      return false;
    });
    auto client = ClientOf(server);
    EXPECT_FALSE(client->Send(Get("/"), {.timeout = milliseconds(500)}).ok()) << answer.substr(0, 60);
  }
}

TEST(Client, TimesOut) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    if (r.target == "/drip") {
      c.BeginChunks();
      for (int i = 0; i < 100 && c.Chunk("a"); ++i) std::this_thread::sleep_for(milliseconds(20));
    }
    c.Hang();
    return false;
  });
  auto client = ClientOf(server);
  for (const char* path : {"/silent", "/drip"}) {
    auto time = test::TimeOf([&] { EXPECT_EQ(client->Send(Get(path), {.timeout = milliseconds(100)}).error().code, ErrorCode::kUnavailable); });
    EXPECT_GE(time, milliseconds(90)) << path;
    EXPECT_LT(time, milliseconds(400)) << path;
  }
}

TEST(Client, NobodyListens) {
  int port;
  {
    RawServer server([](RawConnection&, const RawRequest&) { return false; });
    port = server.port();
  }
  auto client = Client::Create({.base_url = "http://127.0.0.1:" + std::to_string(port)});
  auto response = (*client)->Send(Get("/"));
  EXPECT_EQ(response.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(response.error().message, HasSubstr("could not connect"));
}

TEST(Client, CancelEndsEveryWait) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    if (r.target == "/warm") return c.Reply(200, "");
    if (r.target == "/stream") c.BeginChunks(), c.Chunk("x");
    c.Hang();
    return false;
  });
  auto client = ClientOf(server);
  ASSERT_TRUE(client->Send(Get("/warm")).ok());  // the next one goes over a pooled connection
  for (const char* path : {"/silent", "/stream"}) {
    Canceller canceller;
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(50));
      canceller.Cancel();
    });
    auto time = test::TimeOf([&] {
      auto response = client->Send(Get(path), {.canceller = &canceller});
      EXPECT_EQ(response.error().code, ErrorCode::kUnavailable);
      EXPECT_THAT(response.error().message, HasSubstr("cancelled"));
    });
    other.join();
    EXPECT_LT(time, milliseconds(150)) << path;
    auto again = test::TimeOf([&] { EXPECT_FALSE(client->Send(Get("/warm"), {.canceller = &canceller}).ok()); });
    EXPECT_LT(again, milliseconds(50));
  }
}

TEST(Client, CancelEndsConnecting) {
  // Documentation addresses are not routed; where the machine answers at once the test has nothing to wait for.
  auto client = Client::Create({.base_url = "http://192.0.2.1:81"});
  Canceller canceller;
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    canceller.Cancel();
  });
  EXPECT_LT(test::TimeOf([&] { EXPECT_FALSE((*client)->Send(Get("/"), {.canceller = &canceller}).ok()); }), milliseconds(150));
  other.join();
}

TEST(Canceller, WakesSleepers) {
  Canceller canceller;
  EXPECT_FALSE(canceller.WaitFor(milliseconds(5)));
  std::thread other([&] { canceller.Cancel(); });
  EXPECT_LT(test::TimeOf([&] { EXPECT_TRUE(canceller.WaitFor(milliseconds(5000))); }), milliseconds(500));
  other.join();
  EXPECT_EQ(canceller.Attach(0), 0u);
}

TEST(Stream, HandsOverBytesAsTheyArrive) {
  std::atomic<bool> got_first{false};
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    EXPECT_TRUE(r.Has("Accept-Encoding: identity\r\n"));
    c.BeginChunks();
    c.Chunk("first");
    EXPECT_TRUE(test::Eventually([&] { return got_first.load(); }));
    c.Chunk("second");
    c.EndChunks();
    return false;
  });
  auto client = ClientOf(server);
  std::string all;
  int status = 0;
  Status result = client->Stream(Get("/w?a=1"), milliseconds(2000), nullptr,
                                 {[&](const Response& head) { return status = head.status, true; },
                                  [&](std::string_view bytes) {
                                    all += bytes;
                                    got_first = true;
                                    return true;
                                  }});
  EXPECT_TRUE(result.ok()) << result.error().ToString();
  EXPECT_EQ(status, 200);
  EXPECT_EQ(all, "firstsecond");
}

TEST(Stream, EndsWhenNothingComesWhenBrokenAndWhenCancelled) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    c.BeginChunks();
    c.Chunk("{");
    if (r.target == "/broken") return c.Send("5\r\nab"), false;
    c.Hang();
    return false;
  });
  auto client = ClientOf(server);
  Client::StreamHandler handler{[](const Response&) { return true; }, [](std::string_view) { return true; }};
  auto time = test::TimeOf([&] {
    Status status = client->Stream(Get("/idle"), milliseconds(100), nullptr, handler);
    EXPECT_THAT(status.error().message, HasSubstr("nothing came for 100 ms"));
  });
  EXPECT_LT(time, milliseconds(300));
  EXPECT_EQ(client->Stream(Get("/broken"), milliseconds(2000), nullptr, handler).error().code, ErrorCode::kUnavailable);
  Canceller canceller;
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    canceller.Cancel();
  });
  time = test::TimeOf([&] {
    EXPECT_THAT(client->Stream(Get("/idle"), milliseconds(60000), &canceller, handler).error().message, HasSubstr("cancelled"));
  });
  other.join();
  EXPECT_LT(time, milliseconds(150));
  handler.on_data = [](std::string_view) { return false; };
  EXPECT_TRUE(client->Stream(Get("/idle"), milliseconds(2000), nullptr, handler).ok());
}

}  // namespace
}  // namespace borescope::http
