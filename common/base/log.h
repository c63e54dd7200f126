// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace borescope {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// One value of a log line; numbers stay numbers in the JSON.
struct LogField {
  LogField(std::string_view k, std::string_view v);
  LogField(std::string_view k, const char* v);
  LogField(std::string_view k, const std::string& v);
  LogField(std::string_view k, bool v);
  LogField(std::string_view k, int v);
  LogField(std::string_view k, int64_t v);
  LogField(std::string_view k, uint64_t v);
  LogField(std::string_view k, double v);
  std::string key;
  std::string json;  // the value, encoded
};

// Writes one JSON object a line to standard error: {"time":…,"level":…,"msg":…,…}. Thread-safe, one write(2) a line.
// The message is a constant text; what varies goes into fields.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// Lines below this level are dropped; default kInfo.
void SetLogLevel(LogLevel level);

// s as a JSON string with its quotes; invalid UTF-8 becomes U+FFFD.
std::string JsonQuote(std::string_view s);

}  // namespace borescope
