// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace borescope {

// Nanoseconds of a kernel clock (CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME ...).
int64_t NowNs(clockid_t clock);

// The node's clocks as one value, so that tests can stand in for it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t RealtimeNs() const;   // wall clock, since the epoch
  virtual int64_t BoottimeNs() const;   // since boot, suspend included; deadlines
  virtual int64_t MonotonicNs() const;  // the clock of BPF and perf records
  static Clock& System();
};

// RFC 3339 in UTC with whole seconds, as metav1.Time: "2026-11-30T13:00:00Z".
std::string FormatTime(int64_t realtime_ns);
// RFC 3339 with exactly six digits, as metav1.MicroTime.
std::string FormatMicroTime(int64_t realtime_ns);
// Parses RFC 3339 (fraction optional, Z or an offset) to nanoseconds since the epoch.
Result<int64_t> ParseTime(std::string_view text);

}  // namespace borescope
