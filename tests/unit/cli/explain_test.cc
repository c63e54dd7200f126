// SPDX-License-Identifier: Apache-2.0
#include "cli/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"

namespace borescope::cli {
namespace {

using ::testing::HasSubstr;
using unwind::Tables;

TEST(QualityTest, SharesAddUpAndNothingIsRoundedAway) {
  engine::JobCounters kernel;
  stacks::JobStats user;
  user.collected = 4712;
  EXPECT_EQ(QualityLines(kernel, user), "Whole stacks: 100 % of 4712.\nLost: nothing.");
  user.truncated = 14;
  user.loss[LOSS_TABLES_NOT_READY].count = 5;
  user.loss[LOSS_NO_UNWIND_INFO].count = 9;
  kernel.loss[LOSS_RING_FULL] = {20, 200'000'000};
  kernel.loss[LOSS_NO_UNWIND_INFO].count = 7;  // of the same samples
  EXPECT_EQ(QualityLines(kernel, user),
            "Whole stacks: 99.70 % of 4712. Cut: 0.19 % no unwind information, 0.11 % tables not ready.\nLost: 0.2 s ring buffer full.");
  EXPECT_EQ(LostNs(kernel, user), 200'000'000);
  user = {};
  user.collected = 1'000'000;
  user.truncated = user.loss[LOSS_BAD_CFA].count = 1;
  EXPECT_EQ(QualityLines({}, user), "Whole stacks: 99.99 % of 1000000. Cut: <0.01 % stack does not rise.\nLost: nothing.");
}

TEST(ExplainTest, EachReasonSaysWhatWouldMendIt) {
  Tables::FileInfo file{.path = "/usr/lib/libx.so.1", .build_id = "00ff", .sources = "eh_frame", .problem = "", .missing = {}};
  auto mend = [&](borescope_loss reason, bool known = true) {
    return Mend({.path = file.path, .build_id = file.build_id, .function = "f", .reason = reason, .samples = 3, .ns = 3}, known ? &file : nullptr);
  };
  EXPECT_THAT(mend(LOSS_NO_UNWIND_INFO), HasSubstr("-fasynchronous-unwind-tables, or install its debug file (build id 00ff)"));
  EXPECT_THAT(Mend({.path = "//anon", .build_id = "", .function = "", .reason = LOSS_NO_UNWIND_INFO}, nullptr), HasSubstr("JIT code without frame pointers"));
  file.state = Tables::State::kPending;
  EXPECT_THAT(mend(LOSS_TABLES_NOT_READY), HasSubstr("still being made"));
  file.state = Tables::State::kReady;
  EXPECT_THAT(mend(LOSS_TABLES_NOT_READY), HasSubstr("raise --unwind-memory"));
  file.placed = true;
  EXPECT_THAT(mend(LOSS_TABLES_NOT_READY), HasSubstr("there now"));
  file.state = Tables::State::kFailed;
  file.problem = "more than 16777216 rows";
  EXPECT_THAT(mend(LOSS_TABLES_NOT_READY), HasSubstr(file.problem));
  file.rows = 9;
  file.missing = {{.what = "rare", .rows = 1}, {.what = "CFA expression 77 10", .rows = 4}};
  EXPECT_THAT(mend(LOSS_UNSUPPORTED_RULE), HasSubstr("not supported: CFA expression 77 10 (4 of 9 rows)"));
  EXPECT_THAT(mend(LOSS_UNSUPPORTED_RULE, false), HasSubstr("report"));
}

// What is known of a file's table is known by its content, which may have come under another name first.
TEST(ExplainTest, TheTableIsFoundByBuildId) {
  Tables::FileInfo other{.path = "/image1/libx.so", .build_id = "00ff", .sources = "", .problem = "first", .state = Tables::State::kFailed, .missing = {}};
  Tables::FileInfo nameless = other, plain = other;
  nameless.build_id = plain.build_id = "";
  nameless.problem = "second";
  plain.path = "/image2/liby.so";
  plain.problem = "third";
  stacks::Cut x{.path = "/image2/libx.so", .build_id = "00ff", .function = "f", .reason = LOSS_NO_UNWIND_INFO, .samples = 1, .ns = 1};
  stacks::Cut y{.path = "/image2/liby.so", .build_id = "", .function = "f", .reason = LOSS_NO_UNWIND_INFO, .samples = 1, .ns = 1};
  EXPECT_THAT(Explain({x}, {nameless, plain, other}, {}, 10, 80), HasSubstr("first"));
  EXPECT_THAT(Explain({y}, {nameless, plain, other}, {}, 10, 80), HasSubstr("third"));
  Tables::FileInfo own = other;  // the same build id, and other bytes
  own.path = x.path;
  own.problem = "fourth";
  EXPECT_THAT(Explain({x}, {other, own}, {}, 10, 80), HasSubstr("fourth"));
}

TEST(ExplainTest, LinesFitTheTerminalAndListsEnd) {
  std::vector<stacks::Cut> cuts;
  for (int i = 0; i < 100; ++i) cuts.push_back({"/opt/app/lib" + std::to_string(i) + ".so", "ab", "Very::long(function, name) of many words here", LOSS_NO_UNWIND_INFO, 7, 70});
  Tables::Stats stats;
  stats.files = 12;
  stats.placed_bytes = 3 << 20;
  stats.failed = 2;
  std::string text = Explain(cuts, {}, stats, 1400, 80);
  for (auto line : Split(text, '\n')) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(text, HasSubstr("  0.50 %        7  /opt/app/lib0.so\n"));
  EXPECT_THAT(text, HasSubstr("and 60 more"));
  EXPECT_THAT(text, HasSubstr("Unwind tables: 12 files, 3Mi in the kernel;"));
  EXPECT_THAT(text, HasSubstr("2 could not be made"));
  EXPECT_THAT(Explain({}, {}, stats, 1400, 80), HasSubstr("Every stack reaches its thread's entry."));
}

TEST(ExplainNames, SaysWhatToInstall) {
  using naming::Outcome;
  naming::Names::Stats stats;
  stats.addresses[static_cast<size_t>(Outcome::kLine)] = 400;
  stats.addresses[static_cast<size_t>(Outcome::kStripped)] = 30;
  naming::Names::FileInfo good, stripped, large;
  good.path = "/bin/good";
  good.addresses[static_cast<size_t>(Outcome::kLine)] = 400;
  stripped.path = "/bin/stripped";
  stripped.build_id = "abcdef";
  stripped.addresses[static_cast<size_t>(Outcome::kStripped)] = 30;
  large.path = "/bin/large";
  large.problem = "its sections are too many";
  large.addresses[static_cast<size_t>(Outcome::kLinesFailed)] = 50;
  std::string text = ExplainNames({good, stripped, large}, stats, 7, 1000);
  EXPECT_THAT(text, HasSubstr("400 named with its source line; 30 its file has no symbols; 7 came too late"));
  EXPECT_THAT(text, HasSubstr("  /bin/stripped: 30 of its addresses: its file has no symbols: install its debug file (build id abcdef)\n"));
  EXPECT_THAT(text, HasSubstr("/bin/large: 50 of its addresses: named; its debug information could not be used: its sections are too many\n"));
  EXPECT_LT(text.find("/bin/large"), text.find("/bin/stripped"));
  EXPECT_EQ(text.find("/bin/good"), std::string::npos);
}

}  // namespace
}  // namespace borescope::cli
