// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/http/canceller.h"
#include "common/http/message.h"

namespace borescope::http {

// PEM texts; what is empty is not used.
struct TlsMaterial {
  std::string ca = {};  // the only roots that are trusted; empty: those of the system
  std::string client_certificate = {};
  std::string client_key = {};
};

struct ClientOptions {
  std::string base_url = {};  // http://HOST[:PORT] or https://HOST[:PORT], no path
  // Asked at each new connection, so that rotated files are picked up.
  std::function<Result<TlsMaterial>()> tls = nullptr;
  // Asked at each request: the token for "Authorization: Bearer". Null or "": no such header.
  std::function<Result<std::string>()> bearer = nullptr;
  std::string user_agent = "borescope";
  std::chrono::milliseconds connect_timeout{10'000};
  size_t max_response_bytes = 64 << 20;  // after gzip; not for streams
  size_t max_idle_connections = 4;
};

struct CallOptions {
  std::chrono::milliseconds timeout{30'000};  // whole request and response
  Canceller* canceller = nullptr;
};

// HTTP/1.1 client of one server: pooled keep-alive connections, TLS >= 1.2 verified by OpenSSL (host name or IP), never a
// redirect followed, no proxy. Errors of the transport are kUnavailable (kDenied: the certificate is not accepted);
// whatever the server answered is a response, also 4xx and 5xx. The first one made sets SIGPIPE to ignored for the program.
class Client {
 public:
  static Result<std::unique_ptr<Client>> Create(ClientOptions options);
  ~Client();

  // Sends once; only a GET is sent a second time, when a pooled connection turns out to be dead.
  Result<Response> Send(const Request& request, const CallOptions& call = {});

  struct StreamHandler {
    // The head has arrived (body empty). False: enough, end the stream.
    std::function<bool(const Response& head)> on_head;
    // Some bytes of the body, boundaries mean nothing. False: end the stream.
    std::function<bool(std::string_view bytes)> on_data;
  };
  // A GET whose response is handed over as it arrives, on a connection of its own. OK: the response ended, or a handler said
  // so; kUnavailable: cancelled, broken off, or not a byte for idle_timeout. Uncompressed ("Accept-Encoding: identity").
  Status Stream(const Request& request, std::chrono::milliseconds idle_timeout, Canceller* canceller,
                const StreamHandler& handler);

  const std::string& base_url() const { return options_.base_url; }

 private:
  struct Connection;
  explicit Client(ClientOptions options);
  Result<std::unique_ptr<Connection>> Connect() const;
  std::unique_ptr<Connection> TakeIdle();
  void GiveBack(std::unique_ptr<Connection> connection);

  ClientOptions options_;
  std::string host_;
  int port_ = 0;
  bool https_ = false;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace borescope::http
