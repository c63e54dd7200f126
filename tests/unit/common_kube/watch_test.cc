// SPDX-License-Identifier: Apache-2.0
#include "common/kube/watch.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "fake_api.h"

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using test::Eventually;
using test::RawConnection;
using test::RawRequest;
using test::RawServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const WatchTiming kQuick{.idle_timeout = milliseconds(400), .min_life = std::chrono::seconds(300), .max_life = std::chrono::seconds(600),
                         .first_backoff = milliseconds(10), .max_backoff = milliseconds(40), .very_short = milliseconds(20)};

// What a handler was told, as short texts.
class Log {
 public:
  void Add(std::string line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  bool Reaches(size_t n) const {
    return Eventually([&] { return lines().size() >= n; }, milliseconds(2000));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

std::string Name(const json& object) { return object["metadata"]["name"].get<std::string>(); }

Reflector::Handler Into(Log* log) {
  return {[log](std::vector<json> items) {
            std::string line = "list";
            for (auto& item : items) line += " " + Name(item);
            log->Add(line);
          },
          [log](EventType type, json object) {
            log->Add((type == EventType::kAdded ? "+" : type == EventType::kModified ? "~" : "-") + Name(object));
          }};
}

struct Reflecting {
  Reflecting(const RawServer& server, Projection projection = {"spec"}, WatchTiming timing = kQuick) : client(ClientOf(server)) {
    reflector = std::make_unique<Reflector>(client.get(), Reflector::Options{.resource = kPods, .ns = "ns", .projection = projection, .timing = timing},
                                            Into(&log));
    reflector->Start();
  }
  ~Reflecting() { EXPECT_LT(test::TimeOf([&] { reflector->Stop(); }), milliseconds(100)); }
  Log log;
  std::unique_ptr<RestClient> client;
  std::unique_ptr<Reflector> reflector;
};

// The watches among the requests, each by its resourceVersion.
std::vector<std::string> WatchedFrom(const RawServer& server) {
  std::vector<std::string> versions;
  for (auto& request : server.requests()) {
    size_t at = request.target.find("resourceVersion=");
    if (request.Has("watch=true")) versions.push_back(request.target.substr(at + 16, request.target.find('&', at) - at - 16));
  }
  return versions;
}

TEST(Reflector, ListsThenWatchesFromThere) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    if (!r.Has("watch=true")) return c.Reply(200, ListJson("10", {ObjectJson("a", "1"), ObjectJson("b", "2")}));
    c.BeginChunks();
    std::string stream = EventJson("ADDED", ObjectJson("c", "11")) + EventJson("MODIFIED", ObjectJson("a", "12")) +
                         EventJson("BOOKMARK", R"({"metadata":{"resourceVersion":"13"}})") + EventJson("NEWTYPE", ObjectJson("x", "99")) +
                         EventJson("DELETED", ObjectJson("b", "14"));
    for (char byte : stream) c.Chunk({&byte, 1});  // boundaries mean nothing
    c.Hang();
    return false;
  });
  Reflecting r(server);
  ASSERT_TRUE(r.log.Reaches(4));
  EXPECT_THAT(r.log.lines(), ElementsAre("list a b", "+c", "~a", "-b"));
  EXPECT_TRUE(r.reflector->synced());
  auto stats = r.reflector->stats();
  EXPECT_EQ(stats.events, 3u);
  EXPECT_EQ(stats.bookmarks, 1u);
  EXPECT_EQ(stats.skipped, 1u);
  auto seen = server.requests();
  EXPECT_EQ(seen[0].target, "/api/v1/namespaces/ns/pods?limit=500");
  EXPECT_THAT(seen[1].target, ::testing::MatchesRegex(
                                  R"(/api/v1/namespaces/ns/pods\?allowWatchBookmarks=true&resourceVersion=10&timeoutSeconds=[345][0-9][0-9]&watch=true)"));
  EXPECT_TRUE(seen[1].Has("Accept-Encoding: identity\r\n"));
}

TEST(Reflector, ProjectsWhileParsing) {
  RawServer server([](RawConnection& c, const RawRequest& r) {
    std::string object = ObjectJson("a", "1", R"("spec":{"nodeName":"n","big":[1,2,3]},"status":{"phase":"Running"})");
    if (!r.Has("watch=true")) return c.Reply(200, ListJson("10", {object}));
    c.BeginChunks();
    c.Chunk(EventJson("MODIFIED", object));
    c.Hang();
    return false;
  });
  auto client = ClientOf(server);
  std::mutex mutex;
  std::vector<json> got;
  Reflector reflector(client.get(), {.resource = kPods, .projection = {"spec.nodeName"}, .timing = kQuick},
                      {[&](std::vector<json> items) { std::lock_guard lock(mutex); got.push_back(items.at(0)); },
                       [&](EventType, json object) { std::lock_guard lock(mutex); got.push_back(object); }});
  reflector.Start();
  ASSERT_TRUE(Eventually([&] { std::lock_guard lock(mutex); return got.size() == 2; }));
  reflector.Stop();
  json expected = json::parse(R"({"metadata":{"name":"a","namespace":"ns","uid":"uid-a","resourceVersion":"1"},"spec":{"nodeName":"n"}})");
  EXPECT_THAT(got, ElementsAre(expected, expected));
}

TEST(Reflector, ResumesAfterEveryKindOfBreakWithoutListing) {
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    if (!r.Has("watch=true")) return c.Reply(200, ListJson("10", {}));
    int k = ++n;
    if (k == 1) {  // clean end
      c.BeginChunks(), c.Chunk(EventJson("ADDED", ObjectJson("a", "11"))), c.EndChunks();
    } else if (k == 2) {  // in the middle of an object
      c.BeginChunks(), c.Chunk(EventJson("ADDED", ObjectJson("b", "12")) + R"({"type":"ADDED","obj)");
    } else if (k == 3) {  // 429 at connect
      c.Reply(429, StatusBody(429, "TooManyRequests", "later"), "Retry-After: 0\r\n");
    } else if (k == 4) {  // an ERROR that is no 410
      c.BeginChunks(), c.Chunk(EventJson("BOOKMARK", R"({"metadata":{"resourceVersion":"20"}})") + EventJson("ERROR", StatusBody(500, "InternalError", "oops")));
    } else {
      c.BeginChunks(), c.Chunk(EventJson("ADDED", ObjectJson("c", "21"))), c.Hang();
    }
    return false;
  });
  Reflecting r(server);
  ASSERT_TRUE(r.log.Reaches(4));
  EXPECT_THAT(r.log.lines(), ElementsAre("list", "+a", "+b", "+c"));
  EXPECT_THAT(WatchedFrom(server), ElementsAre("10", "11", "12", "12", "20"));
  EXPECT_EQ(r.reflector->stats().relists, 0u);
}

TEST(Reflector, ListsAnewAfter410InEitherForm) {
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    if (!r.Has("watch=true")) return c.Reply(200, ListJson(std::to_string(10 * (n + 1)), {ObjectJson("v" + std::to_string(n), "1")}));
    int k = ++n;
    if (k == 1) return c.Reply(410, StatusBody(410, "Gone", "too old"));
    c.BeginChunks();
    if (k == 2) c.Chunk(EventJson("ADDED", ObjectJson("e", "21")) + EventJson("ERROR", StatusBody(410, "Expired", "too old resource version")));
    if (k == 3) c.Chunk(EventJson("ERROR", R"({"kind":"Status","reason":"Expired"})"));  // a proxy lost the code
    if (k >= 4) c.Hang();
    return false;
  });
  Reflecting r(server);
  ASSERT_TRUE(Eventually([&] { return WatchedFrom(server).size() == 4; }));
  EXPECT_THAT(r.log.lines(), ElementsAre("list v0", "list v1", "+e", "list v2", "list v3"));
  EXPECT_THAT(WatchedFrom(server), ElementsAre("10", "20", "30", "40"));
  EXPECT_EQ(r.reflector->stats().relists, 3u);
}

TEST(Reflector, ListsAnewWhenTheServerIsBehind) {
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    if (!r.Has("watch=true")) return c.Reply(200, ListJson("10", {}));
    if (++n == 1) {
      return c.Reply(504, StatusBody(504, "Timeout", "Too large resource version", R"({"causes":[{"reason":"ResourceVersionTooLarge","message":"x"}]})"));
    }
    c.BeginChunks(), c.Hang();
    return false;
  });
  Reflecting r(server);
  EXPECT_TRUE(r.log.Reaches(2));
  EXPECT_THAT(r.log.lines(), ElementsAre("list", "list"));
}

TEST(Reflector, GivesUpASilentStreamButKeepsItsPosition) {
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    if (!r.Has("watch=true")) return c.Reply(200, ListJson("10", {}));
    c.BeginChunks(), c.Hang();
    return false;
  });
  WatchTiming timing = kQuick;
  timing.idle_timeout = milliseconds(60);
  Reflecting r(server, {"spec"}, timing);
  ASSERT_TRUE(Eventually([&] { return WatchedFrom(server).size() == 3; }));
  EXPECT_THAT(WatchedFrom(server), ElementsAre("10", "10", "10"));
  EXPECT_GE(r.reflector->stats().idle_closed, 2u);
  EXPECT_EQ(r.reflector->stats().relists, 0u);
}

TEST(Reflector, BacksOffFromVeryShortWatchesAndEndless410) {
  for (bool gone : {false, true}) {
    RawServer server([&](RawConnection& c, const RawRequest& r) {
      if (!r.Has("watch=true")) return c.Reply(200, ListJson("10", {}));
      if (gone) return c.Reply(410, StatusBody(410, "Gone", "x"));
      c.BeginChunks(), c.EndChunks();
      return true;
    });
    Reflecting r(server);
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_LE(server.requests().size(), gone ? 44u : 22u);
    EXPECT_GE(server.requests().size(), 6u);
    EXPECT_GE(r.reflector->stats().errors, 4u);
    EXPECT_NE(r.reflector->stats().last_error, "");
  }
}

TEST(Reflector, KeepsTryingWhenTheServerIsAwayOrRefuses) {
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    int k = ++n;
    if (k == 1) return false;
    if (k == 2) return c.Reply(403, StatusBody(403, "Forbidden", "no"));
    if (k == 3) return c.Reply(404, "404 page not found");
    if (!r.Has("watch=true")) return c.Reply(200, ListJson("10", {ObjectJson("a", "1")}));
    c.BeginChunks(), c.Hang();
    return false;
  });
  Reflecting r(server);
  ASSERT_TRUE(r.log.Reaches(1));
  EXPECT_THAT(r.log.lines(), ElementsAre("list a"));
  EXPECT_EQ(r.reflector->stats().errors, 3u);
  EXPECT_EQ(r.reflector->stats().relists, 0u);
}

TEST(Reflector, DropsAStreamOfNonsenseAndLists) {
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest& r) {
    if (!r.Has("watch=true")) return c.Reply(200, ListJson("10", {}));
    c.BeginChunks();
    int k = ++n;
    if (k == 1) c.Chunk("<html>");
    if (k == 2) c.Chunk("{\"type\":\"ADDED\",\"object\":{\"a\":nonsense}}\n");
    if (k == 3) c.Chunk(EventJson("ADDED", "7") + EventJson("BOOKMARK", "[]") + "{}\n" + EventJson("ADDED", ObjectJson("z", "11")));
    c.Hang();
    return false;
  });
  auto client = ClientOf(server);
  std::atomic<int> events{0}, lists{0};
  Reflector reflector(client.get(), {.resource = kPods, .projection = {"spec"}, .timing = kQuick},
                      {[&](std::vector<json>) { ++lists; }, [&](EventType, json) { ++events; }});
  reflector.Start();
  EXPECT_TRUE(Eventually([&] { return events == 2; }));
  EXPECT_EQ(lists, 3);
}

TEST(Reflector, StopsAtOnceWhileBackingOffOrListing) {
  RawServer refusing([&](RawConnection& c, const RawRequest&) { return c.Reply(403, ""); });
  RawServer deaf([&](RawConnection& c, const RawRequest&) { return c.Hang(), false; });
  for (RawServer* server : {&refusing, &deaf}) {
    WatchTiming timing = kQuick;
    timing.first_backoff = milliseconds(30'000);
    Reflecting r(*server, {"spec"}, timing);  // its destructor measures
    ASSERT_TRUE(Eventually([&] { return !server->requests().empty(); }));
    std::this_thread::sleep_for(milliseconds(20));
  }
}

// ---- NamedWatch ----

const Resource kSamplers{"profiling.borescope.dev", "v1alpha1", "nodesamplers"};

std::string Sampler(int generation, const std::string& uid = "u1", const std::string& name = "node-1") {
  return R"({"metadata":{"name":")" + name + R"(","uid":")" + uid + R"(","resourceVersion":"5","generation":)" + std::to_string(generation) + R"(},"spec":{"jobs":[]}})";
}

struct Following {
  explicit Following(const RawServer& server, WatchTiming timing = kQuick) : client(ClientOf(server)) {
    timing.min_life = std::chrono::seconds(1800);
    timing.max_life = std::chrono::seconds(3600);
    watch = std::make_unique<NamedWatch>(
        client.get(), NamedWatch::Options{.resource = kSamplers, .name = "node-1", .projection = {"spec"}, .timing = timing},
        NamedWatch::Handler{[this](json object) { log.Add("g" + std::to_string(object["metadata"]["generation"].get<int>()) + object["metadata"]["uid"].get<std::string>()); },
                            [this] { log.Add("gone"); }});
    watch->Start();
  }
  ~Following() { EXPECT_LT(test::TimeOf([&] { watch->Stop(); }), milliseconds(100)); }
  Log log;
  std::unique_ptr<RestClient> client;
  std::unique_ptr<NamedWatch> watch;
};

TEST(NamedWatch, AsksForOneNameFromVersionZeroAndNeverLists) {
  NamedWatch::Options options{.resource = kSamplers, .name = "node-1"};
  EXPECT_EQ(NamedWatch::RequestPath(options, 2000),
            "/apis/profiling.borescope.dev/v1alpha1/nodesamplers?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnode-1&resourceVersion=0"
            "&timeoutSeconds=2000&watch=true");
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest&) {
    c.BeginChunks();
    c.Chunk(EventJson("ADDED", Sampler(++n)));
    if (n < 3) return c.EndChunks(), false;
    c.Hang();
    return false;
  });
  Following f(server);
  ASSERT_TRUE(f.log.Reaches(3));
  EXPECT_TRUE(f.watch->connected());
  EXPECT_THAT(f.log.lines(), ElementsAre("g1u1", "g2u1", "g3u1"));
  for (auto& request : server.requests()) {
    EXPECT_THAT(request.target, ::testing::MatchesRegex(
                                    "/apis/profiling.borescope.dev/v1alpha1/nodesamplers\\?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnode-1"
                                    "&resourceVersion=0&timeoutSeconds=[123][0-9][0-9][0-9]&watch=true"));
    int seconds = std::stoi(request.target.substr(request.target.find("timeoutSeconds=") + 15));
    EXPECT_GE(seconds, 1800);
    EXPECT_LE(seconds, 3600);
  }
}

TEST(NamedWatch, IgnoresAnOlderGenerationOfTheSameObject) {
  RawServer server([](RawConnection& c, const RawRequest&) {
    c.BeginChunks();
    c.Chunk(EventJson("ADDED", Sampler(5)) + EventJson("MODIFIED", Sampler(4)) + EventJson("MODIFIED", Sampler(5)) +
            EventJson("MODIFIED", Sampler(9, "u1", "other-node")) + EventJson("DELETED", Sampler(9, "u0")) + EventJson("ADDED", Sampler(1, "u2")) +
            EventJson("DELETED", Sampler(1, "u2")) + EventJson("ADDED", Sampler(1, "u3")));
    c.Hang();
    return false;
  });
  Following f(server);
  ASSERT_TRUE(f.log.Reaches(5));
  EXPECT_THAT(f.log.lines(), ElementsAre("g5u1", "g5u1", "g1u2", "gone", "g1u3"));
}

TEST(NamedWatch, NoticesThatTheObjectWentWhileItWasAway) {
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest&) {
    c.BeginChunks();
    int k = ++n;
    if (k != 2) c.Chunk(EventJson("ADDED", Sampler(k)));
    c.Chunk(EventJson("BOOKMARK", R"({"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}})"));
    if (k < 3) return c.EndChunks(), false;
    c.Chunk(EventJson("BOOKMARK", R"({"metadata":{"resourceVersion":"10"}})"));
    c.Hang();
    return false;
  });
  Following f(server);
  ASSERT_TRUE(f.log.Reaches(3));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_THAT(f.log.lines(), ElementsAre("g1u1", "gone", "g3u1"));
}

TEST(NamedWatch, SurvivesWhateverTheServerAnswers) {
  std::atomic<int> n{0};
  RawServer server([&](RawConnection& c, const RawRequest&) {
    int k = ++n;
    if (k == 1) return false;
    if (k == 2) return c.Reply(410, StatusBody(410, "Gone", "x"));
    if (k == 3) return c.Reply(403, StatusBody(403, "Forbidden", "no"));
    c.BeginChunks();
    if (k == 4) return c.Chunk("nonsense");
    if (k == 5) return c.Chunk(EventJson("ERROR", StatusBody(410, "Expired", "x")));
    if (k == 6) return c.Hang(), false;
    c.Chunk(EventJson("ADDED", Sampler(7)));
    c.Hang();
    return false;
  });
  WatchTiming timing = kQuick;
  timing.idle_timeout = milliseconds(60);
  Following f(server, timing);
  ASSERT_TRUE(f.log.Reaches(1));
  EXPECT_THAT(f.log.lines()[0], "g7u1");
  for (auto& request : server.requests()) EXPECT_THAT(request.target, HasSubstr("resourceVersion=0&"));
}

}  // namespace
}  // namespace borescope::kube
