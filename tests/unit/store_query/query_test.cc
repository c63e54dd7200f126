// SPDX-License-Identifier: Apache-2.0
#include "store/query/query.h"

#include <gtest/gtest.h>

#include "common/codec/pprof.h"
#include "random_profile.h"
#include "temporary_directory.h"

namespace borescope::store {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr const char* kCpu = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

class QueryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Database::Open(directory_.path());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    database_ = *std::move(opened);
  }
  void Store(const std::string& name, const std::string& pod, const profile::Profile& p) {
    Window window;
    window.series = {{{"__name__", name}, {"namespace", ns_}, {"pod", pod}, {"service_name", "shop"}}, p.sample_types, p.period_type};
    window.start_ns = p.time_ns;
    window.end_ns = p.time_ns + p.duration_ns;
    window.pprof = codec::EncodePprof(p);
    auto stored = database_->Insert({&window, 1});
    ASSERT_TRUE(stored.ok()) << stored.error().message;
  }
  Result<profile::Profile> Ask(const std::string& text, int64_t from = 0, int64_t until = INT64_MAX) {
    ASSIGN_OR_RETURN(Query query, ParseQuery(text, from, until));
    return Select(View(database_.get(), scope_), query);
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<Database> database_;
  std::string ns_ = "shop", scope_ = "*";  // of what is stored, of who asks
  std::mt19937_64 random_{testing::Seed()};
};

TEST_F(QueryTest, SumsOfWhatOverlapsAndMatches) {
  int64_t a = 0, b = 0;
  for (int i = 0; i < 6; ++i) {
    profile::Profile p = testing::RandomProfile(random_, 100);
    p.time_ns = (100 + 10 * i) * kSecond;
    (i % 2 == 0 ? a : b) += p.Total(1);
    Store("process_cpu", i % 2 == 0 ? "a" : "b", p);
  }
  EXPECT_EQ(Ask("{pod=\"a\"}")->Total(1), a);
  EXPECT_EQ(Ask("{}")->Total(1), a + b);
  auto typed = Ask(std::string(kCpu) + "{pod=\"b\"}");
  ASSERT_TRUE(typed.ok());
  EXPECT_EQ(typed->sample_types, (std::vector<profile::ValueType>{{"cpu", "nanoseconds"}}));
  EXPECT_EQ(typed->Total(0), b);
  EXPECT_EQ(typed->time_ns, 110 * kSecond);
  EXPECT_EQ(typed->duration_ns, 50 * kSecond);
  // [120 s, 130 s) is one window; its neighbours touch, but do not overlap.
  EXPECT_EQ(Ask("{}", 120 * kSecond, 130 * kSecond)->time_ns, 120 * kSecond);
  EXPECT_EQ(Ask("{}", 120 * kSecond, 130 * kSecond)->duration_ns, 10 * kSecond);
  EXPECT_EQ(Ask("{}", 129 * kSecond, 131 * kSecond)->duration_ns, 20 * kSecond);
}

TEST_F(QueryTest, AnInstantCountsWhereItStands) {
  profile::Profile p = testing::RandomProfile(random_, 10);
  p.time_ns = 100 * kSecond;
  p.duration_ns = 0;
  Store("memory", "a", p);
  EXPECT_TRUE(Ask("{}", 100 * kSecond, 101 * kSecond).ok());
  EXPECT_FALSE(Ask("{}", 99 * kSecond, 100 * kSecond).ok());
}

TEST_F(QueryTest, TypesThatDifferAreAskedForByName) {
  profile::Profile cpu = testing::RandomProfile(random_, 10), one = cpu, wall;
  Store("process_cpu", "a", cpu);
  Store("wall", "a", cpu);
  auto mixed = Ask("{}");
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, ErrorCode::kInvalid);
  EXPECT_NE(mixed.error().message.find(kCpu), std::string::npos) << mixed.error().message;
  EXPECT_EQ(Ask(kCpu)->Total(0), cpu.Total(1));
  // Of the same type, but with fewer values beside it.
  profile::Profile alone;
  alone.sample_types = {{"cpu", "nanoseconds"}};
  alone.period_type = cpu.period_type;
  alone.time_ns = cpu.time_ns;
  alone.duration_ns = kSecond;
  uint32_t f = alone.AddLocation({profile::kNone, 1, {{alone.AddFunction({"f", "", "", 0}), 0}}});
  alone.AddSample({&f, 1}, std::vector<int64_t>{5});
  Store("process_cpu", "b", alone);
  EXPECT_EQ(Ask(kCpu)->Total(0), cpu.Total(1) + 5);
}

TEST_F(QueryTest, ANamespaceSeesItsOwn) {
  profile::Profile ours = testing::RandomProfile(random_, 20), theirs = testing::RandomProfile(random_, 20);
  Store("process_cpu", "mine", ours);
  ns_ = "secret-lab";
  Store("process_cpu", "hidden-pod", theirs);
  scope_ = "shop";
  EXPECT_EQ(Ask("{}")->Total(1), ours.Total(1));
  EXPECT_EQ(Ask("{namespace=\"shop\"}")->Total(1), ours.Total(1));
  EXPECT_EQ(Ask("{namespace!=\"shop\"}").error().code, ErrorCode::kDenied);
  for (const char* other : {"{namespace=\"secret-lab\"}", "{namespace=~\"secret.*\"}", "{pod=~\".*\", namespace=\"secret-lab\"}"}) {
    auto denied = Ask(other);
    ASSERT_FALSE(denied.ok()) << other;
    EXPECT_EQ(denied.error().code, ErrorCode::kDenied);
    EXPECT_NE(denied.error().message.find("namespace shop"), std::string::npos) << denied.error().message;
  }
  // No hint may name what the caller must not see.
  auto none = Ask("{pod=\"hidden-po\"}");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message.find("hidden-pod"), std::string::npos) << none.error().message;
  EXPECT_NE(none.error().message.find("mine"), std::string::npos) << none.error().message;
  scope_ = "third";
  EXPECT_NE(Ask("{}").error().message.find("no profile of namespace third"), std::string::npos) << Ask("{}").error().message;
  scope_ = "";
  EXPECT_EQ(Ask("{}").error().code, ErrorCode::kNotFound);
}

TEST_F(QueryTest, RefusesWrongForms) {
  for (const char* bad : {"", "{", "cpu", "a:b:c:d", "a:b:c:d:e:f:g", ":cpu:nanoseconds:cpu:nanoseconds", "a:b:c:d:e{x}"}) {
    EXPECT_FALSE(ParseQuery(bad, 0, 1).ok()) << bad;
  }
  EXPECT_TRUE(ParseQuery("a:b:c::", 0, 1).ok());
  EXPECT_FALSE(ParseQuery("{}", 5, 5).ok());
}

}  // namespace
}  // namespace borescope::store
