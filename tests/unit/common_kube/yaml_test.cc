// SPDX-License-Identifier: Apache-2.0
#include "common/kube/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace borescope::kube {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

json Good(std::string_view yaml) {
  auto result = YamlToJson(yaml);
  EXPECT_TRUE(result.ok()) << yaml << "\n" << result.status().error().message;
  return result.ok() ? *result : json();
}

std::string Bad(std::string_view yaml, const YamlLimits& limits = {}) {
  auto result = YamlToJson(yaml, limits);
  EXPECT_FALSE(result.ok()) << yaml << "\n" << (result.ok() ? result->dump().substr(0, 200) : "");
  return result.ok() ? "" : result.error().message;
}

TEST(Yaml, ReadsAManifest) {
  EXPECT_EQ(Good(R"(---
apiVersion: profiling.borescope.dev/v1alpha1
kind: ProfilingSession
metadata: {name: checkout, labels: {release: "42"}}
spec:
  target:
    podSelector:
      matchLabels:
        app: checkout     # a comment
  durationSeconds: 60
  profiles:
  - {name: cpu, cpu: {frequencyHertz: 99}}
  - name: wall
    wall:
      frequencyHertz: 49
  budget: {cpu: 100m, memory: 256Mi}
  text: |
    two
    lines
)"),
            json::parse(R"({"apiVersion": "profiling.borescope.dev/v1alpha1", "kind": "ProfilingSession",
    "metadata": {"name": "checkout", "labels": {"release": "42"}},
    "spec": {"target": {"podSelector": {"matchLabels": {"app": "checkout"}}}, "durationSeconds": 60,
      "profiles": [{"name": "cpu", "cpu": {"frequencyHertz": 99}}, {"name": "wall", "wall": {"frequencyHertz": 49}}],
      "budget": {"cpu": "100m", "memory": "256Mi"}, "text": "two\nlines\n"}})"));
}

TEST(Yaml, ScalarsAreWhatTheyLookLike) {
  EXPECT_EQ(Good("[1, -2, +3, 0, 9223372036854775807, 18446744073709551615]"), json::parse("[1,-2,3,0,9223372036854775807,18446744073709551615]"));
  EXPECT_EQ(Good("[1.5, -0.25, .5, 1., 1e3, 0e5, 1E-2]"), json::parse("[1.5,-0.25,0.5,1.0,1e3,0.0,0.01]"));
  EXPECT_EQ(Good("[true, True, FALSE]"), json::parse("[true,true,false]"));
  EXPECT_EQ(Good("[~, null, Null, ]"), json::parse("[null,null,null]"));
  EXPECT_EQ(Good("[\"1\", '2', \"true\", 'null', \"yes\", \"\", '~']"), json::parse(R"(["1","2","true","null","yes","","~"])"));
  EXPECT_EQ(Good("[!!str 1, ! 2]"), json::parse(R"(["1","2"])"));
  EXPECT_EQ(Good("[100m, 256Mi, 1.2.3, 1e, e3, 10s, -, --, '.', 2026-11-30, 12:30:45, 1a, v1, nope, ygg]"),
            json::parse(R"(["100m","256Mi","1.2.3","1e","e3","10s","-","--",".","2026-11-30","12:30:45","1a","v1","nope","ygg"])"));
  EXPECT_EQ(Good("a:\nb: ''\n1: x\n\"<<\": z"), json::parse(R"({"a":null,"b":"","1":"x","<<":"z"})"));
  EXPECT_EQ(Good(""), json());
  EXPECT_EQ(Good("# nothing\n"), json());
  EXPECT_EQ(Good(R"({"json": ["is", "yaml", {"too": 1e2}]})"), json::parse(R"({"json":["is","yaml",{"too":100.0}]})"));
}

TEST(Yaml, RefusesWhatReadersDisagreeAbout) {
  for (const char* word : {"yes", "No", "ON", "off", "y", "N", "0644", "-017", "0x1F", "0o17", "0b11", "1_000", ".inf", "-.INF", ".nan"}) {
    EXPECT_THAT(Bad(std::string("a:\n  b: ") + word + "\n"), StartsWith("YAML: 2:6: \"")) << word;
    EXPECT_THAT(Bad(std::string(word) + ": 1"), HasSubstr("quote it")) << word;
    EXPECT_EQ(Good(std::string("'") + word + "'"), word);
  }
  EXPECT_THAT(Bad("a: 18446744073709551616"), HasSubstr("out of range"));
  EXPECT_THAT(Bad("a: 1e999"), HasSubstr("out of range"));
}

TEST(Yaml, RefusesWhatHidesSomething) {
  EXPECT_EQ(Bad("a: 1\nb: 2\na: 3\n"), "YAML: 3:1: the key \"a\" is there twice");
  EXPECT_THAT(Bad("{a: 1, \"a\": 2}"), HasSubstr("twice"));
  EXPECT_THAT(Bad("x: &x {a: 1}\nz:\n  <<: *x\n"), StartsWith("YAML: 3:3: merge keys"));
  EXPECT_THAT(Bad("a: 1\n---\nb: 2\n"), HasSubstr("more than one YAML document"));
  EXPECT_THAT(Bad("? [a, b]\n: 1\n"), HasSubstr("a key that is no text"));
  EXPECT_THAT(Bad("~: 1\n"), HasSubstr("a key that is no text"));
  EXPECT_THAT(Bad("a: !!binary aGVsbG8=\n"), HasSubstr("tag"));
  EXPECT_THAT(Bad("a: !custom {b: 1}\n"), HasSubstr("tag"));
  EXPECT_THAT(Bad("a: &a [*a]\n"), HasSubstr("alias"));
  EXPECT_THAT(Bad("a: &a b\n*a : c\n"), HasSubstr("alias as a key"));
}

TEST(Yaml, SaysWhereItIsBroken) {
  EXPECT_THAT(Bad("a: 1\nb: [1, 2\nc: 3\n"), StartsWith("YAML: 3:"));
  EXPECT_THAT(Bad("a:\n\tb: 1\n"), StartsWith("YAML: "));
  EXPECT_THAT(Bad("a: *nobody\n"), StartsWith("YAML: 1:"));
  EXPECT_THAT(Bad("\"unterminated"), StartsWith("YAML: "));
}

TEST(Yaml, ExpandsAliasesWithinTheBounds) {
  EXPECT_EQ(Good("a: &x {k: [1, 2]}\nb: *x\n"), json::parse(R"({"a":{"k":[1,2]},"b":{"k":[1,2]}})"));
  std::string bomb = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n";
  for (int i = 1; i < 9; ++i) {
    std::string alias = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + alias;
    for (int k = 0; k < 8; ++k) bomb += ", " + alias;
    bomb += "]\n";
  }
  EXPECT_THAT(Bad(bomb), HasSubstr("100000 nodes"));
  std::string fat = "a: &a \"" + std::string(500'000, 'x') + "\"\nb: [";
  for (int i = 0; i < 1000; ++i) fat += "*a,";
  EXPECT_THAT(Bad(fat + "*a]\n"), HasSubstr("nodes"));
  EXPECT_THAT(Bad(std::string(65, '[') + std::string(65, ']')), HasSubstr("64 levels"));
  EXPECT_THAT(Bad(std::string(100'000, '[')), StartsWith("YAML: "));
  EXPECT_THAT(Bad(std::string(2 << 20, ' ')), HasSubstr("larger than"));
  EXPECT_THAT(Bad("[1, 2, 3]", {.max_nodes = 3}), HasSubstr("3 nodes"));
}

}  // namespace
}  // namespace borescope::kube
