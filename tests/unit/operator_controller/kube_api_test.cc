// SPDX-License-Identifier: Apache-2.0
#include "operator/controller/kube_api.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "tests/unit/common_kube/fake_api.h"

namespace borescope::op {
namespace {

// /healthz must not take a loop that makes one slow call after the other for one that is stuck.
TEST(KubeApi, EachCallIsASignOfLife) {
  test::RawServer server([](test::RawConnection& c, const test::RawRequest&) {
    return c.Reply(404, kube::StatusBody(404, "NotFound", "nodesamplers n1 not found"));
  });
  auto client = kube::ClientOf(server);
  Inbox inbox;
  http::Canceller canceller;
  KubeApi api(client.get(), nullptr, &inbox, &canceller, nullptr, [] { return true; });
  EXPECT_EQ(api.last_call(), 0);
  for (int i = 0; i < 3; ++i) {
    int64_t before = NowNs(CLOCK_MONOTONIC);
    auto sampler = api.ReadSampler("n1");
    ASSERT_FALSE(sampler.ok());
    EXPECT_EQ(sampler.error().code, ErrorCode::kNotFound);
    EXPECT_GE(api.last_call(), before);
    EXPECT_LE(api.last_call(), NowNs(CLOCK_MONOTONIC));
  }
}

// What a deposed leader gets off is refused by the server only if each write says what it was
// decided on; and once it knows, nothing leaves it any more.
TEST(KubeApi, EachWriteSaysWhatItWasDecidedOn) {
  std::atomic<int> records{0};
  test::RawServer server([&](test::RawConnection& c, const test::RawRequest& request) {
    if (request.method == "PUT") {
      ++records;
      return c.Reply(200, "{}");
    }
    return c.Reply(409, kube::StatusBody(409, "Conflict", "the object has been modified"));
  });
  auto client = kube::ClientOf(server);
  http::ClientOptions store_options;
  store_options.base_url = server.url();
  auto store = http::Client::Create(std::move(store_options));
  ASSERT_TRUE(store.ok());
  Inbox inbox;
  http::Canceller canceller;
  bool leads = true;
  KubeApi api(client.get(), nullptr, &inbox, &canceller, store->get(), [&] { return leads; });

  api::ProfilingSession session;
  session.metadata.namespace_name = "shop";
  session.metadata.name = "s";
  session.metadata.uid = "u";
  session.metadata.resource_version = "41";
  api::ProfilingSessionStatus status;
  status.phase = api::Phase::kSampling;
  api::NodeSampler sampler;
  sampler.metadata.name = "n1";
  sampler.metadata.resource_version = "42";
  auto write_all = [&](ErrorCode expected) {
    EXPECT_EQ(api.WriteStatus(session, status).error().code, expected);
    EXPECT_EQ(api.WriteSpec(sampler, {}).error().code, expected);
    EXPECT_EQ(api.DeleteSession(session.metadata).error().code, expected);
    api.Keep(session, status);
  };
  write_all(ErrorCode::kConflict);
  auto seen = server.requests();
  ASSERT_EQ(seen.size(), 4u);
  auto body = [&](size_t i) { return nlohmann::json::parse(seen[i].body); };
  EXPECT_EQ(body(0)["metadata"]["resourceVersion"], "41");
  EXPECT_EQ(body(1)["metadata"]["resourceVersion"], "42");
  EXPECT_EQ(body(2)["preconditions"]["resourceVersion"], "41");
  EXPECT_EQ(records, 1);
  leads = false;
  write_all(ErrorCode::kUnavailable);
  EXPECT_EQ(server.requests().size(), 4u);
}

TEST(KubeApi, AReaderThatIsThereIsNoError) {
  std::atomic<int> status{201};
  test::RawServer server([&](test::RawConnection& c, const test::RawRequest&) {
    if (status == 201) return c.Reply(201, kube::ObjectJson("borescope-reader", "1"));
    return c.Reply(status, kube::StatusBody(status, status == 409 ? "AlreadyExists" : "Forbidden", "no"));
  });
  auto client = kube::ClientOf(server);
  auto store = http::Client::Create({.base_url = server.url()});
  Inbox inbox;
  http::Canceller canceller;
  KubeApi api(client.get(), nullptr, &inbox, &canceller, store->get(), [] { return true; });
  EXPECT_TRUE(api.MakeReader("shop").ok());
  status = 409;
  EXPECT_TRUE(api.MakeReader("shop").ok());
  status = 403;
  EXPECT_EQ(api.MakeReader("shop").error().code, ErrorCode::kDenied);
  ASSERT_EQ(server.requests().size(), 3u);
  EXPECT_EQ(server.requests()[0].Path(), "/api/v1/namespaces/shop/serviceaccounts");
  EXPECT_NE(server.requests()[0].body.find("\"borescope-reader\""), std::string::npos);
  // Without a store there is nothing to read.
  KubeApi alone(client.get(), nullptr, &inbox, &canceller, nullptr, [] { return true; });
  EXPECT_TRUE(alone.MakeReader("shop").ok());
  EXPECT_EQ(server.requests().size(), 3u);
}

}  // namespace
}  // namespace borescope::op
