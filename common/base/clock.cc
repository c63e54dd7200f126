// SPDX-License-Identifier: Apache-2.0
#include "common/base/clock.h"

#include <cstdio>

namespace borescope {

int64_t NowNs(clockid_t clock) {
  timespec ts{};
  clock_gettime(clock, &ts);
  return static_cast<int64_t>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

int64_t Clock::RealtimeNs() const { return NowNs(CLOCK_REALTIME); }
int64_t Clock::BoottimeNs() const { return NowNs(CLOCK_BOOTTIME); }
int64_t Clock::MonotonicNs() const { return NowNs(CLOCK_MONOTONIC); }

Clock& Clock::System() {
  static Clock clock;
  return clock;
}

namespace {

// Floor division, so that times before the epoch come out right too.
std::string FormatSeconds(int64_t realtime_ns, int64_t* rest_ns) {
  int64_t seconds = realtime_ns / 1'000'000'000;
  int64_t rest = realtime_ns % 1'000'000'000;
  if (rest < 0) {
    rest += 1'000'000'000;
    --seconds;
  }
  *rest_ns = rest;
  time_t t = static_cast<time_t>(seconds);
  tm parts{};
  gmtime_r(&t, &parts);
  char buffer[64];
  strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%S", &parts);
  return buffer;
}

}  // namespace

std::string FormatTime(int64_t realtime_ns) {
  int64_t rest;
  return FormatSeconds(realtime_ns, &rest) + "Z";
}

std::string FormatMicroTime(int64_t realtime_ns) {
  int64_t rest;
  std::string seconds = FormatSeconds(realtime_ns, &rest);
  char fraction[16];
  snprintf(fraction, sizeof fraction, ".%06dZ", static_cast<int>(rest / 1000));
  return seconds + fraction;
}

Result<int64_t> ParseTime(std::string_view text) {
  Error bad{ErrorCode::kInvalid, "not an RFC 3339 time: \"" + std::string(text.substr(0, 64)) + "\""};
  size_t i = 0;
  auto digits = [&](int count, int* value) {
    *value = 0;
    for (int k = 0; k < count; ++k, ++i) {
      if (i >= text.size() || text[i] < '0' || text[i] > '9') return false;
      *value = *value * 10 + (text[i] - '0');
    }
    return true;
  };
  auto literal = [&](char a, char b) { return i < text.size() && (text[i] == a || text[i] == b) && ++i; };
  tm parts{};
  int year, month, day, hour, minute, second;
  if (!digits(4, &year) || !literal('-', '-') || !digits(2, &month) || !literal('-', '-') || !digits(2, &day) ||
      !literal('T', 't') || !digits(2, &hour) || !literal(':', ':') || !digits(2, &minute) || !literal(':', ':') ||
      !digits(2, &second)) {
    return bad;
  }
  if (month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) return bad;
  int64_t fraction_ns = 0;
  if (i < text.size() && text[i] == '.') {
    ++i;
    int64_t unit = 100'000'000;
    size_t first = i;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, unit /= 10) fraction_ns += (text[i] - '0') * unit;
    if (i == first) return bad;
  }
  int64_t offset_s = 0;
  if (i < text.size() && (text[i] == 'Z' || text[i] == 'z')) {
    ++i;
  } else if (i < text.size() && (text[i] == '+' || text[i] == '-')) {
    int sign = text[i++] == '-' ? -1 : 1;
    int oh, om;
    if (!digits(2, &oh) || !literal(':', ':') || !digits(2, &om)) return bad;
    offset_s = sign * (oh * 3600 + om * 60);
  } else {
    return bad;
  }
  if (i != text.size()) return bad;
  parts.tm_year = year - 1900;
  parts.tm_mon = month - 1;
  parts.tm_mday = day;
  parts.tm_hour = hour;
  parts.tm_min = minute;
  parts.tm_sec = second;
  int64_t seconds = timegm(&parts) - offset_s;
  if (seconds > 9'000'000'000 || seconds < -9'000'000'000) return bad;
  return seconds * 1'000'000'000 + fraction_ns;
}

}  // namespace borescope
