// SPDX-License-Identifier: Apache-2.0
#include "common/http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "common/gzip/gzip.h"
#include "raw_server.h"

namespace borescope::http {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A server that says what it was asked: "METHOD PATH PEER QUERY BODYSIZE".
class ServerTest : public ::testing::Test {
 protected:
  void Begin(ServerOptions options = {}) {
    server_ = std::make_unique<Server>(options);
    auto echo = [this](const Request& request) {
      last_ = request;
      std::string text = request.method + " " + request.path + " " + request.peer_address;
      for (auto& [k, v] : request.query) text += " " + k + "=" + v;
      return Response::Text(200, text + " " + std::to_string(request.body.size()));
    };
    for (const char* method : {"GET", "POST", "DELETE"}) server_->Handle(method, "/echo", echo);
    server_->Handle("GET", "/split", [](const Request& request) {
      Response response = Response::Text(200, "body");
      response.headers["X-From-Query"] = std::string(request.Query("v"));
      return response;
    });
    ASSERT_TRUE(server_->Start("127.0.0.1:0").ok());
    ASSERT_GT(server_->port(), 0);
  }
  std::string Ask(const std::string& bytes) { return test::Exchange(server_->port(), bytes); }
  std::string Post(const std::string& headers, const std::string& body) {
    return Ask("POST /echo HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n" + body);
  }

  Request last_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, Answers) {
  Begin();
  std::string answer = Ask("GET /echo?b=x%2Fy&a=1+2&b=second HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nDate: "));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nGET /echo 127.0.0.1 a=1 2 b=x/y 0\n"));
  EXPECT_THAT(Post("Content-Length: 5\r\n", "hello"), HasSubstr("POST /echo 127.0.0.1 5\n"));
  EXPECT_THAT(Ask("DELETE /echo HTTP/1.1\r\n\r\n"), HasSubstr("DELETE /echo 127.0.0.1 0\n"));
  EXPECT_EQ(server_->stats().requests, 3u);
}

TEST_F(ServerTest, AnswersHeadWithoutBody) {
  Begin();
  std::string answer = Ask("HEAD /echo HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\n"));
}

TEST_F(ServerTest, KnowsPathsAndMethods) {
  Begin();
  EXPECT_THAT(Ask("GET /nothing HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  std::string answer = Ask("PUT /echo HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(answer, HasSubstr("Allow: DELETE, GET, POST\r\n"));
  EXPECT_THAT(Ask("TRACE /echo HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 4"));
  EXPECT_THAT(Ask("GET /%2e%2e/echo HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_EQ(server_->stats().requests, 0u);
  EXPECT_EQ(server_->stats().refused, 4u);
}

TEST(Server, RoutesPrefixesAndFormsRefusals) {
  Server server({.refuse = [](int status, std::string_view message) { return Response::Json(status, "{\"m\":\"" + std::string(message) + "\"}"); }});
  server.Handle("GET", "/a/*", [](const Request&) { return Response::Text(200, "prefix"); });
  server.Handle("GET", "/a/b", [](const Request&) { return Response::Text(200, "exact"); });
  ASSERT_TRUE(server.Start("127.0.0.1:0").ok());
  auto ask = [&](const std::string& path) { return test::Exchange(server.port(), "GET " + path + " HTTP/1.1\r\n\r\n"); };
  EXPECT_THAT(ask("/a/b"), HasSubstr("exact"));
  for (const char* path : {"/a/", "/a/c", "/a/b/c", "/a//"}) EXPECT_THAT(ask(path), HasSubstr("prefix")) << path;
  for (const char* path : {"/a", "/", "/ab/c", "//a/b", "*", "a"}) EXPECT_THAT(ask(path), HasSubstr("{\"m\":\"no such path\"}")) << path;
}

TEST_F(ServerTest, RefusesAnAddressThatIsNotOurs) {
  Server other;
  EXPECT_EQ(other.Start("nonsense").error().code, ErrorCode::kInvalid);
  Begin();
  auto status = other.Start("127.0.0.1:" + std::to_string(server_->port()));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("in use"));
}

// CVE-2025-66570, CVE-2025-66577, CVE-2026-46527
TEST_F(ServerTest, PeerAddressIsNeverTakenFromHeaders) {
  Begin();
  EXPECT_THAT(Ask("GET /echo HTTP/1.1\r\nREMOTE_ADDR: 6.6.6.6\r\nX-Forwarded-For: 6.6.6.6, ,\r\nX-Real-IP: 6.6.6.6\r\n\r\n"),
              HasSubstr("GET /echo 127.0.0.1 0\n"));
  EXPECT_EQ(last_.Header("REMOTE_ADDR"), "");
}

// CVE-2025-46728, CVE-2025-52887, CVE-2025-53628
TEST_F(ServerTest, BoundsTheHead) {
  Begin();
  std::string many = "GET /echo HTTP/1.1\r\n";
  for (int i = 0; i < 101; ++i) many += "X-" + std::to_string(i) + ": y\r\n";
  EXPECT_THAT(Ask(many + "\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET /echo HTTP/1.1\r\nX: " + std::string(8300, 'a') + "\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET /echo?" + std::string(8300, 'a') + " HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 414"));
  // Endless lines: the connection ends long before a megabyte has been taken.
  for (std::string prefix : {"GET /", "GET /echo HTTP/1.1\r\nX: "}) {
    UniqueFd fd = test::ConnectTo(server_->port());
    size_t sent = 0;
    test::SendAll(fd.get(), prefix);
    std::string block(16384, 'a');
    while (sent < (64u << 20) && test::SendAll(fd.get(), block)) sent += block.size();
    EXPECT_LT(sent, 16u << 20) << prefix;
  }
}

// CVE-2025-53629
TEST_F(ServerTest, BoundsTheBody) {
  Begin({.max_body_bytes = 1000});
  EXPECT_THAT(Post("Content-Length: 1000\r\n", std::string(1000, 'a')), StartsWith("HTTP/1.1 200"));
  std::string answer = Post("Content-Length: 1001\r\n", std::string(1001, 'a'));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(answer, HasSubstr("1001 bytes, the limit is 1000 bytes"));
  EXPECT_THAT(Post("Content-Length: 18446744073709551615\r\n", ""), StartsWith("HTTP/1.1 413"));
  std::string chunk = "1f4\r\n" + std::string(500, 'a') + "\r\n";
  EXPECT_THAT(Post("Transfer-Encoding: chunked\r\n", chunk + chunk + "0\r\n\r\n"), HasSubstr("POST /echo 127.0.0.1 1000\n"));
  EXPECT_THAT(Post("Transfer-Encoding: chunked\r\n", chunk + chunk + "1\r\na\r\n0\r\n\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Post("Transfer-Encoding: chunked\r\n", "ffffffffffffffff\r\n"), StartsWith("HTTP/1.1 4"));
  EXPECT_THAT(Post("Transfer-Encoding: chunked\r\n", "fffffffffffffffe\r\n"), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Post("Transfer-Encoding: chunked\r\n", "zz\r\n"), StartsWith("HTTP/1.1 400"));
}

// CVE-2026-22776, CVE-2026-28435
TEST_F(ServerTest, BoundsWhatABodyInflatesTo) {
  Begin({.max_body_bytes = 4 << 20, .max_inflate_ratio = 100});
  auto post = [this](const std::string& body) {
    return Post("Content-Encoding: gzip\r\nContent-Length: " + std::to_string(body.size()) + "\r\n", body);
  };
  EXPECT_THAT(post(gzip::Gzip(std::string(500'000, 'x'))), HasSubstr("POST /echo 127.0.0.1 500000\n"));
  EXPECT_THAT(post(gzip::Gzip("one") + gzip::Gzip("two")), HasSubstr("POST /echo 127.0.0.1 6\n"));
  EXPECT_THAT(post(gzip::Gzip(std::string(8 << 20, 'x'), 9)), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(post(gzip::Gzip(std::string(3 << 20, 'x'), 9)), HasSubstr("grows by more than 100 times"));
  EXPECT_THAT(post("no gzip"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(post(gzip::Gzip("cut off here").substr(0, 15)), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Post("Content-Encoding: br\r\nContent-Length: 1\r\n", "x"), StartsWith("HTTP/1.1 415"));
}

// CVE-2026-21428 (the server's side: response splitting)
TEST_F(ServerTest, RefusesToWriteAHeaderThatEndsTheLine) {
  Begin();
  std::string answer = Ask("GET /split?v=a%0d%0aSet-Cookie:%20evil HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(answer, Not(HasSubstr("Set-Cookie")));
  EXPECT_THAT(Ask("GET /split?v=fine HTTP/1.1\r\n\r\n"), HasSubstr("X-From-Query: fine\r\n"));
}

// CVE-2026-45372
TEST_F(ServerTest, RefusesHeadersThatDecodeToControlCharacters) {
  Begin();
  EXPECT_THAT(Ask("GET /echo HTTP/1.1\r\nX: a%0d%0aEvil: 1\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET /echo HTTP/1.1\r\nX y: a\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET /echo HTTP/1.1\r\nX\nTransfer-Encoding: chunked\r\n\r\n"), StartsWith("HTTP/1.1 400"));
}

// CVE-2026-34441: whatever follows a request is never taken for another.
TEST_F(ServerTest, ServesOneRequestAConnection) {
  Begin();
  std::string second = "GET /echo?second=1 HTTP/1.1\r\n\r\n";
  std::string answer = Ask("GET /echo HTTP/1.1\r\nContent-Length: " + std::to_string(second.size()) + "\r\n\r\n" + second);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer, Not(HasSubstr("second")));
  answer = Ask("GET /echo HTTP/1.1\r\n\r\n" + second);
  EXPECT_THAT(answer, HasSubstr("GET /echo 127.0.0.1 0\n"));
  EXPECT_THAT(answer, Not(HasSubstr("second")));
}

TEST_F(ServerTest, RefusesAmbiguousLengths) {
  Begin();
  EXPECT_THAT(Post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Post("Content-Length: 3\r\nContent-Length: 4\r\n", "abcd"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Post("Content-Length: 3, 3\r\n", "abc"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Post("Content-Length: -1\r\n", "abc"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), StartsWith("HTTP/1.1 501"));
  EXPECT_THAT(Post("", "abc"), StartsWith("HTTP/1.1 411"));
  EXPECT_EQ(server_->stats().requests, 0u);
}

// CVE-2026-29076: a regex over a file name of a multipart body
TEST_F(ServerTest, RefusesMultipartAndIgnoresRanges) {
  Begin();
  std::string body = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename*=UTF-8''" + std::string(60000, 'a') + "\r\n\r\nx\r\n--b--\r\n";
  EXPECT_THAT(Post("Content-Type: multipart/form-data; boundary=b\r\nContent-Length: " + std::to_string(body.size()) + "\r\n", body),
              StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(Ask("GET /echo HTTP/1.1\r\nRange: bytes=0-1,1-2,2-3\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

// CVE-2026-28434
TEST_F(ServerTest, SaysNothingOfAnException) {
  Begin();
  Server server;
  server.Handle("GET", "/", [](const Request&) -> Response { throw std::runtime_error("secret"); });
  ASSERT_TRUE(server.Start("127.0.0.1:0").ok());
  std::string answer = test::Exchange(server.port(), "GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 500"));
  EXPECT_THAT(answer, Not(HasSubstr("secret")));
}

TEST_F(ServerTest, TrailersDoNotBecomeHeaders) {
  Begin();
  EXPECT_THAT(Post("Transfer-Encoding: chunked\r\n", "1\r\na\r\n0\r\nAuthorization: Bearer x\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(last_.Header("Authorization"), "");
}

TEST_F(ServerTest, AsksForAuthorizationBeforeTheBody) {
  Begin({.authorize = [](const Request& head) { return RequireBearer(head, "t"); }});
  // The body never comes.
  EXPECT_THAT(Post("Content-Length: 1000000\r\n", "a"), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Post("Expect: 100-continue\r\nContent-Length: 1000000\r\n", ""), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Post("Authorization: Bearer t\r\nContent-Length: 1\r\n", "a"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Post("Authorization: Bearer t\r\nAuthorization: Bearer u\r\nContent-Length: 1\r\n", "a"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Post("Authorization: Bearer t\r\nExpect: 100-continue\r\nContent-Length: 1\r\n", "a"), StartsWith("HTTP/1.1 100"));
}

TEST_F(ServerTest, SlowRequestsEnd) {
  Begin({.read_timeout = milliseconds(150)});
  UniqueFd fd = test::ConnectTo(server_->port());
  auto time = test::TimeOf([&] {
    for (int i = 0; i < 100 && test::SendAll(fd.get(), "G"); ++i) std::this_thread::sleep_for(milliseconds(20));
    test::ReadAll(fd.get());
  });
  EXPECT_LT(time, milliseconds(800));
}

TEST_F(ServerTest, SilentConnectionsCostNoWorker) {
  Begin({.workers = 1});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(test::ConnectTo(server_->port()));
  EXPECT_LT(test::TimeOf([&] { EXPECT_THAT(Ask("GET /echo HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200")); }), milliseconds(300));
}

TEST_F(ServerTest, TooManyConnectionsPushOutTheOldestSilentOne) {
  Begin({.max_waiting = 4});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 10; ++i) {
    silent.push_back(test::ConnectTo(server_->port()));
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_THAT(Ask("GET /echo HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_GE(server_->stats().overloaded, 6u);
  EXPECT_EQ(test::ReadAll(silent[0].get(), milliseconds(500)), "");
}

TEST_F(ServerTest, StopsAtOnceInTheMiddleOfRequests) {
  Begin({.workers = 2});
  UniqueFd half = test::ConnectTo(server_->port()), silent = test::ConnectTo(server_->port());
  test::SendAll(half.get(), "POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nhal");
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_LT(test::TimeOf([&] { server_->Stop(); }), milliseconds(100));
  EXPECT_FALSE(test::ConnectTo(server_->port()).valid());
}

TEST_F(ServerTest, ServesSeveralAtATime) {
  Server server({.workers = 4});
  std::latch all(4);
  server.Handle("GET", "/", [&](const Request&) {
    all.arrive_and_wait();
    return Response::Text(200, "ok");
  });
  ASSERT_TRUE(server.Start("[::1]:0").ok() || server.Start("127.0.0.1:0").ok());
  Server v4({.workers = 4});
  v4.Handle("GET", "/", [&](const Request&) {
    all.arrive_and_wait();
    return Response::Text(200, "ok");
  });
  ASSERT_TRUE(v4.Start(":0").ok());
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] { good += test::Exchange(v4.port(), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"); });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(good, 4);
}

}  // namespace
}  // namespace borescope::http
