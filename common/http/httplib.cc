// SPDX-License-Identifier: Apache-2.0
// The only file that includes httplib.h. Of its server only the reading of one request and the writing of one response are used;
// listening, threads, routing, limits and the end of a connection are ours. README.md beside this file says why.
#define CPPHTTPLIB_USE_POLL                  // select() fails on descriptors above 1023
#define CPPHTTPLIB_MAX_LINE_LENGTH 9216      // its status-line regex recurses once a character
#define CPPHTTPLIB_REQUEST_URI_MAX_LENGTH 8192
#define CPPHTTPLIB_HEADER_MAX_LENGTH 8192
#define CPPHTTPLIB_HEADER_MAX_COUNT 100
#include <httplib.h>
#include <netdb.h>
#include <openssl/pem.h>
#include <sys/eventfd.h>

#include <condition_variable>
#include <deque>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/http/client.h"
#include "common/gzip/gzip.h"
#include "common/http/server.h"

namespace borescope::http {
namespace {

using std::chrono::milliseconds;
using SteadyTime = std::chrono::steady_clock::time_point;
SteadyTime Now() { return std::chrono::steady_clock::now(); }

bool IsToken(std::string_view s) {
  constexpr std::string_view kMore = "!#$%&'*+-.^_`|~";
  for (char c : s) {
    bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alphanumeric && kMore.find(c) == std::string_view::npos) return false;
  }
  return !s.empty();
}

// No control characters: nothing that could end the line.
bool IsFieldValue(std::string_view s) {
  return std::none_of(s.begin(), s.end(), [](char c) {
    unsigned char u = static_cast<unsigned char>(c);
    return (u < 0x20 && u != '\t') || u == 0x7f;
  });
}

bool EqualIgnoreCase(std::string_view a, std::string_view b) {
  HeaderNameLess less;
  return !less(a, b) && !less(b, a);
}

void Join(const httplib::Headers& from, Headers* to) {
  for (const auto& [name, value] : from) {
    auto [it, fresh] = to->emplace(name, value);
    if (!fresh) it->second += ", " + value;
  }
}

// "Mon, 30 Nov 2026 13:00:00 GMT"
std::string HttpDate() {
  time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char buffer[64];
  strftime(buffer, sizeof buffer, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return buffer;
}

// ---- server --------------------------------------------------------------------------------------------------------------

// A socket under a deadline for the whole request and one for the whole response; reads in blocks.
class DeadlineStream final : public httplib::Stream {
 public:
  DeadlineStream(int socket, milliseconds read_time, milliseconds write_time)
      : socket_(socket), read_until_(Now() + read_time), write_time_(write_time) {}

  bool is_readable() const override { return begin_ < end_ || Wait(POLLIN, read_until_); }
  bool is_writable() const override { return Wait(POLLOUT, WriteUntil()); }
  ssize_t read(char* out, size_t size) override {
    if (begin_ == end_) {
      if (!Wait(POLLIN, read_until_)) return -1;
      ssize_t n = ::recv(socket_, buffer_, sizeof buffer_, 0);
      if (n <= 0) return n;
      begin_ = 0;
      end_ = static_cast<size_t>(n);
    }
    size_t n = std::min(size, end_ - begin_);
    memcpy(out, buffer_ + begin_, n);
    begin_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* data, size_t size) override {
    if (!is_writable()) return -1;
    return ::send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  SteadyTime WriteUntil() const {
    if (!write_until_) write_until_ = Now() + write_time_;
    return *write_until_;
  }
  bool Wait(short events, SteadyTime until) const {
    while (true) {
      auto left = std::chrono::duration_cast<milliseconds>(until - Now()).count();
      if (left <= 0) return false;
      pollfd p{socket_, events, 0};
      int rc = ::poll(&p, 1, static_cast<int>(left));
      if (rc > 0) return true;
      if (rc == 0 || errno != EINTR) return false;
    }
  }

  int socket_;
  SteadyTime read_until_;
  milliseconds write_time_;
  mutable std::optional<SteadyTime> write_until_;
  size_t begin_ = 0, end_ = 0;
  char buffer_[16384];
};

std::string PeerAddress(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST];
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  std::string_view text = host;
  if (text.starts_with("::ffff:") && text.find('.') != std::string_view::npos) text.remove_prefix(7);
  return std::string(text);
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(ServerOptions options) : options_(std::move(options)) {}

  void Handle(std::string method, std::string path, Handler handler) {
    routes_[std::move(path)][std::move(method)] = std::move(handler);
  }
  Status Start(std::string_view address);
  void Stop();
  int port() const { return port_; }
  ServerStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  class Worker;
  struct Waiting {
    UniqueFd socket;
    SteadyTime until;
  };

  void Accept();
  void Work(Worker* worker);

  const ServerOptions options_;
  std::map<std::string, std::map<std::string, Handler, std::less<>>, std::less<>> routes_;
  UniqueFd listener_, wake_;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<UniqueFd> ready_;  // connections with a request to read
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  ServerStats stats_;
};

// Serves one connection at a time; httplib's state machine for one request hangs on the instance.
class Server::Impl::Worker final : public httplib::Server {
 public:
  explicit Worker(Impl* server) : server_(*server) {
    set_payload_max_length(server_.options_.max_body_bytes);
    set_expect_100_continue_handler([this](const httplib::Request&, httplib::Response& out) -> int {
      if (!refusal_) return 100;
      Fill(*std::move(refusal_), &out);
      return out.status;
    });
    set_pre_routing_handler([this](const httplib::Request&, httplib::Response& out) {
      if (!refusal_) return HandlerResponse::Unhandled;
      Fill(*std::move(refusal_), &out);
      return HandlerResponse::Handled;
    });
    // Without one httplib writes the exception's text into a response header.
    set_exception_handler([this](const httplib::Request&, httplib::Response& out, std::exception_ptr) {
      Log(LogLevel::kError, "a handler threw; that is a fault of this program", {{"path", head_.path}});
      Fill(Response::Text(500, "internal error"), &out);
    });
    auto plain = [this](const httplib::Request&, httplib::Response& out) { Run(&out); };
    auto with_body = [this](const httplib::Request&, httplib::Response& out, const httplib::ContentReader& reader) {
      if (ReadBody(reader, &out)) Run(&out);
    };
    Get("/", plain);
    Options("/", plain);
    Post("/", with_body);
    Put("/", with_body);
    Patch("/", with_body);
    Delete("/", with_body);
    set_post_routing_handler([](const httplib::Request&, httplib::Response& out) { out.set_header("Date", HttpDate()); });
  }

  void Serve(int socket) {
    head_ = {};
    head_.peer_address = PeerAddress(socket);
    handler_ = nullptr;
    refusal_.reset();
    ran_ = false;
    DeadlineStream stream(socket, server_.options_.read_timeout, server_.options_.write_timeout);
    bool closed = false;
    process_request(stream, "", 0, "", 0, /*close_connection=*/true, closed,
                    [this](httplib::Request& request) { TakeHead(&request); });
    {
      std::lock_guard lock(server_.mutex_);
      ++(ran_ ? server_.stats_.requests : server_.stats_.refused);
    }
    // Closing with unread bytes would reset the connection before the client has read why it was refused.
    if (!ran_) Linger(socket);
  }

  int socket = -1;  // guarded by server_.mutex_

 private:
  // Moves what httplib would act upon by itself (ranges, compression, its own routing) out of its sight, and decides.
  void TakeHead(httplib::Request* request) {
    for (const char* name : {"REMOTE_ADDR", "REMOTE_PORT", "LOCAL_ADDR", "LOCAL_PORT"}) request->headers.erase(name);
    head_.method = request->method;
    head_.path = std::exchange(request->path, "/");
    for (auto& [key, value] : request->params) head_.query.emplace(key, value);
    refusal_ = CheckHead(*request);
    Join(request->headers, &head_.headers);
    request->ranges.clear();
    for (const char* name : {"Range", "Accept-Encoding", "Content-Encoding"}) request->headers.erase(name);
    if (!refusal_) refusal_ = Route();
    if (!refusal_ && server_.options_.authorize) refusal_ = server_.options_.authorize(head_);
  }

  std::optional<Response> CheckHead(const httplib::Request& request) const {
    for (const auto& [name, value] : request.headers) {
      if (!IsToken(name) || !IsFieldValue(value)) return Refuse(400, "a header is malformed");
    }
    for (const char* name : {"Host", "Authorization", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding"}) {
      if (request.headers.count(name) > 1) return Refuse(400, std::string("more than one ") + name + " header");
    }
    bool has_length = request.has_header("Content-Length"), chunked = request.has_header("Transfer-Encoding");
    if (has_length && chunked) return Refuse(400, "both Content-Length and Transfer-Encoding");
    if (chunked && !EqualIgnoreCase(request.get_header_value("Transfer-Encoding"), "chunked")) {
      return Refuse(501, "of the transfer codings only chunked is understood");
    }
    std::string length_text = request.get_header_value("Content-Length");
    auto length = ParseUint(length_text);
    if (has_length && !length) return Refuse(400, "Content-Length is no number");
    bool may_have_body = request.method != "GET" && request.method != "HEAD" && request.method != "OPTIONS";
    if (!may_have_body && (chunked || length.value_or(0) > 0)) return Refuse(400, request.method + " takes no body");
    if (may_have_body && !has_length && !chunked && request.method != "DELETE") {
      return Refuse(411, "the request needs a Content-Length");
    }
    if (length.value_or(0) > server_.options_.max_body_bytes) return TooLarge(*length);
    if (request.get_header_value("Content-Type").starts_with("multipart/")) return Refuse(415, "multipart bodies are not taken");
    std::string coding = request.get_header_value("Content-Encoding");
    if (!coding.empty() && !EqualIgnoreCase(coding, "gzip") && !EqualIgnoreCase(coding, "identity")) {
      return Refuse(415, "of the content codings only gzip is understood");
    }
    return std::nullopt;
  }

  // length: as announced; 0 when the body turned out to be too large.
  Response TooLarge(uint64_t length) const {
    return Refuse(413, (length > 0 ? "the body has " + std::to_string(length) + " bytes" : "the body is too large") + ", the limit is " +
                           std::to_string(server_.options_.max_body_bytes) + " bytes, also after gzip: send less in one request");
  }

  Response Refuse(int status, std::string_view message) const {
    return server_.options_.refuse ? server_.options_.refuse(status, message) : Response::Text(status, message);
  }

  std::optional<Response> Route() {
    auto path = server_.routes_.find(head_.path);
    for (size_t slash = head_.path.rfind('/'); path == server_.routes_.end() && slash != std::string::npos && slash > 0;
         slash = head_.path.rfind('/', slash - 1)) {
      path = server_.routes_.find(head_.path.substr(0, slash) + "/*");
    }
    if (path == server_.routes_.end()) return Refuse(404, "no such path");
    auto method = path->second.find(head_.method == "HEAD" ? "GET" : head_.method);
    if (method == path->second.end()) {
      Response response = Refuse(405, "the path is not for this method");
      for (const auto& [name, unused] : path->second) {
        std::string& allow = response.headers["Allow"];
        allow += (allow.empty() ? "" : ", ") + name;
      }
      return response;
    }
    handler_ = &method->second;
    return std::nullopt;
  }

  bool ReadBody(const httplib::ContentReader& reader, httplib::Response* out) {
    std::optional<gzip::GunzipStream> gunzip;
    if (EqualIgnoreCase(head_.Header("Content-Encoding"), "gzip")) {
      gunzip.emplace(server_.options_.max_body_bytes, server_.options_.max_inflate_ratio);
    }
    Status status;
    bool complete = reader([&](const char* data, size_t size) {
      if (gunzip) {
        status = gunzip->Append({data, size}, &head_.body);
      } else {
        head_.body.append(data, size);
      }
      return status.ok();
    });
    if (complete && gunzip) status = gunzip->Finish();
    if (complete && status.ok()) return true;
    if (!status.ok()) {
      Fill(Refuse(status.error().code == ErrorCode::kExhausted ? 413 : 400, status.error().message), out);
    } else if (out->status == 413) {
      Fill(TooLarge(0), out);
    } else {
      Fill(Refuse(400, "the body is cut off"), out);
    }
    return false;
  }

  void Run(httplib::Response* out) {
    ran_ = true;
    Fill((*handler_)(head_), out);
  }

  void Fill(Response response, httplib::Response* out) {
    for (const auto& [name, value] : response.headers) {
      if (!IsToken(name) || !IsFieldValue(value)) {
        Log(LogLevel::kError, "a response header is malformed; the response is withheld", {{"header", name}, {"path", head_.path}});
        response = Response::Text(500, "the answer could not be written");
        break;
      }
    }
    out->status = response.status;
    std::string type = "text/plain; charset=utf-8";
    for (auto& [name, value] : response.headers) {
      if (EqualIgnoreCase(name, "Content-Type")) {
        type = value;
      } else if (!EqualIgnoreCase(name, "Content-Length") && !EqualIgnoreCase(name, "Connection")) {
        out->headers.emplace(name, value);
      }
    }
    out->set_content(std::move(response.body), type);
  }

  static void Linger(int socket) {
    ::shutdown(socket, SHUT_WR);
    SteadyTime until = Now() + milliseconds(200);
    char sink[16384];
    size_t drained = 0;
    pollfd p{socket, POLLIN, 0};
    while (drained < (4 << 20) && Now() < until && ::poll(&p, 1, 50) > 0) {
      ssize_t n = ::recv(socket, sink, sizeof sink, MSG_DONTWAIT);
      if (n <= 0) return;
      drained += static_cast<size_t>(n);
    }
  }

  Impl& server_;
  Request head_;
  const http::Server::Handler* handler_ = nullptr;
  std::optional<Response> refusal_;
  bool ran_ = false;
};

Status Server::Impl::Start(std::string_view address) {
  ASSIGN_OR_RETURN(HostPort where, ParseHostPort(address));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int rc = ::getaddrinfo(where.host.empty() ? nullptr : where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  if (rc != 0) {
    return Error{ErrorCode::kInvalid, "listen on " + std::string(address) + ": " + ::gai_strerror(rc)};
  }
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<addrinfo*> candidates;
  for (addrinfo* a = found; a != nullptr; a = a->ai_next) candidates.push_back(a);
  // All addresses: one IPv6 socket takes both families.
  if (where.host.empty()) {
    std::partition(candidates.begin(), candidates.end(), [](addrinfo* a) { return a->ai_family == AF_INET6; });
  }
  Error last{ErrorCode::kUnavailable, "no address"};
  for (addrinfo* a : candidates) {
    UniqueFd fd(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int on = 1, off = 0;
    if (fd.valid()) {
      ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (a->ai_family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, where.host.empty() ? &off : &on, sizeof on);
    }
    if (fd.valid() && ::bind(fd.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd.get(), 128) == 0) {
      listener_ = std::move(fd);
      break;
    }
    last = ErrnoError("listen on " + std::string(address));
  }
  if (!listener_.valid()) return last;
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return ErrnoError("eventfd");
  for (size_t i = 0; i < options_.workers; ++i) workers_.push_back(std::make_unique<Worker>(this));
  for (auto& worker : workers_) threads_.emplace_back([this, w = worker.get()] { Work(w); });
  threads_.emplace_back([this] { Accept(); });
  return OkStatus();
}

void Server::Impl::Stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || threads_.empty()) return;
    stopping_ = true;
    for (auto& worker : workers_) {
      if (worker->socket >= 0) ::shutdown(worker->socket, SHUT_RDWR);
    }
    WakeEventFd(wake_.get());
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  listener_.Reset();
}

// Accepts, and holds each connection until its first byte is there: silent ones cost no worker.
void Server::Impl::Accept() {
  std::deque<Waiting> waiting;
  while (true) {
    std::vector<pollfd> polls{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Waiting& w : waiting) polls.push_back({w.socket.get(), POLLIN, 0});
    int timeout = waiting.empty() ? -1
                                  : static_cast<int>(std::max<int64_t>(
                                        0, std::chrono::duration_cast<milliseconds>(waiting.front().until - Now()).count() + 1));
    if (::poll(polls.data(), polls.size(), timeout) < 0 && errno != EINTR) {
      Log(LogLevel::kError, "poll failed; the HTTP server accepts no more", {{"error", strerror(errno)}});
      return;
    }
    if (polls[0].revents != 0) return;
    SteadyTime now = Now();
    size_t queued;
    {
      std::lock_guard lock(mutex_);
      std::deque<Waiting> still;
      for (size_t i = 0; i < waiting.size(); ++i) {
        if (polls[i + 2].revents != 0) {
          ready_.push_back(std::move(waiting[i].socket));
          changed_.notify_one();
        } else if (waiting[i].until > now) {
          still.push_back(std::move(waiting[i]));
        }
      }
      waiting = std::move(still);
      queued = ready_.size();
    }
    if (polls[1].revents == 0) continue;
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) {
      // No descriptors or memory left: the connection stays in the backlog; do not spin on it.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) std::this_thread::sleep_for(milliseconds(10));
      continue;
    }
    int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (waiting.size() + queued >= options_.max_waiting) {
      std::lock_guard lock(mutex_);
      ++stats_.overloaded;
      if (waiting.empty()) continue;  // all are at work: the new one is closed
      waiting.pop_front();            // the one that has been silent longest
    }
    waiting.push_back({std::move(fd), now + options_.read_timeout});
  }
}

void Server::Impl::Work(Worker* worker) {
  while (true) {
    UniqueFd fd;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !ready_.empty(); });
      if (stopping_) return;
      fd = std::move(ready_.front());
      ready_.pop_front();
      worker->socket = fd.get();
    }
    worker->Serve(fd.get());
    std::lock_guard lock(mutex_);
    worker->socket = -1;
  }
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() { Stop(); }
void Server::Handle(std::string method, std::string path, Handler handler) {
  impl_->Handle(std::move(method), std::move(path), std::move(handler));
}
Status Server::Start(std::string_view address) { return impl_->Start(address); }
int Server::port() const { return impl_->port(); }
void Server::Stop() { impl_->Stop(); }
ServerStats Server::stats() const { return impl_->stats(); }

// ---- client --------------------------------------------------------------------------------------------------------------

namespace {

constexpr auto kMaxIdle = std::chrono::seconds(60);  // the API server closes idle connections after 90 s

void TuneSocket(int socket) {
  int on = 1, idle_s = 30, interval_s = 10, probes = 3;
  unsigned user_timeout_ms = 30'000;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

// connect() on it will fail: the number now stands for something that is no socket.
void Spoil(int socket) {
  UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null.valid()) ::dup3(null.get(), socket, O_CLOEXEC);
}

std::string OpensslError() {
  char buffer[256] = "unknown error";
  if (unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, buffer, sizeof buffer);
  ERR_clear_error();
  return buffer;
}

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
Bio PemBio(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free); }

// Reads all certificates of a PEM text. False: none, or one that is broken.
bool EachCertificate(const std::string& pem, const std::function<bool(X509*)>& take) {
  Bio bio = PemBio(pem);
  int count = 0;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    ++count;
    bool ok = take(certificate);
    X509_free(certificate);
    if (!ok) return false;
  }
  bool clean_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (clean_end) ERR_clear_error();
  return count > 0 && clean_end;
}

}  // namespace

struct Client::Connection {
  std::unique_ptr<httplib::ClientImpl> http;
  std::string tls_problem;  // why the server's certificate was not accepted
  SteadyTime last_used = Now();

  // Of the request in flight:
  Canceller* canceller = nullptr;
  std::vector<uint64_t> tickets;
  bool idempotent = false;
  bool written = false;

  void OnSocket(int socket) {
    TuneSocket(socket);
    // httplib would send a request once more when the peer closes TLS just after it was written; that is only right for a GET.
    if (written && !idempotent) return Spoil(socket);
    if (canceller == nullptr) return;
    uint64_t ticket = canceller->Attach(socket);
    if (ticket == 0) return Spoil(socket);
    tickets.push_back(ticket);
  }

  void Begin(const Request& request, Canceller* c) {
    canceller = c;
    idempotent = request.method == "GET" || request.method == "HEAD";
    written = false;
    tls_problem.clear();
    if (canceller == nullptr || http->is_socket_open() == 0) return;
    if (uint64_t ticket = canceller->Attach(http->socket()); ticket != 0) {
      tickets.push_back(ticket);
    } else {
      ::shutdown(http->socket(), SHUT_RDWR);
    }
  }
  void End() {
    for (uint64_t ticket : tickets) canceller->Detach(ticket);
    tickets.clear();
    canceller = nullptr;
    last_used = Now();
  }
};

namespace {

// Certificates are verified here, by OpenSSL itself, name included; httplib's own check trusts the system's roots beside the
// given ones and compares addresses and common names loosely.
Status SetUpTls(SSL_CTX* context, const std::string& host, const TlsMaterial& material, std::string* problem) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_quiet_shutdown(context, 1);  // httplib waits up to a second for the peer's close_notify otherwise
  if (material.ca.empty()) {
    SSL_CTX_set_default_verify_paths(context);
  } else {
    X509_STORE* store = X509_STORE_new();
    SSL_CTX_set_cert_store(context, store);  // takes it
    if (!EachCertificate(material.ca, [store](X509* c) { return X509_STORE_add_cert(store, c) == 1; })) {
      return Error{ErrorCode::kInvalid, "the CA certificate is no PEM certificate (" + OpensslError() + ")"};
    }
  }
  if (!material.client_certificate.empty()) {
    bool first = true;
    bool ok = EachCertificate(material.client_certificate, [&](X509* c) {
      if (std::exchange(first, false)) return SSL_CTX_use_certificate(context, c) == 1;
      return SSL_CTX_add1_chain_cert(context, c) == 1;
    });
    if (!ok) return Error{ErrorCode::kInvalid, "the client certificate is no PEM certificate (" + OpensslError() + ")"};
    Bio bio = PemBio(material.client_key);
    // The password callback gives none, so that an encrypted key fails instead of asking on the terminal.
    EVP_PKEY* key = PEM_read_bio_PrivateKey(bio.get(), nullptr, [](char*, int, int, void*) { return -1; }, nullptr);
    ok = key != nullptr && SSL_CTX_use_PrivateKey(context, key) == 1 && SSL_CTX_check_private_key(context) == 1;
    EVP_PKEY_free(key);
    if (!ok) return Error{ErrorCode::kInvalid, "the client key is not usable with its certificate (" + OpensslError() + ")"};
  }
  X509_VERIFY_PARAM* param = SSL_CTX_get0_param(context);
  X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  if (X509_VERIFY_PARAM_set1_ip_asc(param, host.c_str()) != 1 && X509_VERIFY_PARAM_set1_host(param, host.c_str(), 0) != 1) {
    return Error{ErrorCode::kInvalid, "cannot verify certificates for the host \"" + SanitizeName(host) + "\""};
  }
  ERR_clear_error();
  SSL_CTX_set_app_data(context, problem);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, [](int ok, X509_STORE_CTX* store) {
    if (ok == 1) return 1;
    auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto* text = static_cast<std::string*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
    *text = X509_verify_cert_error_string(X509_STORE_CTX_get_error(store));
    return 0;
  });
  return OkStatus();
}

Result<httplib::Request> Encode(const Request& request, const std::string& user_agent, const std::string& bearer,
                                std::string_view accept_encoding) {
  httplib::Request out;
  out.method = request.method;
  out.path = request.path;
  if (!request.query.empty()) out.path += '?' + EncodeQuery(request.query);
  bool bad_path = out.path.empty() || out.path[0] != '/' || std::any_of(out.path.begin(), out.path.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f;
  });
  if (bad_path || !IsToken(out.method)) {
    return Error{ErrorCode::kInvalid, "\"" + SanitizeName(out.method + " " + out.path) + "\" is no request line; percent-encode the path"};
  }
  out.body = request.body;
  out.headers = {{"User-Agent", user_agent}, {"Accept-Encoding", std::string(accept_encoding)}};
  if (!bearer.empty()) out.headers.emplace("Authorization", "Bearer " + bearer);
  for (const auto& [name, value] : request.headers) {
    out.headers.erase(name);
    out.headers.emplace(name, value);
  }
  for (const auto& [name, value] : out.headers) {
    if (!IsToken(name) || !IsFieldValue(value)) {
      return Error{ErrorCode::kInvalid, "the request header \"" + SanitizeName(name) + "\" has a character that no header may have"};
    }
  }
  return out;
}

std::string_view Describe(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection: return "could not connect";
    case httplib::Error::ConnectionTimeout: return "could not connect in time";
    case httplib::Error::SSLConnection: return "the TLS handshake failed";
    case httplib::Error::Write: return "the connection broke while sending";
    case httplib::Error::Read: return "the connection broke, or no answer came in time";
    default: return "the request failed";
  }
}

}  // namespace

Client::Client(ClientOptions options) : options_(std::move(options)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  // OpenSSL writes to sockets without MSG_NOSIGNAL: a peer that has gone would end the program.
  struct sigaction pipe {};
  if (::sigaction(SIGPIPE, nullptr, &pipe) == 0 && pipe.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<Client> client(new Client(std::move(options)));
  std::string_view url = client->options_.base_url;
  Error bad{ErrorCode::kInvalid, "\"" + SanitizeName(url) + "\" is no address of a server; write http://HOST:PORT or https://HOST:PORT"};
  if (url.starts_with("https://")) {
    client->https_ = true;
    url.remove_prefix(8);
  } else if (url.starts_with("http://")) {
    url.remove_prefix(7);
  } else {
    return bad;
  }
  if (url.ends_with('/')) url.remove_suffix(1);
  bool has_port = url.find(':', url.starts_with('[') ? std::min(url.find(']'), url.size()) : 0) != std::string_view::npos;
  auto where = ParseHostPort(has_port ? std::string(url) : std::string(url) + (client->https_ ? ":443" : ":80"));
  if (!where.ok() || where->host.empty() || where->port == 0) return bad;
  client->host_ = where->host;
  client->port_ = where->port;
  while (client->options_.base_url.ends_with('/')) client->options_.base_url.pop_back();
  return client;
}

Result<std::unique_ptr<Client::Connection>> Client::Connect() const {
  auto connection = std::make_unique<Connection>();
  Connection* c = connection.get();
  if (https_) {
    TlsMaterial material;
    if (options_.tls) {
      ASSIGN_OR_RETURN(material, options_.tls());
    }
    auto ssl = std::make_unique<httplib::SSLClient>(host_, port_);
    if (ssl->ssl_context() == nullptr) return Error{ErrorCode::kInternal, "OpenSSL gives no context: " + OpensslError()};
    RETURN_IF_ERROR(SetUpTls(ssl->ssl_context(), host_, material, &c->tls_problem));
    ssl->enable_server_certificate_verification(false);  // its own; ours is in the context
    connection->http = std::move(ssl);
  } else {
    connection->http = std::make_unique<httplib::ClientImpl>(host_, port_);
  }
  httplib::ClientImpl& http = *connection->http;
  http.set_socket_options([c](int socket) { c->OnSocket(socket); });
  http.set_header_writer([c](httplib::Stream& stream, httplib::Headers& headers) {
    c->written = true;
    return httplib::detail::write_headers(stream, headers);
  });
  http.set_connection_timeout(options_.connect_timeout);
  http.set_write_timeout(std::chrono::seconds(10));
  http.set_tcp_nodelay(true);
  http.set_follow_location(false);
  http.set_url_encode(false);
  http.set_decompress(false);
  return connection;
}

std::unique_ptr<Client::Connection> Client::TakeIdle() {
  std::vector<std::unique_ptr<Connection>> stale;  // closed outside the lock
  std::lock_guard lock(mutex_);
  while (!idle_.empty()) {
    auto connection = std::move(idle_.back());
    idle_.pop_back();
    if (Now() - connection->last_used < kMaxIdle && connection->http->is_socket_open() != 0) return connection;
    stale.push_back(std::move(connection));
  }
  return nullptr;
}

void Client::GiveBack(std::unique_ptr<Connection> connection) {
  std::lock_guard lock(mutex_);
  if (idle_.size() < options_.max_idle_connections) idle_.push_back(std::move(connection));
}

Result<Response> Client::Send(const Request& request, const CallOptions& call) {
  const std::string what = request.method + " " + options_.base_url + request.path;
  std::string bearer;
  if (options_.bearer) {
    ASSIGN_OR_RETURN(bearer, options_.bearer());
  }
  const SteadyTime deadline = Now() + call.timeout;
  for (bool may_retry = request.method == "GET";; may_retry = false) {
    ASSIGN_OR_RETURN(httplib::Request wire, Encode(request, options_.user_agent, bearer, "gzip"));
    std::unique_ptr<Connection> connection = TakeIdle();
    const bool reused = connection != nullptr;
    if (!reused) {
      ASSIGN_OR_RETURN(connection, Connect());
    }
    Response response;
    Status failure;
    bool head_seen = false;
    std::optional<gzip::GunzipStream> gunzip;
    wire.response_handler = [&](const httplib::Response& head) {
      head_seen = true;
      std::string coding = head.get_header_value("Content-Encoding");
      if (EqualIgnoreCase(coding, "gzip")) {
        gunzip.emplace(options_.max_response_bytes, 1032);
      } else if (!coding.empty() && !EqualIgnoreCase(coding, "identity")) {
        failure = Error{ErrorCode::kUnsupported, "the response has the content coding \"" + SanitizeName(coding) + "\", which was not asked for"};
      }
      return failure.ok();
    };
    wire.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      if (gunzip) {
        failure = gunzip->Append({data, size}, &response.body);
      } else if (response.body.size() + size > options_.max_response_bytes) {
        failure = Error{ErrorCode::kExhausted, "the response is larger than " + std::to_string(options_.max_response_bytes) + " bytes"};
      } else {
        response.body.append(data, size);
      }
      if (failure.ok() && Now() > deadline) failure = Error{ErrorCode::kUnavailable, "the response did not end in time"};
      return failure.ok();
    };
    connection->http->set_keep_alive(true);
    connection->http->set_read_timeout(
        std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - Now())));
    connection->Begin(request, call.canceller);
    httplib::Response head;
    httplib::Error error = httplib::Error::Success;
    bool ok = connection->http->send(wire, head, error);
    connection->End();
    if (call.canceller != nullptr && call.canceller->cancelled()) return Error{ErrorCode::kUnavailable, what + ": cancelled"};
    if (ok && gunzip) failure = gunzip->Finish();
    if (!failure.ok()) return failure.error().WithContext(what);
    if (!ok) {
      if (may_retry && reused && !head_seen && Now() < deadline) continue;
      if (!connection->tls_problem.empty()) {
        return Error{ErrorCode::kDenied, what + ": the server's certificate is not accepted: " + connection->tls_problem};
      }
      return Error{ErrorCode::kUnavailable, what + ": " + std::string(Describe(error))};
    }
    response.status = head.status;
    Join(head.headers, &response.headers);
    GiveBack(std::move(connection));
    return response;
  }
}

Status Client::Stream(const Request& request, milliseconds idle_timeout, Canceller* canceller, const StreamHandler& handler) {
  const std::string what = "GET " + options_.base_url + request.path;
  std::string bearer;
  if (options_.bearer) {
    ASSIGN_OR_RETURN(bearer, options_.bearer());
  }
  ASSIGN_OR_RETURN(httplib::Request wire, Encode(request, options_.user_agent, bearer, "identity"));
  wire.method = "GET";
  ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, Connect());
  bool enough = false;
  SteadyTime last = Now();
  wire.response_handler = [&](const httplib::Response& raw) {
    Response head;
    head.status = raw.status;
    Join(raw.headers, &head.headers);
    last = Now();
    enough = !handler.on_head(head);
    return !enough;
  };
  wire.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    last = Now();
    enough = !handler.on_data({data, size});
    return !enough;
  };
  connection->http->set_read_timeout(idle_timeout);
  connection->Begin(request, canceller);
  httplib::Response head;
  httplib::Error error = httplib::Error::Success;
  bool ok = connection->http->send(wire, head, error);
  connection->End();
  if (ok || enough) return OkStatus();
  if (canceller != nullptr && canceller->cancelled()) return Error{ErrorCode::kUnavailable, what + ": cancelled"};
  if (!connection->tls_problem.empty()) {
    return Error{ErrorCode::kDenied, what + ": the server's certificate is not accepted: " + connection->tls_problem};
  }
  if (error == httplib::Error::Read && Now() - last >= idle_timeout) {
    return Error{ErrorCode::kUnavailable, what + ": nothing came for " + std::to_string(idle_timeout.count()) + " ms"};
  }
  return Error{ErrorCode::kUnavailable, what + ": " + std::string(Describe(error))};
}

}  // namespace borescope::http
