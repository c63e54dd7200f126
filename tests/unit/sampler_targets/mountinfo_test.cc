// SPDX-License-Identifier: Apache-2.0
#include "sampler/targets/mountinfo.h"

#include <gtest/gtest.h>

namespace borescope::targets {
namespace {

constexpr std::string_view kUid = "6f1c2a30-0000-4000-8000-123456789abc";

std::string Line(std::string_view root, std::string_view mount_point) {
  return "1291 1285 254:0 " + std::string(root) + " " + std::string(mount_point) + " rw,relatime shared:7 - ext4 /dev/vda rw\n";
}
std::string PodFolder() { return "/pods/" + std::string(kUid); }

TEST(Mountinfo, NamesTheContainerWhateverTheKubeletsFolderIsMountedFrom) {
  for (std::string prefix : {"", "/var/lib/kubelet", "/node2/var/lib/kubelet", "/docker/volumes/x/_data/lib/kubelet"}) {
    std::string text = Line("/", "/") + Line(prefix + PodFolder() + "/containers/app/1a2b3c4d", "/dev/termination-log");
    ContainerMount mount = FindContainerMount(text, kUid);
    EXPECT_EQ(mount.name, "app") << prefix;
    EXPECT_TRUE(mount.pod_seen);
  }
}

TEST(Mountinfo, AnotherPodsMountDoesNotCount) {
  ContainerMount mount = FindContainerMount(Line("/pods/other/containers/app/1a", "/dev/termination-log"), kUid);
  EXPECT_EQ(mount.name, "");
  EXPECT_FALSE(mount.pod_seen);
}

TEST(Mountinfo, TheUsualPlaceWinsOverOthersAndTheTopmostOverThoseBelow) {
  std::string text = Line(PodFolder() + "/containers/liar/1a", "/tmp/x") +
                     Line(PodFolder() + "/containers/below/1a", "/dev/termination-log") +
                     Line(PodFolder() + "/containers/app/1a", "/dev/termination-log");
  EXPECT_EQ(FindContainerMount(text, kUid).name, "app");
}

TEST(Mountinfo, AnotherTerminationMessagePathIsTakenWhenItIsTheOnlyOne) {
  std::string one = Line(PodFolder() + "/containers/init-db/1a", "/log/end");
  EXPECT_EQ(FindContainerMount(one, kUid).name, "init-db");
  EXPECT_EQ(FindContainerMount(one + Line(PodFolder() + "/containers/app/1a", "/x"), kUid).name, "");
}

TEST(Mountinfo, RefusesWhatIsNoContainersLog) {
  for (std::string root : {"/containers/app", "/containers/app/1a/more", "/containers//1a", "/containers/App/1a",
                           "/containers/a\\040b/1a", "/volumes/kubernetes.io~empty-dir/containers/app/1a"}) {
    ContainerMount mount = FindContainerMount(Line(PodFolder() + root, "/dev/termination-log"), kUid);
    EXPECT_EQ(mount.name, "") << root;
    EXPECT_TRUE(mount.pod_seen) << root;
  }
}

TEST(Mountinfo, BrokenTextIsNoContainer) {
  for (std::string_view text : {"", "\n\n", "1", "1 2 3", "1 2 3 /pods/", " - "}) {
    EXPECT_EQ(FindContainerMount(text, kUid).name, "") << text;
  }
  EXPECT_EQ(FindContainerMount(Line(PodFolder() + "/containers/app/1a", "/dev/termination-log"), "").name, "");
}

}  // namespace
}  // namespace borescope::targets
