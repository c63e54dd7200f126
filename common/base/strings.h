// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace borescope {

std::vector<std::string_view> Split(std::string_view s, char separator);
std::string_view Trim(std::string_view s);

// Whole decimal (or, with base 16, hexadecimal) number without sign; nothing on any other character or overflow.
std::optional<uint64_t> ParseUint(std::string_view s, int base = 10);

// Valid UTF-8: each broken byte becomes U+FFFD.
std::string SanitizeUtf8(std::string_view s);

// What may be shown of a name that a tenant's binary carries: valid UTF-8, no control characters, at most max_bytes
// (the middle is cut out and marked with "…").
std::string SanitizeName(std::string_view s, size_t max_bytes = 256);

std::string HexEncode(std::string_view bytes);

// Fresh random bytes (getrandom) as lower-case hex, 2 * bytes long.
std::string RandomHex(size_t bytes);

}  // namespace borescope
