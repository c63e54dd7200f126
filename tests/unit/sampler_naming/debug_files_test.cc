// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/debug_files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "temporary_directory.h"

namespace borescope::naming {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

Wanted Want(Wanted::Kind kind, std::string name, std::string directory = "", std::string build_id = "") { return {kind, 0, std::move(name), std::move(directory), std::move(build_id)}; }

TEST(CandidatePaths, AreWhereDebugFilesStand) {
  EXPECT_THAT(CandidatePaths(Want(Wanted::kBuildId, "", "", "\xab\xcd\xef"), "/bin/app"), ElementsAre("/usr/lib/debug/.build-id/ab/cdef.debug"));
  EXPECT_THAT(CandidatePaths(Want(Wanted::kDebugLink, "app.debug"), "/opt/bin/app"),
              ElementsAre("/opt/bin/app.debug", "/opt/bin/.debug/app.debug", "/usr/lib/debug/opt/bin/app.debug"));
  EXPECT_THAT(CandidatePaths(Want(Wanted::kDebugLink, "app"), "/opt/bin/app"), Not(Contains("/opt/bin/app"))) << "itself";
  EXPECT_THAT(CandidatePaths(Want(Wanted::kDebugLink, "../app"), "/opt/bin/app"), IsEmpty());
  EXPECT_THAT(CandidatePaths(Want(Wanted::kPackage, ""), "/opt/bin/app"), Contains("/opt/bin/app.dwp"));
  EXPECT_THAT(CandidatePaths(Want(Wanted::kSplit, "obj/a.dwo", "/src"), "/opt/bin/app"), ElementsAre("/src/obj/a.dwo", "/opt/bin/obj/a.dwo", "/opt/bin/a.dwo"));
  EXPECT_THAT(CandidatePaths(Want(Wanted::kSplit, "/src/a.dwo", "/other"), "/opt/bin/app"), Contains("/src/a.dwo"));
  EXPECT_THAT(CandidatePaths(Want(Wanted::kAltLink, "/usr/lib/debug/.dwz/x.debug", "", "\xab\xcd"), "/opt/bin/app"),
              ElementsAre("/usr/lib/debug/.build-id/ab/cd.debug", "/usr/lib/debug/.dwz/x.debug"));
  EXPECT_THAT(CandidatePaths(Want(Wanted::kSplit, std::string("a\0b", 3)), "/opt/bin/app"), IsEmpty());
}

// A process's root directory is a folder of ours: PROC_ROOT/PID/root.
class OpenDebugFileTest : public ::testing::Test {
 protected:
  OpenDebugFileTest() {
    std::filesystem::create_directories(root_ + "/opt/bin/.debug");
    std::filesystem::create_directories(root_ + "/usr/lib/debug/.build-id/ab");
    std::filesystem::create_directories(directory_.path() + "/host/.build-id/ab");
    roots_.proc_root = directory_.path() + "/proc";
    roots_.pids = {41, 42};  // the first one is gone
    roots_.debug_directory = directory_.path() + "/host";
    roots_.path = "/opt/bin/app";
  }
  void Write(const std::string& path, const std::string& text) { std::ofstream(directory_.path() + path) << text; }
  std::string Read(Wanted wanted, int attempt = 0) {
    wanted.attempt = static_cast<uint8_t>(attempt);
    UniqueFd fd = OpenDebugFile(wanted, roots_);
    char text[100];
    ssize_t n = fd.valid() ? read(fd.get(), text, sizeof(text)) : 0;
    return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
  }

  testing::TemporaryDirectory directory_;
  std::string root_ = directory_.path() + "/proc/42/root";
  DebugRoots roots_;
};

TEST_F(OpenDebugFileTest, InOrder) {
  const Wanted link = Want(Wanted::kDebugLink, "app.debug");
  EXPECT_EQ(Read(link), "");
  Write("/proc/42/root/opt/bin/.debug/app.debug", "second");
  EXPECT_EQ(Read(link), "second");
  EXPECT_EQ(Read(link, 1), "");
  Write("/proc/42/root/opt/bin/app.debug", "first");
  EXPECT_EQ(Read(link), "first");
  EXPECT_EQ(Read(link, 1), "second");
  EXPECT_EQ(Read(link, 2), "");
}

TEST_F(OpenDebugFileTest, OnThisMachineByBuildIdOnly) {
  const Wanted id = Want(Wanted::kBuildId, "", "", "\xab\xcd");
  Write("/host/.build-id/ab/cd.debug", "host");
  EXPECT_EQ(Read(id), "host");
  Write("/proc/42/root/usr/lib/debug/.build-id/ab/cd.debug", "container");
  EXPECT_EQ(Read(id), "container");
  EXPECT_EQ(Read(id, 1), "host");
  roots_.pids.clear();
  Write("/host/app.debug", "no");
  EXPECT_EQ(Read(Want(Wanted::kDebugLink, "app.debug")), "");
}

TEST_F(OpenDebugFileTest, NothingOutsideAndNothingThatBlocks) {
  Write("/secret", "secret");
  std::filesystem::create_symlink(directory_.path() + "/secret", root_ + "/opt/bin/app.debug");
  EXPECT_EQ(Read(Want(Wanted::kDebugLink, "app.debug")), "") << "a link leads out";
  EXPECT_EQ(Read(Want(Wanted::kSplit, "../../../../../secret", "/opt/bin")), "");
  EXPECT_EQ(Read(Want(Wanted::kSplit, "../../../../secret", "/opt/bin")), "");
  ASSERT_EQ(mkfifo((root_ + "/opt/bin/a.dwo").c_str(), 0600), 0);
  EXPECT_EQ(Read(Want(Wanted::kSplit, "a.dwo", "/opt/bin")), "");
  roots_.path = "//anon";
  EXPECT_EQ(Read(Want(Wanted::kPackage, "")), "");
}

}  // namespace
}  // namespace borescope::naming
