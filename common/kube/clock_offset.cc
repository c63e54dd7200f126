// SPDX-License-Identifier: Apache-2.0
#include "common/kube/clock_offset.h"

#include <algorithm>

namespace borescope::kube {
namespace {
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kDriftPpm = 200;  // what two clocks may drift apart
}  // namespace

void ClockOffset::Observe(int64_t their_second, int64_t sent_ns, int64_t received_ns) {
  if (received_ns < sent_ns) return;  // our clock was set back meanwhile
  // Their clock read [s, s + 1 s) at some moment in [sent, received].
  int64_t low = their_second * kSecondNs - received_ns;
  int64_t high = (their_second + 1) * kSecondNs - sent_ns;
  if (known_) {
    int64_t age = std::max<int64_t>(0, received_ns - at_ns_);
    int64_t drift = age / 1'000'000 * kDriftPpm;
    int64_t both_low = std::max(low, low_ns_ - drift), both_high = std::min(high, high_ns_ + drift);
    // No common ground: one of the clocks was set; what was known before is void.
    if (both_low <= both_high) low = both_low, high = both_high;
  }
  known_ = true;
  low_ns_ = low;
  high_ns_ = high;
  at_ns_ = received_ns;
}

ClockOffset::Estimate ClockOffset::estimate() const {
  int64_t offset = std::clamp<int64_t>(0, low_ns_, high_ns_);
  return {known_, offset, std::max(high_ns_ - offset, offset - low_ns_)};
}

}  // namespace borescope::kube
