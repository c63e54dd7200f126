// SPDX-License-Identifier: Apache-2.0
#include "common/gzip/gzip.h"

#include <gtest/gtest.h>

namespace borescope::gzip {
namespace {

std::string Text(size_t n) {
  std::string text;
  for (size_t i = 0; text.size() < n; ++i) text += std::to_string(i * 2654435761u);
  text.resize(n);
  return text;
}

TEST(Gzip, RoundTripsEverySize) {
  for (size_t n : {0u, 1u, 100u, 16384u, 16385u, 1000000u}) {
    auto back = Gunzip(Gzip(Text(n)), 2 << 20);
    ASSERT_TRUE(back.ok()) << n << back.error().ToString();
    EXPECT_EQ(*back, Text(n)) << n;
  }
}

TEST(Gzip, ReadsAllMembers) {
  auto back = Gunzip(Gzip("one ") + Gzip("") + Gzip("two ") + Gzip("three"), 100);
  ASSERT_TRUE(back.ok()) << back.error().ToString();
  EXPECT_EQ(*back, "one two three");
}

TEST(Gzip, ReadsByteByByte) {
  std::string packed = Gzip(Text(5000)) + Gzip("end");
  GunzipStream stream(10000, 1000);
  std::string out;
  for (char c : packed) ASSERT_TRUE(stream.Append({&c, 1}, &out).ok());
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(out, Text(5000) + "end");
}

TEST(Gzip, NamesWhatIsWrong) {
  EXPECT_EQ(Gunzip("no gzip at all", 100).error().code, ErrorCode::kInvalid);
  std::string packed = Gzip(Text(5000));
  EXPECT_EQ(Gunzip(packed.substr(0, packed.size() - 3), 10000).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(Gunzip("", 100).error().code, ErrorCode::kInvalid);
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x55);
  EXPECT_EQ(Gunzip(packed, 10000).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(Gunzip(Gzip("a") + "trailing", 100).error().code, ErrorCode::kInvalid);
}

TEST(Gzip, StopsAtTheBoundsWithoutHoldingMore) {
  std::string bomb = Gzip(std::string(64 << 20, '0'), 9);
  ASSERT_LT(bomb.size(), 100'000u);
  std::string out;
  GunzipStream by_size(1 << 20, 100000);
  Status status = by_size.Append(bomb, &out);
  EXPECT_EQ(status.error().code, ErrorCode::kExhausted);
  EXPECT_LE(out.size(), size_t{1} << 20);
  out.clear();
  GunzipStream by_ratio(1 << 30, 100);
  status = by_ratio.Append(bomb, &out);
  EXPECT_EQ(status.error().code, ErrorCode::kExhausted);
  EXPECT_LE(out.size(), size_t{2} << 20);
}

}  // namespace
}  // namespace borescope::gzip
