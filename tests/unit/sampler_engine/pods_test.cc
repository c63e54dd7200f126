// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/pods.h"

#include <gtest/gtest.h>

namespace borescope::engine {
namespace {

constexpr const char* kUid = "6f1c2a3b-0000-4111-8222-9333aaaabbbb";
const PodKey kKey{0x6f1c2a3b00004111, 0x82229333aaaabbbb};
const std::string kContainer(64, 'c');

TEST(PodsTest, Uids) {
  EXPECT_EQ(ParsePodUid(kUid), kKey);
  EXPECT_EQ(ParsePodUid("6f1c2a3b0000411182229333aaaabbbb"), kKey);  // a static pod's config hash
  for (const char* bad : {"", "6f1c", "6f1c2a3b-0000-4111-8222-9333aaaabbbbc", "6f1c2a3b-0000-4111-8222-9333aaaabbb", "6F1C2A3B-0000-4111-8222-9333AAAABBBB",
                          "6f1c2a3b-0000-4111-8222-9333aaaabbbb/..", "../../etc"}) {
    EXPECT_EQ(ParsePodUid(bad), std::nullopt) << bad;
  }
}

TEST(PodsTest, CgroupNames) {
  EXPECT_EQ(PodInCgroupName("pod6f1c2a3b-0000-4111-8222-9333aaaabbbb"), kKey);
  EXPECT_EQ(PodInCgroupName("pod6f1c2a3b0000411182229333aaaabbbb"), kKey);
  EXPECT_EQ(PodInCgroupName("kubepods-burstable-pod6f1c2a3b_0000_4111_8222_9333aaaabbbb.slice"), kKey);
  EXPECT_EQ(PodInCgroupName("kubepods-pod6f1c2a3b_0000_4111_8222_9333aaaabbbb.slice"), kKey);
  for (const char* other : {"", "pod", "kubepods", "kubepods-burstable.slice", "podman-123", "podabc", "system.slice"}) {
    EXPECT_EQ(PodInCgroupName(other), std::nullopt) << other;
  }
  EXPECT_EQ(PodInCgroupName("libpod-" + kContainer), std::nullopt);  // 64 digits are a container
  EXPECT_TRUE(HasContainerId("cri-containerd-" + kContainer + ".scope"));
  EXPECT_TRUE(HasContainerId(kContainer));
  EXPECT_FALSE(HasContainerId(kContainer.substr(1)));
}

TEST(PodsTest, FindsContainersAndWhatLiesBelow) {
  CgroupTree tree = {
      {1, {0, ""}},          {2, {1, "kubepods"}},      {9, {2, std::string("pod") + kUid}}, {5, {9, kContainer}}, {4, {5, "init.scope"}}, {3, {4, "deeper"}},
      {20, {2, "pod" + std::string(32, 'd')}}, {21, {20, std::string(64, 'e')}},
  };
  std::map<PodKey, std::string> wanted = {{kKey, kUid}};
  auto found = FindPodCgroups(tree, wanted);
  ASSERT_EQ(found.size(), 4u);
  for (const auto& cgroup : found) {
    EXPECT_EQ(cgroup.pod, kKey);
    EXPECT_EQ(cgroup.container, cgroup.id == 9 ? 0u : 5u) << cgroup.name;
  }
  EXPECT_EQ(found.front().id, 9u);  // parents first
  EXPECT_TRUE(FindPodCgroups(tree, {}).empty());
  EXPECT_TRUE(NamesContainers(tree));
  EXPECT_FALSE(NamesContainers({{1, {0, ""}}, {2, {1, "system.slice"}}}));
}

TEST(PodsTest, ABrokenTreeDoesNoHarm) {
  CgroupTree tree = {{1, {2, "a"}}, {2, {1, "b"}}, {3, {77, std::string("pod") + kUid}}, {4, {4, "self"}}};
  auto found = FindPodCgroups(tree, {{kKey, kUid}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].id, 3u);
}

}  // namespace
}  // namespace borescope::engine
