// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/result.h"

namespace borescope::store {

// A time as people and programs write it, in nanoseconds since the epoch: a number of seconds, milliseconds, microseconds or
// nanoseconds (told apart by up to 10, 13, 16, 19 digits), "now", "now-90s" (s, m, h, d, w), or RFC 3339.
Result<int64_t> ParseQueryTime(std::string_view text, int64_t now_ns);

}  // namespace borescope::store
