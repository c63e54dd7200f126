// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/introductions.h"

#include <gtest/gtest.h>

#include "common/base/fd.h"
#include "common/http/server.h"
#include "raw_server.h"
#include "temporary_directory.h"

namespace borescope::publish {
namespace {

using namespace std::chrono_literals;

class IntroductionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_.Handle("GET", "/base/borescope/v1/whoami", [this](const http::Request& request) {
      std::lock_guard lock(mutex_);
      asked_.emplace_back(request.Header("Authorization"));
      return http::Response::Json(status_, "{}");
    });
    ASSERT_TRUE(server_.Start("127.0.0.1:0").ok());
    Write("first");
  }
  void Write(const std::string& token) { ASSERT_TRUE(WriteFileAtomically(file(), token + "\n").ok()); }
  std::string file() const { return directory_.path() + "/token"; }
  Sink Default() const { return {.name = "default", .base_url = "http://127.0.0.1:" + std::to_string(server_.port()), .path = "/base", .token_file = file(), .ca_file = "", .tenant = ""}; }
  std::vector<std::string> asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }
  bool Saw(const std::vector<std::string>& want) {
    return test::Eventually([&] { return asked() == want; });
  }

  borescope::testing::TemporaryDirectory directory_;
  std::mutex mutex_;
  std::vector<std::string> asked_;
  int status_ = 200;
  http::Server server_;
};

TEST_F(IntroductionsTest, AsksAtEachArmingAndWhenTheTokenWasRenewed) {
  auto made = Introductions::Create({Default()}, {.timeout = 5s, .again = 10ms, .renewed = 20ms});
  ASSERT_TRUE(made.ok());
  (*made)->Ask({"other"});
  (*made)->Ask({"default"});
  ASSERT_TRUE(Saw({"Bearer first"}));
  (*made)->Ask({"default", "other"});
  ASSERT_TRUE(Saw({"Bearer first", "Bearer first"}));
  // The kubelet renews a projected token by a rename.
  Write("second");
  ASSERT_TRUE(Saw({"Bearer first", "Bearer first", "Bearer second"}));
  std::this_thread::sleep_for(60ms);
  EXPECT_EQ(asked().size(), 3u) << "asked again without a reason";
}

TEST_F(IntroductionsTest, AsksAgainUntilTheStoreCanSay) {
  status_ = 503;
  auto made = Introductions::Create({Default()}, {.timeout = 5s, .again = 10ms, .renewed = 20s});
  ASSERT_TRUE(made.ok());
  (*made)->Ask({"default"});
  ASSERT_TRUE(test::Eventually([&] { return asked().size() >= 3; }));
  {
    std::lock_guard lock(mutex_);
    status_ = 200;
  }
  ASSERT_TRUE(test::Eventually([&] {
    size_t before = asked().size();
    std::this_thread::sleep_for(50ms);
    return asked().size() == before;
  }));
}

TEST_F(IntroductionsTest, LeavesSinksOfAnotherKindAlone) {
  Sink other = Default();
  other.path = "/elsewhere";
  Sink open = Default();
  open.name = "open";
  open.token_file = "";
  auto made = Introductions::Create({other, open}, {.timeout = 5s, .again = 5ms, .renewed = 5ms});
  ASSERT_TRUE(made.ok());
  for (int i = 0; i < 5; ++i) (*made)->Ask({"default", "open"});
  ASSERT_TRUE(test::Eventually([&] { return server_.stats().refused == 1; }));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(server_.stats().refused, 1u);
  EXPECT_TRUE(asked().empty());
}

}  // namespace
}  // namespace borescope::publish
