// SPDX-License-Identifier: Apache-2.0
#include "operator/controller/kube_api.h"

#include <gtest/gtest.h>

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
  KubeApi api(client.get(), nullptr, &inbox, &canceller, nullptr);
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

}  // namespace
}  // namespace borescope::op
