// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace borescope::cli {

// "10s", "1m30s", "250ms" or a plain number of seconds, in nanoseconds; 1 ms to 1 h.
Result<int64_t> ParseDuration(const std::string& text);

}  // namespace borescope::cli
