// SPDX-License-Identifier: Apache-2.0
#include "common/http/message.h"

#include <algorithm>

namespace borescope::http {
namespace {

unsigned char Lower(char c) {
  unsigned char u = static_cast<unsigned char>(c);
  return u >= 'A' && u <= 'Z' ? static_cast<unsigned char>(u + 32) : u;
}

template <typename Map>
std::string_view Find(const Map& map, std::string_view key) {
  auto it = map.find(key);
  return it == map.end() ? std::string_view() : std::string_view(it->second);
}

}  // namespace

bool HeaderNameLess::operator()(std::string_view a, std::string_view b) const {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](char x, char y) { return Lower(x) < Lower(y); });
}

std::string_view Request::Header(std::string_view name) const { return Find(headers, name); }
std::string_view Request::Query(std::string_view name) const { return Find(query, name); }
std::string_view Response::Header(std::string_view name) const { return Find(headers, name); }

Response Response::Text(int status, std::string_view text) {
  return {status, {{"Content-Type", "text/plain; charset=utf-8"}}, std::string(text) + "\n"};
}

Response Response::Json(int status, std::string json) {
  return {status, {{"Content-Type", "application/json"}}, std::move(json)};
}

std::string PercentEncode(std::string_view s) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (char c : s) {
    unsigned char u = static_cast<unsigned char>(c);
    if ((u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') || (u >= '0' && u <= '9') || u == '-' || u == '.' || u == '_' || u == '~') {
      out += c;
    } else {
      out += '%';
      out += kDigits[u >> 4];
      out += kDigits[u & 15];
    }
  }
  return out;
}

std::string EncodeQuery(const QueryMap& query) {
  std::string out;
  for (const auto& [key, value] : query) {
    if (!out.empty()) out += '&';
    out += PercentEncode(key) + '=' + PercentEncode(value);
  }
  return out;
}

}  // namespace borescope::http
