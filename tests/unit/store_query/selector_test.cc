// SPDX-License-Identifier: Apache-2.0
#include "store/query/selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace borescope::store {
namespace {

const Labels kLabels = {{"__name__", "process_cpu"}, {"app.kubernetes.io/name", "x"}, {"otel.scope.name", "s"}, {"pod", "shop-7"}, {"quote", "a\"\\b"}};

bool Matches(std::string_view text) {
  auto selector = ParseSelector(text);
  EXPECT_TRUE(selector.ok()) << text << ": " << (selector.ok() ? "" : selector.error().message);
  return selector.ok() && std::ranges::all_of(*selector, [](const Matcher& m) { return m.Matches(kLabels); });
}

TEST(SelectorTest, MatchesAsPrometheusDoes) {
  for (const char* yes : {"{}", " { } ", R"({pod="shop-7"})", R"({pod="shop-7",})", R"({pod = "shop-7" , pod!="x"})", R"({pod=~"shop-.*"})",
                          R"({pod=~"a|shop-7"})", R"({pod!~"shop"})", R"({absent=""})", R"({absent!="x"})", R"({absent=~".*"})",
                          R"({quote="a\"\\b"})", R"({pod=~"shop\-\d"})", R"({otel.scope.name="s"})", R"({"app.kubernetes.io/name"="x"})"}) {
    EXPECT_TRUE(Matches(yes)) << yes;
  }
  for (const char* no : {R"({pod="shop"})", R"({pod=~"shop"})", R"({pod=~"hop-7"})", R"({absent="x"})", R"({absent!=""})",
                         R"({pod="shop-7",__name__="wall"})", R"({pod!~"shop.*"})"}) {
    EXPECT_FALSE(Matches(no)) << no;
  }
}

TEST(SelectorTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string text;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{{"", "expected \"{\" at character 1, found the end"},
                                         {"{a}", "expected one of = != =~ !~ at character 3, found \"}\""},
                                         {"{a=b}", "a value in double quotes at character 4"},
                                         {"{a=\"b", "a closing quote"},
                                         {"{a=\"b\\", "a closing quote"},
                                         {"{=\"b\"}", "a label's name at character 2"},
                                         {"{a=\"b\" c=\"d\"}", "\",\" or \"}\""},
                                         {"{,}", "a label's name"},
                                         {"{a=\"b\"}x", "the end at character 8"},
                                         {"{a=~\"(\"}", "no regular expression (RE2)"},
                                         {"{a=~\"(.{1000}){1000}\"}", "no regular expression (RE2)"},
                                         {"{" + std::string(5000, ' ') + "}", "the limit is 4096"}}) {
    auto selector = ParseSelector(c.text);
    ASSERT_FALSE(selector.ok()) << c.text;
    EXPECT_NE(selector.error().message.find(c.message), std::string::npos) << selector.error().message;
  }
  std::string many = "{";
  for (int i = 0; i < 33; ++i) many += "a=\"b\",";
  EXPECT_FALSE(ParseSelector(many + "}").ok());
}

TEST(SelectorTest, HostileExpressionsStayLinear) {
  auto selector = ParseSelector(R"({pod=~"(a*)*(a*)*(a*)*b"})");
  ASSERT_TRUE(selector.ok());
  Labels labels = {{"pod", std::string(2048, 'a')}};
  auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE((*selector)[0].Matches(labels));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(500));
}

}  // namespace
}  // namespace borescope::store
