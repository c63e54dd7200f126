// SPDX-License-Identifier: Apache-2.0
#include "common/api/quantity.h"

#include <array>
#include <cstdlib>

#include "common/base/strings.h"

namespace borescope::api {
namespace {

struct Unit {
  std::string_view suffix;
  int64_t factor;
};
constexpr std::array<Unit, 4> kBinaryUnits = {{{"Ti", int64_t{1} << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}}};
constexpr std::array<Unit, 4> kDecimalUnits = {{{"T", 1'000'000'000'000}, {"G", 1'000'000'000}, {"M", 1'000'000}, {"k", 1'000}}};

// Digits, at most so many, without a needless 0 in front.
std::optional<uint64_t> ParseDigits(std::string_view text, size_t most) {
  if (text.size() > most || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  return ParseUint(text);
}

// "12.345" to thousandths; at most three digits after the point.
std::optional<int64_t> ParseThousandths(std::string_view text, int64_t most_whole) {
  size_t point = text.find('.');
  std::optional<uint64_t> whole = ParseDigits(text.substr(0, point), 18);
  if (!whole || *whole > static_cast<uint64_t>(most_whole)) return std::nullopt;
  int64_t value = static_cast<int64_t>(*whole) * 1000;
  if (point == std::string_view::npos) return value;
  std::string_view digits = text.substr(point + 1);
  std::optional<uint64_t> fraction = ParseUint(digits);
  if (!fraction || digits.size() > 3) return std::nullopt;
  int64_t scale = digits.size() == 1 ? 100 : digits.size() == 2 ? 10 : 1;
  return value + static_cast<int64_t>(*fraction) * scale;
}

}  // namespace

std::optional<int64_t> ParseCpu(std::string_view text) {
  if (!text.ends_with('m')) return ParseThousandths(text, 999);
  std::optional<uint64_t> millis = ParseDigits(text.substr(0, text.size() - 1), 6);
  return millis ? std::optional<int64_t>(static_cast<int64_t>(*millis)) : std::nullopt;
}

std::string FormatCpu(int64_t millis) {
  return millis % 1000 == 0 ? std::to_string(millis / 1000) : std::to_string(millis) + "m";
}

std::optional<int64_t> ParseMemory(std::string_view text) {
  int64_t factor = 1;
  for (const auto& units : {kBinaryUnits, kDecimalUnits}) {
    for (const Unit& unit : units) {
      if (factor == 1 && text.ends_with(unit.suffix)) {
        factor = unit.factor;
        text.remove_suffix(unit.suffix.size());
      }
    }
  }
  std::optional<uint64_t> value = ParseDigits(text, factor == 1 ? 15 : 6);
  return value ? std::optional<int64_t>(static_cast<int64_t>(*value) * factor) : std::nullopt;
}

std::string FormatMemory(int64_t bytes) {
  if (bytes > 0) {
    for (const Unit& unit : kBinaryUnits) {
      if (bytes % unit.factor == 0) return std::to_string(bytes / unit.factor) + std::string(unit.suffix);
    }
  }
  return std::to_string(bytes);
}

std::string FormatMemoryRounded(int64_t bytes) {
  const Unit& unit = kBinaryUnits[bytes >= 1 << 20 ? 2 : 3];
  return bytes <= 0 ? "0" : std::to_string((bytes - 1) / unit.factor + 1) + std::string(unit.suffix);
}

std::string FormatSeconds(int64_t ns) {
  int64_t millis = ns / 1'000'000 + ns % 1'000'000 / 500'000;  // rounded, without overflow
  std::string text = millis < 0 ? "-" : "";
  millis = std::abs(millis);
  text += std::to_string(millis / 1000);
  if (millis % 1000 != 0) {
    std::string digits = std::to_string(1000 + millis % 1000).substr(1);
    digits.erase(digits.find_last_not_of('0') + 1);
    text += "." + digits;
  }
  return text + "s";
}

std::optional<int64_t> ParseSeconds(std::string_view text) {
  if (!text.ends_with('s')) return std::nullopt;
  text.remove_suffix(1);
  bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  std::optional<int64_t> millis = ParseThousandths(text, INT64_MAX / 1'000'000'000 - 1);
  if (!millis) return std::nullopt;
  return (negative ? -*millis : *millis) * 1'000'000;
}

}  // namespace borescope::api
