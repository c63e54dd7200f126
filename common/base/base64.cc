// SPDX-License-Identifier: Apache-2.0
#include "common/base/base64.h"

#include <cstdint>

namespace borescope {

std::optional<std::string> Base64Decode(std::string_view s) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  while (!s.empty() && s.back() == '=') s.remove_suffix(1);
  for (char c : s) {
    int v = c >= 'A' && c <= 'Z'   ? c - 'A'
            : c >= 'a' && c <= 'z' ? c - 'a' + 26
            : c >= '0' && c <= '9' ? c - '0' + 52
            : c == '+' || c == '-' ? 62
            : c == '/' || c == '_' ? 63
                                   : -1;
    if (c == '\n' || c == '\r') continue;
    if (v < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(v);
    if ((count += 6) >= 8) out += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  return out;
}

}  // namespace borescope
