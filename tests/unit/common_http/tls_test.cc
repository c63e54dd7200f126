// SPDX-License-Identifier: Apache-2.0
#include "tls_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/http/client.h"

namespace borescope::http {
namespace {

using std::chrono::milliseconds;
using test::Identity;
using test::MakeIdentity;
using test::TlsServer;
using ::testing::HasSubstr;

class TlsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
      ca_ = MakeIdentity("test CA", "", nullptr);
    server_ = MakeIdentity("server", "IP:127.0.0.1,DNS:localhost", &ca_);
  }
  static void Ok(SSL* ssl, const std::string&) { Write(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"); }
  static void Write(SSL* ssl, const std::string& bytes) { SSL_write(ssl, bytes.data(), static_cast<int>(bytes.size())); }
  static std::unique_ptr<Client> ClientOf(int port, TlsMaterial material, const std::string& host = "127.0.0.1") {
    ClientOptions options;
    options.base_url = "https://" + host + ":" + std::to_string(port);
    options.tls = [material]() -> Result<TlsMaterial> { return material; };
    return *Client::Create(std::move(options));
  }
  static Request Get() {
    Request request;
    request.path = "/";
    return request;
  }
  static inline Identity ca_, server_;
};

TEST_F(TlsTest, TrustsTheGivenAuthorityForAddressAndName) {
  TlsServer server(server_, nullptr, Ok);
  for (const char* host : {"127.0.0.1", "localhost"}) {
    auto response = ClientOf(server.port(), {.ca = ca_.certificate}, host)->Send(Get());
    ASSERT_TRUE(response.ok()) << host << " " << response.error().ToString();
    EXPECT_EQ(response->body, "ok");
  }
}

TEST_F(TlsTest, SendsNothingToAServerItCannotVerify) {
  Identity other_ca = MakeIdentity("other CA", "", nullptr);
  Identity wrong_name = MakeIdentity("127.0.0.1", "DNS:elsewhere", &ca_);  // the common name must not count
  Identity no_name = MakeIdentity("127.0.0.1", "", &ca_);
  TlsServer good(server_, nullptr, Ok), misnamed(wrong_name, nullptr, Ok), unnamed(no_name, nullptr, Ok);
  auto error = [](int port, TlsMaterial material) { return ClientOf(port, material)->Send(Get()).status(); };
  for (Status status : {error(good.port(), {.ca = other_ca.certificate}), error(good.port(), {}),
                        error(misnamed.port(), {.ca = ca_.certificate}), error(unnamed.port(), {.ca = ca_.certificate})}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kDenied);
    EXPECT_THAT(status.error().message, HasSubstr("certificate is not accepted"));
  }
  EXPECT_EQ(good.requests() + misnamed.requests() + unnamed.requests(), 0);
}

TEST_F(TlsTest, ShowsItsCertificate) {
  Identity client = MakeIdentity("client", "", &ca_);
  std::string subject;
  TlsServer server(server_, &ca_, [&](SSL* ssl, const std::string& request) {
    X509* peer = SSL_get1_peer_certificate(ssl);
    subject = peer != nullptr ? "there" : "missing";
    X509_free(peer);
    Ok(ssl, request);
  });
  auto response = ClientOf(server.port(), {ca_.certificate, client.certificate, client.key})->Send(Get());
  ASSERT_TRUE(response.ok()) << response.error().ToString();
  EXPECT_EQ(subject, "there");
  EXPECT_FALSE(ClientOf(server.port(), {.ca = ca_.certificate})->Send(Get()).ok());
}

TEST_F(TlsTest, NamesMaterialThatIsBroken) {
  TlsServer server(server_, nullptr, Ok);
  Identity client = MakeIdentity("client", "", &ca_), other = MakeIdentity("other", "", &ca_);
  EXPECT_THAT(ClientOf(server.port(), {.ca = "nonsense"})->Send(Get()).error().message, HasSubstr("CA certificate"));
  EXPECT_THAT(ClientOf(server.port(), {ca_.certificate, "nonsense", client.key})->Send(Get()).error().message, HasSubstr("client certificate"));
  EXPECT_THAT(ClientOf(server.port(), {ca_.certificate, client.certificate, ""})->Send(Get()).error().message, HasSubstr("client key"));
  EXPECT_THAT(ClientOf(server.port(), {ca_.certificate, client.certificate, other.key})->Send(Get()).error().message, HasSubstr("client key"));
  EXPECT_EQ(server.requests(), 0);
}

TEST_F(TlsTest, TakesRotatedFilesWithTheNextConnection) {
  TlsServer server(server_, nullptr, Ok);
  TlsMaterial material{.ca = MakeIdentity("old CA", "", nullptr).certificate};
  ClientOptions options;
  options.base_url = "https://127.0.0.1:" + std::to_string(server.port());
  options.tls = [&]() -> Result<TlsMaterial> { return material; };
  auto client = *Client::Create(std::move(options));
  EXPECT_FALSE(client->Send(Get()).ok());
  material.ca += ca_.certificate;  // a bundle of two
  EXPECT_TRUE(client->Send(Get()).ok());
}

TEST_F(TlsTest, APostIsNeverSentTwice) {
  TlsServer server(server_, nullptr, [](SSL*, const std::string&) {});  // closes TLS without an answer
  auto client = ClientOf(server.port(), {.ca = ca_.certificate});
  Request post;
  post.method = "POST";
  post.path = "/";
  post.body = "x";
  EXPECT_EQ(client->Send(post).error().code, ErrorCode::kUnavailable);
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(server.requests(), 1);
}

TEST_F(TlsTest, CancelEndsTheHandshakeAndTheStream) {
  test::RawServer deaf([](test::RawConnection& c, const test::RawRequest&) { return c.Hang(), false; });
  TlsServer server(server_, nullptr, [](SSL* ssl, const std::string&) {
    Write(ssl, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    char byte;
    SSL_read(ssl, &byte, 1);
  });
  for (int port : {deaf.port(), server.port()}) {
    auto client = ClientOf(port, {.ca = ca_.certificate});
    Canceller canceller;
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(60));
      canceller.Cancel();
    });
    auto time = test::TimeOf([&] {
      Status status = client->Stream(Get(), milliseconds(60000), &canceller,
                                     {[](const Response&) { return true; }, [](std::string_view) { return true; }});
      EXPECT_THAT(status.error().message, HasSubstr("cancelled"));
    });
    other.join();
    EXPECT_LT(time, milliseconds(160));
  }
}

TEST_F(TlsTest, KeepsConnectionsAndClosesThemAtOnce) {
  TlsServer server(server_, nullptr, [](SSL* ssl, const std::string&) {
    Write(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    char bytes[4096];
    while (SSL_read(ssl, bytes, sizeof bytes) > 0) Write(ssl, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  });
  auto client = ClientOf(server.port(), {.ca = ca_.certificate});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client->Send(Get()).ok());
  EXPECT_EQ(server.handshakes(), 1);
  EXPECT_LT(test::TimeOf([&] { client.reset(); }), milliseconds(50));
}

}  // namespace
}  // namespace borescope::http
