// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/operator_controller/cluster.h"

namespace borescope::op {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Loop, AnIdleClusterIsNotWrittenTo) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 2));
  cluster.Run(5 * kSecond);
  ASSERT_EQ(cluster.Reason("shop/one", "Finished"), "True/Completed");
  EXPECT_TRUE(cluster.watched.empty()) << "nobody looks at those pods any more";
  int before = cluster.writes;
  cluster.Run(600 * kSecond);
  EXPECT_EQ(cluster.writes, before);
}

TEST(Loop, WritesFewTimes) {
  Cluster cluster;
  cluster.AddNode("n1");
  for (int i = 0; i < 20; ++i) cluster.AddPod("web-" + std::to_string(i), "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 30));
  cluster.Run(40 * kSecond);
  EXPECT_EQ(std::count(cluster.log.begin(), cluster.log.end(), "spec n1"), 2)
      << "the job comes and goes";
  EXPECT_LE(std::count(cluster.log.begin(), cluster.log.end(), "status shop/one"), 6);
}

TEST(Loop, EventsTellOfTransitionsOnce) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 2));
  cluster.Apply("two", Selecting({{"app", "none"}}, 2));
  cluster.Run(6 * kSecond);
  std::vector<std::string> events = cluster.events;
  std::sort(events.begin(), events.end());
  EXPECT_THAT(events,
              ElementsAre("one Accepted", "one Completed", "one Started", "two NoMatchingPods"));
  EXPECT_EQ(cluster.records.size(), 2u) << "the store has the record of both";
}

TEST(Loop, TheReaderIsMadeOnceForASession) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 2));
  cluster.Run(6 * kSecond);
  ASSERT_EQ(cluster.Reason("shop/one", "Finished"), "True/Completed");
  EXPECT_THAT(cluster.readers, ElementsAre("shop"));
  EXPECT_EQ(cluster.reader_calls, 1);
}

TEST(Loop, ASessionGoesOnWithoutAReader) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.reader_error = Error{ErrorCode::kDenied, "POST: HTTP 403 Forbidden"};
  cluster.Apply("one", Selecting({{"app", "web"}}, 2));
  cluster.Run(6 * kSecond);
  EXPECT_EQ(cluster.Reason("shop/one", "Finished"), "True/Completed");
  EXPECT_EQ(std::count(cluster.events.begin(), cluster.events.end(), "one ReaderNotMade"), 1);
  // An API server that did not answer is asked again with the next write.
  cluster.reader_error = Error{ErrorCode::kUnavailable, "no answer"};
  cluster.Apply("two", Selecting({{"app", "web"}}, 2));
  cluster.Run(1 * kSecond);
  cluster.reader_error.reset();
  cluster.Run(6 * kSecond);
  EXPECT_THAT(cluster.readers, ElementsAre("shop"));
}

TEST(Loop, SecondSessionOfANamespaceFindsPodsThatTheFirstDidNotSelect) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.AddPod("db", "n1", {{"app", "db"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 5));
  cluster.Run(1 * kSecond);
  EXPECT_EQ(cluster.loop->world().namespaces.at("shop").pods.size(), 1u)
      << "pods that nobody selects are not kept";
  EXPECT_EQ(cluster.loop->world().namespaces.at("shop").total, 2);
  cluster.Apply("two", Selecting({{"app", "db"}}, 5));
  cluster.Run(8 * kSecond);
  EXPECT_EQ(cluster.Reason("shop/two", "Finished"), "True/Completed");
  EXPECT_EQ(cluster.Session("shop/two").status.target_details.at(0).pod, "db");
}

TEST(Loop, ADeletedSessionsJobGoesAndASessionOfTheSameNameIsAnotherOne) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 60));
  cluster.Run(2 * kSecond);
  ASSERT_EQ(cluster.samplers["n1"].spec.jobs.size(), 1u);
  std::string first = cluster.samplers["n1"].spec.jobs[0].id;
  cluster.sessions.clear();
  cluster.Apply("one", Selecting({{"app", "web"}}, 60));
  cluster.Run(1 * kSecond);
  ASSERT_EQ(cluster.samplers["n1"].spec.jobs.size(), 1u);
  EXPECT_NE(cluster.samplers["n1"].spec.jobs[0].id, first);
  cluster.sessions.clear();
  cluster.Run(200'000'000);
  EXPECT_TRUE(cluster.samplers["n1"].spec.jobs.empty());
  EXPECT_TRUE(cluster.samplers["n1"].spec.pods.empty());
}

TEST(Loop, OrphansAreRemovedAfterARestart) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 60));
  cluster.Run(2 * kSecond);
  ASSERT_EQ(cluster.samplers["n1"].spec.jobs.size(), 1u);
  cluster.crash_at = cluster.writes;  // dies now, and the session is deleted while nobody looks
  cluster.sessions.clear();
  cluster.Run(2 * kSecond);
  EXPECT_TRUE(cluster.crashed);
  EXPECT_TRUE(cluster.samplers["n1"].spec.jobs.empty());
}

TEST(Loop, AConflictIsReadAndDecidedAgain) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  int64_t bumps = 0;
  cluster.on_step = [&] {
    // Somebody else writes labels of all objects all the time.
    if (++bumps % 3 != 0) return;
    for (auto& [node, sampler] : cluster.samplers)
      sampler.metadata.resource_version =
          std::to_string(std::stoull(sampler.metadata.resource_version) + 100000);
    for (auto& [key, session] : cluster.sessions)
      session.metadata.resource_version =
          std::to_string(std::stoull(session.metadata.resource_version) + 100000);
  };
  cluster.Apply("one", Selecting({{"app", "web"}}, 3));
  cluster.Run(8 * kSecond);
  EXPECT_EQ(cluster.Reason("shop/one", "Finished"), "True/Completed");
}

TEST(Loop, FinishedSessionsAcknowledgeLaterGenerations) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 2));
  cluster.Run(5 * kSecond);
  ASSERT_TRUE(IsFinished(cluster.Session("shop/one")));
  cluster.Stop("shop/one");
  cluster.Run(1 * kSecond);
  const api::ProfilingSession& session = cluster.Session("shop/one");
  EXPECT_EQ(session.metadata.generation, 2);
  EXPECT_EQ(session.status.observed_generation, 2);
  for (const api::Condition& condition : session.status.conditions)
    EXPECT_EQ(condition.observed_generation, 2) << condition.type;
  EXPECT_EQ(cluster.Reason("shop/one", "Complete"), "True/Completed") << "it had ended before";
}

TEST(Loop, LatePodsGetTheRestAndLostOnesStay) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.AddNode("n2");
  cluster.AddPod("web-1", "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 10));
  cluster.on_step = [&] {
    if (cluster.now == kEpoch + 5 * kSecond) cluster.AddPod("web-2", "n2", {{"app", "web"}});
    if (cluster.now == kEpoch + 7 * kSecond) cluster.pods.erase("uid-web-1");
  };
  cluster.Run(6 * kSecond);
  ASSERT_EQ(cluster.samplers["n2"].spec.jobs.size(), 1u);
  EXPECT_EQ(cluster.samplers["n2"].spec.jobs[0].end_time,
            cluster.samplers["n1"].spec.jobs[0].end_time)
      << "one window for all";
  cluster.Run(2 * kSecond);
  EXPECT_EQ(cluster.samplers["n1"].spec.jobs.size(), 1u)
      << "what was sampled of a pod that is gone is still to be delivered";
  cluster.Run(6 * kSecond);
  EXPECT_EQ(cluster.Session("shop/one").status.targets.selected, 2);
  EXPECT_THAT(cluster.Session("shop/one").status.target_details[1].message,
              HasSubstr("into the window"));
}

// What the tick does while the watch of the reports is broken.
TEST(Loop, NobodyIsJudgedWhileNothingCanBeHeard) {
  Cluster cluster;
  cluster.AddNode("n1");
  cluster.silent = {"n1"};
  cluster.AddPod("web", "n1", {{"app", "web"}});
  cluster.Apply("one", Selecting({{"app", "web"}}, 60));
  cluster.on_step = [&] {
    if (cluster.now % kSecond == 0 && cluster.now < kEpoch + 20 * kSecond)
      cluster.loop->OnReconnect(cluster.now);
  };
  cluster.Run(21 * kSecond);
  EXPECT_EQ(cluster.Reason("shop/one", "Accepted"), "True/Valid");
  cluster.Run(3 * kSecond);
  EXPECT_EQ(cluster.Reason("shop/one", "Accepted"), "False/SamplerNotResponding");
}

TEST(Loop, TextsThatAreCutDoNotMakeItSpin) {
  Cluster cluster;
  cluster.AddNode("n1");
  for (int i = 0; i < 20; ++i) {
    std::string name = "web-" + std::to_string(10 + i) + "-";
    cluster.AddPod(name + std::string(60 - name.size(), 'x'), i == 0 ? "n1" : "n2", {{"app", "web"}});
  }
  cluster.Apply("one", Selecting({{"app", "web"}}, 10));
  cluster.Run(5 * kSecond);
  uint64_t before = cluster.loop->stats().plans;
  cluster.Run(4 * kSecond);
  EXPECT_LE(cluster.loop->stats().plans - before, 20u);
}

TEST(Loop, AWorkloadThatWasMissingIsLookedUpForTheNextSessionAndForgottenWithTheLast) {
  Cluster cluster;
  cluster.AddNode("n1");
  api::ProfilingSessionSpec spec;
  spec.target.workload_ref = api::WorkloadRef{"StatefulSet", "db"};
  spec.duration_seconds = 2;
  cluster.Apply("one", spec);
  cluster.Run(1 * kSecond);
  EXPECT_EQ(cluster.Reason("shop/one", "Finished"), "True/NoMatchingPods");
  EXPECT_TRUE(cluster.loop->world().workloads.empty());

  // A session that waits holds the answer; a second one does not take it for its own.
  api::ProfilingSessionSpec waiting = spec;
  waiting.target.wait_seconds = 600;
  cluster.Apply("two", waiting);
  cluster.Run(1 * kSecond);
  ASSERT_FALSE(cluster.loop->world().workloads.empty());
  Workload workload;
  workload.found = true;
  workload.uid = "db-uid";
  workload.selector = {{{"app", "db"}}, {}};
  cluster.workloads[{"shop", "StatefulSet", "db", ""}] = workload;
  Pod& pod = cluster.AddPod("db-0", "n1", {{"app", "db"}});
  pod.controller = Controller{"StatefulSet", "db", "db-uid"};
  cluster.Apply("three", spec);
  cluster.Run(6 * kSecond);
  EXPECT_EQ(cluster.Reason("shop/three", "Finished"), "True/Completed");
  EXPECT_EQ(cluster.Reason("shop/two", "Finished"), "True/Completed");
  EXPECT_TRUE(cluster.loop->world().workloads.empty());
}

}  // namespace
}  // namespace borescope::op
