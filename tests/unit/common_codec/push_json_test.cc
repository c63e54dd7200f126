// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "common/base/base64.h"
#include "common/codec/push.h"

namespace borescope::codec {
namespace {

using ::testing::HasSubstr;
using nlohmann::json;

TEST(Base64Test, KnownTexts) {  // RFC 4648, 10
  EXPECT_EQ(Base64Decode(""), "");
  EXPECT_EQ(Base64Decode("Zg=="), "f");
  EXPECT_EQ(Base64Decode("Zm8"), "fo");
  EXPECT_EQ(Base64Decode("Zm9vYmFy"), "foobar");
  EXPECT_EQ(Base64Decode("-_8="), Base64Decode("+/8="));
  EXPECT_FALSE(Base64Decode("Zm9*"));
}

TEST(PushJsonTest, ReadsWhatProtobufWrites) {
  auto push = DecodePushJson(R"({"future": {"a": [1, {"series": []}], "b": null}, "series": [
      {"labels": [{"name": "__name__", "value": "process_cpu"}, {"value": "sh\u00e9op", "name": "service_name", "x": [[]]}],
       "samples": [{"ID": "id-1", "rawProfile": "Zm9vYmFy"}, {"raw_profile": "AAE=", "ID": null}], "annotations": null},
      {"samples": null}, {}]})");
  ASSERT_TRUE(push.ok()) << push.error().message;
  ASSERT_EQ(push->size(), 3u);
  EXPECT_EQ((*push)[0].labels, (Labels{{"__name__", "process_cpu"}, {"service_name", "sh\u00e9op"}}));
  ASSERT_EQ((*push)[0].windows.size(), 2u);
  EXPECT_EQ((*push)[0].windows[0].pprof, "foobar");
  EXPECT_EQ((*push)[0].windows[0].id, "id-1");
  EXPECT_EQ((*push)[0].windows[1].pprof, std::string("\0\1", 2));
  EXPECT_EQ((*push)[0].windows[1].id, "");
  EXPECT_TRUE(DecodePushJson("{}")->empty());
}

TEST(PushJsonTest, RefusalsSayWhere) {
  for (auto [text, wanted] : {std::pair{"", "no JSON"}, {"[]", "the body: found a list"}, {"{\"series\":{}}", "series: found an object, give a list"},
                              {"{\"series\":[3]}", "series: found a number"}, {"{\"series\":[{\"labels\":[\"x\"]}]}", "labels: found a text"},
                              {"{\"series\":[{\"labels\":[{\"name\":1}]}]}", "name: found a number, give a text"},
                              {"{\"series\":[{\"samples\":[{\"rawProfile\":\"*\"}]}]}", "rawProfile: it is no base64"},
                              {"{\"series\":[{\"samples\":[{\"rawProfile\":[]}]}]}", "rawProfile: found a list"},
                              {"{\"series\":[{]}", "byte 13"}, {"{\"series\":[{\"labels\":[{\"name\":\"\xff\"}]}]}", "no JSON"}}) {
    auto push = DecodePushJson(text);
    ASSERT_FALSE(push.ok()) << text;
    EXPECT_EQ(push.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(push.error().message, HasSubstr(wanted)) << text;
  }
}

TEST(PushJsonTest, Limits) {
  auto list = [](size_t n, const std::string& one) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += (i > 0 ? "," : "") + one;
    return "[" + out + "]";
  };
  EXPECT_TRUE(DecodePushJson("{\"series\":" + list(256, "{}") + "}").ok());
  EXPECT_EQ(DecodePushJson("{\"series\":" + list(257, "{}") + "}").error().code, ErrorCode::kExhausted);
  EXPECT_EQ(DecodePushJson("{\"series\":[{\"labels\":" + list(31, "{}") + "}]}").error().code, ErrorCode::kExhausted);
  EXPECT_EQ(DecodePushJson("{\"series\":[{\"samples\":" + list(200, "{}") + "},{\"samples\":" + list(57, "{}") + "}]}").error().code, ErrorCode::kExhausted);
  // Deep and wide junk behind a key that is not known costs nothing.
  EXPECT_TRUE(DecodePushJson("{\"x\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}").ok());
}

}  // namespace
}  // namespace borescope::codec
