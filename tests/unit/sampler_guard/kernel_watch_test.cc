// SPDX-License-Identifier: Apache-2.0
#include "sampler/guard/kernel_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

namespace borescope::guard {
namespace {

// A FIFO in the place of /dev/kmsg: one record at a time.
class KernelWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/borescope-kmsg.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    path_ = directory_ + "/kmsg";
    ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
    log_.Reset(::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    ASSERT_TRUE(log_.valid());
    auto watch = KernelWatch::Open(path_, [this](const KernelFault& fault) {
      std::lock_guard lock(mutex_);
      faults_.push_back(fault);
      news_.notify_all();
    });
    ASSERT_TRUE(watch.ok()) << watch.error().message;
    watch_ = *std::move(watch);
  }
  void TearDown() override {
    watch_.reset();
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }
  // Waits until it is read: a pipe does not keep records apart.
  void Say(std::string_view text) {
    ASSERT_EQ(::write(log_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    for (int left = 1; left > 0; usleep(1000)) ASSERT_EQ(ioctl(log_.get(), FIONREAD, &left), 0);
  }
  bool Wait(size_t count) {
    std::unique_lock lock(mutex_);
    return news_.wait_for(lock, std::chrono::seconds(10), [&] { return faults_.size() >= count; });
  }

  std::string directory_, path_;
  UniqueFd log_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<KernelFault> faults_;
  std::unique_ptr<KernelWatch> watch_;
};

TEST_F(KernelWatchTest, TellsAFault) {
  watch_->Arm();
  Say("1,5,1000,-;BUG: unable to handle page fault for address: 0\n");
  Say("4,6,1001,-;RIP: 0010:bpf_prog_6deef7357e7b4530_tick+0x1/0x2\n");
  ASSERT_TRUE(Wait(1));
  EXPECT_EQ(faults_[0].program, "bpf_prog_6deef7357e7b4530_tick");
  EXPECT_EQ(watch_->missed(), 0u);
}

TEST_F(KernelWatchTest, GoesOnForAWhileAfterTheLastJob) {
  watch_->Arm();
  watch_->Disarm();
  Say("1,5,1000,-;BUG: unable to handle page fault for address: 0\n");
  Say("4,9,1001,-;RIP: 0010:bpf_prog_6deef7357e7b4530_tick+0x1/0x2\n");
  ASSERT_TRUE(Wait(1));
  EXPECT_EQ(watch_->missed(), 3u);  // 6, 7, 8
}

TEST_F(KernelWatchTest, ReadsNothingWhileNothingIsArmed) {
  ASSERT_EQ(::write(log_.get(), "x", 1), 1);
  usleep(50'000);
  int left = 0;
  ASSERT_EQ(ioctl(log_.get(), FIONREAD, &left), 0);
  EXPECT_EQ(left, 1);
}

TEST(LogTextTest, GivesEachLineOnce) {
  LogText text;
  std::string log = "om the middle of a line\n<6>[    1.000002] before\n";
  EXPECT_THAT(text.News(log), testing::ElementsAre("6,1,1000002,-;before\n"));
  EXPECT_THAT(text.News(log), testing::IsEmpty());
  log += "<1>[   12.345678] BUG: unable to handle page fault\n<4>[   12.345679][  T123] RIP: 0010:bpf_prog_6deef7357e7b4530_tick+0x1/0x2\n<30>no time\n";
  EXPECT_THAT(text.News(log), testing::ElementsAre("1,2,12345678,-;BUG: unable to handle page fault\n",
                                                   "4,3,12345679,-;RIP: 0010:bpf_prog_6deef7357e7b4530_tick+0x1/0x2\n", "30,4,0,-;no time\n"));
}

TEST(LogTextTest, WhatWasOverwrittenIsAGap) {
  LogText text;
  text.News("<6>[    1.000000] a\n");
  EXPECT_THAT(text.News("<6>[    9.000000] z\n"), testing::ElementsAre("6,3,9000000,-;z\n"));
  EXPECT_THAT(text.News(""), testing::IsEmpty());
}

TEST(KernelWatchOpenTest, SaysWhatFollowsWithoutIt) {
  auto watch = KernelWatch::Open("/nowhere/kmsg", [](const KernelFault&) {});
  ASSERT_FALSE(watch.ok());
  for (const char* part : {"/nowhere/kmsg", "will not stop the sampling", "CAP_SYSLOG"}) EXPECT_NE(watch.error().message.find(part), std::string::npos) << watch.error().message;
}

}  // namespace
}  // namespace borescope::guard
