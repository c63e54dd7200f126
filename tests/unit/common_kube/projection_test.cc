// SPDX-License-Identifier: Apache-2.0
#include "common/kube/projection.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace borescope::kube {
namespace {

using nlohmann::json;

constexpr std::string_view kPod = R"({
  "kind": "Pod", "metadata": {"name": "p", "uid": "u", "labels": {"app": "x", "app.kubernetes.io/name": "y"},
    "annotations": {"kubernetes.io/config.hash": "h", "big": "…"}, "managedFields": [{"f": {"g": {}}}]},
  "spec": {"nodeName": "n", "containers": [{"name": "a", "image": "i", "env": [{"name": "E"}]}, {"name": "b"}], "volumes": [1, 2]},
  "status": {"phase": "Running", "containerStatuses": [{"name": "a", "state": {"running": {"startedAt": "t"}}, "ready": true}], "x": null}})";

TEST(Projection, KeepsOnlyWhatIsWanted) {
  Projection projection{"metadata.name", "metadata.labels.*", R"(metadata.annotations.kubernetes\.io/config\.hash)", "spec.containers.name",
                        "status.containerStatuses.state.*.startedAt", "status.phase", "status.missing"};
  auto object = projection.Parse(kPod);
  ASSERT_TRUE(object.ok()) << object.error().ToString();
  EXPECT_EQ(*object, json::parse(R"({
    "metadata": {"name": "p", "labels": {"app": "x", "app.kubernetes.io/name": "y"}, "annotations": {"kubernetes.io/config.hash": "h"}},
    "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
    "status": {"phase": "Running", "containerStatuses": [{"state": {"running": {"startedAt": "t"}}}]}})"));
}

TEST(Projection, EmptyKeepsAll) {
  EXPECT_EQ(*Projection().Parse(kPod), json::parse(kPod));
  EXPECT_EQ(*Projection({"metadata"}).Parse(kPod), (json{{"metadata", json::parse(kPod)["metadata"]}}));
  EXPECT_EQ(*Projection().Parse("[1,-2,3.5,\"s\",true,null,{}]"), json::parse("[1,-2,3.5,\"s\",true,null,{}]"));
}

TEST(Projection, AScalarOnTheWayIsADeadEnd) {
  EXPECT_EQ(*Projection({"a.b"}).Parse(R"({"a": 1})"), json::object());
  EXPECT_EQ(*Projection({"a.b"}).Parse(R"({"a": null})"), json::object());
  EXPECT_EQ(*Projection({"a.b"}).Parse(R"({"a": [1, {"b": 2}, [{"b": 3, "c": 4}]]})"), json::parse(R"({"a": [{"b": 2}, [{"b": 3}]]})"));
}

TEST(Projection, GoesUnderAKeyAndJoinsOthers) {
  Projection list{"metadata.resourceVersion"};
  list.Merge(Projection{"metadata.name"}.Under("items"));
  EXPECT_EQ(*list.Parse(R"({"metadata": {"resourceVersion": "7", "x": 1}, "items": [{"metadata": {"name": "a", "y": 2}}, {"z": 3}]})"),
            json::parse(R"({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}, {}]})"));
  Projection whole_items{"a"};
  whole_items.Merge(Projection().Under("items"));
  EXPECT_EQ(*whole_items.Parse(R"({"a": 1, "b": 2, "items": [{"c": 3}]})"), json::parse(R"({"a": 1, "items": [{"c": 3}]})"));
  Projection everything{"a"};
  everything.Merge(Projection());
  EXPECT_EQ(*everything.Parse(R"({"b": 2})"), json::parse(R"({"b": 2})"));
}

TEST(Projection, TheLastOfTwoEqualKeysWins) {
  EXPECT_EQ(*Projection({"a.b"}).Parse(R"({"a": {"b": 1}, "a": {"b": 2}})"), json::parse(R"({"a": {"b": 2}})"));
}

TEST(Projection, NamesWhatIsWrong) {
  for (std::string_view bad : {"", "{", "{\"a\": }", "{} {}", "nul", "\"\xff\"", "{\"a\":1,}", "[1 2]"}) {
    EXPECT_EQ(Projection().Parse(bad).error().code, ErrorCode::kInvalid) << bad;
    EXPECT_FALSE(Projection({"x"}).Parse(bad).ok()) << bad;
  }
  EXPECT_EQ(Projection().Parse(std::string(64, '[') + std::string(64, ']')).ok(), true);
  EXPECT_NE(Projection().Parse(std::string(65, '[') + std::string(65, ']')).error().message.find("64 levels"), std::string::npos);
  EXPECT_FALSE(Projection({"x"}).Parse(std::string(1'000'000, '[')).ok());
}

}  // namespace
}  // namespace borescope::kube
