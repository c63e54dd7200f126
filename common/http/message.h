// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace borescope::http {

// ASCII case does not matter in a header's name.
struct HeaderNameLess {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const;
};
// One entry a name; values of a repeated header are joined by ", ".
using Headers = std::map<std::string, std::string, HeaderNameLess>;

using QueryMap = std::map<std::string, std::string, std::less<>>;

struct Request {
  std::string method = "GET";
  std::string path;  // "/a/b", decoded in a server, as on the wire in a client
  QueryMap query;    // decoded; the first value of a repeated key
  Headers headers;
  std::string body;          // in a server: without its gzip coding
  std::string peer_address;  // server only: of the TCP connection, never from a header
  std::string scope;         // server only: what ServerOptions::authorize has let the caller see, for the handlers

  // The value of a header, or "".
  std::string_view Header(std::string_view name) const;
  // The value of a query parameter, or "".
  std::string_view Query(std::string_view name) const;
};

struct Response {
  int status = 200;
  Headers headers;
  std::string body;

  std::string_view Header(std::string_view name) const;
  static Response Text(int status, std::string_view text);  // text/plain, ends with a newline
  static Response Json(int status, std::string json);
};

// "a=1&b=x%2Fy" in the map's order.
std::string EncodeQuery(const QueryMap& query);
// All but RFC 3986 unreserved characters as %XX.
std::string PercentEncode(std::string_view s);

}  // namespace borescope::http
