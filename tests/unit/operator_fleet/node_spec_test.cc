// SPDX-License-Identifier: Apache-2.0
#include "operator/fleet/node_spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "common/api/json.h"

namespace borescope::op {
namespace {

Assignment Make(const std::string& session, const std::vector<std::string>& uids,
                size_t image_bytes = 10) {
  Assignment assignment;
  assignment.job.id = "ns/" + session + "/uid-" + session;
  assignment.job.session = {"ns", session, "uid-" + session};
  for (const std::string& uid : uids) {
    assignment.job.pod_uids.push_back(uid);
    api::NodePod pod;
    pod.uid = uid;
    pod.namespace_name = "ns";
    pod.name = "pod-" + uid;
    pod.labels = {{"service_name", "shop"}};
    pod.containers = {{"app", std::string(image_bytes, 'i'), "1"}};
    assignment.pods.push_back(pod);
  }
  return assignment;
}

std::vector<const Assignment*> Pointers(const std::vector<Assignment>& assignments) {
  std::vector<const Assignment*> out;
  for (const Assignment& assignment : assignments) out.push_back(&assignment);
  return out;
}

TEST(ComposeNodeSpec, AnyOrderGivesTheSameAndAPodStandsOnce) {
  const char* given = std::getenv("SEED");
  uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  std::vector<Assignment> all;
  for (int i = 0; i < 12; ++i) {
    std::vector<std::string> uids;
    for (int p = 0; p < 30; ++p) {
      if (random() % 2) uids.push_back("p" + std::to_string(p));
    }
    all.push_back(Make("s" + std::to_string(i), uids));
  }
  NodePlan first = ComposeNodeSpec(Pointers(all), {});
  EXPECT_TRUE(first.refused.empty());
  EXPECT_EQ(first.spec.jobs.size(), all.size());
  std::set<std::string> seen;
  for (const api::NodePod& pod : first.spec.pods)
    EXPECT_TRUE(seen.insert(pod.uid).second) << pod.uid;
  for (int round = 0; round < 20; ++round) {
    std::shuffle(all.begin(), all.end(), random);
    EXPECT_EQ(ComposeNodeSpec(Pointers(all), {}).spec, first.spec);
    EXPECT_EQ(ComposeNodeSpec(Pointers(all), first.spec).spec, first.spec)
        << "what stands is what is wanted: nothing to write";
  }
}

TEST(ComposeNodeSpec, ThePodLabelsOfAllJobsAndTheFirstIdentity) {
  Assignment a = Make("a", {"p"}), b = Make("b", {"p"});
  a.pods[0].pod_labels = {{"tier", "web"}};
  b.pods[0].pod_labels = {{"team", "x"}};
  NodePlan plan = ComposeNodeSpec({&a, &b}, {});
  ASSERT_EQ(plan.spec.pods.size(), 1u);
  EXPECT_EQ(plan.spec.pods[0].pod_labels,
            (std::map<std::string, std::string>{{"tier", "web"}, {"team", "x"}}));
  a.pods[0].labels["service_name"] = "renamed";
  EXPECT_EQ(ComposeNodeSpec({&a, &b}, plan.spec).spec.pods[0].labels.at("service_name"), "shop")
      << "a series is not renamed in its middle";
  EXPECT_TRUE(ComposeNodeSpec({}, plan.spec).spec.pods.empty());
}

TEST(ComposeNodeSpec, StaysWithinItsBoundsAndNeverPushesOutWhatStands) {
  std::vector<Assignment> all;
  for (int i = 0; i < 20; ++i) {
    std::vector<std::string> uids;
    for (int p = 0; p < 40; ++p) uids.push_back("p" + std::to_string(i) + "-" + std::to_string(p));
    all.push_back(Make("s" + std::to_string(100 - i), uids, 900));
  }
  NodePlan plan = ComposeNodeSpec(Pointers(all), {});
  EXPECT_LE(api::ToJson(plan.spec).dump().size(), api::kMaxNodeSamplerSpecBytes);
  EXPECT_GT(api::ToJson(plan.spec).dump().size(), api::kMaxNodeSamplerSpecBytes * 8 / 10)
      << "and uses them";
  EXPECT_EQ(plan.refused.size() + plan.spec.jobs.size(), all.size());

  // One more, first by its id, and a job that grows by a pod too many.
  Assignment newcomer = Make("a", {"new"}, 100'000);
  all.push_back(newcomer);
  std::string grown = plan.spec.jobs[0].id;
  for (Assignment& assignment : all) {
    if (assignment.job.id != grown) continue;
    Assignment more = Make("x", {"much"}, 200'000);
    assignment.job.pod_uids.push_back("much");
    assignment.pods.push_back(more.pods[0]);
  }
  NodePlan next = ComposeNodeSpec(Pointers(all), plan.spec);
  EXPECT_EQ(next.spec, plan.spec);
  EXPECT_TRUE(next.refused.contains(newcomer.job.id));
  EXPECT_TRUE(next.refused.contains(grown));
}

TEST(ComposeNodeSpec, AtMostSoManyPodLabelsOfAPod) {
  std::vector<Assignment> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(Make("s" + std::to_string(i), {"p"}));
    for (int label = 0; label < 15; ++label)
      all.back().pods[0].pod_labels["l" + std::to_string(i) + "-" + std::to_string(label)] = "v";
  }
  NodePlan plan = ComposeNodeSpec(Pointers(all), {});
  EXPECT_EQ(plan.refused, std::set<std::string>{all[4].job.id});
  ASSERT_EQ(plan.spec.pods.size(), 1u);
  EXPECT_EQ(plan.spec.pods[0].pod_labels.size(), 60u);
  EXPECT_EQ(ComposeNodeSpec(Pointers(all), plan.spec).spec, plan.spec);
  all[4].pods[0].pod_labels = {{"l0-0", "v"}, {"a", "v"}, {"b", "v"}, {"c", "v"}, {"d", "v"}};
  EXPECT_TRUE(ComposeNodeSpec(Pointers(all), plan.spec).refused.empty()) << "64 fit";
}

TEST(ComposeNodeSpec, AtMostSoManyJobs) {
  std::vector<Assignment> all;
  for (size_t i = 0; i < api::kMaxJobsPerNode + 3; ++i)
    all.push_back(Make("s" + std::to_string(i), {"p"}));
  NodePlan plan = ComposeNodeSpec(Pointers(all), {});
  EXPECT_EQ(plan.spec.jobs.size(), api::kMaxJobsPerNode);
  EXPECT_EQ(plan.refused.size(), 3u);
}

}  // namespace
}  // namespace borescope::op
