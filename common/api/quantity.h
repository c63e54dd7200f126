// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The forms in which people read and write amounts in the API; whole numbers inside.
namespace borescope::api {

// "100m", "2", "0.5" to thousandths of a core; nothing when it is not such a text, finer than a thousandth, or 1000 cores and more.
std::optional<int64_t> ParseCpu(std::string_view text);
// 100 -> "100m", 2000 -> "2".
std::string FormatCpu(int64_t millis);

// "256Mi", "1Gi", "64M" to bytes: at most six digits with a suffix k M G T Ki Mi Gi Ti, or fifteen without.
std::optional<int64_t> ParseMemory(std::string_view text);
// The largest binary unit that divides it: 268435456 -> "256Mi".
std::string FormatMemory(int64_t bytes);
// Rounded up to Mi (Ki below one): what is shown, not what is limited.
std::string FormatMemoryRounded(int64_t bytes);

// "61.2s", to the millisecond, without needless zeros.
std::string FormatSeconds(int64_t ns);
std::optional<int64_t> ParseSeconds(std::string_view text);

}  // namespace borescope::api
