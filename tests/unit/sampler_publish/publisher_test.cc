// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "common/base/clock.h"
#include "common/codec/push.h"
#include "common/http/server.h"

namespace borescope::publish {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// A sink whose answers the test chooses.
class PublisherTest : public testing::Test {
 protected:
  void SetUp() override {
    server_.Handle("POST", "/base/push.v1.PusherService/Push", [this](const http::Request& request) {
      auto series = codec::DecodePush(request.body);
      EXPECT_TRUE(series.ok());
      std::lock_guard lock(mutex_);
      tenants_.push_back(std::string(request.Header("X-Scope-OrgID")));
      http::Response response = answer_(static_cast<int>(bodies_.size()));
      bodies_.push_back(request.body);
      if (series.ok() && response.status == 200) ids_.push_back(series->at(0).windows.at(0).id);
      return response;
    });
    ASSERT_TRUE(server_.Start("127.0.0.1:0").ok());
  }
  std::unique_ptr<Publisher> Make(Publisher::Options options = {}) {
    options.first_backoff = 10ms;
    options.max_backoff = 40ms;
    Sink sink{.name = "default", .base_url = "http://127.0.0.1:" + std::to_string(server_.port()), .path = "/base", .token_file = "", .ca_file = "", .tenant = "t1"};
    auto made = Publisher::Create({sink}, options);
    EXPECT_TRUE(made.ok());
    return *std::move(made);
  }
  static Upload Window(const std::string& id, int64_t start = 1) {
    return {.job_id = "j", .id = id, .labels = {{"__name__", "process_cpu"}, {"service_name", "s"}}, .pprof_gzip = std::string(100, 'x'),
            .window_start_ns = start, .sampled_ns = 7, .sinks = {"default"}};
  }
  static SinkProgress WaitFor(Publisher& publisher, const std::function<bool(const SinkProgress&)>& condition) {
    SinkProgress progress;
    for (int i = 0; i < 500; ++i) {
      progress = publisher.Progress("j")["default"];
      if (condition(progress)) return progress;
      std::this_thread::sleep_for(2ms);
    }
    ADD_FAILURE() << "not reached: stored " << progress.stored << " pending " << progress.pending << " failed " << progress.failed;
    return progress;
  }

  std::mutex mutex_;
  std::function<http::Response(int)> answer_ = [](int) { return http::Response::Json(200, "{}"); };
  std::vector<std::string> bodies_, ids_, tenants_;
  http::Server server_;
};

TEST_F(PublisherTest, StoresInOrder) {
  std::atomic<int> changes = 0;
  Publisher::Options options;
  options.on_change = [&] { ++changes; };
  auto publisher = Make(options);
  publisher->Enqueue(Window("a", 10));
  publisher->Enqueue(Window("b", 20));
  SinkProgress progress = WaitFor(*publisher, [](const auto& p) { return p.stored == 2; });
  EXPECT_EQ(progress.last_stored_start_ns, 20);
  EXPECT_EQ(progress.pending, 0);
  publisher->Stop(1s);
  EXPECT_THAT(ids_, testing::ElementsAre("a", "b"));
  EXPECT_EQ(tenants_[0], "t1");
  EXPECT_GE(changes, 2);
}

TEST_F(PublisherTest, TheLastStoredWindowHasNoOlderOneQueuedBehindIt) {
  std::atomic<int> allowed = 0;  // how many more are taken
  answer_ = [&](int) { return allowed > 0 && allowed-- > 0 ? http::Response::Json(200, "{}") : http::Response::Text(503, "later"); };
  auto publisher = Make();
  publisher->Enqueue(Window("b", 20));
  publisher->Enqueue(Window("a", 10));
  allowed = 1;
  EXPECT_EQ(WaitFor(*publisher, [](const auto& p) { return p.stored == 1; }).last_stored_start_ns, 0);
  allowed = 1;
  EXPECT_EQ(WaitFor(*publisher, [](const auto& p) { return p.stored == 2; }).last_stored_start_ns, 20);
  publisher->Stop(0s);
}

TEST_F(PublisherTest, RepeatsTheSameBytesWhileTheSinkIsInTrouble) {
  answer_ = [](int n) { return n == 0 ? http::Response::Text(503, "later") : n == 1 ? http::Response::Text(429, "slow") : http::Response::Json(200, "{}"); };
  auto publisher = Make();
  publisher->Enqueue(Window("a"));
  WaitFor(*publisher, [](const auto& p) { return p.stored == 1; });
  ASSERT_EQ(bodies_.size(), 3u);
  EXPECT_EQ(bodies_[0], bodies_[1]);
  EXPECT_EQ(bodies_[0], bodies_[2]);
}

TEST_F(PublisherTest, ARefusalIsFinalAndCountedAsLost) {
  answer_ = [](int n) { return n == 0 ? http::Response::Text(400, "bad labels") : http::Response::Json(200, "{}"); };
  auto publisher = Make();
  publisher->Enqueue(Window("a"));
  publisher->Enqueue(Window("b"));
  SinkProgress progress = WaitFor(*publisher, [](const auto& p) { return p.stored == 1; });
  EXPECT_EQ(progress.failed, 1);
  EXPECT_EQ(progress.lost_ns, 7);
  EXPECT_EQ(publisher->stats().pushes["default"]["refused"], 1u);
  EXPECT_EQ(bodies_.size(), 2u);
}

TEST_F(PublisherTest, TheDeadlineEndsTheRepetition) {
  answer_ = [](int) { return http::Response::Text(503, "down for repair"); };
  auto publisher = Make();
  publisher->SetDeadline("j", NowNs(CLOCK_BOOTTIME) + 100'000'000);
  publisher->Enqueue(Window("a"));
  SinkProgress progress = WaitFor(*publisher, [](const auto& p) { return p.failed == 1; });
  EXPECT_THAT(progress.message, HasSubstr("503: down for repair"));
  EXPECT_EQ(progress.pending, 0);
}

TEST_F(PublisherTest, AFullQueueDropsTheOldest) {
  answer_ = [](int) { return http::Response::Text(503, ""); };
  Publisher::Options options;
  options.max_queue_bytes = 250;
  auto publisher = Make(options);
  for (const char* id : {"a", "b", "c", "d"}) publisher->Enqueue(Window(id));
  SinkProgress progress = WaitFor(*publisher, [](const auto& p) { return p.failed == 2; });
  EXPECT_EQ(progress.pending, 2);
  EXPECT_THAT(progress.message, HasSubstr("queue is full"));
}

TEST_F(PublisherTest, UnknownSinksAndForgottenJobsLeaveNothing) {
  auto publisher = Make();
  EXPECT_TRUE(publisher->Knows("default"));
  EXPECT_FALSE(publisher->Knows("other"));
  Upload upload = Window("a");
  upload.sinks = {"other"};
  publisher->Enqueue(upload);
  EXPECT_TRUE(publisher->Progress("j").empty());
  publisher->Enqueue(Window("b"));
  publisher->Forget("j");
  for (int i = 0; i < 500 && !publisher->Progress("j").empty(); ++i) std::this_thread::sleep_for(2ms);
  EXPECT_TRUE(publisher->Progress("j").empty());
}

TEST_F(PublisherTest, StopDoesNotHangOnASinkThatIsDown) {
  answer_ = [](int) { return http::Response::Text(503, ""); };
  auto publisher = Make();
  publisher->Enqueue(Window("a"));
  auto start = std::chrono::steady_clock::now();
  publisher->Stop(50ms);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s);
}

}  // namespace
}  // namespace borescope::publish
