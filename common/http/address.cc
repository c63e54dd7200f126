// SPDX-License-Identifier: Apache-2.0
// What of server.h does not need httplib.
#include <arpa/inet.h>

#include "common/base/strings.h"
#include "common/http/server.h"

namespace borescope::http {

Result<HostPort> ParseHostPort(std::string_view address) {
  Error bad{ErrorCode::kInvalid,
            "\"" + SanitizeName(address) + "\" is not HOST:PORT; write for example 127.0.0.1:8080, [::1]:8080 or :8080"};
  size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return bad;
  std::string_view host = address.substr(0, colon), port = address.substr(colon + 1);
  if (!host.empty() && host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return bad;
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad;
  }
  for (char c : host) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '/' || c == '@') return bad;
  }
  auto number = ParseUint(port);
  if (!number || *number > 65535 || port.size() > 5) return bad;
  return HostPort{std::string(host), static_cast<int>(*number)};
}

bool IsLoopback(std::string_view host) {
  if (host == "localhost") return true;
  std::string text(host);
  in_addr v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::optional<Response> RequireBearer(const Request& request, std::string_view token) {
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view given = request.Header("Authorization");
  bool ok = !token.empty() && given.size() == kScheme.size() + token.size();
  // Every byte is looked at, so that the time taken does not tell how many were right.
  unsigned char difference = 0;
  for (size_t i = 0; ok && i < given.size(); ++i) {
    unsigned char want = static_cast<unsigned char>(i < kScheme.size() ? kScheme[i] : token[i - kScheme.size()]);
    unsigned char have = static_cast<unsigned char>(given[i]);
    if (i < kScheme.size()) want |= 0x20, have |= 0x20;
    difference = static_cast<unsigned char>(difference | (want ^ have));
  }
  if (ok && difference == 0) return std::nullopt;
  Response response = Response::Text(401, "this address needs \"Authorization: Bearer TOKEN\"");
  response.headers["WWW-Authenticate"] = "Bearer";
  return response;
}

}  // namespace borescope::http
