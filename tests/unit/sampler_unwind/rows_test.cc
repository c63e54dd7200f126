// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "random_profile.h"

namespace borescope::unwind {
namespace {

struct Stretch {
  uint64_t start, end;
  std::vector<std::pair<uint64_t, uint16_t>> rows;
};

std::vector<Stretch> Draw(std::mt19937_64& random, uint64_t space, size_t count, uint16_t rules) {
  std::vector<Stretch> all;
  for (size_t i = 0; i < count; ++i) {
    Stretch s;
    s.start = random() % 4 == 0 && !all.empty() ? all[random() % all.size()].start : random() % space;
    s.end = s.start + 1 + random() % (random() % 8 == 0 ? space : 40);
    uint64_t at = s.start;
    while (at < s.end) {
      s.rows.push_back({at, static_cast<uint16_t>(2 + random() % rules)});
      at += 1 + random() % 12;
    }
    all.push_back(std::move(s));
  }
  return all;
}

// The rule at an offset as the contract has it: of the stretches there, the one that begins last, of equal begins the first.
uint16_t Expected(const std::vector<Stretch>& all, uint64_t offset) {
  const Stretch* best = nullptr;
  for (const Stretch& s : all) {
    if (offset >= s.start && offset < s.end && (!best || s.start > best->start)) best = &s;
  }
  uint16_t rule = kNoRule;
  if (best) {
    for (auto [at, r] : best->rows) {
      if (at <= offset) rule = r;
    }
  }
  return rule;
}

std::vector<Row> Flat(const std::vector<Stretch>& all) {
  Layer layer;
  for (const Stretch& s : all) {
    layer.Begin(s.start, s.end);
    for (auto [at, rule] : s.rows) layer.Add(at, rule);
  }
  return layer.Flatten();
}

uint16_t At(const std::vector<Row>& rows, uint64_t offset) {
  auto it = std::upper_bound(rows.begin(), rows.end(), MakeRow(offset, UINT16_MAX));
  return it == rows.begin() ? kNoRule : RowRule(it[-1]);
}

TEST(Rows, OverlappingStretchesAnswerAsDocumented) {
  std::mt19937_64 random(testing::Seed());
  for (int round = 0; round < 200; ++round) {
    uint64_t space = 50 + random() % 400;
    auto upper = Draw(random, space, 1 + random() % 20, 5), lower = Draw(random, space, 1 + random() % 20, 5);
    auto rows = Flat(upper), both = Underlay(rows, Flat(lower));
    for (const auto& list : {rows, both}) {
      for (size_t i = 1; i < list.size(); ++i) {
        ASSERT_LT(RowOffset(list[i - 1]), RowOffset(list[i]));
        ASSERT_NE(RowRule(list[i - 1]), RowRule(list[i]));  // merged
      }
    }
    for (uint64_t offset = 0; offset < 2 * space + 60; ++offset) {
      uint16_t first = Expected(upper, offset);
      ASSERT_EQ(At(rows, offset), first) << "round " << round << " offset " << offset;
      ASSERT_EQ(At(both, offset), first != kNoRule ? first : Expected(lower, offset)) << "round " << round << " offset " << offset;
    }
  }
}

TEST(Rows, PagesAnswerAsTheRowsDo) {
  std::mt19937_64 random(testing::Seed());
  for (int round = 0; round < 50; ++round) {
    std::vector<Row> rows;
    uint64_t at = random() % 300000, page = 1 << UNWIND_PAGE_BITS;
    std::vector<uint64_t> looked_at;
    for (int i = 0; i < 200; ++i) {
      uint16_t rule = static_cast<uint16_t>(random() % 4);
      if (rows.empty() ? rule != kNoRule : rule != RowRule(rows.back())) rows.push_back(MakeRow(at, rule));
      looked_at.insert(looked_at.end(), {at, at + 1, at - 1});
      at += random() % 10 == 0 ? random() % (3 * page) : random() % 40 == 0 ? page - at % page : 1 + random() % 30;
      looked_at.push_back(at & ~(page - 1));
    }
    if (RowRule(rows.back()) != kNoRule) rows.push_back(MakeRow(at, kNoRule));
    CompiledTable table;
    table.rules.resize(4);
    for (uint8_t i = 1; i < 4; ++i) table.rules[i].cfa_reg = i;
    ASSERT_TRUE(Paginate(rows, &table).ok());
    for (uint64_t offset : looked_at) {
      auto it = std::upper_bound(rows.begin(), rows.end(), MakeRow(offset, UINT16_MAX));
      uint16_t rule = it == rows.begin() ? kNoRule : RowRule(it[-1]);
      // a gap of padding takes the rule before it
      if (rule == kNoRule && it != rows.begin() && it != rows.end() && RowOffset(*it) - RowOffset(it[-1]) <= 15) {
        rule = it - rows.begin() >= 2 ? RowRule(it[-2]) : kNoRule;
      }
      ASSERT_EQ(table.Find(offset).cfa_reg, rule) << "round " << round << " offset " << std::hex << offset;
    }
    std::string bytes = Serialize(table);
    auto parsed = Parse(bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(Serialize(*parsed), bytes);
  }
}

TEST(Rows, TooFarApartIsAnError) {
  CompiledTable table;
  std::vector<Row> rows = {MakeRow(0, 2), MakeRow(16, kNoRule), MakeRow(uint64_t{1} << 40, 2), MakeRow((uint64_t{1} << 40) + 1, kNoRule)};
  EXPECT_EQ(Paginate(rows, &table).error().code, ErrorCode::kExhausted);
}

TEST(Rows, RulesBeyondTheLimitAreUnsupported) {
  Rules rules;
  unwind_rule rule = {};
  rule.kind = UNWIND_RULE_FRAME;
  for (uint32_t i = 0; i < UNWIND_MAX_RULES - 2; ++i) {
    rule.cfa_offset = static_cast<int32_t>(i);
    ASSERT_EQ(rules.Index(rule), i + 2);
  }
  rule.cfa_offset = -1;
  EXPECT_EQ(rules.Index(rule), kUnsupported);
  rule.cfa_offset = 77;
  EXPECT_EQ(rules.Index(rule), 79);
  EXPECT_EQ(rules.all().size(), UNWIND_MAX_RULES);
}

TEST(CompiledTable, ParseTakesNothingThatDoesNotFit) {
  CompiledTable table;
  Rules rules;
  unwind_rule rule = {};
  rule.kind = UNWIND_RULE_FRAME;
  rule.cfa_reg = 7;
  uint16_t frame = rules.Index(rule);
  ASSERT_TRUE(Paginate({MakeRow(0x12340, frame), MakeRow(0x31000, kNoRule)}, &table).ok());
  table.rules = rules.Take();
  table.sources = "eh_frame";
  table.missing = {{"CFA expression 30", 3, 0x99}};
  std::string good = Serialize(table);
  ASSERT_TRUE(Parse(good).ok());
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(Parse(good.substr(0, n)).ok()) << n;
  EXPECT_FALSE(Parse(good + 'x').ok());
  auto refused = [&](auto change) {
    CompiledTable other = table;
    change(other);
    return !Parse(Serialize(other)).ok();
  };
  EXPECT_TRUE(refused([](CompiledTable& t) { t.rules.clear(); }));
  EXPECT_TRUE(refused([](CompiledTable& t) { t.rules[0].kind = UNWIND_RULE_FRAME; }));
  EXPECT_TRUE(refused([](CompiledTable& t) { t.rules[0].cfa_offset = 8; }));  // rule 0 says nothing
  EXPECT_TRUE(refused([](CompiledTable& t) { t.rules.back().cfa_reg = 16; }));
  EXPECT_TRUE(refused([](CompiledTable& t) { t.rules.back().kind = 99; }));
  EXPECT_TRUE(refused([](CompiledTable& t) { t.rows[0] = UNWIND_ROW(4, 2); }));        // a page that does not begin with a row
  EXPECT_TRUE(refused([](CompiledTable& t) { t.rows[1] = UNWIND_ROW(0x2340, 200); }));  // a rule that is not there
  EXPECT_TRUE(refused([](CompiledTable& t) { t.rows[1] = t.rows[0]; }));               // two rows at one place
  EXPECT_TRUE(refused([](CompiledTable& t) { t.page_rows[1] = 1000; }));
  EXPECT_TRUE(refused([](CompiledTable& t) { t.page_rows.back() -= 1; }));
  // and what it takes may be looked up in
  std::mt19937_64 random(testing::Seed());
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 1 + i % 3; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    auto parsed = Parse(bytes);
    if (parsed.ok()) parsed->Find(random() % 0x40000);
  }
}

}  // namespace
}  // namespace borescope::unwind
