// SPDX-License-Identifier: Apache-2.0
#include "common/api/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace borescope::api {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

Json Read(const char* text) { return Json::parse(text, nullptr, false); }

Result<ProfilingSession> ParseSpec(const Json& spec) { return ParseProfilingSession(Json{{"metadata", {{"name", "s"}}}, {"spec", spec}}); }

std::string Refused(const Json& spec) {
  Result<ProfilingSession> session = ParseSpec(spec);
  if (!session.ok()) return session.error().message;
  Status status = Validate(session->spec);
  return status.ok() ? "accepted" : status.error().message;
}

TEST(SessionTest, SmallestManifestGetsTheDefaults) {
  Result<ProfilingSession> session = ParseSpec(Read(R"({"target": {"podName": "web-0"}})"));
  ASSERT_TRUE(session.ok()) << session.error().ToString();
  EXPECT_TRUE(Validate(session->spec).ok());
  ProfilingSessionSpec expected;
  expected.target.pod_name = "web-0";
  EXPECT_EQ(session->spec, expected);
  EXPECT_EQ(expected.profiles.size(), 1u);
}

TEST(SessionTest, EveryKindOfProfile) {
  Result<ProfilingSession> session = ParseSpec(Read(R"({"target": {"podName": "a"}, "profiles": [
      {"name": "cpu", "cpu": {}}, {"name": "wall", "wall": {"frequencyHertz": 10}}, {"name": "o", "offCPU": {}},
      {"name": "m", "perfEvent": {"event": "cache-misses"}}, {"name": "l", "locks": {}}, {"name": "mem", "memory": {}}, {"name": "t", "threads": {}}]})"));
  ASSERT_TRUE(session.ok()) << session.error().ToString();
  EXPECT_TRUE(Validate(session->spec).ok());
  const std::vector<Profile>& profiles = session->spec.profiles;
  ASSERT_EQ(profiles.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(profiles[i].kind, static_cast<ProfileKind>(i));
  EXPECT_EQ(profiles[0].frequency_hertz, 99);
  EXPECT_EQ(profiles[1].frequency_hertz, 10);
  EXPECT_EQ(profiles[2].frequency_hertz, 0);
  EXPECT_EQ(profiles[3].sample_period, 100003);
}

TEST(SessionTest, RefusalsNameFieldValueAndNextStep) {
  struct {
    const char* spec;
    const char* field;
    const char* found;
    const char* next;
  } cases[] = {
      {R"({"profiles": [{"name": "c", "cpu": {"frequencyHertz": 5000}}]})", "spec.profiles[0].cpu.frequencyHertz: ", "found 5000", "give a whole number from 1 to 999"},
      {R"({"profiles": [{"name": "c", "cpu": {"frequencyHertz": "fast"}}]})", "spec.profiles[0].cpu.frequencyHertz: ", "found 'fast'", "from 1 to 999"},
      {R"({"profiles": [{"name": "c", "cpu": {"frequencyHertz": 9.5}}]})", "spec.profiles[0].cpu.frequencyHertz: ", "found 9.5", "whole number"},
      {R"({"durationSeconds": 18446744073709551615})", "spec.durationSeconds: ", "found 18446744073709551615", "from 1 to 3600"},
      {R"({"target": {}})", "spec.target: ", "found none of podName, podSelector, workloadRef", "give exactly one of"},
      {R"({"target": {"podName": "a", "workloadRef": {"kind": "Job", "name": "b"}}})", "spec.target: ", "found podName and workloadRef", "give exactly one of"},
      {R"({"target": {"podSelector": {}}})", "spec.target.podSelector: ", "found an empty selector", "give matchLabels"},
      {R"({"target": {"podSelector": {"matchExpressions": [{"key": "tier", "operator": "In"}]}}})", "spec.target.podSelector.matchExpressions: ", "operator In on 'tier' with 0 values", "give values"},
      {R"({"target": {"workloadRef": {"kind": "CronJob", "name": "b"}}})", "spec.target.workloadRef.kind: ", "found 'CronJob'", "Deployment, StatefulSet"},
      {R"({"target": {"workloadRef": {"kind": "Job"}}})", "spec.target.workloadRef.name: ", "found nothing", "give a name of"},
      {R"({"target": {"podName": "../x"}})", "spec.target.podName: ", "found '../x'", "give a name of lower-case letters"},
      {R"({"profiles": [{"name": "a"}]})", "spec.profiles[0]: ", "found no kind of profile", "give exactly one of cpu, wall, offCPU"},
      {R"({"profiles": [{"name": "a", "cpu": {}, "locks": {}}]})", "spec.profiles[0]: ", "found cpu and locks", "give exactly one of"},
      {R"({"profiles": [{"name": "a", "cpu": {}}, {"name": "a", "wall": {}}]})", "spec.profiles: ", "two named 'a'", "a name of its own"},
      {R"({"profiles": [{"name": "a", "cpu": {}}, {"name": "b", "cpu": {}}]})", "spec.profiles: ", "two of kind 'cpu'", "keep one of each kind"},
      {R"({"profiles": []})", "spec.profiles: ", "found a list of 0", "give a list of 1 to 7"},
      {R"({"labels": {"pod": "x"}})", "spec.labels: ", "the reserved key 'pod'", "choose another: service_name, namespace"},
      {R"({"podLabels": ["service.name"]})", "spec.podLabels: ", "the reserved key 'service.name'", "choose another"},
      {R"({"labels": {"a.b": "x"}})", "spec.labels[\"a.b\"]: ", "found 'a.b'", "give a label name"},
      {R"({"sinkNames": ["http://10.0.0.1"]})", "spec.sinkNames[0]: ", "found 'http://10.0.0.1'", "give a name"},
      {R"({"sinkNames": ["a", "a"]})", "spec.sinkNames[1]: ", "found 'a'", "give each value once"},
      {R"({"budget": {"cpu": 0.5}})", "spec.budget.cpu: ", "found 0.5", "such as 100m"},
      {R"({"budget": {"memory": "0Mi"}})", "spec.budget.memory: ", "found '0Mi'", "such as 256Mi"},
      {R"({"kernelStacks": "Always"})", "spec.kernelStacks: ", "found 'Always'", "give one of Auto, Never"},
      {R"([])", "spec: ", "found a list of 0", "give an object"},
  };
  for (const auto& c : cases) {
    Json spec = Read(c.spec);
    ASSERT_FALSE(spec.is_discarded()) << c.spec;
    if (spec.is_object() && !spec.contains("target")) spec["target"] = {{"podName", "a"}};
    EXPECT_THAT(Refused(spec), AllOf(HasSubstr(c.field), HasSubstr(c.found), HasSubstr(c.next))) << c.spec;
  }
}

TEST(SessionTest, ProcessesOfThisMachineNeedNoTarget) {
  ProfilingSessionSpec spec;
  EXPECT_FALSE(Validate(spec).ok());
  EXPECT_TRUE(ValidateWithoutTarget(spec).ok());
}

TEST(SessionTest, AnotherKindOrVersionIsRefused) {
  EXPECT_THAT(ParseProfilingSession(Read(R"({"kind": "Pod"})")).error().message, HasSubstr("kind: found 'Pod'; give ProfilingSession"));
  EXPECT_THAT(ParseProfilingSession(Read(R"({"apiVersion": "v1"})")).error().message, HasSubstr("apiVersion: found 'v1'"));
  EXPECT_THAT(ParseProfilingSession(Read("[]")).error().message, HasSubstr("the document: found a list of 0; give an object"));
  Json named = {{"metadata", {{"name", std::string(64, 'x')}}}};
  EXPECT_THAT(ParseProfilingSession(named).error().message, HasSubstr("64 characters"));
}

TEST(SessionTest, UnknownFieldsAndNullsAreIgnored) {
  Result<ProfilingSession> session =
      ParseSpec(Read(R"({"target": {"podName": "a", "later": 1}, "labels": null, "durationSeconds": null, "new": {"x": []}})"));
  ASSERT_TRUE(session.ok()) << session.error().ToString();
  EXPECT_EQ(session->spec.duration_seconds, 60);
}

TEST(StatusTest, ReadsWellForPeople) {
  ProfilingSession session;
  session.metadata.name = "s";
  session.status.phase = Phase::kComplete;
  session.status.targets = {.matched = 9, .selected = 5, .sampling = 1, .succeeded = 2, .failed = 2};
  session.status.cpu = {61'200'000'000, 60'900'000'000, 200'000'000, 100'000'000};
  session.status.overhead = {38, 11, 91 << 20, 5};
  session.status.lost_ns = {{"ring_full", 200'000'000}};
  session.status.top = {{"cpu", "main.computeHash", "hash.go:41", "Go", 928, 840, 420, 12}};
  Json status = ToJson(session)["status"];
  EXPECT_EQ(status["phase"], "Complete");
  EXPECT_EQ(status["targets"]["display"], "3/5");
  EXPECT_EQ(status["cpu"], Read(R"({"used": "61.2s", "sampled": "60.9s", "lost": "0.2s", "unexplained": "0.1s"})"));
  EXPECT_EQ(status["overhead"], Read(R"({"peakCPU": "38m", "averageCPU": "11m", "peakMemory": "91Mi", "tick": "5m"})"));
  EXPECT_EQ(status["lost"]["ring_full"], "0.2s");
  EXPECT_EQ(status["top"][0]["cpu"], "420m");
  EXPECT_EQ(status["top"][0]["display"], "main.computeHash  hash.go:41  84% ±2");
}

TEST(StatusTest, HostileAndLongTextsAreCutToWhatTheServerTakes) {
  JobReport report;
  report.message = std::string(5000, 'm') + "\xff\n";
  report.top.resize(200, {"cpu", std::string(5000, 'f') + "\x1b", "", "", 1, 1});
  NodeSamplerReport whole;
  whole.status.jobs["n/s/u"] = report;
  Json json = ToJson(whole);
  EXPECT_EQ(json["status"]["jobs"]["n/s/u"]["top"].size(), 112u);
  EXPECT_TRUE(ParseNodeSamplerReport(json).ok()) << ParseNodeSamplerReport(json).error().ToString();
  EXPECT_NE(json.dump(), "");  // throws on what is not UTF-8
}

TEST(PatchTest, MergePatchIsTheDifference) {
  Json from = Read(R"({"a": 1, "b": {"c": 2, "d": 3}, "l": [1, 2], "gone": true})");
  Json to = Read(R"({"a": 1, "b": {"c": 2, "d": 4}, "l": [1], "new": {"x": 1}})");
  EXPECT_EQ(MergePatch(from, to), Read(R"({"b": {"d": 4}, "l": [1], "new": {"x": 1}, "gone": null})"));
  Json patched = from;
  patched.merge_patch(MergePatch(from, to));
  EXPECT_EQ(patched, to);
  EXPECT_EQ(MergePatch(to, to), Json::object());
}

TEST(PatchTest, SpecIsWrittenWholeAndFenced) {
  EXPECT_EQ(SpecPatch({}, "17"), Read(R"({"metadata": {"resourceVersion": "17"}, "spec": {"jobs": [], "pods": []}})"));
  NodeSamplerSpec spec;
  spec.jobs.resize(1);
  spec.jobs[0].id = "n/s/u";
  spec.jobs[0].session = {"n", "s", "u"};
  Json patch = SpecPatch(spec, "18");
  EXPECT_EQ(patch["spec"]["jobs"][0]["id"], "n/s/u");
  EXPECT_EQ(patch["spec"]["pods"], Json::array());
}

TEST(PatchTest, ReportTouchesOnlyWhatChanged) {
  NodeSamplerReportStatus before, after;
  before.incarnation = after.incarnation = "i";
  before.jobs["keep"].state = after.jobs["keep"].state = JobState::kSampling;
  before.jobs["gone"].state = JobState::kPublished;
  before.jobs["moves"].state = JobState::kAccepted;
  after.jobs["moves"].state = JobState::kSampling;
  after.jobs["moves"].samples.collected = 7;
  EXPECT_EQ(ReportPatch(before, after),
            Read(R"({"status": {"jobs": {"gone": null, "moves": {"state": "Sampling", "samples": {"collected": 7}}}}})"));
  EXPECT_EQ(ReportPatch(after, after), Json::object());
}

TEST(PatchTest, SessionStatusIsFencedAndSilentWhenNothingChanged) {
  ObjectMeta meta;
  meta.uid = "u";
  meta.resource_version = "9";
  ProfilingSessionStatus before, after;
  EXPECT_EQ(SessionStatusPatch(meta, before, after), Json::object());
  after.phase = Phase::kSampling;
  after.start_time = 1'790'000'000'123'456'789;
  before.start_time = 1'790'000'000'123'456'000;  // as it comes back from the server
  EXPECT_EQ(SessionStatusPatch(meta, before, after), Read(R"({"metadata": {"resourceVersion": "9"}, "status": {"phase": "Sampling"}})"));
}

TEST(PatchTest, NewObjectsBelongToTheirNode) {
  EXPECT_EQ(NewNodeObject(kNodeSamplerReportKind, "n1", "u1"), Read(R"({"apiVersion": "profiling.borescope.dev/v1alpha1", "kind": "NodeSamplerReport",
      "metadata": {"name": "n1", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}]}})"));
}

}  // namespace
}  // namespace borescope::api
