// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <memory>

#include "raw_server.h"

namespace borescope::test {

// A key with its certificate, made on the spot.
struct Identity {
  std::string certificate, key;  // PEM
  std::shared_ptr<X509> x509;
  std::shared_ptr<EVP_PKEY> pkey;
};

// `san` as in openssl.cnf ("IP:127.0.0.1,DNS:localhost"); empty: none. Signed by `issuer`, or a CA of its own.
inline Identity MakeIdentity(const std::string& common_name, const std::string& san, const Identity* issuer) {
  Identity id;
  id.pkey.reset(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  id.x509.reset(X509_new(), &X509_free);
  X509* x = id.x509.get();
  static long serial = 1;
  X509_set_version(x, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x), serial++);
  X509_gmtime_adj(X509_getm_notBefore(x), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x), 3600);
  X509_set_pubkey(x, id.pkey.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0);
  X509_set_issuer_name(x, X509_get_subject_name(issuer != nullptr ? issuer->x509.get() : x));
  auto add = [&](int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer != nullptr ? issuer->x509.get() : x, x, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    X509_add_ext(x, extension, -1);
    X509_EXTENSION_free(extension);
  };
  add(NID_basic_constraints, issuer != nullptr ? "critical,CA:FALSE" : "critical,CA:TRUE");
  if (!san.empty()) add(NID_subject_alt_name, san);
  X509_sign(x, issuer != nullptr ? issuer->pkey.get() : id.pkey.get(), EVP_sha256());
  auto text = [](auto write) {
    BIO* bio = BIO_new(BIO_s_mem());
    write(bio);
    char* data;
    long size = BIO_get_mem_data(bio, &data);
    std::string out(data, static_cast<size_t>(size));
    BIO_free(bio);
    return out;
  };
  id.certificate = text([&](BIO* b) { PEM_write_bio_X509(b, x); });
  id.key = text([&](BIO* b) { PEM_write_bio_PrivateKey(b, id.pkey.get(), nullptr, nullptr, 0, nullptr, nullptr); });
  return id;
}

// A TLS server on a free loopback port; each connection is one thread that runs the script after the handshake.
class TlsServer {
 public:
  // The script has the request's bytes; what it returns is sent, then the connection is closed with close_notify.
  using Script = std::function<void(SSL* ssl, const std::string& request)>;

  // client_ca: certificates are demanded of clients.
  TlsServer(const Identity& identity, const Identity* client_ca, Script script) : script_(std::move(script)) {
    context_.reset(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
    SSL_CTX_use_certificate(context_.get(), identity.x509.get());
    SSL_CTX_use_PrivateKey(context_.get(), identity.pkey.get());
    if (client_ca != nullptr) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), client_ca->x509.get());
      SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    }
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_.get(), 64);
    socklen_t length = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] {
      while (!stopping_) {
        pollfd p{listener_.get(), POLLIN, 0};
        if (::poll(&p, 1, 5) <= 0) continue;
        int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) threads_.emplace_back([this, fd] { Serve(UniqueFd(fd)); });
      }
    });
  }
  ~TlsServer() {
    stopping_ = true;
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  int port() const { return port_; }
  int handshakes() const { return handshakes_; }
  int requests() const { return requests_; }
  bool stopping() const { return stopping_; }

 private:
  void Serve(UniqueFd fd) {
    timeval limit{2, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context_.get()), &SSL_free);
    SSL_set_fd(ssl.get(), fd.get());
    if (SSL_accept(ssl.get()) != 1) return;
    ++handshakes_;
    std::string request;
    char buffer[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      int n = SSL_read(ssl.get(), buffer, sizeof buffer);
      if (n <= 0) return;
      request.append(buffer, static_cast<size_t>(n));
    }
    ++requests_;
    script_(ssl.get(), request);
    SSL_shutdown(ssl.get());
  }

  Script script_;
  std::shared_ptr<SSL_CTX> context_;
  UniqueFd listener_;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> handshakes_{0}, requests_{0};
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace borescope::test
