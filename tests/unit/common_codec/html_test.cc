// SPDX-License-Identifier: Apache-2.0
#include "common/codec/html.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <ranges>

#include "random_profile.h"

namespace borescope::codec {
namespace {

using nlohmann::json;
using profile::Profile;

// What a browser finds: the text of the data element, which ends at the first end tag whatever that stands in.
json DataOf(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return json::parse(page.substr(at, page.find("</script", at) - at), nullptr, false);
}

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// Self time of each stack of names, from the page's nodes.
std::map<std::string, int64_t> StacksOf(const json& data) {
  std::map<std::string, int64_t> stacks;
  std::vector<std::string> path;
  const json& nodes = data["nodes"];
  for (size_t i = 0; i + 3 < nodes.size(); i += 4) {
    const size_t depth = nodes[i].get<size_t>();
    EXPECT_LE(depth, path.size());
    path.resize(depth);
    path.push_back(data["names"][nodes[i + 1].get<size_t>()].get<std::string>());
    std::string text;
    for (const auto& name : path | std::views::drop(1)) text += name + "\n";
    if (int64_t self = nodes[i + 2].get<int64_t>() - nodes[i + 3].get<int64_t>(); self != 0) stacks[text] += self;
  }
  return stacks;
}

std::map<std::string, int64_t> StacksOf(const Profile& p, size_t value) {
  std::map<std::string, int64_t> stacks;
  for (const auto& sample : p.samples()) {
    std::string text;
    for (uint32_t location : std::views::reverse(sample.locations)) {
      const auto& l = p.locations()[location];
      for (size_t line = std::max<size_t>(1, l.lines.size()); line-- > 0;) text += profile::FrameName(p, l, line) + "\n";
    }
    if (sample.values[value] > 0) stacks[text] += sample.values[value];
  }
  return stacks;
}

TEST(HtmlTest, HoldsEveryStackWithItsTime) {
  std::mt19937_64 random(testing::Seed());
  Profile p = testing::RandomProfile(random, 500);
  const json data = DataOf(EncodeHtml(p, 1, {.title = "deploy/x", .facts = {"here"}, .notes = {"whole"}, .wall_seconds = 2}));
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(data["title"], "deploy/x");
  EXPECT_EQ(data["leftOut"], 0);
  EXPECT_EQ(data["kinds"].get<std::string>().size(), data["names"].size());
  EXPECT_EQ(StacksOf(data), StacksOf(p, 1));
}

Profile Named(const std::vector<std::string>& names) {
  Profile p;
  p.sample_types = {{"cpu", "nanoseconds"}};
  std::vector<uint32_t> stack;
  for (size_t i = 0; i < names.size(); ++i) stack.push_back(p.AddLocation({profile::kNone, i + 1, {{p.AddFunction({names[i], "", names[i], 0}), 1}}}));
  p.AddSample(stack, std::vector<int64_t>{5});
  return p;
}

TEST(HtmlTest, HostileNamesStayText) {
  const std::vector<std::string> names = {"</script><script>document.title='taken'</script>", "<!--<script>", "\"};alert(1)//", "</SCRIPT >", "&lt;img src=x onerror=alert(1)>",
                                          "{{SCRIPT}}{{NONCE}}", "\xff\xfe\x01", "\xe2\x80\xa8line"};
  const std::string plain = EncodeHtml(Named({"a"}), 0, {.title = "t"});
  const std::string page = EncodeHtml(Named(names), 0, {.title = names[0] + "{{DATA}}", .facts = {names[0]}, .notes = {names[1]}});
  // Not one element more than a page with a harmless name has.
  for (const char* tag : {"<script", "</script", "<img", "<!--", "<title", "</title", "<style"}) EXPECT_EQ(Count(page, tag), Count(plain, tag)) << tag;
  const json data = DataOf(page);
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(data["names"].size(), names.size() + 1);
  EXPECT_EQ(data["names"][names.size()], names[0]);
  EXPECT_NE(page.find("&lt;/script&gt;"), page.npos);
}

TEST(HtmlTest, OnlyItsOwnScriptRunsAndNothingIsAskedFor) {
  const std::string one = EncodeHtml(Named({"a"}), 0, {}), two = EncodeHtml(Named({"a"}), 0, {});
  const std::string policy = "content=\"default-src 'none'; script-src 'nonce-";
  ASSERT_NE(one.find(policy), one.npos);
  const std::string nonce = one.substr(one.find(policy) + policy.size(), 32);
  EXPECT_EQ(Count(one, nonce), 4u);   // the policy twice, the style, the script
  EXPECT_EQ(Count(two, nonce), 0u);   // another in each file
  for (const char* word : {"http:", "https:", "src=", "url(", "@import", "fetch(", "XMLHttpRequest", "WebSocket", "import("}) EXPECT_EQ(Count(one, word), 0u) << word;
}

TEST(HtmlTest, IsCutToItsBoundFromTheSmallestAndSaysSo) {
  std::mt19937_64 random(testing::Seed());
  Profile p;
  p.sample_types = {{"cpu", "nanoseconds"}};
  std::vector<uint32_t> locations;
  for (uint64_t i = 0; i < 3000; ++i) {
    locations.push_back(p.AddLocation({profile::kNone, i + 1, {{p.AddFunction({"name<" + std::to_string(i) + ">::of::something", "", "", 0}), 1}}}));
  }
  for (int i = 0; i < 60'000; ++i) {
    std::vector<uint32_t> stack;
    for (size_t depth = 1 + random() % 6; depth > 0; --depth) stack.push_back(locations[random() % locations.size()]);
    p.AddSample(stack, std::vector<int64_t>{static_cast<int64_t>(1 + random() % 1'000'000)});
  }
  for (size_t bound : {size_t{128} << 10, size_t{1} << 20, size_t{2} << 20}) {
    const std::string page = EncodeHtml(p, 0, {.max_bytes = bound});
    EXPECT_LE(page.size(), bound);
    EXPECT_GT(page.size(), bound * 3 / 4);  // and makes use of it
    const json data = DataOf(page);
    ASSERT_TRUE(data.is_object());
    EXPECT_GT(data["leftOut"], 0);
    EXPECT_EQ(data["nodes"][2], p.Total(0));
    // Whatever is there is at least as large as what is not, and the rest adds up.
    int64_t shown = 0;
    for (size_t i = 0; i < data["nodes"].size(); i += 4) {
      EXPECT_GE(data["nodes"][i + 2], data["smallest"]);
      const int64_t self = data["nodes"][i + 2].get<int64_t>() - data["nodes"][i + 3].get<int64_t>();
      EXPECT_GE(self, 0);
      shown += self;
    }
    EXPECT_EQ(shown + data["leftOutTime"].get<int64_t>(), p.Total(0));
  }
}

TEST(HtmlTest, EmptyAndDeepProfilesHaveAPage) {
  Profile empty;
  empty.sample_types = {{"cpu", "nanoseconds"}};
  EXPECT_EQ(DataOf(EncodeHtml(empty, 0, {}))["nodes"], json({0, 0, 0, 0}));
  std::vector<std::string> names(1000, "f");
  EXPECT_EQ(DataOf(EncodeHtml(Named(names), 0, {}))["nodes"].size(), 4u * 1001);
}

}  // namespace
}  // namespace borescope::codec
