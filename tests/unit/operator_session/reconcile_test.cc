// SPDX-License-Identifier: Apache-2.0
#include "operator/session/reconcile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/api/json.h"

namespace borescope::op {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'790'000'000'000'400'000;

// One session in namespace "shop", as it lies before the planner.
struct Fixture {
  World world;
  api::ProfilingSession session;
  int64_t now = kNow;

  Fixture() {
    session.metadata = {.namespace_name = "shop",
                        .name = "s",
                        .uid = "su",
                        .resource_version = "1",
                        .generation = 1,
                        .creation_time = kNow,
                        .deletion_time = 0};
    session.spec.target.pod_selector = api::LabelSelector{{{"app", "web"}}, {}};
    world.namespaces["shop"].listed_for = {"su"};
    world.namespaces["shop"].total = 7;
  }
  Pod& AddPod(const std::string& name, const std::string& node) {
    Pod pod;
    pod.namespace_name = "shop";
    pod.name = name;
    pod.uid = "uid-" + name;
    pod.node = node;
    pod.labels = {{"app", "web"}};
    pod.containers = {{"app", "app:v1", true, true}, {"proxy", "proxy:v1", true, true}};
    return world.namespaces["shop"].pods[pod.uid] = pod;
  }
  void AddSampler(const std::string& node, const std::string& guarded = "True") {
    api::NodeSampler sampler;
    sampler.metadata.name = node;
    sampler.status.kinds = {"cpu"};
    sampler.status.sink_names = {"default", "team"};
    if (!guarded.empty())
      sampler.status.conditions = {
          {"Protected", guarded, "AdmissionPolicyMissing", "a dry run was let through", 0, 0}};
    world.SetSampler(sampler);
  }
  SessionPlan Plan() { return PlanSession(world, session, now); }
  // Plans, and carries out what the plan says, as the loop does.
  SessionPlan Step() {
    SessionPlan plan = Plan();
    world.memory["su"] = plan.memory;
    if (plan.status) session.status = *plan.status;
    for (const auto& [node, assignment] : plan.assignments) {
      api::NodeSampler sampler = world.samplers.at(node);
      sampler.spec = ComposeNodeSpec({&assignment}, sampler.spec).spec;
      world.SetSampler(sampler);
    }
    return plan;
  }
  void Settle() {
    for (int i = 0; i < 3; ++i) Step();
  }
  api::JobReport& Report(const std::string& node) {
    return world.reports[node].status.jobs[JobIdOf(session)];
  }
  std::string Reason(std::string_view type) const {
    const api::Condition* c = api::FindCondition(session.status.conditions, type);
    return c == nullptr ? "none" : c->status + "/" + c->reason;
  }
  std::string Message(std::string_view type) const {
    const api::Condition* c = api::FindCondition(session.status.conditions, type);
    return c == nullptr ? "" : c->message;
  }
  void ExpectRefused(std::string_view reason) const {
    EXPECT_EQ(Reason("Accepted"), "False/" + std::string(reason));
    EXPECT_EQ(Reason("Failed"), "True/" + std::string(reason));
    EXPECT_EQ(Reason("Finished"), "True/" + std::string(reason));
    EXPECT_EQ(session.status.phase, api::Phase::kFailed);
    EXPECT_NE(session.status.completion_time, 0);
    EXPECT_EQ(session.status.start_time, 0);
    EXPECT_EQ(session.status.conditions.size(), 8u);
  }
};

// ---- Refusals: field, value found, next step
// -----------------------------------------------------------------------------------

TEST(Refusal, NothingMatched) {
  Fixture f;
  f.Step();
  f.ExpectRefused("NoMatchingPods");
  EXPECT_THAT(f.Message("Accepted"),
              AllOf(HasSubstr("`spec.target.podSelector`"), HasSubstr("'app=web'"),
                    HasSubstr("7 pods"), HasSubstr("'shop'"), HasSubstr("kubectl get pods")));
}

TEST(Refusal, MatchedPodsHaveEnded) {
  Fixture f;
  f.AddPod("a", "n1").finished = true;
  f.Step();
  f.ExpectRefused("NoMatchingPods");
  EXPECT_THAT(f.Message("Accepted"), HasSubstr("all 1 pod of podSelector 'app=web'"));
}

TEST(Refusal, NoSuchWorkload) {
  Fixture f;
  f.session.spec.target = {};
  f.session.spec.target.workload_ref = api::WorkloadRef{"Deployment", "web"};
  f.world.workloads[{"shop", "Deployment", "web", ""}].checked_at = kNow;
  f.Step();
  f.ExpectRefused("NoMatchingPods");
  EXPECT_THAT(f.Message("Accepted"),
              AllOf(HasSubstr("`spec.target.workloadRef`"), HasSubstr("no Deployment 'web'"),
                    HasSubstr("kubectl get")));
}

TEST(Refusal, UnknownContainer) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.session.spec.target.container_names = {"app", "sidecar"};
  f.Step();
  f.ExpectRefused("UnknownContainer");
  EXPECT_THAT(f.Message("Accepted"),
              AllOf(HasSubstr("`spec.target.containerNames[1]` is 'sidecar'"),
                    HasSubstr("'app', 'proxy'"), HasSubstr("use one of those")));
}

TEST(Refusal, NoSamplerOnNode) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n2");
  f.Step();
  f.ExpectRefused("NoSamplerOnNode");
  EXPECT_THAT(f.Message("Accepted"),
              AllOf(HasSubstr("pod 'a'"), HasSubstr("'n1'"), HasSubstr("'n2'"),
                    HasSubstr("kubectl get nodesamplers")));
}

TEST(Refusal, SamplerNotProtected) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1", "False");
  f.Step();
  f.ExpectRefused("SamplerNotProtected");
  EXPECT_THAT(f.Message("Accepted"),
              AllOf(HasSubstr("'n1'"), HasSubstr("a dry run was let through"),
                    HasSubstr("ValidatingAdmissionPolicy")));
}

TEST(Refusal, AStartingSamplerIsGivenTime) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1", "");
  SessionPlan plan = f.Step();
  EXPECT_FALSE(plan.status) << "nothing to say yet";
  EXPECT_GT(plan.requeue_at, f.now);
  f.now += 2 * kSecond;
  f.Step();
  EXPECT_EQ(f.session.status.phase, api::Phase::kPending);
  EXPECT_EQ(f.Reason("Accepted"), "Unknown/SamplerNotReady");
  Fixture late = f;
  late.now += 1 * kSecond;
  late.Step();
  late.ExpectRefused("SamplerNotReady");
  f.AddSampler("n1");
  f.Step();
  EXPECT_EQ(f.Reason("Accepted"), "True/Valid");
}

TEST(Refusal, UnknownSink) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.session.spec.sink_names = {"default", "prod"};
  f.Step();
  f.ExpectRefused("UnknownSink");
  EXPECT_THAT(f.Message("Accepted"),
              AllOf(HasSubstr("`spec.sinkNames[1]` is 'prod'"), HasSubstr("'default', 'team'"),
                    HasSubstr("use one of those")));
}

TEST(Refusal, KindNotSupported) {
  Fixture f;
  f.session.spec.profiles = {{},
                             {.name = "w",
                              .kind = api::ProfileKind::kWall,
                              .frequency_hertz = 49,
                              .event = "",
                              .sample_period = 0}};
  f.Step();
  f.ExpectRefused("KindNotSupported");
  EXPECT_THAT(f.Message("Accepted"), AllOf(HasSubstr("`spec.profiles[1]`"), HasSubstr("'wall'"),
                                           HasSubstr("takes 'cpu'")));
}

TEST(Refusal, PodsThatCannotBeRead) {
  Fixture f;
  f.world.namespaces["shop"].listed_for.clear();
  f.world.namespaces["shop"].error = "HTTP 403: pods is forbidden";
  f.Step();
  f.now += 3 * kSecond;
  f.Step();
  f.ExpectRefused("TargetsUnreadable");
  EXPECT_THAT(f.Message("Accepted"), HasSubstr("pods is forbidden"));
}

TEST(Refusal, SamplerNotResponding) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  ASSERT_EQ(f.Reason("Accepted"), "True/Valid");
  f.now += 2'900'000'000;
  f.Step();
  EXPECT_EQ(f.Reason("Finished"), "False/Running");
  f.now += 200'000'000;
  f.Step();
  EXPECT_EQ(f.Reason("Accepted"), "False/SamplerNotResponding");
  EXPECT_EQ(f.Reason("Finished"), "True/SamplerNotResponding");
  EXPECT_THAT(f.Message("Accepted"), AllOf(HasSubstr("'n1'"), HasSubstr("3 s"),
                                           HasSubstr("kubectl describe nodesampler n1")));
  EXPECT_EQ(f.session.status.targets.failed, 1);
}

TEST(Refusal, OneSilentSamplerOfTwoIsNoRefusal) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddPod("b", "n2");
  f.AddSampler("n1");
  f.AddSampler("n2");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  f.now += 4 * kSecond;
  f.Step();
  EXPECT_EQ(f.Reason("Accepted"), "True/Valid");
  EXPECT_EQ(f.Reason("Degraded"), "True/SamplerNotResponding");
  f.Report("n2").state = api::JobState::kSampling;  // better late than never
  f.Step();
  EXPECT_EQ(f.Reason("Degraded"), "False/AsExpected");
  EXPECT_EQ(f.session.status.targets.sampling, 2);
}

TEST(Refusal, NobodyIsJudgedByASilenceBeforeTheOperatorListened) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.now += 10 * kSecond;  // the watch of the reports was broken all that time
  f.world.listening_since = f.now;
  SessionPlan plan = f.Step();
  EXPECT_EQ(f.Reason("Accepted"), "True/Valid");
  EXPECT_EQ(plan.requeue_at, f.now + kAnswerTime);
  f.now += kAnswerTime;
  f.Step();
  EXPECT_EQ(f.Reason("Accepted"), "False/SamplerNotResponding");
}

// ---- The course of a session
// ---------------------------------------------------------------------------------------------------

TEST(Session, WindowIsFixedAtAcceptanceAndJobsFollowTheWrittenStatus) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  SessionPlan plan = f.Step();
  EXPECT_TRUE(plan.assignments.empty())
      << "nothing is given out before the window stands in the status";
  EXPECT_EQ(f.session.status.start_time, kNow / 1'000'000 * 1'000'000);
  EXPECT_EQ(f.session.status.end_time, f.session.status.start_time + 60 * kSecond);
  f.now += kSecond;
  plan = f.Step();
  ASSERT_EQ(plan.assignments.size(), 1u);
  const api::Job& job = plan.assignments.at("n1").job;
  EXPECT_EQ(job.id, "shop/s/su");
  EXPECT_EQ(job.start_time, f.session.status.start_time);
  EXPECT_EQ(job.end_time, f.session.status.end_time);
  EXPECT_EQ(job.profiles, (std::vector<api::JobProfile>{{"cpu", "cpu", 99}}));
  EXPECT_EQ(job.pod_uids, std::vector<std::string>{"uid-a"});
}

TEST(Session, SaysWhichPodsAndWhy) {
  Fixture f;
  for (int i = 0; i < 6; ++i) f.AddPod("web-" + std::to_string(i), i % 2 ? "n1" : "n2");
  f.AddSampler("n1");
  f.AddSampler("n2");
  f.session.spec.target.max_pods = 2;
  f.Settle();
  EXPECT_EQ(f.session.status.targets.matched, 6);
  EXPECT_EQ(f.session.status.targets.selected, 2);
  EXPECT_THAT(f.Message("TargetsResolved"),
              AllOf(HasSubstr("6 pods"), HasSubstr("2 pods on 2 nodes"), HasSubstr("`maxPods` 2"),
                    HasSubstr("web-")));
}

TEST(Session, PodsOnANodeWithoutSamplerFailTheOthersGoOn) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddPod("b", "n2");
  f.AddSampler("n1");
  f.Settle();
  EXPECT_EQ(f.Reason("Accepted"), "True/Valid");
  EXPECT_EQ(f.Reason("Degraded"), "True/SomeTargetsFailed");
  EXPECT_EQ(f.session.status.targets.failed, 1);
  EXPECT_EQ(f.session.status.target_details[0].pod, "b");
  EXPECT_EQ(f.session.status.target_details[0].reason, "NoSamplerOnNode");
  f.Report("n1").state = api::JobState::kPublished;
  f.Report("n1").windows.stored = 6;
  f.Report("n1").containers = {{"uid-a", "a", "app", "Go", "Sampled", "", "", 1, 1}};
  f.now += 61 * kSecond;
  f.Settle();
  EXPECT_EQ(f.Reason("Complete"), "True/PartiallyCompleted");
}

TEST(Session, AReportOnAJobThatTheNodeWasNotGivenIsNotBelieved) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.AddSampler("n2");
  f.Settle();
  api::JobReport forged;
  forged.state = api::JobState::kFailed;
  forged.cpu.used_ns = 1'000'000 * kSecond;
  forged.first_container_time = 1;
  f.world.reports["n2"].status.jobs[JobIdOf(f.session)] = forged;
  f.Report("n1").state = api::JobState::kSampling;
  f.now += 3 * kSecond;
  f.Settle();
  EXPECT_EQ(f.session.status.cpu.used_ns, 0);
  EXPECT_EQ(f.Reason("Started"), "True/Sampling");
  EXPECT_EQ(f.session.status.targets.failed, 0);
}

TEST(Session, NeverCompleteBeforeEverythingIsStored) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.session.spec.publish_deadline_seconds = 100;
  f.Settle();
  f.Report("n1").state = api::JobState::kSampled;
  f.Report("n1").windows = {5, 1, 0};
  f.Report("n1").containers = {{"uid-a", "a", "app", "Go", "Sampled", "", "", 1, 1}};
  f.Report("n1").sinks = {{"default", "Pending", "connection refused", "http://x:1", 5, 1}};
  f.now += 61 * kSecond;
  f.Settle();
  EXPECT_EQ(f.session.status.phase, api::Phase::kPublishing);
  f.now += 98 * kSecond;
  f.Settle();
  EXPECT_EQ(f.session.status.phase, api::Phase::kPublishing);
  Fixture stored = f;
  stored.Report("n1").state = api::JobState::kPublished;
  stored.Report("n1").windows = {6, 0, 0};
  stored.Report("n1").sinks[0] = {"default", "Published", "", "http://x:1", 6, 0};
  stored.Settle();
  EXPECT_EQ(stored.Reason("Complete"), "True/Completed");
  EXPECT_EQ(stored.Reason("Published"), "True/Published");
  f.now += 2 * kSecond;
  f.Settle();
  EXPECT_EQ(f.Reason("Failed"), "True/PublishFailed");
  EXPECT_EQ(f.Reason("Published"), "False/PublishFailed");
  EXPECT_EQ(f.Reason("Complete"), "False/Failed");
  EXPECT_THAT(f.Message("Failed"),
              AllOf(HasSubstr("100 s"), HasSubstr("1 window"), HasSubstr("connection refused")));
  EXPECT_EQ(f.session.status.results[0].state, "Failed");
}

TEST(Session, ALostSamplerEndsTheSessionInTime) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  f.Settle();
  f.now += 79 * kSecond;
  SessionPlan plan = f.Step();
  EXPECT_EQ(f.session.status.phase, api::Phase::kPublishing);
  EXPECT_LE(plan.requeue_at, f.session.status.end_time + kSilenceGrace);
  f.now += 2 * kSecond;
  f.Step();
  EXPECT_EQ(f.Reason("Failed"), "True/SamplerLost");
}

TEST(Session, ASilenceWhileNobodyListenedIsForgiven) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  f.now += 400 * kSecond;  // far beyond grace and deadline: the operator was down
  f.world.listening_since = f.now - kSecond;
  f.world.memory.clear();
  f.Step();
  EXPECT_EQ(f.Reason("Finished"), "False/Running");
  f.now += 20 * kSecond;
  f.Step();
  EXPECT_EQ(f.Reason("Failed"), "True/SamplerLost");
}

TEST(Session, ASamplersRefusalEndsItAtOnceWithItsReason) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kFailed;
  f.Report("n1").reason = "TooManyRates";
  f.Report("n1").message = "a fifth rate of 7 Hz; wait";
  f.now += 100'000'000;
  f.Step();
  EXPECT_EQ(f.Reason("Failed"), "True/TooManyRates");
  EXPECT_THAT(f.Message("Failed"), HasSubstr("a fifth rate"));
}

TEST(Session, StopIsNoFailure) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  f.Settle();
  f.now += 10 * kSecond;
  f.session.spec.desired_state = api::DesiredState::kStop;
  f.session.metadata.generation = 2;
  SessionPlan plan = f.Step();
  EXPECT_TRUE(plan.assignments.at("n1").job.stop);
  EXPECT_EQ(f.session.status.end_time, f.now);
  EXPECT_EQ(f.session.status.observed_generation, 2);
  f.Report("n1").state = api::JobState::kPublished;
  f.Report("n1").windows.stored = 1;
  f.Report("n1").containers = {{"uid-a", "a", "app", "Go", "Sampled", "", "", 1, 1}};
  f.now += kSecond;
  f.Settle();
  EXPECT_EQ(f.session.status.phase, api::Phase::kStopped);
  EXPECT_EQ(f.Reason("Complete"), "True/Stopped");
  EXPECT_THAT(f.Message("Complete"), HasSubstr("after 10 s"));
}

TEST(Session, StoppedBeforeItBegan) {
  Fixture f;
  f.session.spec.desired_state = api::DesiredState::kStop;
  f.Step();
  EXPECT_EQ(f.Reason("Complete"), "True/Stopped");
  EXPECT_EQ(f.Reason("Failed"), "False/NotFailed");
}

TEST(Session, WaitsForAContainerAndBeginsWithIt) {
  Fixture f;
  f.session.spec.target.wait_seconds = 30;
  f.AddSampler("n1");
  f.Settle();
  EXPECT_EQ(f.session.status.phase, api::Phase::kWaiting);
  EXPECT_EQ(f.session.status.start_time, 0);
  Pod& pod = f.AddPod("a", "n1");
  for (auto& c : pod.containers) c.running = c.started = false;
  f.now += 10 * kSecond;
  SessionPlan plan = f.Step();
  ASSERT_EQ(plan.assignments.size(), 1u);
  EXPECT_EQ(plan.assignments.at("n1").job.start_time, 0) << "armed, without a window";
  EXPECT_EQ(plan.assignments.at("n1").job.wait_until, kNow + 30 * kSecond);
  f.Report("n1").state = api::JobState::kWaiting;
  f.Step();
  EXPECT_EQ(f.session.status.phase, api::Phase::kWaiting);
  f.Report("n1").first_container_time = f.now + 100'000'000;
  f.now += kSecond;
  f.Settle();
  EXPECT_EQ(f.session.status.start_time, f.now - 900'000'000);
  EXPECT_EQ(f.session.status.end_time, f.session.status.start_time + 60 * kSecond);
  EXPECT_EQ(f.world.FindJob("n1", "shop/s/su")->start_time, f.session.status.start_time);
}

TEST(Session, WaitedInVain) {
  Fixture f;
  f.session.spec.target.wait_seconds = 5;
  f.Settle();
  f.now += 5'900'000'000;
  f.Step();
  EXPECT_EQ(f.session.status.phase, api::Phase::kWaiting);
  f.now += 200'000'000;
  f.Step();
  EXPECT_EQ(f.Reason("Failed"), "True/NoMatchingPods");
  EXPECT_THAT(f.Message("Failed"),
              AllOf(HasSubstr("`spec.target.waitSeconds` (5 s)"), HasSubstr("kubectl get pods")));
}

TEST(Session, ANodeCannotMoveTheWindowIntoPastOrFuture) {
  for (int64_t lie : {int64_t{1}, kNow * 2}) {
    Fixture f;
    f.session.spec.target.wait_seconds = 30;
    f.AddSampler("n1");
    Pod& pod = f.AddPod("a", "n1");
    for (auto& c : pod.containers) c.running = false;
    f.Settle();
    f.Report("n1").first_container_time = lie;
    f.now += 3 * kSecond;
    f.Step();
    EXPECT_GE(f.session.status.start_time, kNow);
    EXPECT_LE(f.session.status.start_time, f.now);
  }
}

TEST(Session, RestartGapsAreShown) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  f.Report("n1").cpu.used_ns = 10 * kSecond;
  f.Report("n1").lost_ns = {{"sampler_restart", kSecond}};
  f.Step();
  f.Step();
  EXPECT_EQ(f.session.status.lost_ns.at("sampler_restart"), kSecond);
  EXPECT_EQ(f.Reason("Degraded"), "True/SamplerRestarted");
}

TEST(Session, CutStacksAreShown) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  f.Report("n1").samples = {.collected = 1000, .truncated = 10};
  f.Report("n1").lost_ns = {{"no_unwind_info", kSecond}};
  f.Step();
  f.Step();
  EXPECT_NE(f.Reason("Degraded"), "True/StacksCut");
  f.Report("n1").samples.truncated = 11;
  f.Step();
  f.Step();
  EXPECT_EQ(f.Reason("Degraded"), "True/StacksCut");
  EXPECT_EQ(f.session.status.lost_ns.at("no_unwind_info"), kSecond);
}

TEST(Session, AFrequencyThatANodeDoesNotAllowIsShown) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  f.Step();
  EXPECT_EQ(f.Reason("Degraded"), "False/AsExpected");
  f.Report("n1").reason = api::kFrequencyLimited;
  f.Report("n1").message = "sampled at 50 Hz, not 199 Hz";
  f.Step();
  EXPECT_EQ(f.Reason("Degraded"), "True/FrequencyLimited");
  EXPECT_EQ(f.session.status.phase, api::Phase::kSampling) << "it is no failure";
}

TEST(Session, ATopDetailListIsBoundedAndFailuresComeFirst) {
  Fixture f;
  f.session.spec.target.max_pods = 200;
  for (int i = 0; i < 120; ++i) f.AddPod("web-" + std::to_string(i), i < 100 ? "n1" : "n2");
  f.AddSampler("n1");
  f.Settle();
  EXPECT_EQ(f.session.status.target_details.size(), api::kMaxTargetDetails);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(f.session.status.target_details[static_cast<size_t>(i)].state, "Failed");
  EXPECT_EQ(f.session.status.targets.failed, 20);
}

// The API layer cuts texts to the bounds of the CRD: what is read back is shorter than the plan.
TEST(Session, TextsThatAreCutAreNotWrittenAgain) {
  Fixture f;
  for (int i = 0; i < 20; ++i) {
    std::string name = "web-" + std::to_string(10 + i) + "-";
    f.AddPod(name + std::string(60 - name.size(), 'x'), i == 0 ? "n1" : "node-without-sampler");
  }
  f.AddSampler("n1");
  int writes = 0;
  bool cut = false;
  for (int i = 0; i < 10; ++i) {
    SessionPlan plan = f.Plan();
    f.world.memory["su"] = plan.memory;
    for (const auto& [node, assignment] : plan.assignments) {
      api::NodeSampler sampler = f.world.samplers.at(node);
      sampler.spec = ComposeNodeSpec({&assignment}, sampler.spec).spec;
      f.world.SetSampler(sampler);
    }
    if (!plan.status) continue;
    ++writes;
    api::ProfilingSession written = f.session;
    written.status = *plan.status;
    auto read = api::ParseProfilingSession(api::ToJson(written));
    ASSERT_TRUE(read.ok()) << read.error().message;
    cut |= api::FindCondition(read->status.conditions, "TargetsResolved")->message !=
           api::FindCondition(plan.status->conditions, "TargetsResolved")->message;
    f.session.status = read->status;
  }
  EXPECT_TRUE(cut) << "else this test shows nothing";
  EXPECT_EQ(f.Reason("Degraded"), "True/SomeTargetsFailed");
  EXPECT_LE(writes, 3);
  EXPECT_FALSE(f.Plan().status);
  EXPECT_TRUE(f.Plan().events.empty());
}

TEST(Session, AnOperatorThatWasDownForTheWholeWindowSaysSo) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Step();  // accepted, and then it dies
  ASSERT_EQ(f.Reason("Accepted"), "True/Valid");
  f.world.memory.clear();
  f.now += 100 * kSecond;
  f.world.listening_since = f.now;
  f.Step();
  EXPECT_EQ(f.Reason("Failed"), "True/NotStarted");
  EXPECT_EQ(f.Reason("Started"), "False/NotStarted");
  EXPECT_EQ(f.Message("Failed"),
            "the operator was not running inside the window; create the session again");
  EXPECT_EQ(f.Message("Started"), f.Message("Failed"));
}

TEST(Session, PodsThatAreGoneBeforeTheyAreSampledAreNotTheOperatorsFault) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Step();
  f.world.namespaces["shop"].pods.clear();
  f.now += kSecond;
  f.Step();
  f.now += 100 * kSecond;
  f.Step();
  EXPECT_EQ(f.Reason("Failed"), "True/NoMatchingPods");
}

TEST(Session, TimeAloneWritesNothing) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  f.Report("n1").samples.collected = 5;
  SessionPlan plan = f.Step();
  f.world.memory["su"].progress = plan.progress;
  f.world.memory["su"].progress_written = f.now;
  for (int i = 0; i < 50; ++i) {
    f.now += kSecond;
    EXPECT_FALSE(f.Plan().status) << i;
  }
}

TEST(Session, FiguresAreWrittenAtTheirPace) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.Report("n1").state = api::JobState::kSampling;
  int writes = 0;
  for (int i = 0; i < 100; ++i) {
    f.now += 100'000'000;
    f.Report("n1").samples.collected += 10;
    SessionPlan plan = f.Step();
    if (!plan.status) continue;
    ++writes;
    if (plan.progress.empty()) continue;
    f.world.memory["su"].progress = plan.progress;
    f.world.memory["su"].progress_written = f.now;
  }
  EXPECT_GE(writes, 4);
  EXPECT_LE(writes, 7);
}

TEST(Session, ADeletedOneGivesNothingOut) {
  Fixture f;
  f.AddPod("a", "n1");
  f.AddSampler("n1");
  f.Settle();
  f.session.metadata.deletion_time = f.now;  // somebody's finalizer holds it
  SessionPlan plan = f.Plan();
  EXPECT_TRUE(plan.assignments.empty());
  EXPECT_FALSE(plan.status);
}

TEST(Finished, TimeToLiveAndGenerations) {
  FinishedSession session;
  session.metadata.generation = 2;
  session.observed_generation = 1;
  session.completion_time = kNow;
  session.ttl_seconds = 10;
  EXPECT_TRUE(PlanFinished(session, kNow).restamp);
  EXPECT_EQ(PlanFinished(session, kNow).requeue_at, kNow + 10 * kSecond);
  EXPECT_TRUE(PlanFinished(session, kNow + 10 * kSecond).remove);
  session.ttl_seconds.reset();
  EXPECT_FALSE(PlanFinished(session, kNow * 2).remove);
}

}  // namespace
}  // namespace borescope::op
