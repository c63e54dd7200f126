// SPDX-License-Identifier: Apache-2.0
// common/api against crds/*.yaml: the same fields, defaults, bounds, forms. Objects are drawn from the schema itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "common/api/json.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/kube/yaml.h"

namespace borescope::api {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

constexpr const char* kUnionKinds[] = {"podName", "podSelector", "workloadRef"};

uint32_t Seed() {
  static const uint32_t seed = [] {
    const char* given = std::getenv("SEED");
    uint32_t value = given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
    std::printf("SEED=%u\n", value);
    return value;
  }();
  return seed;
}

Json Schema(const std::string& file) {
  Result<std::string> text = ReadFile(std::string(BORESCOPE_SOURCE_DIR) + "/crds/" + file);
  EXPECT_TRUE(text.ok());
  Result<Json> crd = kube::YamlToJson(*text);
  EXPECT_TRUE(crd.ok()) << crd.error().ToString();
  Json schema = (*crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
  EXPECT_TRUE(schema.is_object());
  return schema;
}

struct Kind {
  const char* file;
  std::function<Result<Json>(const Json&)> round_trip;  // parse, validate, write
};

template <typename T>
Result<Json> Written(Result<T> value) {
  if (!value.ok()) return value.error();
  return ToJson(*value);
}

const Kind kKinds[] = {
    {"profilingsessions.yaml",
     [](const Json& object) -> Result<Json> {
       ASSIGN_OR_RETURN(ProfilingSession session, ParseProfilingSession(object));
       RETURN_IF_ERROR(Validate(session.spec));
       return ToJson(session);
     }},
    {"nodesamplers.yaml", [](const Json& object) { return Written(ParseNodeSampler(object)); }},
    {"nodesamplerreports.yaml", [](const Json& object) { return Written(ParseNodeSamplerReport(object)); }},
};

std::string FieldPath(const std::string& parent, const std::string& key) {
  static const std::regex plain("[A-Za-z_][A-Za-z0-9_]*");
  if (!std::regex_match(key, plain)) return parent + "[\"" + key + "\"]";
  return parent.empty() ? key : parent + "." + key;
}

bool IsQuantity(const Json& schema) {
  std::string pattern = schema.value("pattern", "");
  return schema.contains("x-kubernetes-int-or-string") || pattern.ends_with("s$") || pattern.ends_with("m?$") || pattern.ends_with("Ti)?$");
}

// Draws values that a schema admits.
class Generator {
 public:
  explicit Generator(uint32_t seed, const char* target) : random_(seed), target_(target) {}

  // Every property present, `full`; or each with probability 1/2 unless it is required.
  Json Draw(const Json& schema, const std::string& path, bool full) {
    if (schema.contains("x-kubernetes-int-or-string")) return path.ends_with("cpu") ? std::to_string(100 + Below(800)) + "m" : std::to_string(1 + 2 * Below(500)) + "Mi";
    std::string type = schema.value("type", "");
    if (type == "object") return schema.contains("additionalProperties") ? Map(schema, path, full) : Object(schema, path, full);
    if (type == "array") return List(schema, path, full);
    if (type == "integer") {
      int64_t least = schema.value("minimum", int64_t{-1000000}), most = schema.value("maximum", int64_t{1'000'000'000'000});
      return std::uniform_int_distribution<int64_t>(std::max<int64_t>(least, least == 0 ? 1 : least), most)(random_);
    }
    if (type == "boolean") return true;
    EXPECT_EQ(type, "string") << path;
    return Text(schema, 1 + Below(12));
  }

  std::string Text(const Json& schema, size_t length) {
    if (schema.contains("enum")) return schema["enum"][Below(schema["enum"].size())];
    if (schema.value("format", "") == "date-time") return FormatMicroTime(1'700'000'000'000'000'000 + static_cast<int64_t>(Below(1'000'000'000)) * 1'000'000);
    std::string pattern = schema.value("pattern", "");
    if (pattern.ends_with("s$")) return std::to_string(Below(1000)) + "." + std::to_string(1 + Below(9)) + "s";
    if (pattern.ends_with("m?$")) return std::to_string(1 + Below(900)) + "m";
    if (pattern.ends_with("Ti)?$")) return std::to_string(1 + Below(900)) + "Mi";
    std::string text(length, 'a');
    for (char& c : text) c = pattern == "^[0-9]*$" ? static_cast<char>('1' + Below(9)) : static_cast<char>('a' + Below(26));
    return text;
  }

 private:
  size_t Below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  Json Object(const Json& schema, const std::string& path, bool full) {
    Json object = Json::object();
    Json required = schema.value("required", Json::array());
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [name, child] : properties.items()) {
      if (path.empty() && (name == "apiVersion" || name == "kind" || name == "metadata")) continue;
      if (name == "display") continue;
      if (path == "spec.target" && std::find(std::begin(kUnionKinds), std::end(kUnionKinds), name) != std::end(kUnionKinds) && name != target_) continue;
      bool is_kind = path.starts_with("spec.profiles[") && ProfileKindFromName(name).has_value() && child.value("type", "") == "object";
      if (is_kind && path != "spec.profiles[" + std::to_string(static_cast<int>(*ProfileKindFromName(name))) + "]") continue;
      bool needed = std::find(required.begin(), required.end(), name) != required.end() || is_kind || name == target_;
      if (full || needed || Below(2) == 0) object[name] = Draw(child, FieldPath(path, name), full);
    }
    if (object.contains("operator")) {
      bool values = object["operator"] == "In" || object["operator"] == "NotIn";
      object.erase("values");
      if (values) object["values"] = List(schema["properties"]["values"], path + ".values", true);
    }
    if (path == "spec.target.podSelector" && object.empty()) object["matchLabels"] = {{"app", "web"}};
    return object;
  }

  Json List(const Json& schema, const std::string& path, bool full) {
    size_t most = std::min(schema["maxItems"].get<size_t>(), path == "spec.profiles" ? size_t{7} : size_t{3});
    size_t count = path == "spec.profiles" || full ? most : std::max<size_t>(1, Below(most + 1));
    Json list = Json::array();
    for (size_t i = 0; i < count; ++i) {
      Json item = Draw(schema["items"], path + "[" + std::to_string(i) + "]", full);
      // Names and types of list maps differ, elements of sets too.
      for (const char* key : {"name", "type"}) {
        if (item.is_object() && item.contains(key) && item[key].is_string()) item[key] = item[key].get<std::string>() + std::to_string(i);
      }
      if (item.is_string()) item = item.get<std::string>() + std::to_string(i);
      list.push_back(std::move(item));
    }
    return list;
  }

  Json Map(const Json& schema, const std::string& path, bool full) {
    Json map = Json::object();
    size_t count = std::min(schema["maxProperties"].get<size_t>(), size_t{3});
    for (size_t i = 0; i < count; ++i) {
      std::string key = (path == "status.jobs" ? "shop/checkout/u" : "k") + std::to_string(i);
      map[key] = Draw(schema["additionalProperties"], FieldPath(path, key), full);
    }
    return map;
  }

  std::mt19937 random_;
  std::string target_;
};

Json DrawObject(const Json& schema, uint32_t seed, bool full) {
  return Generator(seed, kUnionKinds[seed % 3]).Draw(schema, "", full);
}

void ApplyDefaults(const Json& schema, Json& value) {
  if (value.is_object()) {
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [name, child] : properties.items()) {
      if (!value.contains(name) && child.contains("default")) value[name] = child["default"];
      if (value.contains(name)) ApplyDefaults(child, value[name]);
    }
    if (schema.contains("additionalProperties")) {
      for (auto& [name, child] : value.items()) ApplyDefaults(schema["additionalProperties"], child);
    }
  } else if (value.is_array()) {
    for (Json& item : value) ApplyDefaults(schema["items"], item);
  }
}

// Without what a writer leaves out or adds: nothing, empty, zero; columns made for kubectl.
Json Normal(const Json& value) {
  if (value.is_array()) {
    Json list = Json::array();
    for (const Json& item : value) list.push_back(Normal(item));
    return list;
  }
  if (!value.is_object()) return value;
  Json object = Json::object();
  for (const auto& [name, child] : value.items()) {
    Json normal = Normal(child);
    bool nothing = normal.is_null() || normal == "" || normal == "0s" || normal == "0" || normal == 0 || normal == false || ((normal.is_array() || normal.is_object()) && normal.empty());
    bool kind = ProfileKindFromName(name).has_value() && value.contains("name");  // `locks: {}` says something
    if ((!nothing || kind) && name != "display") object[name] = std::move(normal);
  }
  return object;
}

TEST(CrdTest, EveryFieldGoesThereAndBack) {
  for (const Kind& kind : kKinds) {
    Json schema = Schema(kind.file);
    for (uint32_t i = 0; i < 60; ++i) {
      uint32_t seed = Seed() + i;
      Json object = DrawObject(schema, seed, i < 3);
      Json expected = object;
      ApplyDefaults(schema, expected);
      Result<Json> written = kind.round_trip(object);
      ASSERT_TRUE(written.ok()) << kind.file << " SEED=" << seed << " " << written.error().ToString() << "\n" << object.dump(1);
      Json got = Normal(*written), want = Normal(expected);
      for (const char* name : {"apiVersion", "kind", "metadata"}) got.erase(name);
      ASSERT_EQ(got, want) << kind.file << " SEED=" << seed << "\nmissing or different: " << Json::diff(want, got).dump(1);
    }
  }
}

TEST(CrdTest, DefaultsAreThoseOfTheCrd) {
  Json schema = Schema("profilingsessions.yaml");
  Json smallest = {{"spec", {{"target", {{"podName", "a"}}}}}};
  Json expected = smallest;
  ApplyDefaults(schema, expected);
  Json written = *kKinds[0].round_trip(smallest);
  EXPECT_EQ(written["spec"], expected["spec"]);
}

// ---- Bounds ----------------------------------------------------------------------------------------------------------------

struct Site {
  const Json* schema;
  Json::json_pointer at;
  std::string path;
};

// Every value of the object beside its schema; one element stands for all of a list or map.
void Collect(const Json& schema, const Json& value, const Json::json_pointer& at, const std::string& path, std::vector<Site>& sites) {
  if (!path.empty()) sites.push_back({&schema, at, path});
  if (value.is_object() && schema.contains("properties")) {
    for (const auto& [name, child] : value.items()) Collect(schema["properties"][name], child, at / name, FieldPath(path, name), sites);
  } else if (value.is_object() && schema.contains("additionalProperties") && !value.empty()) {
    std::string key = value.begin().key();
    Collect(schema["additionalProperties"], value.begin().value(), at / key, FieldPath(path, key), sites);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size() && (i == 0 || path == "spec.profiles"); ++i) {
      Collect(schema["items"], value[i], at / i, path + "[" + std::to_string(i) + "]", sites);
    }
  }
}

class BoundsTest : public testing::Test {
 protected:
  void Accepts(const Json& value, const char* what) {
    Json object = object_;
    object[site_->at] = value;
    Result<Json> result = kind_->round_trip(object);
    EXPECT_TRUE(result.ok()) << site_->path << ", " << what << ": " << (result.ok() ? "" : result.error().message);
  }
  void Refuses(const Json& value, const char* what) {
    Json object = object_;
    object[site_->at] = value;
    Result<Json> result = kind_->round_trip(object);
    ASSERT_FALSE(result.ok()) << site_->path << ", " << what << " is accepted: " << value.dump().substr(0, 100);
    EXPECT_THAT(result.error().message, HasSubstr(site_->path)) << what;
    EXPECT_THAT(result.error().message, HasSubstr("found ")) << what;
  }

  void CheckSite() {
    const Json& schema = *site_->schema;
    const Json& value = object_[site_->at];
    Generator generator(Seed(), "");
    std::string type = schema.value("type", "string");
    Refuses(type == "object" || type == "array" ? Json("text") : type == "integer" ? Json("1x") : Json(Json::array({1})), "wrong type");
    if (type == "integer") {
      Refuses(1.5, "a fraction");
      if (schema.contains("minimum")) {
        Accepts(schema["minimum"], "the least");
        Refuses(schema["minimum"].get<int64_t>() - 1, "less than the least");
      }
      if (schema.contains("maximum")) {
        Accepts(schema["maximum"], "the most");
        Refuses(schema["maximum"].get<int64_t>() + 1, "more than the most");
      }
    }
    if (type == "string") CheckText(schema, generator);
    if (type == "array") {
      EXPECT_TRUE(schema.contains("maxItems")) << site_->path << " has no bound";
      CheckList(schema, value);
    }
    if (type == "object" && schema.contains("additionalProperties")) {
      EXPECT_TRUE(schema.contains("maxProperties")) << site_->path << " has no bound";
      Json map = Json::object();
      for (size_t i = 0; map.size() < schema["maxProperties"]; ++i) map["k" + std::to_string(i)] = value.begin().value();
      Accepts(map, "as many entries as allowed");
      map["one_more"] = value.begin().value();
      Refuses(map, "one entry more");
    }
    for (const Json& name : schema.value("required", Json::array())) {
      Json less = value;
      less.erase(name.get<std::string>());
      Refuses(less, "a required field missing");
    }
  }

  void CheckText(const Json& schema, Generator& generator) {
    if (schema.contains("enum")) {
      for (const Json& choice : schema["enum"]) {
        if (!site_->path.ends_with("operator")) Accepts(choice, "a choice");
      }
      return Refuses("Nope", "no choice");
    }
    if (schema.value("format", "") == "date-time") return Refuses("yesterday", "no time");
    if (schema.contains("pattern")) Refuses("~ ~", "another form");
    if (IsQuantity(schema)) return;
    ASSERT_TRUE(schema.contains("maxLength")) << site_->path << " has no bound";
    size_t most = schema["maxLength"];
    Accepts(generator.Text(schema, most), "the longest");
    Refuses(generator.Text(schema, most + 1), "one character more");
    if (schema.contains("minLength")) Refuses("", "empty");
    if (!schema.contains("pattern")) {
      std::string umlauts;
      for (size_t i = 0; i < most; ++i) umlauts += "ä";
      Accepts(umlauts, "characters are counted, not bytes");
    }
  }

  void CheckList(const Json& schema, const Json& value) {
    size_t most = schema["maxItems"];
    if (site_->path == "spec.profiles") {
      Json list = value;
      list.push_back(value[0]);
      return Refuses(list, "more than allowed");
    }
    Json list = Json::array();
    for (size_t i = 0; i < most + 1; ++i) {
      Json item = value[0];
      if (item.is_string()) item = "x" + std::to_string(i);
      list.push_back(std::move(item));
    }
    Refuses(list, "one element more");
    list.erase(list.size() - 1);
    Accepts(list, "as many elements as allowed");
    if (schema.contains("minItems")) Refuses(Json::array(), "empty");
    if (schema.value("x-kubernetes-list-type", "") == "set") Refuses(Json::array({"same", "same"}), "an element twice");
  }

  void CheckAll(const Kind& kind) {
    kind_ = &kind;
    Json schema = Schema(kind.file);
    size_t checked = 0;
    for (uint32_t target = 0; target < (kind.file == kKinds[0].file ? 3 : 1); ++target) {
      object_ = Generator(Seed(), kUnionKinds[target]).Draw(schema, "", true);
      std::vector<Site> sites;
      Collect(schema, object_, Json::json_pointer(), "", sites);
      for (const Site& site : sites) {
        site_ = &site;
        CheckSite();
        ++checked;
      }
    }
    EXPECT_GT(checked, 30u);
  }

  const Kind* kind_ = nullptr;
  const Site* site_ = nullptr;
  Json object_;
};

TEST_F(BoundsTest, ProfilingSession) { CheckAll(kKinds[0]); }
TEST_F(BoundsTest, NodeSampler) { CheckAll(kKinds[1]); }
TEST_F(BoundsTest, NodeSamplerReport) { CheckAll(kKinds[2]); }

TEST(CrdTest, AmountsHaveTheFormOfTheCrd) {
  Json properties = Schema("profilingsessions.yaml")["properties"]["spec"]["properties"]["budget"]["properties"];
  for (const char* field : {"cpu", "memory"}) {
    std::regex pattern(properties[field]["pattern"].get<std::string>());
    for (const char* text : {"100m", "1m", "0m", "01m", "999999m", "1000000m", "1", "0", "999", "1000", "0.5", "0.05", "0.005", "0.0005", "0.50", "0.0", "0.00", "0.000",
                             "1.5", "1.500", "1.0005", "00.5", "1.", ".5", "-1", "1e3", "256Mi", "1Gi", "64M", "3k", "999999Ti", "1000000Ti", "0Mi", "1.5Gi", "1Pi",
                             "999999999999999", "1000000000000000", "", "m", "Mi", "1 Mi"}) {
      Json object = {{"spec", {{"target", {{"podName", "a"}}}, {"budget", {{field, text}}}}}};
      EXPECT_EQ(kKinds[0].round_trip(object).ok(), std::regex_match(text, pattern)) << field << " " << text;
    }
    for (int64_t number : {int64_t{0}, int64_t{1}, properties[field]["maximum"].get<int64_t>(), properties[field]["maximum"].get<int64_t>() + 1}) {
      Json object = {{"spec", {{"target", {{"podName", "a"}}}, {"budget", {{field, number}}}}}};
      EXPECT_EQ(kKinds[0].round_trip(object).ok(), number >= 1 && number <= properties[field]["maximum"]) << field << " " << number;
    }
  }
}

TEST(CrdTest, ReservedLabelsAreThoseOfTheCrd) {
  std::string rule;
  Json spec = Schema("profilingsessions.yaml")["properties"]["spec"]["properties"];
  rule = spec["podLabels"]["x-kubernetes-validations"][0]["rule"];
  size_t begin = rule.find('\'') + 1;
  std::regex reserved(rule.substr(begin, rule.rfind('\'') - begin));
  std::mt19937 random(Seed());
  const std::string words[] = {"service", "name", "namespace", "pod", "container", "node", "cluster", "workload", "kind", "version", "language", "restart", "profiling", "session", "x"};
  const std::string joints[] = {"", "_", ".", "-", "/", "__"};
  auto pick = [&](const auto& from) { return from[random() % std::size(from)]; };
  for (int i = 0; i < 3000; ++i) {
    std::string key = pick(joints) + pick(words);
    if (random() % 2 == 0) key += pick(joints) + pick(words);
    EXPECT_EQ(ReservedLabel(key), std::regex_search(key, reserved)) << key;
  }
  for (const char* text : {"labels", "programLabels"}) {
    for (const Json& other : spec[text]["x-kubernetes-validations"]) {
      if (other["message"] != "a label is reserved") continue;
      EXPECT_EQ(other["rule"], rule) << text;
    }
  }
  EXPECT_THAT(spec["podLabels"]["x-kubernetes-validations"][0]["messageExpression"].get<std::string>(), HasSubstr(ReservedLabelList()));
}

}  // namespace
}  // namespace borescope::api
