// SPDX-License-Identifier: Apache-2.0
#include "store/query/time_range.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::store {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

int64_t UnitNs(char unit) {
  switch (unit) {
    case 's': return kSecond;
    case 'm': return 60 * kSecond;
    case 'h': return 3600 * kSecond;
    case 'd': return 86'400 * kSecond;
    case 'w': return 7 * 86'400 * kSecond;
    default: return 0;
  }
}

}  // namespace

Result<int64_t> ParseQueryTime(std::string_view text, int64_t now_ns) {
  Error bad{ErrorCode::kInvalid, JsonQuote(SanitizeName(text, 64)) +
                                     " is no time: give seconds, milliseconds or nanoseconds since 1970, \"now\", \"now-1h\" or "
                                     "\"2026-11-30T13:00:00Z\""};
  if (text == "now") return now_ns;
  if (text.starts_with("now-") && text.size() > 5) {
    auto count = ParseUint(text.substr(4, text.size() - 5));
    int64_t ns;
    if (!count || *count > INT64_MAX || UnitNs(text.back()) == 0) return bad;
    if (__builtin_mul_overflow(static_cast<int64_t>(*count), UnitNs(text.back()), &ns)) return bad;
    return now_ns > ns ? now_ns - ns : 0;
  }
  if (auto number = ParseUint(text)) {
    if (*number > INT64_MAX) return bad;
    auto value = static_cast<int64_t>(*number);
    if (text.size() <= 10) return value * kSecond;
    if (text.size() <= 13) return value * 1'000'000;
    if (text.size() <= 16) return value * 1'000;
    return value;
  }
  auto time = ParseTime(text);
  if (!time.ok()) return bad;
  return *time;
}

}  // namespace borescope::store
