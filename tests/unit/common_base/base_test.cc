// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cerrno>

#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/result.h"
#include "common/base/strings.h"

namespace borescope {
namespace {

TEST(ResultTest, CarriesValueOrErrorAndGrowsContext) {
  Result<int> good(3);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, 3);
  auto failing = []() -> Result<int> {
    ASSIGN_OR_RETURN(int value, Result<int>(Error{ErrorCode::kGone, "old"}));
    return value;
  };
  ASSERT_FALSE(failing().ok());
  EXPECT_EQ(failing().error().WithContext("watch").ToString(), "Gone: watch: old");
}

TEST(ResultTest, ErrnoSaysWhatTheCallerShouldDo) {
  EXPECT_EQ(ErrnoError("open x", EACCES).code, ErrorCode::kDenied);
  EXPECT_EQ(ErrnoError("open x", ENOENT).message, "open x: No such file or directory");
}

TEST(ClockTest, TimesRoundTripInTheFormsOfKubernetes) {
  int64_t ns = 1'790'000'000'123'456'000;
  EXPECT_EQ(*ParseTime(FormatMicroTime(ns)), ns);
  EXPECT_EQ(*ParseTime(FormatTime(ns)), ns / 1'000'000'000 * 1'000'000'000);
  EXPECT_EQ(*ParseTime("1970-01-01T02:00:00.5+02:00"), 500'000'000);
  for (const char* bad : {"", "2026", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00Zx"}) {
    EXPECT_FALSE(ParseTime(bad).ok()) << bad;
  }
}

TEST(StringsTest, NamesFromBinariesAreSafeToShow) {
  EXPECT_EQ(SanitizeName("a\x1b[31m\xff z"), "a?[31m\xef\xbf\xbd z");
  std::string cut = SanitizeName(std::string(300, 'x') + "é", 64);
  EXPECT_LE(cut.size(), 64u);
  EXPECT_EQ(SanitizeUtf8(cut), cut);
  EXPECT_EQ(JsonQuote("a\"\n\x01"), "\"a\\\"\\n\\u0001\"");
}

TEST(StringsTest, NumbersAreWholeOrNothing) {
  EXPECT_EQ(ParseUint("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(ParseUint("ff", 16), 255u);
  for (const char* bad : {"", "-1", "1x", "18446744073709551616", " 1"}) EXPECT_FALSE(ParseUint(bad).has_value()) << bad;
}

TEST(FdTest, AtomicWriteReplacesAndReadIsBounded) {
  std::string path = testing::TempDir() + "borescope_fd_test";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "three").ok());
  EXPECT_EQ(*ReadFile(path), "three");
  EXPECT_EQ(ReadFile(path, 4).error().code, ErrorCode::kExhausted);
  ::unlink(path.c_str());
}

TEST(BackoffTest, DoublesWithinItsBounds) {
  Backoff backoff(std::chrono::milliseconds(100), std::chrono::milliseconds(300), 1);
  for (int64_t most : {100, 200, 300, 300}) {
    int64_t d = backoff.Next().count();
    EXPECT_GE(d, most / 2);
    EXPECT_LT(d, most + 1);
  }
}

}  // namespace
}  // namespace borescope
