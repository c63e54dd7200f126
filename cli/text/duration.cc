// SPDX-License-Identifier: Apache-2.0
#include "cli/text/duration.h"

#include <string_view>

#include "common/base/strings.h"

namespace borescope::cli {

Result<int64_t> ParseDuration(const std::string& text) {
  Error bad{ErrorCode::kInvalid, "--duration: found \"" + text + "\"; give 1ms to 1h, as 10s, 500ms or 1m30s"};
  int64_t total = 0;
  std::string_view rest = text;
  if (rest.empty()) return bad;
  while (!rest.empty()) {
    size_t digits = rest.find_first_not_of("0123456789");
    auto number = ParseUint(rest.substr(0, digits));
    if (!number || *number > 3'600'000) return bad;
    rest = digits == std::string_view::npos ? std::string_view() : rest.substr(digits);
    int64_t unit = 1'000'000'000;
    if (rest.starts_with("ms")) {
      unit = 1'000'000;
      rest.remove_prefix(2);
    } else if (rest.starts_with("s")) {
      rest.remove_prefix(1);
    } else if (rest.starts_with("m")) {
      unit = 60'000'000'000;
      rest.remove_prefix(1);
    } else if (rest.starts_with("h")) {
      unit = 3'600'000'000'000;
      rest.remove_prefix(1);
    } else if (!rest.empty()) {
      return bad;
    }
    total += static_cast<int64_t>(*number) * unit;
    if (total > 3'600'000'000'000) return bad;
  }
  return total >= 1'000'000 ? Result<int64_t>(total) : bad;
}

}  // namespace borescope::cli
