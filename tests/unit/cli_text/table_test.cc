// SPDX-License-Identifier: Apache-2.0
#include "cli/text/table.h"

#include <gtest/gtest.h>

#include "cli/text/duration.h"
#include "common/base/strings.h"

namespace borescope::cli {
namespace {

TEST(ParseDurationTest, TakesWhatPeopleTypeAndNothingElse) {
  EXPECT_EQ(*ParseDuration("10s"), 10'000'000'000);
  EXPECT_EQ(*ParseDuration("10"), 10'000'000'000);
  EXPECT_EQ(*ParseDuration("1m30s"), 90'000'000'000);
  EXPECT_EQ(*ParseDuration("250ms"), 250'000'000);
  for (const char* bad : {"", "0s", "61m", "10x", "-1s", "s", "1.5s", "99999999999999999999s"}) {
    auto result = ParseDuration(bad);
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_NE(result.error().message.find("--duration: found \"" + std::string(bad)), std::string::npos);
  }
}

TEST(RenderTableTest, NoLineIsLongerThanTheTerminal) {
  TableInput input;
  input.rows.resize(2);
  input.rows[0] = {.function = std::string(300, 'n'), .file = std::string(100, 'l'), .line = 7, .total = 900, .own = 800};
  input.rows[1] = {.function = "main", .file = "app", .total = 100, .own = 100, .library = true};
  input.total_ns = 1000;
  input.effective_samples = 10;
  input.wall_seconds = 1e-6;
  for (size_t width : {60, 80, 120}) {
    input.width = width;
    std::string table = RenderTable(input);
    for (auto line : Split(table, '\n')) {
      size_t characters = 0;
      for (unsigned char c : line) characters += (c & 0xc0) != 0x80;
      EXPECT_LE(characters, width) << line;
    }
    EXPECT_NE(table.find(" 80.0%  37.9   90.0%    800m"), std::string::npos) << table;
    EXPECT_NE(table.find("main [library]"), std::string::npos) << table;
  }
}

TEST(RenderColumnsTest, TheFlexibleColumnIsCutThenTheLastOnesLeave) {
  std::vector<std::vector<std::string>> rows = {{"a-name-of-32-characters-or-so-xx", "7", std::string(200, 'f'), "Running"}, {"b", "12", "g", "Done"}};
  for (size_t width : {66, 80, 120}) {
    const std::string table = RenderColumns({"NAME", ">PODS", "TOP", "PHASE"}, rows, width, 2);
    for (auto line : Split(table, '\n')) EXPECT_LE(Characters(line), width) << line;
    EXPECT_NE(table.find("  Running\n"), table.npos) << table;
    EXPECT_NE(table.find("b" + std::string(35, ' ') + "12  g"), table.npos) << table;  // numbers to the right
  }
  const std::string narrow = RenderColumns({"NAME", ">PODS", "TOP", "PHASE"}, rows, 56, 2);
  EXPECT_EQ(narrow.find("Running"), narrow.npos) << narrow;
  for (auto line : Split(narrow, '\n')) EXPECT_LE(Characters(line), 56u) << line;
}

TEST(FormatTest, AgesAreThoseOfKubectl) {
  EXPECT_EQ(FormatAge(-5) + FormatAge(8) + FormatAge(119) + FormatAge(300) + FormatAge(3 * 3600) + FormatAge(12 * 86400), "0s8s119s5m3h12d");
}

TEST(FormatTest, UnitsAreThoseOfKubernetes) {
  EXPECT_EQ(FormatCores(0.42), "420m");
  EXPECT_EQ(FormatCores(0.0001), "<1m");
  EXPECT_EQ(FormatBytes(43 << 20), "43Mi");
  EXPECT_EQ(FormatSeconds(61.24), "61.2 s");
  EXPECT_EQ(FormatSeconds(0.0123), "12 ms");
}

}  // namespace
}  // namespace borescope::cli
