// SPDX-License-Identifier: Apache-2.0
#include "common/kube/lease.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>

#include "fake_api.h"

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using test::RawConnection;
using test::RawRequest;
using test::RawServer;

constexpr int64_t kSecond = 1'000'000'000;

uint64_t Seed() {
  static uint64_t seed = [] {
    const char* given = std::getenv("SEED");
    uint64_t value = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

// One Lease as an API server keeps it: each write has a new resourceVersion, and one that carries an old one is refused.
class FakeLease {
 public:
  FakeLease() : server_([this](RawConnection& c, const RawRequest& r) { return Answer(c, r); }) {}

  std::unique_ptr<LeaderLease> Candidate(const std::string& identity) {
    clients_.push_back(ClientOf(server_));
    return std::make_unique<LeaderLease>(clients_.back().get(), LeaseOptions{.ns = "sys", .name = "it", .identity = identity, .boot_clock = [this] { return now.load(); }});
  }
  std::unique_ptr<RestClient> Client() { return ClientOf(server_); }
  json spec() {
    std::lock_guard lock(mutex_);
    return object_.is_null() ? json() : object_["spec"];
  }
  void Put(json spec) {
    std::lock_guard lock(mutex_);
    object_ = {{"metadata", {{"name", "it"}, {"namespace", "sys"}, {"resourceVersion", std::to_string(++version_)}}}, {"spec", std::move(spec)}};
  }
  size_t writes() {
    std::lock_guard lock(mutex_);
    return writes_;
  }

  std::atomic<int64_t> now{1000 * kSecond};
  std::atomic<bool> down{false};
  std::function<void()> before_write;  // somebody is faster

 private:
  bool Answer(RawConnection& c, const RawRequest& request) {
    if (down) return c.Reply(500, StatusBody(500, "InternalError", "no leader of etcd"));
    if (request.method != "GET" && before_write) std::exchange(before_write, nullptr)();
    std::lock_guard lock(mutex_);
    const bool ours = request.Path() == "/apis/coordination.k8s.io/v1/namespaces/sys/leases/it";
    if (request.method == "GET" && ours) {
      return object_.is_null() ? c.Reply(404, StatusBody(404, "NotFound", "leases it not found")) : c.Reply(200, object_.dump());
    }
    ++writes_;
    json body = json::parse(request.body);
    if (request.method == "POST" && request.Path() == "/apis/coordination.k8s.io/v1/namespaces/sys/leases") {
      if (!object_.is_null()) return c.Reply(409, StatusBody(409, "AlreadyExists", "leases it already exists"));
      object_ = body;
    } else if (request.method == "PATCH" && ours && request.Has("application/merge-patch+json")) {
      if (body["metadata"]["resourceVersion"] != object_["metadata"]["resourceVersion"]) {
        return c.Reply(409, StatusBody(409, "Conflict", "the object has been modified"));
      }
      object_.merge_patch(body);
    } else {
      return c.Reply(405, StatusBody(405, "MethodNotAllowed", "no"));
    }
    object_["metadata"]["resourceVersion"] = std::to_string(++version_);
    return c.Reply(200, object_.dump());
  }

  std::mutex mutex_;
  json object_;
  int64_t version_ = 40;
  size_t writes_ = 0;
  RawServer server_;
  std::vector<std::unique_ptr<RestClient>> clients_;
};

TEST(Lease, IsMadeKeptAndGivenUp) {
  FakeLease api;
  auto a = api.Candidate("a"), b = api.Candidate("b");
  std::string error;
  EXPECT_TRUE(a->Step(&error)) << error;
  json made = api.spec();
  EXPECT_EQ(made["holderIdentity"], "a");
  EXPECT_EQ(made["leaseDurationSeconds"], 15);
  EXPECT_EQ(made["leaseTransitions"], 0);
  // metav1.MicroTime takes nothing but six digits.
  std::regex micro(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)");
  EXPECT_TRUE(std::regex_match(made["renewTime"].get<std::string>(), micro)) << made;
  EXPECT_TRUE(std::regex_match(made["acquireTime"].get<std::string>(), micro)) << made;
  EXPECT_FALSE(b->Step(&error));
  EXPECT_EQ(error, "");
  EXPECT_EQ(b->holder(), "a");
  for (int i = 0; i < 30; ++i) {
    api.now += 2 * kSecond;
    EXPECT_TRUE(a->Step(&error)) << error;
    EXPECT_TRUE(a->Holds());
    EXPECT_FALSE(b->Step(&error));
    EXPECT_FALSE(b->Holds());
  }
  EXPECT_EQ(api.spec()["acquireTime"], made["acquireTime"]);
  EXPECT_EQ(api.writes(), 31u);  // a follower only reads
  ASSERT_TRUE(a->Release().ok());
  EXPECT_FALSE(a->Holds());
  EXPECT_EQ(api.spec()["holderIdentity"], "");
  EXPECT_TRUE(b->Step(&error)) << error;  // at once
  EXPECT_EQ(api.spec()["holderIdentity"], "b");
  EXPECT_EQ(api.spec()["leaseDurationSeconds"], 15);
  EXPECT_EQ(api.spec()["leaseTransitions"], 1);
  EXPECT_FALSE(a->Step(&error));
}

// The other's clock may be wrong by any amount: what counts is for how long the record did not change, seen from here.
TEST(Lease, NobodysClockIsTrusted) {
  std::mt19937_64 random(Seed());
  for (int round = 0; round < 20; ++round) {
    int64_t year = 1970 + static_cast<int64_t>(random() % 200);
    auto time = [&](int second) { return std::to_string(year) + "-06-01T00:00:" + (second < 10 ? "0" : "") + std::to_string(second) + ".000000Z"; };
    int64_t duration = 1 + static_cast<int64_t>(random() % 40);
    FakeLease api;
    api.Put({{"holderIdentity", "other"}, {"leaseDurationSeconds", duration}, {"leaseTransitions", 7}, {"acquireTime", time(0)}, {"renewTime", time(0)}});
    auto us = api.Candidate("us");
    std::string error;
    EXPECT_FALSE(us->Step(&error));
    // It renews as long as it likes.
    for (int i = 1; i < 4; ++i) {
      api.now += duration * kSecond - 1;
      EXPECT_FALSE(us->Step(&error)) << "after " << i;
      api.Put({{"holderIdentity", "other"}, {"leaseDurationSeconds", duration}, {"leaseTransitions", 7}, {"acquireTime", time(0)}, {"renewTime", time(i)}});
      EXPECT_FALSE(us->Step(&error));
    }
    api.now += duration * kSecond - 1;
    EXPECT_FALSE(us->Step(&error));
    api.now += 1;
    EXPECT_TRUE(us->Step(&error)) << error << " round " << round;
    EXPECT_EQ(api.spec()["holderIdentity"], "us");
    EXPECT_EQ(api.spec()["leaseTransitions"], 8);
    EXPECT_NE(api.spec()["acquireTime"], time(0));
  }
}

TEST(Lease, OneThatWasStoppedWakesAsNoLeader) {
  FakeLease api;
  auto a = api.Candidate("a"), b = api.Candidate("b");
  std::string error;
  ASSERT_TRUE(a->Step(&error));
  ASSERT_FALSE(b->Step(&error));
  api.now += 16 * kSecond;  // a is stopped
  EXPECT_FALSE(a->Holds()) << "before it has asked anybody";
  ASSERT_TRUE(b->Step(&error)) << error;
  size_t writes = api.writes();
  EXPECT_FALSE(a->Step(&error));
  api.now += 2 * kSecond;
  EXPECT_FALSE(a->Step(&error));
  EXPECT_EQ(api.writes(), writes) << "a woken one wrote";
  EXPECT_EQ(a->holder(), "b");
  EXPECT_EQ(a->transitions(), 1);
  EXPECT_TRUE(b->Holds());
}

TEST(Lease, WhoseRenewalIsRefusedHasLostIt) {
  FakeLease api;
  auto a = api.Candidate("a");
  std::string error;
  ASSERT_TRUE(a->Step(&error));
  api.Put({{"holderIdentity", "b"}, {"leaseDurationSeconds", 15}, {"leaseTransitions", 1}});
  api.now += kSecond;
  EXPECT_FALSE(a->Step(&error));
  EXPECT_FALSE(a->Holds()) << "its time was not over, but the record has another's name";
  EXPECT_EQ(api.spec()["holderIdentity"], "b");
}

// Somebody else's note on the Lease (an annotation) costs a second try, not the lease.
TEST(Lease, AConflictWithoutAnotherHolderIsNoLoss) {
  FakeLease api;
  auto a = api.Candidate("a");
  std::string error;
  ASSERT_TRUE(a->Step(&error));
  json spec = api.spec();
  api.Put(spec);
  api.now += kSecond;
  EXPECT_TRUE(a->Step(&error)) << error;
  EXPECT_EQ(api.spec()["leaseTransitions"], 0);
  EXPECT_EQ(api.spec()["acquireTime"], spec["acquireTime"]);
}

TEST(Lease, OfTwoThatSeizeItOneWins) {
  FakeLease api;
  api.Put({{"holderIdentity", "gone"}, {"leaseDurationSeconds", 15}, {"leaseTransitions", 3}});
  auto a = api.Candidate("a"), b = api.Candidate("b");
  std::string error;
  EXPECT_FALSE(a->Step(&error));
  EXPECT_FALSE(b->Step(&error));
  api.now += 15 * kSecond;
  api.before_write = [&] {
    std::string other;
    EXPECT_TRUE(b->Step(&other)) << other;
  };
  EXPECT_FALSE(a->Step(&error));
  EXPECT_EQ(error, "");
  EXPECT_FALSE(a->Holds());
  EXPECT_EQ(api.spec()["holderIdentity"], "b");
  EXPECT_EQ(api.spec()["leaseTransitions"], 4);
  // The same when there is none yet.
  FakeLease empty;
  auto c = empty.Candidate("c"), d = empty.Candidate("d");
  empty.before_write = [&] {
    std::string other;
    EXPECT_TRUE(d->Step(&other)) << other;
  };
  EXPECT_FALSE(c->Step(&error));
  EXPECT_EQ(empty.spec()["holderIdentity"], "d");
}

TEST(Lease, WithoutTheServerItIsKeptForTheRenewDeadline) {
  FakeLease api;
  auto a = api.Candidate("a");
  std::string error;
  ASSERT_TRUE(a->Step(&error));
  int64_t renewed = api.now;
  api.down = true;
  for (int i = 1; i < 5; ++i) {
    api.now = renewed + 2 * i * kSecond;
    EXPECT_TRUE(a->Step(&error)) << i;
    EXPECT_THAT(error, ::testing::HasSubstr("no leader of etcd"));
  }
  api.now = renewed + 10 * kSecond - 1;
  EXPECT_TRUE(a->Holds());
  api.now = renewed + 10 * kSecond;
  EXPECT_FALSE(a->Holds());
  EXPECT_FALSE(a->Step(&error));
  api.down = false;
  EXPECT_TRUE(a->Step(&error)) << "nobody took it: " << error;
  EXPECT_EQ(api.spec()["leaseTransitions"], 0);
}

TEST(Lease, RecordsOfNoSense) {
  for (json spec : {json("x"), json::array(), json{{"holderIdentity", 7}}, json{{"holderIdentity", "x"}, {"leaseDurationSeconds", "long"}},
                    json{{"holderIdentity", "x"}, {"leaseDurationSeconds", -5}, {"leaseTransitions", -1}}}) {
    FakeLease api;
    api.Put(spec);
    auto a = api.Candidate("a");
    std::string error;
    EXPECT_TRUE(a->Step(&error)) << spec << error;
    EXPECT_EQ(api.spec()["holderIdentity"], "a");
  }
  // An unbounded one is bounded.
  FakeLease api;
  api.Put({{"holderIdentity", "x"}, {"leaseDurationSeconds", 1'000'000'000'000}});
  auto a = api.Candidate("a");
  std::string error;
  EXPECT_FALSE(a->Step(&error));
  api.now += 3600 * kSecond;
  EXPECT_TRUE(a->Step(&error)) << error;
}

TEST(Election, TellsOfEachChangeAndGivesUpAtTheEnd) {
  FakeLease api;
  std::atomic<int> a_leads{0}, b_leads{0};
  LeaseOptions options{.ns = "sys", .name = "it", .identity = "a", .retry = milliseconds(5)};
  LeaderElection a(api.Client(), options, [&](bool leading) { a_leads += leading ? 1 : -1; });
  options.identity = "b";
  LeaderElection b(api.Client(), options, [&](bool leading) { b_leads += leading ? 1 : -1; });
  a.Start();
  ASSERT_TRUE(test::Eventually([&] { return a_leads == 1; }));
  b.Start();
  ASSERT_TRUE(test::Eventually([&] { return b.seen().holder == "a"; }));
  EXPECT_FALSE(b.Holds());
  a.Stop();
  ASSERT_TRUE(test::Eventually([&] { return b_leads == 1; }));
  EXPECT_FALSE(a.Holds());
  EXPECT_TRUE(b.seen().leading);
  EXPECT_EQ(b.seen().transitions, 1);
}

}  // namespace
}  // namespace borescope::kube
