// SPDX-License-Identifier: Apache-2.0
#include "sampler/agent/job_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"

namespace borescope::agent {
namespace {

using api::JobState;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Action::Kind;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kReal = 1'796'043'600 * kSecond;  // a wall clock
constexpr int64_t kBoot = 5'000 * kSecond;

Now At(double seconds) {
  int64_t ns = static_cast<int64_t>(seconds * 1e9);
  return {.boot_ns = kBoot + ns, .real_ns = kReal + ns};
}

api::Job MakeJob(const std::string& id = "shop/checkout/u1") {
  api::Job job;
  job.id = id;
  job.pod_uids = {"p1"};
  job.profiles = {{"cpu", "cpu", 99}};
  job.sink_names = {"default"};
  job.start_time = kReal;
  job.end_time = kReal + 60 * kSecond;
  job.duration_seconds = 60;
  job.publish_deadline_seconds = 300;
  return job;
}

api::NodeSamplerSpec Spec(std::vector<api::Job> jobs) {
  api::NodeSamplerSpec spec;
  spec.jobs = std::move(jobs);
  return spec;
}

class JobMachineTest : public testing::Test {
 protected:
  JobMachine machine_{{.boot_id = "boot1", .kinds = {"cpu"}, .sinks = {"default"}}};
  const std::string id_ = "shop/checkout/u1";

  JobState State() { return machine_.Find(id_)->state; }
  std::string Reason() { return machine_.Find(id_)->reason; }
  void Arm(double at = 0) { EXPECT_THAT(machine_.OnArmed(id_, OkStatus(), At(at)), IsEmpty()); }
};

TEST_F(JobMachineTest, NamesAreWaitedForButNotForLong) {
  for (bool they_come : {true, false}) {
    machine_ = JobMachine({.boot_id = "boot1", .kinds = {"cpu"}, .sinks = {"default"}});
    machine_.OnSpec(Spec({MakeJob()}), true, At(1));
    Arm(1.1);
    bool pending = true;
    auto awaits = [&](const std::string& id) { return id == id_ && pending; };
    EXPECT_THAT(machine_.OnTick(At(60.2), awaits), IsEmpty());
    EXPECT_GT(machine_.NextTickBootNs(), At(60.2).boot_ns) << "it is not looked at again at once";
    EXPECT_LT(machine_.NextTickBootNs(), At(60.3).boot_ns);
    EXPECT_THAT(machine_.OnTick(At(60.9), awaits), IsEmpty());
    pending = !they_come;
    EXPECT_THAT(machine_.OnTick(At(they_come ? 60.95 : 61), awaits), ElementsAre(Action{Kind::kFinish, id_}));
    EXPECT_EQ(machine_.Find(id_)->end_real_ns, kReal + 60 * kSecond);
  }
}

TEST_F(JobMachineTest, TheLifeOfAJob) {
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), true, At(1)), ElementsAre(Action{Kind::kArm, id_}));
  EXPECT_EQ(State(), JobState::kAccepted);
  EXPECT_THAT(machine_.TakeChanged(), ElementsAre(id_));
  const JobRecord* job = machine_.Find(id_);
  EXPECT_EQ(job->start_boot_ns, kBoot);
  EXPECT_EQ(job->deadline_boot_ns, kBoot + 60 * kSecond);
  Arm(1.1);
  EXPECT_EQ(State(), JobState::kSampling);
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), true, At(2)), IsEmpty());
  EXPECT_EQ(machine_.NextTickBootNs(), kBoot + 60 * kSecond + JobMachine::kDrainNs);
  EXPECT_THAT(machine_.OnTick(At(60)), IsEmpty());
  EXPECT_THAT(machine_.OnTick(At(60.2)), ElementsAre(Action{Kind::kFinish, id_}));
  EXPECT_EQ(State(), JobState::kSampled);
  EXPECT_EQ(machine_.Find(id_)->end_real_ns, kReal + 60 * kSecond);
  machine_.OnPublishing(id_, {.pending = 1}, At(60.3));
  EXPECT_EQ(State(), JobState::kSampled);
  machine_.OnPublishing(id_, {.pending = 0}, At(60.4));
  EXPECT_EQ(State(), JobState::kPublished);
  EXPECT_THAT(machine_.OnTick(At(100)), IsEmpty());
  EXPECT_THAT(machine_.OnSpec(Spec({}), true, At(101)), ElementsAre(Action{Kind::kForget, id_}));
  EXPECT_EQ(machine_.Find(id_), nullptr);
}

TEST_F(JobMachineTest, RefusesKindsAndSinksWithWhatThereIs) {
  api::Job job = MakeJob();
  job.profiles = {{"cpu", "cpu", 99}, {"wall", "wall", 49}};
  EXPECT_THAT(machine_.OnSpec(Spec({job}), true, At(0)), IsEmpty());
  EXPECT_EQ(State(), JobState::kFailed);
  EXPECT_EQ(Reason(), "KindNotSupported");
  EXPECT_THAT(machine_.Find(id_)->message, HasSubstr("found the kind \"wall\"; this node can take: cpu"));

  api::Job other = MakeJob("a/b/c");
  other.sink_names = {"default", "elsewhere"};
  machine_.OnSpec(Spec({job, other}), true, At(0));
  EXPECT_EQ(machine_.Find("a/b/c")->reason, "UnknownSink");
  EXPECT_THAT(machine_.Find("a/b/c")->message, HasSubstr("\"elsewhere\""));
}

TEST_F(JobMachineTest, AnUnprotectedNodeTakesNoJobsAndSaysNothingOfThem) {
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), false, At(0)), IsEmpty());
  EXPECT_TRUE(machine_.jobs().empty());
  EXPECT_THAT(machine_.TakeChanged(), IsEmpty());
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), true, At(5)), ElementsAre(Action{Kind::kArm, id_}));
}

TEST_F(JobMachineTest, AClockThatIsAheadDoesNotStretchTheWindow) {
  // The window begins in the node's future: armed now, sampled from then on, no longer than it lasts.
  api::Job job = MakeJob();
  job.start_time += 10 * kSecond;
  job.end_time += 10 * kSecond;
  machine_.OnSpec(Spec({job}), true, At(0));
  Arm();
  EXPECT_EQ(State(), JobState::kAccepted);
  EXPECT_EQ(machine_.Find(id_)->start_boot_ns, kBoot + 10 * kSecond);
  EXPECT_EQ(machine_.Find(id_)->deadline_boot_ns, kBoot + 70 * kSecond);
  EXPECT_EQ(machine_.NextTickBootNs(), kBoot + 10 * kSecond);
  machine_.OnTick(At(10));
  EXPECT_EQ(State(), JobState::kSampling);
  // An end an hour off does not stretch it either.
  api::Job wrong = MakeJob("a/b/c");
  wrong.end_time = kReal + 3600 * kSecond;
  machine_.OnSpec(Spec({job, wrong}), true, At(0));
  EXPECT_EQ(machine_.Find("a/b/c")->deadline_boot_ns, kBoot + 60 * kSecond);
}

TEST_F(JobMachineTest, ALateJobGetsTheRestAndAPastOneIsRefused) {
  machine_.OnSpec(Spec({MakeJob()}), true, At(50));
  EXPECT_EQ(machine_.Find(id_)->deadline_boot_ns, kBoot + 60 * kSecond);
  machine_.OnSpec(Spec({MakeJob(), MakeJob("a/b/c")}), true, At(61));
  EXPECT_EQ(machine_.Find("a/b/c")->reason, "WindowPassed");
}

TEST_F(JobMachineTest, StopEndsSamplingAtOnceAndPublishesWhatThereIs) {
  machine_.OnSpec(Spec({MakeJob()}), true, At(0));
  Arm();
  api::Job stopped = MakeJob();
  stopped.stop = true;
  EXPECT_THAT(machine_.OnSpec(Spec({stopped}), true, At(20)), ElementsAre(Action{Kind::kSetWindow, id_}));
  EXPECT_EQ(machine_.Find(id_)->deadline_boot_ns, kBoot + 20 * kSecond);
  EXPECT_THAT(machine_.OnTick(At(20.2)), ElementsAre(Action{Kind::kFinish, id_}));
  machine_.OnPublishing(id_, {}, At(20.3));
  EXPECT_EQ(State(), JobState::kPublished);
  EXPECT_EQ(Reason(), "Stopped");
}

TEST_F(JobMachineTest, AVanishedJobIsCutAtOnceAndForgottenAfterItsLastSamples) {
  machine_.OnSpec(Spec({MakeJob()}), true, At(0));
  Arm();
  machine_.TakeChanged();
  EXPECT_THAT(machine_.OnSpec(Spec({}), true, At(20)), ElementsAre(Action{Kind::kSetWindow, id_}));
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), true, At(20.05)), IsEmpty());
  EXPECT_THAT(machine_.OnTick(At(20.2)), ElementsAre(Action{Kind::kFinish, id_}));
  ASSERT_NE(machine_.Find(id_), nullptr);
  EXPECT_EQ(machine_.NextTickBootNs(), 0);
  EXPECT_THAT(machine_.OnTick(At(20.2)), ElementsAre(Action{Kind::kForget, id_}));
  EXPECT_EQ(machine_.Find(id_), nullptr);
  EXPECT_THAT(machine_.TakeChanged(), IsEmpty());
}

TEST_F(JobMachineTest, AJobThatComesBackIsTakenAnew) {
  api::JobReport before;
  before.state = JobState::kSampling;
  machine_.Restore({{id_, before}});
  machine_.OnSpec(Spec({MakeJob()}), true, At(0));
  EXPECT_NE(machine_.Find(id_)->before, nullptr);
  Arm();
  machine_.OnSpec(Spec({}), true, At(20));
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), true, At(20.05)), IsEmpty());
  EXPECT_THAT(machine_.OnTick(At(20.2)), ElementsAre(Action{Kind::kFinish, id_}));
  // The spec may come before the tick that forgets it, or be applied again after that.
  JobMachine other = machine_;
  EXPECT_THAT(other.OnSpec(Spec({MakeJob()}), true, At(20.3)), ElementsAre(Action{Kind::kForget, id_}, Action{Kind::kArm, id_}));
  EXPECT_THAT(machine_.OnTick(At(20.3)), ElementsAre(Action{Kind::kForget, id_}));
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), true, At(20.3)), ElementsAre(Action{Kind::kArm, id_}));
  EXPECT_EQ(machine_.Find(id_)->before, nullptr);
}

TEST_F(JobMachineTest, AJobWithoutProfilesIsRefused) {
  api::Job job = MakeJob();
  job.profiles.clear();
  EXPECT_THAT(machine_.OnSpec(Spec({job}), true, At(0)), IsEmpty());
  EXPECT_EQ(Reason(), "KindNotSupported");
  EXPECT_EQ(machine_.Find(id_)->message, "profiles: found none; give one of: cpu");
}

TEST_F(JobMachineTest, WaitingBeginsWithTheFirstContainer) {
  api::Job job = MakeJob();
  job.start_time = job.end_time = 0;
  job.wait_until = kReal + 30 * kSecond;
  machine_.OnSpec(Spec({job}), true, At(0));
  Arm();
  EXPECT_EQ(State(), JobState::kWaiting);
  EXPECT_THAT(machine_.OnContainer(id_, kBoot + 7 * kSecond, At(7.3)), ElementsAre(Action{Kind::kSetWindow, id_}));
  const JobRecord* record = machine_.Find(id_);
  EXPECT_EQ(record->first_container_real_ns, kReal + 7 * kSecond);
  EXPECT_EQ(record->start_boot_ns, kBoot + 7 * kSecond);
  EXPECT_EQ(record->deadline_boot_ns, kBoot + 67 * kSecond);
  EXPECT_EQ(State(), JobState::kSampling);
  // The operator's window of another node that was earlier ends ours earlier; our grid stays.
  job.start_time = kReal + 5 * kSecond;
  job.end_time = kReal + 65 * kSecond;
  EXPECT_THAT(machine_.OnSpec(Spec({job}), true, At(8)), ElementsAre(Action{Kind::kSetWindow, id_}));
  EXPECT_EQ(machine_.Find(id_)->deadline_boot_ns, kBoot + 65 * kSecond);
  EXPECT_EQ(machine_.Find(id_)->start_real_ns, kReal + 7 * kSecond);
}

TEST_F(JobMachineTest, WaitingForAnotherNodesContainerTakesTheOperatorsWindow) {
  api::Job job = MakeJob();
  job.start_time = job.end_time = 0;
  job.wait_until = kReal + 30 * kSecond;
  machine_.OnSpec(Spec({job}), true, At(0));
  Arm();
  job.start_time = kReal + 5 * kSecond;
  job.end_time = kReal + 65 * kSecond;
  EXPECT_THAT(machine_.OnSpec(Spec({job}), true, At(6)), ElementsAre(Action{Kind::kSetWindow, id_}));
  EXPECT_THAT(machine_.OnTick(At(6)), IsEmpty());
  EXPECT_EQ(State(), JobState::kSampling);
  EXPECT_EQ(machine_.Find(id_)->deadline_boot_ns, kBoot + 65 * kSecond);
}

TEST_F(JobMachineTest, WaitingExpires) {
  api::Job job = MakeJob();
  job.start_time = job.end_time = 0;
  job.wait_until = kReal + 30 * kSecond;
  machine_.OnSpec(Spec({job}), true, At(0));
  Arm();
  EXPECT_THAT(machine_.OnTick(At(33)), IsEmpty());
  EXPECT_THAT(machine_.OnTick(At(36)), ElementsAre(Action{Kind::kFinish, id_}));
  EXPECT_EQ(Reason(), "WaitExpired");
}

TEST_F(JobMachineTest, PodsThatComeAndGo) {
  machine_.OnSpec(Spec({MakeJob()}), true, At(0));
  Arm();
  api::Job job = MakeJob();
  job.pod_uids = {"p1", "p2"};
  EXPECT_THAT(machine_.OnSpec(Spec({job}), true, At(1)), ElementsAre(Action{Kind::kSetPods, id_}));
}

TEST_F(JobMachineTest, AnEngineThatFailsIsNamed) {
  machine_.OnSpec(Spec({MakeJob()}), true, At(0));
  machine_.OnArmed(id_, Error{ErrorCode::kDenied, "perf_event_open: EPERM"}, At(0));
  EXPECT_EQ(State(), JobState::kFailed);
  EXPECT_EQ(Reason(), "CapabilityMissing");
  EXPECT_THAT(machine_.Find(id_)->message, HasSubstr("EPERM"));
  EXPECT_THAT(machine_.OnSpec(Spec({}), true, At(1)), ElementsAre(Action{Kind::kForget, id_}));
}

TEST_F(JobMachineTest, AKernelFaultEndsWhatIsArmed) {
  api::Job other = MakeJob("shop/other/u2");
  machine_.OnSpec(Spec({MakeJob(), other}), true, At(0));
  Arm();
  EXPECT_THAT(machine_.OnArmed(other.id, OkStatus(), At(0)), IsEmpty());
  EXPECT_THAT(machine_.OnTick(At(10)), IsEmpty());
  machine_.TakeChanged();
  EXPECT_THAT(machine_.OnKernelFault("BUG: unable to handle page fault", At(20)), ElementsAre(Action{Kind::kFinish, id_}, Action{Kind::kFinish, other.id}));
  EXPECT_EQ(State(), JobState::kFailed);
  EXPECT_EQ(Reason(), "KernelUnsafe");
  EXPECT_EQ(machine_.Find(id_)->end_real_ns, kReal + 20 * kSecond);
  EXPECT_THAT(machine_.TakeChanged(), ElementsAre(id_, other.id));
  EXPECT_THAT(machine_.OnTick(At(61)), IsEmpty());
  EXPECT_THAT(machine_.OnKernelFault("again", At(62)), IsEmpty());

  api::Job later = MakeJob("shop/later/u3");
  EXPECT_THAT(machine_.OnSpec(Spec({later}), true, At(30)), testing::Contains(Action{Kind::kArm, later.id}));
  machine_.OnArmed(later.id, Error{ErrorCode::kUnsupported, "the kernel reported a fault"}, At(30), api::kKernelUnsafe);
  EXPECT_EQ(machine_.Find(later.id)->reason, "KernelUnsafe");
}

TEST_F(JobMachineTest, AJobThatIsOverIsNotTouchedByAKernelFault) {
  machine_.OnSpec(Spec({MakeJob()}), true, At(0));
  Arm();
  machine_.OnTick(At(61));
  EXPECT_EQ(State(), JobState::kSampled);
  EXPECT_THAT(machine_.OnKernelFault("BUG: unable to handle page fault", At(62)), IsEmpty());
  EXPECT_EQ(State(), JobState::kSampled);
}

TEST_F(JobMachineTest, ASinkThatStaysDownFailsTheJob) {
  machine_.OnSpec(Spec({MakeJob()}), true, At(0));
  Arm();
  machine_.OnTick(At(61));
  machine_.OnPublishing(id_, {.pending = 0, .failed = 2, .message = "HTTP 503"}, At(400));
  EXPECT_EQ(Reason(), "PublishFailed");
  EXPECT_EQ(machine_.Find(id_)->message, "HTTP 503");
}

TEST_F(JobMachineTest, ARestartTakesUpAJobWhoseDeadlineIsAhead) {
  api::JobReport before;
  before.state = JobState::kSampling;
  before.boot_id = "boot1";
  before.deadline_boot_ns = kBoot + 59 * kSecond;
  before.start_time = kReal;
  machine_.Restore({{id_, before}, {"gone/x/y", before}});
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), true, At(20)), ElementsAre(Action{Kind::kArm, id_}, Action{Kind::kForget, "gone/x/y"}));
  EXPECT_EQ(machine_.Find(id_)->deadline_boot_ns, kBoot + 59 * kSecond);
  EXPECT_EQ(machine_.Find(id_)->start_real_ns, kReal);
  ASSERT_NE(machine_.Find(id_)->before, nullptr);
  EXPECT_EQ(Reason(), "SamplerRestarted");
  Arm(20);
  EXPECT_EQ(State(), JobState::kSampling);
}

TEST_F(JobMachineTest, ARestartAfterTheWindowSettlesTheJob) {
  api::JobReport before;
  before.state = JobState::kSampling;
  before.boot_id = "boot1";
  before.deadline_boot_ns = kBoot + 60 * kSecond;
  before.windows.stored = 4;
  api::JobReport nothing = before;
  nothing.windows.stored = 0;
  api::JobReport done = before;
  done.state = JobState::kPublished;
  machine_.Restore({{id_, before}, {"a/b/c", nothing}, {"d/e/f", done}});
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob(), MakeJob("a/b/c"), MakeJob("d/e/f")}), true, At(70)),
              ElementsAre(Action{Kind::kSettle, id_}, Action{Kind::kSettle, "a/b/c"}));
  EXPECT_EQ(State(), JobState::kPublished);
  EXPECT_EQ(Reason(), "SamplerRestarted");
  EXPECT_EQ(machine_.Find("a/b/c")->state, JobState::kFailed);
  EXPECT_EQ(machine_.Find("d/e/f")->state, JobState::kPublished);
  EXPECT_EQ(machine_.Find("d/e/f")->reason, "");
}

TEST_F(JobMachineTest, AfterAReboottheWindowIsTheSpecs) {
  api::JobReport before;
  before.state = JobState::kSampling;
  before.boot_id = "boot0";
  before.deadline_boot_ns = 1;
  machine_.Restore({{id_, before}});
  EXPECT_THAT(machine_.OnSpec(Spec({MakeJob()}), true, At(20)), ElementsAre(Action{Kind::kArm, id_}));
  EXPECT_EQ(machine_.Find(id_)->deadline_boot_ns, kBoot + 60 * kSecond);
}

}  // namespace
}  // namespace borescope::agent
