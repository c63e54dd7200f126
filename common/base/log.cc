// SPDX-License-Identifier: Apache-2.0
#include "common/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>

#include "common/base/clock.h"
#include "common/base/strings.h"

namespace borescope {
namespace {
std::atomic<LogLevel> g_level{LogLevel::kInfo};
constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};
}  // namespace

std::string JsonQuote(std::string_view raw) {
  std::string s = SanitizeUtf8(raw);
  std::string out = "\"";
  for (unsigned char c : s) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (c < 0x20) {
          char buffer[8];
          snprintf(buffer, sizeof buffer, "\\u%04x", c);
          out += buffer;
        } else {
          out += static_cast<char>(c);
        }
    }
  }
  return out + "\"";
}

LogField::LogField(std::string_view k, std::string_view v) : key(k), json(JsonQuote(v)) {}
LogField::LogField(std::string_view k, const char* v) : LogField(k, std::string_view(v)) {}
LogField::LogField(std::string_view k, const std::string& v) : LogField(k, std::string_view(v)) {}
LogField::LogField(std::string_view k, bool v) : key(k), json(v ? "true" : "false") {}
LogField::LogField(std::string_view k, int v) : key(k), json(std::to_string(v)) {}
LogField::LogField(std::string_view k, int64_t v) : key(k), json(std::to_string(v)) {}
LogField::LogField(std::string_view k, uint64_t v) : key(k), json(std::to_string(v)) {}
LogField::LogField(std::string_view k, double v) : key(k), json(std::isfinite(v) ? std::to_string(v) : "null") {}

void SetLogLevel(LogLevel level) { g_level = level; }

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  std::string line = "{\"time\":" + JsonQuote(FormatMicroTime(NowNs(CLOCK_REALTIME))) + ",\"level\":\"" +
                     kLevelNames[static_cast<int>(level)] + "\",\"msg\":" + JsonQuote(message);
  for (const LogField& field : fields) line += "," + JsonQuote(field.key) + ":" + field.json;
  line += "}\n";
  // A log line that cannot be written has nowhere else to go.
  [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace borescope
