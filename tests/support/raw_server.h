// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/fd.h"

namespace borescope::test {

inline std::string ReadAll(int fd, std::chrono::milliseconds time = std::chrono::seconds(5)) {
  std::string out;
  char buffer[65536];
  auto until = std::chrono::steady_clock::now() + time;
  while (true) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    pollfd p{fd, POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) <= 0) return out;
    ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0) return out;
    out.append(buffer, static_cast<size_t>(n));
  }
}

inline UniqueFd ConnectTo(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.Reset();
  return fd;
}

inline bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// One connection that sends `bytes` and gives all that comes back until the other side closes.
inline std::string Exchange(int port, std::string_view bytes) {
  UniqueFd fd = ConnectTo(port);
  if (!fd.valid()) return "";
  SendAll(fd.get(), bytes);
  return ReadAll(fd.get());
}

struct RawRequest {
  std::string method, target, head, body;
  std::string Path() const { return target.substr(0, target.find('?')); }
  std::string Query() const { return target.find('?') == std::string::npos ? "" : target.substr(target.find('?') + 1); }
  bool Has(std::string_view text) const { return head.find(text) != std::string::npos; }
};

// One connection of a RawServer: what is sent is sent as it is, so that a test can be any bad server.
class RawConnection {
 public:
  RawConnection(int fd, const std::atomic<bool>* stopping) : fd_(fd), stopping_(stopping) {}

  bool Send(std::string_view bytes) { return SendAll(fd_, bytes); }
  // A whole response with Content-Length.
  bool Reply(int status, std::string_view body, std::string_view more_headers = "") {
    return Send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: application/json\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n" + std::string(more_headers) + "\r\n" + std::string(body));
  }
  bool BeginChunks(std::string_view more_headers = "") {
    return Send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n" + std::string(more_headers) + "\r\n");
  }
  bool Chunk(std::string_view bytes) {
    char size[32];
    snprintf(size, sizeof size, "%zx\r\n", bytes.size());
    return Send(size + std::string(bytes) + "\r\n");
  }
  bool EndChunks() { return Send("0\r\n\r\n"); }
  // Until the peer closes, or the server stops.
  void Hang() {
    char byte;
    while (!*stopping_) {
      pollfd p{fd_, POLLIN, 0};
      if (::poll(&p, 1, 5) > 0 && ::recv(fd_, &byte, 1, 0) <= 0) return;
    }
  }
  int fd() const { return fd_; }

 private:
  int fd_;
  const std::atomic<bool>* stopping_;
};

// A server of plain sockets on a free loopback port. The script answers one request; true keeps the connection for the next.
class RawServer {
 public:
  using Script = std::function<bool(RawConnection&, const RawRequest&)>;

  explicit RawServer(Script script) : script_(std::move(script)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_.get(), 64);
    socklen_t length = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~RawServer() { Stop(); }

  void Stop() {
    if (stopping_.exchange(true)) return;
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
    listener_.Reset();
  }
  int port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int connections() const { return connections_; }
  std::vector<RawRequest> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void Accept() {
    while (!stopping_) {
      pollfd p{listener_.get(), POLLIN, 0};
      if (::poll(&p, 1, 5) <= 0) continue;
      int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      ++connections_;
      threads_.emplace_back([this, fd] { Serve(UniqueFd(fd)); });
    }
  }
  void Serve(UniqueFd fd) {
    RawConnection connection(fd.get(), &stopping_);
    std::string buffer;
    RawRequest request;
    while (Read(fd.get(), &buffer, &request)) {
      {
        std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      if (!script_(connection, request)) break;
    }
    ::shutdown(fd.get(), SHUT_WR);
  }
  bool Read(int fd, std::string* buffer, RawRequest* request) {
    size_t head_end;
    char bytes[4096];
    auto more = [&] {
      while (!stopping_) {
        pollfd p{fd, POLLIN, 0};
        if (::poll(&p, 1, 5) <= 0) continue;
        ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0) return false;
        buffer->append(bytes, static_cast<size_t>(n));
        return true;
      }
      return false;
    };
    while ((head_end = buffer->find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return false;
    }
    *request = {};
    request->head = buffer->substr(0, head_end + 2);
    size_t a = request->head.find(' '), b = request->head.find(' ', a + 1);
    request->method = request->head.substr(0, a);
    request->target = request->head.substr(a + 1, b - a - 1);
    size_t length = 0, at = request->head.find("Content-Length: ");
    if (at != std::string::npos) length = std::stoul(request->head.substr(at + 16));
    while (buffer->size() < head_end + 4 + length) {
      if (!more()) return false;
    }
    request->body = buffer->substr(head_end + 4, length);
    buffer->erase(0, head_end + 4 + length);
    return true;
  }

  Script script_;
  UniqueFd listener_;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0};
  mutable std::mutex mutex_;
  std::vector<RawRequest> requests_;
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

// Waits until `condition` holds, at most `time`.
inline bool Eventually(const std::function<bool()>& condition, std::chrono::milliseconds time = std::chrono::seconds(5)) {
  auto until = std::chrono::steady_clock::now() + time;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline std::chrono::milliseconds TimeOf(const std::function<void()>& f) {
  auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

}  // namespace borescope::test
