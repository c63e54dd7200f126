// SPDX-License-Identifier: Apache-2.0
#include "store/query/labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "common/codec/wire.h"
#include "store/query/handlers.h"
#include "temporary_directory.h"

namespace borescope::store {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr const char* kCpu = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

class LabelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Database::Open(directory_.path());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    database_ = *std::move(opened);
    queries_.emplace(database_.get(), &registry_, &Clock::System());
    Store("shop", "a", 100);
    Store("shop", "b", 200);
    Store("lab", "secret", 100);
  }
  void Store(const std::string& ns, const std::string& pod, int64_t at) {
    Window window;
    window.series = {{{"__name__", "process_cpu"}, {"namespace", ns}, {"pod", pod}, {"service_name", "s"}},
                     {{"samples", "count"}, {"cpu", "nanoseconds"}}, {"cpu", "nanoseconds"}};
    window.start_ns = at * kSecond;
    window.end_ns = (at + 10) * kSecond;
    window.pprof = "x";
    ASSERT_TRUE(database_->Insert({&window, 1}).ok());
  }
  http::Response Get(LabelMethod method, http::QueryMap query = {}) {
    http::Request request;
    request.query = std::move(query);
    request.scope = scope_;
    return queries_->AnswerLabels(method, request);
  }
  http::Response Post(LabelMethod method, const std::string& type, std::string body) {
    http::Request request;
    request.method = "POST";
    request.headers["Content-Type"] = type;
    request.body = std::move(body);
    request.scope = scope_;
    return queries_->AnswerLabels(method, request);
  }

  borescope::testing::TemporaryDirectory directory_;
  std::unique_ptr<Database> database_;
  metrics::Registry registry_;
  std::optional<QueryService> queries_;
  std::string scope_ = "*";
};

TEST_F(LabelsTest, WhatThereIs) {
  EXPECT_EQ(json::parse(Get(LabelMethod::kLabelNames).body)["names"],
            json::parse(R"(["__name__","__period_type__","__period_unit__","__profile_type__","__type__","__unit__","namespace","pod","service_name"])"));
  EXPECT_EQ(json::parse(Get(LabelMethod::kLabelValues, {{"name", "pod"}}).body), json::parse(R"({"names":["a","b","secret"]})"));
  json types = json::parse(Get(LabelMethod::kProfileTypes).body)["profileTypes"];
  ASSERT_EQ(types.size(), 2u);
  EXPECT_EQ(types[0], json::parse(R"({"ID":"process_cpu:cpu:nanoseconds:cpu:nanoseconds","name":"process_cpu","sampleType":"cpu",
      "sampleUnit":"nanoseconds","periodType":"cpu","periodUnit":"nanoseconds"})"));
  json sets = json::parse(Get(LabelMethod::kSeries, {{"labelNames", "pod,__profile_type__"}, {"matchers", "{pod=~\"a|b\"}"}}).body)["labelsSet"];
  EXPECT_EQ(sets.size(), 4u);
  EXPECT_EQ(sets[0], json::parse(R"({"labels":[{"name":"__profile_type__","value":"process_cpu:cpu:nanoseconds:cpu:nanoseconds"},{"name":"pod","value":"a"}]})"));
}

TEST_F(LabelsTest, TimesAndSelectors) {
  auto pods = [&](http::QueryMap query) {
    query["name"] = "pod";
    return Get(LabelMethod::kLabelValues, std::move(query)).body;
  };
  EXPECT_EQ(pods({{"from", "200"}}), R"({"names":["b"]})");
  EXPECT_EQ(pods({{"until", "200"}}), R"({"names":["a","secret"]})");
  EXPECT_EQ(pods({{"from", "1"}, {"until", "2"}}), "{}");
  EXPECT_EQ(pods({{"matchers", "{namespace=\"lab\"}"}}), R"({"names":["secret"]})");
  EXPECT_EQ(pods({{"matchers", std::string("{__profile_type__=\"") + kCpu + "\",pod=\"a\"}"}}), R"({"names":["a"]})");
  EXPECT_EQ(pods({{"matchers", "{__profile_type__=\"x:y:z:a:b\"}"}}), "{}");
}

// What Grafana sends when it saves a data source: nothing, and a range before all time.
TEST_F(LabelsTest, ProfileTypesOfAnyRange) {
  EXPECT_EQ(json::parse(Post(LabelMethod::kProfileTypes, "application/json", "{}").body)["profileTypes"].size(), 2u);
  EXPECT_EQ(json::parse(Post(LabelMethod::kProfileTypes, "application/json", R"({"start":"0","end":0})").body)["profileTypes"].size(), 2u);
  http::Response none = Post(LabelMethod::kProfileTypes, "application/json", R"({"start":1000,"end":"4000"})");
  EXPECT_EQ(none.status, 200);
  EXPECT_EQ(none.body, "{}");
}

TEST_F(LabelsTest, ProtobufByItsFieldNumbers) {
  std::string body;
  codec::WireWriter w(&body);
  w.Bytes(1, "pod");                      // name
  w.Bytes(2, "{namespace=\"shop\"}");     // matchers
  w.Entry(2, "");                         // an empty selector is {}
  http::Response response = Post(LabelMethod::kLabelValues, "application/proto", body);
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("Content-Type"), "application/proto");
  std::vector<std::string> names;
  codec::WireReader in(response.body);
  while (in.Next()) {
    ASSERT_EQ(in.field(), 1u);
    names.emplace_back(in.Bytes());
  }
  EXPECT_THAT(names, ElementsAre("a", "b", "secret"));

  body.clear();
  w.Bytes(2, "service_name");
  response = Post(LabelMethod::kSeries, "application/proto", body);
  std::string want = "\x12\x15\x0a\x13\x0a\x0cservice_name\x12\x01s";  // labels_set 2 { labels 1 { name 1, value 2 } }
  want[1] = static_cast<char>(want.size() - 2), want[3] = static_cast<char>(want.size() - 4);
  EXPECT_EQ(response.body, want);
}

TEST_F(LabelsTest, ANamespaceSeesItsOwn) {
  scope_ = "shop";
  for (auto method : {LabelMethod::kLabelNames, LabelMethod::kLabelValues, LabelMethod::kSeries, LabelMethod::kProfileTypes}) {
    EXPECT_EQ(Get(method, {{"name", "pod"}}).body.find("secret"), std::string::npos);
    http::Response denied = Get(method, {{"name", "pod"}, {"matchers", "{namespace=\"lab\"}"}});
    EXPECT_EQ(denied.status, 403) << denied.body;
    EXPECT_THAT(denied.body, HasSubstr("of namespace shop"));
  }
  scope_ = "";
  EXPECT_EQ(Get(LabelMethod::kLabelNames).body, "{}");
}

TEST_F(LabelsTest, RefusalsSayWhatIsWrong) {
  for (auto [type, body, wanted] : {std::tuple{"application/json", "[]", "JSON object"}, {"application/json", "{\"matchers\":3}", "matchers"},
                                    {"application/json", "{\"start\":\"x\"}", "start"}, {"application/json", "{\"start\":5,\"end\":4}", "before"},
                                    {"application/json", "{\"matchers\":[\"{a=b}\"]}", "double quotes"}, {"application/proto", "\xff", "SeriesRequest"}}) {
    http::Response response = Post(LabelMethod::kSeries, type, body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_THAT(response.body, HasSubstr(wanted));
  }
  EXPECT_EQ(Post(LabelMethod::kSeries, "text/plain", "").status, 415);
  EXPECT_THAT(Get(LabelMethod::kLabelValues).body, HasSubstr("name"));
  EXPECT_THAT(Get(LabelMethod::kLabelNames, {{"from", "yesterday"}}).body, HasSubstr("from"));
}

}  // namespace
}  // namespace borescope::store
