// SPDX-License-Identifier: Apache-2.0
#include "sampler/targets/containers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/base/strings.h"

namespace borescope::targets {
namespace {

namespace fs = std::filesystem;

const std::string kUid = "6f1c2a30-0000-4000-8000-123456789abc";
const std::string kId(64, 'a');

class ContainersTest : public testing::Test {
 protected:
  ContainersTest() : proc_(fs::temp_directory_path() / ("borescope-proc-" + RandomHex(8))), containers_(proc_) {
    containers_.SetPods({{kUid, {"app", "init"}}});
  }
  ~ContainersTest() override { fs::remove_all(proc_); }

  void Process(pid_t pid, const std::string& comm, const std::string& container, bool volume = false) {
    fs::create_directories(proc_ / std::to_string(pid));
    std::ofstream(proc_ / std::to_string(pid) / "comm") << comm << "\n";
    std::ofstream mounts(proc_ / std::to_string(pid) / "mountinfo");
    mounts << "1 0 0:1 / / rw - overlay overlay rw\n";
    if (volume) mounts << "3 1 8:1 /k/pods/" << kUid << "/etc-hosts /etc/hosts rw - ext4 /dev/a rw\n";
    if (!container.empty()) {
      mounts << "2 1 8:1 /k/pods/" << kUid << "/containers/" << container << "/12ab34cd /dev/termination-log rw - ext4 /dev/a rw\n";
    }
  }
  bool Cgroup(uint64_t id, const std::string& name, uint64_t parent = 1, bool removed = false) {
    return containers_.OnCgroup({.time_ns = 5, .cgroup_id = id, .parent_id = parent, .name = name, .pod_uid = kUid, .removed = removed});
  }
  Naming NamingOf(uint64_t id) { return containers_.Find(id) ? containers_.Find(id)->naming : Naming::kUnknown; }

  fs::path proc_;
  Containers containers_;
};

TEST_F(ContainersTest, NamesAContainerByItsFirstProcessAndRemembersItAfterDeath) {
  EXPECT_TRUE(Cgroup(10, "cri-containerd-" + kId + ".scope"));
  EXPECT_TRUE(containers_.Resolve(1).empty());
  EXPECT_EQ(NamingOf(10), Naming::kPending);
  Process(100, "app", "app");
  containers_.OnProcess(10, 100);
  EXPECT_EQ(containers_.Resolve(2), std::vector<uint64_t>{10});
  EXPECT_TRUE(containers_.Resolve(3).empty());
  Cgroup(10, kId, 1, true);
  ASSERT_NE(containers_.Find(10), nullptr);
  EXPECT_EQ(containers_.Find(10)->name, "app");
  EXPECT_EQ(containers_.Find(10)->container_id, kId);
  EXPECT_TRUE(containers_.Find(10)->gone);
}

TEST_F(ContainersTest, TheRuntimesFirstStageIsWaitedFor) {
  Cgroup(10, kId);
  Process(100, "runc:[2:INIT]", "");
  containers_.OnProcess(10, 100);
  EXPECT_TRUE(containers_.Resolve(1).empty());
  Process(100, "app", "app");
  containers_.Resolve(2);
  EXPECT_EQ(NamingOf(10), Naming::kNamed);
}

TEST_F(ContainersTest, TheSandboxIsNoContainer) {
  Cgroup(10, kId);
  Process(100, "pause", "");
  containers_.OnProcess(10, 100);
  containers_.Resolve(1);
  EXPECT_EQ(NamingOf(10), Naming::kSandbox);
  // A program that calls itself pause but has the pod's mounts is a container.
  Cgroup(11, kId);
  Process(101, "pause", "init", true);
  containers_.OnProcess(11, 101);
  containers_.Resolve(2);
  EXPECT_EQ(NamingOf(11), Naming::kNamed);
}

TEST_F(ContainersTest, ANameThatThePodDoesNotHaveIsUnknownAndCounted) {
  Cgroup(10, kId);
  Process(100, "app", "stranger");
  containers_.OnProcess(10, 100);
  containers_.Resolve(1);
  EXPECT_EQ(NamingOf(10), Naming::kUnknown);
  EXPECT_EQ(containers_.Find(10)->name, "unknown");
  EXPECT_EQ(containers_.unknown_total(), 1u);
}

TEST_F(ContainersTest, SilentProcessesAndUnreadDeathsEndAsUnknown) {
  Cgroup(10, kId);
  Cgroup(11, kId);
  Process(100, "app", "", true);
  containers_.OnProcess(10, 100);
  containers_.OnProcess(11, 4'000'000);  // gone before it was read
  containers_.Resolve(1);
  EXPECT_EQ(NamingOf(10), Naming::kPending);
  Cgroup(11, kId, 1, true);
  std::vector<uint64_t> settled = containers_.Resolve(5'000'000'000);
  EXPECT_EQ(settled.size(), 2u);
  EXPECT_EQ(NamingOf(10), Naming::kUnknown);
  EXPECT_EQ(NamingOf(11), Naming::kUnknown);
  EXPECT_EQ(containers_.unknown_total(), 2u);
}

TEST_F(ContainersTest, NothingThatHasRunIsPendingForEver) {
  Cgroup(10, kId);
  Cgroup(11, kId);
  Cgroup(12, kId);
  containers_.OnProcess(10, 4'000'000);  // gone before it was read, and no word of the cgroup's end
  containers_.HasRun(11, 1);             // its samples named no process
  EXPECT_TRUE(containers_.Resolve(1).empty());
  EXPECT_EQ(containers_.Resolve(5'000'000'000), (std::vector<uint64_t>{10, 11}));
  EXPECT_EQ(NamingOf(10), Naming::kUnknown);
  EXPECT_EQ(NamingOf(11), Naming::kUnknown);
  EXPECT_EQ(NamingOf(12), Naming::kPending);  // nothing was started in it yet
}

TEST_F(ContainersTest, IgnoresNestedContainersOtherPodsAndOtherNames) {
  Cgroup(10, kId);
  EXPECT_FALSE(Cgroup(11, kId, 10));
  EXPECT_FALSE(Cgroup(12, "system.slice"));
  EXPECT_FALSE(containers_.OnCgroup({.time_ns = 1, .cgroup_id = 13, .parent_id = 1, .name = kId, .pod_uid = "other", .removed = false}));
  EXPECT_EQ(containers_.all().size(), 1u);
  containers_.SetPods({});
  EXPECT_EQ(containers_.Find(10), nullptr);
}

TEST(ContainerIdOf, FindsTheDigits) {
  EXPECT_EQ(ContainerIdOf(kId), kId);
  EXPECT_EQ(ContainerIdOf("cri-containerd-" + kId + ".scope"), kId);
  EXPECT_EQ(ContainerIdOf("crio-" + kId + ".scope"), kId);
  EXPECT_EQ(ContainerIdOf("crio-conmon-" + kId + ".scope"), "");
  EXPECT_EQ(ContainerIdOf("x" + kId), "");
  EXPECT_EQ(ContainerIdOf(std::string(64, 'g')), "");
  EXPECT_EQ(ContainerIdOf("kubepods"), "");
}

}  // namespace
}  // namespace borescope::targets
