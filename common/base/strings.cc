// SPDX-License-Identifier: Apache-2.0
#include "common/base/strings.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

namespace borescope {

std::vector<std::string_view> Split(std::string_view s, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (true) {
    size_t end = s.find(separator, begin);
    parts.push_back(s.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string_view Trim(std::string_view s) {
  constexpr std::string_view kSpace = " \t\r\n";
  size_t begin = s.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(kSpace) - begin + 1);
}

std::optional<uint64_t> ParseUint(std::string_view s, int base) {
  if (s.empty()) return std::nullopt;
  uint64_t value = 0;
  for (char c : s) {
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<uint64_t>(base), &value) ||
        __builtin_add_overflow(value, static_cast<uint64_t>(digit), &value)) {
      return std::nullopt;
    }
  }
  return value;
}

namespace {

// Length of the valid UTF-8 sequence at the head of s, or 0.
size_t SequenceLength(std::string_view s) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  unsigned char b = byte(0);
  if (b < 0x80) return 1;
  size_t n = b >= 0xc2 && b <= 0xdf ? 2 : b >= 0xe0 && b <= 0xef ? 3 : b >= 0xf0 && b <= 0xf4 ? 4 : 0;
  if (n == 0 || s.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  unsigned char second = byte(1);
  if ((b == 0xe0 && second < 0xa0) || (b == 0xed && second > 0x9f) || (b == 0xf0 && second < 0x90) || (b == 0xf4 && second > 0x8f)) return 0;
  return n;
}

}  // namespace

std::string SanitizeUtf8(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  while (!s.empty()) {
    size_t n = SequenceLength(s);
    if (n == 0) {
      out += "\xef\xbf\xbd";
      s.remove_prefix(1);
    } else {
      out.append(s.substr(0, n));
      s.remove_prefix(n);
    }
  }
  return out;
}

std::string SanitizeName(std::string_view s, size_t max_bytes) {
  std::string clean = SanitizeUtf8(s);
  std::string out;
  for (size_t i = 0; i < clean.size();) {
    size_t n = SequenceLength(std::string_view(clean).substr(i));
    unsigned char c = static_cast<unsigned char>(clean[i]);
    bool c1_control = c == 0xc2 && n == 2 && static_cast<unsigned char>(clean[i + 1]) < 0xa0;
    if (c < 0x20 || c == 0x7f || c1_control) {
      out += '?';
    } else {
      out.append(clean, i, n);
    }
    i += n;
  }
  if (out.size() <= max_bytes) return out;
  constexpr std::string_view kMark = "…";
  size_t keep = max_bytes > kMark.size() ? max_bytes - kMark.size() : 0;
  size_t head = keep / 2, tail = out.size() - (keep - head);
  while (head > 0 && (static_cast<unsigned char>(out[head]) & 0xc0) == 0x80) --head;
  while (tail < out.size() && (static_cast<unsigned char>(out[tail]) & 0xc0) == 0x80) ++tail;
  return out.substr(0, head) + std::string(kMark) + out.substr(tail);
}

std::string HexEncode(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (unsigned char c : bytes) {
    out += kDigits[c >> 4];
    out += kDigits[c & 15];
  }
  return out;
}

std::string RandomHex(size_t bytes) {
  std::string raw(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    ssize_t n = ::getrandom(raw.data() + done, bytes - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) std::abort();  // the kernel is older than any that we run on
    done += static_cast<size_t>(n);
  }
  return HexEncode(raw);
}

}  // namespace borescope
