// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/http/message.h"

namespace borescope::http {

struct ServerOptions {
  size_t workers = 4;                      // requests served at a time
  size_t max_waiting = 64;                 // accepted connections that wait for a worker; more are closed
  size_t max_body_bytes = 16 << 20;        // of a request, on the wire and after gzip
  size_t max_inflate_ratio = 200;          // gzip bodies that grow more than this are refused (beyond 1 MiB)
  std::chrono::milliseconds read_timeout{10'000};   // whole request, from its first byte
  std::chrono::milliseconds write_timeout{30'000};  // whole response
  // Asked before the body is read; an answer ends the request. It may set `scope` for the handlers, nothing else. Null: all are let in.
  std::function<std::optional<Response>(Request& head)> authorize = nullptr;
  // The answer to a request that the server refuses before a handler (413 body too large, 400, 405, 404 ...); null: plain text.
  // `message` is a whole sentence with the limit and the value found.
  std::function<Response(int status, std::string_view message)> refuse = nullptr;
};

struct ServerStats {
  uint64_t requests = 0;     // handed to a handler
  uint64_t refused = 0;      // 4xx before a handler, or malformed and closed
  uint64_t overloaded = 0;   // connections closed because max_waiting was reached
};

// HTTP/1.1 without TLS and keep-alive: a connection carries one request, so that what follows it is never parsed.
// Handlers run on worker threads, several at a time.
class Server {
 public:
  using Handler = std::function<Response(const Request&)>;

  explicit Server(ServerOptions options = {});
  ~Server();  // Stop()

  // Before Start. Exact path, or, when it ends in "/*", all that begins with what is before the "*" (exact ones first).
  // HEAD is answered from GET's handler. Another method on a known path gets 405.
  void Handle(std::string method, std::string path, Handler handler);

  // Listens on "HOST:PORT" ("[::1]:0", ":8080" = all addresses); port 0 takes a free one.
  Status Start(std::string_view address);
  // The port that it listens on; 0 before Start.
  int port() const;
  // Ends every connection, also those in the middle of a request, and joins the threads.
  void Stop();
  ServerStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Nothing when the request carries "Authorization: Bearer <token>", else the 401 that refuses it. An empty token refuses all.
std::optional<Response> RequireBearer(const Request& request, std::string_view token);

// "HOST:PORT", "[v6]:PORT", ":PORT" apart; kInvalid names what is wrong.
struct HostPort {
  std::string host;
  int port = 0;
};
Result<HostPort> ParseHostPort(std::string_view address);
// True for 127.0.0.0/8, ::1 and "localhost".
bool IsLoopback(std::string_view host);

}  // namespace borescope::http
