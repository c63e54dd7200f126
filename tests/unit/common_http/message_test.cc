// SPDX-License-Identifier: Apache-2.0
#include "common/http/message.h"

#include <gtest/gtest.h>

#include "common/http/server.h"

namespace borescope::http {
namespace {

TEST(Headers, NamesIgnoreCase) {
  Request request;
  request.headers["Content-Type"] = "a";
  EXPECT_EQ(request.Header("content-type"), "a");
  EXPECT_EQ(request.Header("missing"), "");
}

TEST(Query, IsEncoded) {
  EXPECT_EQ(EncodeQuery({{"b", "x/y z"}, {"a", "1=2&3"}}), "a=1%3D2%263&b=x%2Fy%20z");
  EXPECT_EQ(PercentEncode("Az09-._~"), "Az09-._~");
  EXPECT_EQ(PercentEncode("\xc3\xbc\r\n"), "%C3%BC%0D%0A");
}

TEST(HostPort, TakesWhatPeopleWrite) {
  auto parsed = ParseHostPort("[::1]:8080");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->host, "::1");
  EXPECT_EQ(parsed->port, 8080);
  EXPECT_EQ(ParseHostPort(":80")->host, "");
  EXPECT_EQ(ParseHostPort("localhost:0")->port, 0);
  for (const char* bad : {"", "host", "host:", "host:x", "host:65536", "host:99999999999", "::1:80", "[::1", "[]:1", "a b:1", "u@h:1"}) {
    EXPECT_EQ(ParseHostPort(bad).error().code, ErrorCode::kInvalid) << bad;
  }
}

TEST(Loopback, KnowsItself) {
  for (const char* yes : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) EXPECT_TRUE(IsLoopback(yes)) << yes;
  for (const char* no : {"0.0.0.0", "10.0.0.1", "::", "", "localhost.example.com", "127.0.0.1.example.com"}) EXPECT_FALSE(IsLoopback(no)) << no;
}

TEST(Bearer, OnlyTheTokenItself) {
  auto with = [](const std::string& value) {
    Request request;
    request.headers["Authorization"] = value;
    return request;
  };
  EXPECT_FALSE(RequireBearer(with("Bearer secret"), "secret"));
  EXPECT_FALSE(RequireBearer(with("bearer secret"), "secret"));
  for (const char* bad : {"", "Bearer", "Bearer ", "Bearer secre", "Bearer secret1", "Bearer Secret", "Basic secret", "secret"}) {
    auto refusal = RequireBearer(with(bad), "secret");
    ASSERT_TRUE(refusal) << bad;
    EXPECT_EQ(refusal->status, 401);
    EXPECT_EQ(refusal->Header("WWW-Authenticate"), "Bearer");
  }
  EXPECT_TRUE(RequireBearer(with("Bearer "), ""));
}

}  // namespace
}  // namespace borescope::http
