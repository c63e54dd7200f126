// SPDX-License-Identifier: Apache-2.0
#include "operator/session/targets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace borescope::op {
namespace {

uint64_t Seed() {
  const char* given = std::getenv("SEED");
  uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

Pod MakePod(const std::string& name, const std::string& node, const std::string& version = "") {
  Pod pod;
  pod.namespace_name = "shop";
  pod.name = name;
  pod.uid = "uid-" + name;
  pod.node = node;
  if (!version.empty()) pod.labels["app.kubernetes.io/version"] = version;
  return pod;
}

TEST(ChoosePods, SpreadsAndDoesNotDependOnOrder) {
  std::mt19937_64 random(Seed());
  std::vector<Pod> pods;
  for (int i = 0; i < 60; ++i) {
    pods.push_back(MakePod("p" + std::to_string(random() % 100000) + "-" + std::to_string(i),
                           "n" + std::to_string(i % 4 == 0 ? 1 : i % 3), i % 5 == 0 ? "v2" : "v1"));
  }
  std::vector<const Pod*> candidates;
  for (const Pod& pod : pods) candidates.push_back(&pod);
  std::vector<const Pod*> first = ChoosePods(candidates, {}, 6, "session");
  std::map<std::string, int> nodes, versions;
  for (const Pod* pod : first) {
    ++nodes[pod->node];
    ++versions[PodVersion(*pod)];
  }
  EXPECT_EQ(nodes.size(), 3u);
  for (const auto& [node, count] : nodes) EXPECT_EQ(count, 2) << node;
  EXPECT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions["v2"], 3);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(candidates.begin(), candidates.end(), random);
    EXPECT_EQ(ChoosePods(candidates, {}, 6, "session"), first);
  }
  EXPECT_NE(ChoosePods(candidates, {}, 6, "another"), first)
      << "not always the same pods of a big workload";
  EXPECT_EQ(ChoosePods(candidates, {}, 100, "session").size(), 60u);
  EXPECT_TRUE(ChoosePods(candidates, {}, 0, "session").empty());
}

TEST(ChoosePods, GoesToNodesThatHaveNone) {
  Pod a = MakePod("a", "n1"), b = MakePod("b", "n1"), c = MakePod("c", "n2");
  for (const char* session : {"s1", "s2", "s3", "s4"})
    EXPECT_EQ(ChoosePods({&b, &c}, {&a}, 1, session)[0], &c);
}

struct Fixture {
  World world;
  api::ProfilingSession session;
  Fixture() {
    session.metadata.namespace_name = "shop";
    session.metadata.name = "s";
    session.metadata.uid = "su";
    world.namespaces["shop"].listed_for = {"su"};
  }
  Pod& Add(Pod pod) { return world.namespaces["shop"].pods[pod.uid] = pod; }
};

TEST(MatchPods, DeploymentThroughItsReplicaSetsByUid) {
  Fixture f;
  f.session.spec.target.workload_ref = api::WorkloadRef{"Deployment", "web"};
  Lookup deployment{"shop", "Deployment", "web", ""};
  Match match = MatchPods(f.world, f.session, 0);
  EXPECT_FALSE(match.known);
  EXPECT_EQ(match.lookups, std::vector<Lookup>{deployment});
  EXPECT_FALSE(match.list_pods) << "its selector says which pods to keep";

  f.world.workloads[deployment] = {.found = true,
                                   .uid = "du",
                                   .selector = {{{"app", "web"}}, {}},
                                   .controller = {},
                                   .error = "",
                                   .checked_at = 0};
  Pod old_pod = MakePod("web-old", "n1"), new_pod = MakePod("web-new", "n2"),
      stranger = MakePod("stranger", "n1");
  for (Pod* pod : {&old_pod, &new_pod, &stranger}) pod->labels["app"] = "web";
  old_pod.controller = Controller{"ReplicaSet", "web-1", "r1"};
  new_pod.controller = Controller{"ReplicaSet", "web-2", "r2"};
  stranger.controller = Controller{"ReplicaSet", "other-1", "r3"};  // same labels, another's
  f.Add(old_pod);
  f.Add(new_pod);
  f.Add(stranger);
  match = MatchPods(f.world, f.session, 0);
  EXPECT_FALSE(match.known);
  EXPECT_EQ(match.lookups.size(), 3u);
  auto owned = [](const char* uid, const char* deployment_uid) {
    return Workload{.found = true,
                    .uid = uid,
                    .selector = {},
                    .controller = Controller{"Deployment", "web", deployment_uid},
                    .error = "",
                    .checked_at = 0};
  };
  f.world.workloads[{"shop", "ReplicaSet", "web-1", "r1"}] = owned("r1", "du");
  f.world.workloads[{"shop", "ReplicaSet", "web-2", "r2"}] = owned("r2", "du");
  f.world.workloads[{"shop", "ReplicaSet", "other-1", "r3"}] =
      owned("r3", "another Deployment that was named web");
  match = MatchPods(f.world, f.session, 0);
  EXPECT_TRUE(match.known);
  ASSERT_EQ(match.pods.size(), 2u);
  EXPECT_EQ(match.pods[0]->name, "web-new");
  EXPECT_EQ(TopController(f.world, *match.pods[0], nullptr),
            (Controller{"Deployment", "web", "du"}));
}

TEST(MatchPods, OtherKindsByTheirOwnUid) {
  for (const char* kind : {"StatefulSet", "DaemonSet", "Job", "ReplicaSet"}) {
    Fixture f;
    f.session.spec.target.workload_ref = api::WorkloadRef{kind, "w"};
    f.world.workloads[{"shop", kind, "w", ""}] = {.found = true,
                                                  .uid = "wu",
                                                  .selector = {{{"app", "w"}}, {}},
                                                  .controller = {},
                                                  .error = "",
                                                  .checked_at = 0};
    f.world.workloads[{"shop", kind, "w", "wu"}] = {
        .found = true,
        .uid = "wu",
        .selector = {},
        .controller = Controller{"CronJob", "nightly", "cu"},
        .error = "",
        .checked_at = 0};
    Pod pod = MakePod("w-0", "n1");
    pod.labels["app"] = "w";
    pod.controller = Controller{kind, "w", "wu"};
    f.Add(pod);
    Pod before = MakePod("w-1", "n1");
    before.labels["app"] = "w";
    before.controller = Controller{"StatefulSet", "w", "deleted and made anew"};
    f.Add(before);
    Match match = MatchPods(f.world, f.session, 0);
    ASSERT_TRUE(match.known) << kind;
    ASSERT_EQ(match.pods.size(), 1u) << kind;
    EXPECT_EQ(match.pods[0]->name, "w-0");
  }
}

TEST(MatchPods, ASessionDoesNotTrustAnAnswerFromBeforeItsTime) {
  Fixture f;
  f.session.spec.target.workload_ref = api::WorkloadRef{"StatefulSet", "w"};
  Lookup lookup{"shop", "StatefulSet", "w", ""};
  for (bool found : {false, true}) {
    f.world.memory.clear();
    f.world.workloads[lookup] = {.found = found,
                                 .uid = found ? "made anew since" : "",
                                 .selector = {{{"app", "w"}}, {}},
                                 .controller = {},
                                 .error = "",
                                 .checked_at = 100};
    Match match = MatchPods(f.world, f.session, 101);  // seen for the first time
    EXPECT_FALSE(match.known);
    EXPECT_EQ(match.missing, "");
    EXPECT_EQ(match.lookups, std::vector<Lookup>{lookup});
    f.world.memory["su"].first_seen = 101;
    EXPECT_FALSE(MatchPods(f.world, f.session, 150).known) << "still not answered";
    f.world.workloads[lookup].checked_at = 101;
    match = MatchPods(f.world, f.session, 150);
    EXPECT_TRUE(match.known);
    EXPECT_TRUE(match.lookups.empty());
  }
}

TEST(MatchPods, EndedPodsAreCountedApart) {
  Fixture f;
  f.session.spec.target.pod_name = "web";
  f.Add(MakePod("web", "n1")).finished = true;
  Match match = MatchPods(f.world, f.session, 0);
  EXPECT_TRUE(match.known);
  EXPECT_TRUE(match.pods.empty());
  EXPECT_EQ(match.ended, 1u);
}

TEST(TopController, OfBarePodsStaticPodsAndCronJobs) {
  World world;
  Pod pod = MakePod("p", "n1");
  EXPECT_EQ(TopController(world, pod, nullptr), (Controller{"Pod", "p", "uid-p"}));
  pod.controller = Controller{"Node", "n1", "x"};
  EXPECT_EQ(TopController(world, pod, nullptr), (Controller{"Pod", "p", "uid-p"}));
  pod.controller = Controller{"Job", "nightly-1", "j"};
  std::vector<Lookup> lookups;
  EXPECT_FALSE(TopController(world, pod, &lookups));
  ASSERT_EQ(lookups.size(), 1u);
  world.workloads[lookups[0]] = {.found = true,
                                 .uid = "j",
                                 .selector = {},
                                 .controller = Controller{"CronJob", "nightly", "c"},
                                 .error = "",
                                 .checked_at = 0};
  EXPECT_EQ(TopController(world, pod, nullptr), (Controller{"CronJob", "nightly", "c"}));
  world.workloads[lookups[0]] = {};  // gone, or not readable: what the pod itself says
  EXPECT_EQ(TopController(world, pod, nullptr), (Controller{"Job", "nightly-1", "j"}));
}

TEST(DescribeTarget, ReadsLikeASentence) {
  api::Target target;
  target.pod_selector = api::LabelSelector{
      {{"app", "web"}}, {{"tier", "In", {"a", "b"}}, {"canary", "DoesNotExist", {}}}};
  EXPECT_EQ(DescribeTarget(target), "podSelector 'app=web,tier in (a,b),!canary'");
}

}  // namespace
}  // namespace borescope::op
