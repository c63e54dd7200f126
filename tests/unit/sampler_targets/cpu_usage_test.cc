// SPDX-License-Identifier: Apache-2.0
#include "sampler/targets/cpu_usage.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/base/strings.h"

namespace borescope::targets {
namespace {

namespace fs = std::filesystem;

TEST(CpuUsage, FindsTheMountsThatCount) {
  auto mounts = FindCgroupMounts(
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
      "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
      "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct\nbroken\n - \n");
  ASSERT_EQ(mounts.size(), 2u);
  EXPECT_EQ(mounts[0].path, "/sys/fs/cgroup/cpu,cpuacct");
  EXPECT_FALSE(mounts[0].unified);
  EXPECT_TRUE(mounts[1].unified);
}

TEST(CpuUsage, SumsPodsAndSaysNothingOfOneThatIsGone) {
  fs::path root = fs::temp_directory_path() / ("borescope-cgroup-" + RandomHex(8));
  fs::path slice = root / "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11_22.slice";
  fs::path plain = root / "kubepods/besteffort/pod33-44";
  fs::create_directories(slice);
  fs::create_directories(plain);
  fs::create_directories(root / "self");
  std::ofstream(root / "self/mountinfo") << "41 31 0:38 / " << root.native() << " rw - cgroup2 cgroup2 rw\n";
  std::ofstream(slice / "cpu.stat") << "usage_usec 1500\nuser_usec 1\n";
  std::ofstream(plain / "cpu.stat") << "usage_usec 2\n";
  CpuUsage usage(root.native());
  EXPECT_EQ(usage.Read({"11-22", "33-44"}), 1'502'000);
  EXPECT_EQ(usage.Read({"11-22", "55"}), std::nullopt);
  fs::remove_all(plain);
  EXPECT_EQ(usage.Read({"33-44"}), std::nullopt);
  EXPECT_EQ(usage.Read({"11-22"}), 1'500'000);
  fs::remove_all(root);
}

}  // namespace
}  // namespace borescope::targets
