// SPDX-License-Identifier: Apache-2.0
#include "common/kube/events.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "fake_api.h"

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using test::Eventually;
using test::RawConnection;
using test::RawRequest;
using test::RawServer;

const ObjectReference kAbout{"profiling.borescope.dev/v1alpha1", "ProfilingSession", "shop", "checkout", "u1"};

TEST(EventRecorder, WritesWhatTheServerDemands) {
  RawServer server([](RawConnection& c, const RawRequest&) { return c.Reply(201, "{}"); });
  auto client = ClientOf(server);
  EventRecorder recorder(client.get(), "borescope.dev/operator", "operator-0");
  recorder.Warning(kAbout, "TargetsNotFound", "Resolve", std::string(5000, 'x') + "\x01\xff");
  recorder.Normal({"profiling.borescope.dev/v1alpha1", "NodeSampler", "", "node-1", ""}, "Ready", "Start", "ready");
  recorder.Stop(milliseconds(1000));
  auto seen = server.requests();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].target, "/apis/events.k8s.io/v1/namespaces/shop/events");
  EXPECT_EQ(seen[1].target, "/apis/events.k8s.io/v1/namespaces/default/events");
  json event = json::parse(seen[0].body);
  EXPECT_EQ(event["apiVersion"], "events.k8s.io/v1");
  EXPECT_EQ(event["kind"], "Event");
  EXPECT_EQ(event["type"], "Warning");
  EXPECT_EQ(event["reason"], "TargetsNotFound");
  EXPECT_EQ(event["action"], "Resolve");
  EXPECT_EQ(event["reportingController"], "borescope.dev/operator");
  EXPECT_EQ(event["reportingInstance"], "operator-0");
  EXPECT_LE(event["note"].get<std::string>().size(), 1024u);
  EXPECT_EQ(event["regarding"], (json{{"apiVersion", kAbout.api_version}, {"kind", kAbout.kind}, {"namespace", "shop"}, {"name", "checkout"}, {"uid", "u1"}}));
  EXPECT_TRUE(ParseTime(event["eventTime"].get<std::string>()).ok());
  EXPECT_EQ(event["eventTime"].get<std::string>().size(), std::string("2026-11-30T13:00:00.000000Z").size());
  EXPECT_TRUE(event["metadata"]["name"].get<std::string>().starts_with("checkout."));
  EXPECT_EQ(recorder.stats().created, 2u);
}

TEST(EventRecorder, RepeatsBecomeASeries) {
  std::atomic<bool> expired{false};
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    if (r.method == "PATCH" && expired) return c.Reply(404, StatusBody(404, "NotFound", "x"));
    return c.Reply(200, "{}");
  });
  auto client = ClientOf(server);
  EventRecorder recorder(client.get(), "c", "i");
  for (int i = 0; i < 3; ++i) recorder.Normal(kAbout, "Started", "Start", "note " + std::to_string(i));
  recorder.Normal(kAbout, "Published", "Publish", "");
  ASSERT_TRUE(Eventually([&] { return recorder.stats().created + recorder.stats().repeated == 4; }));
  EXPECT_EQ(recorder.stats().repeated, 2u);
  auto seen = server.requests();
  std::string name = json::parse(seen[0].body)["metadata"]["name"];
  EXPECT_EQ(seen[1].method + seen[1].target, "PATCH/apis/events.k8s.io/v1/namespaces/shop/events/" + name);
  EXPECT_EQ(json::parse(seen[2].body)["series"]["count"], 3);
  expired = true;
  recorder.Normal(kAbout, "Started", "Start", "again");
  ASSERT_TRUE(Eventually([&] { return recorder.stats().created == 3; }));
}

TEST(EventRecorder, CountsWhatItCannotWriteAndStopsAtOnce) {
  RawServer server([&](RawConnection& c, const RawRequest&) { return c.Reply(403, StatusBody(403, "Forbidden", "no")); });
  auto client = ClientOf(server);
  {
    EventRecorder recorder(client.get(), "c", "i");
    recorder.Normal(kAbout, "A", "B", "");
    ASSERT_TRUE(Eventually([&] { return recorder.stats().dropped == 1; }));
  }
  RawServer deaf([&](RawConnection& c, const RawRequest&) { return c.Hang(), false; });
  auto to_deaf = ClientOf(deaf);
  EventRecorder recorder(to_deaf.get(), "c", "i");
  for (int i = 0; i < 300; ++i) recorder.Normal(kAbout, "A" + std::to_string(i), "B", "");
  EXPECT_GE(recorder.stats().dropped, 44u);
  EXPECT_LT(test::TimeOf([&] { recorder.Stop(); }), milliseconds(100));
  EXPECT_EQ(recorder.stats().dropped, 300u);
}

}  // namespace
}  // namespace borescope::kube
