// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/unit/operator_controller/cluster.h"

namespace borescope::op {
namespace {

// What must be the same however often the operator died on the way: all but the times.
std::string Outcome(const Cluster& cluster) {
  std::string out;
  for (const auto& [key, session] : cluster.sessions) {
    api::ProfilingSessionStatus status = session.status;
    EXPECT_TRUE(status.start_time == 0 ||
                status.end_time - status.start_time <= session.spec.duration_seconds * kSecond);
    status.start_time = status.start_time != 0;
    status.end_time = status.end_time != 0;
    status.completion_time = status.completion_time != 0;
    for (api::Condition& c : status.conditions) {
      c.last_transition_time = 0;
      if (c.message.find("window fixed") != std::string::npos) c.message = "window fixed";
      if (c.message.find("stopped by") != std::string::npos) c.message = "stopped";
    }
    std::sort(status.conditions.begin(), status.conditions.end(),
              [](const auto& a, const auto& b) { return a.type < b.type; });
    for (api::TopFunction& top : status.top) top.cpu_millis = 0;
    for (api::SessionResult& result : status.results) result.url = result.url.empty() ? "" : "url";
    for (api::TargetDetail& row : status.target_details) row.message.clear();
    api::ProfilingSession copy = session;
    copy.metadata = {};
    copy.status = status;
    out += key + " " + api::ToJson(copy).dump(1) + "\n";
  }
  for (const auto& [node, sampler] : cluster.samplers)
    out += node + " " + api::ToJson(sampler.spec).dump() + "\n";
  for (const auto& [node, report] : cluster.reports)
    out += node + " " + std::to_string(report.status.jobs.size()) + " entries\n";
  return out;
}

// What must hold at every write.
void Guard(Cluster& cluster) {
  cluster.on_status = [&](const api::ProfilingSession& before,
                          const api::ProfilingSessionStatus& after) {
    EXPECT_FALSE(IsFinished(before) &&
                 before.status.observed_generation == before.metadata.generation)
        << "a finished session is written again";
    if (before.status.start_time != 0) {
      EXPECT_EQ(after.start_time, before.status.start_time) << "the window moved";
      EXPECT_LE(after.end_time, before.status.end_time);
    }
    if (api::IsTrue(after.conditions, "Complete") && after.start_time != 0) {
      for (const auto& [node, report] : cluster.reports) {
        auto it = report.status.jobs.find(JobIdOf(before));
        if (it == report.status.jobs.end() || cluster.silent.contains(node)) continue;
        EXPECT_EQ(it->second.windows.pending, 0) << "Complete before everything is stored";
      }
    }
    EXPECT_EQ(api::IsTrue(after.conditions, "Finished"),
              api::IsTrue(after.conditions, "Complete") || api::IsTrue(after.conditions, "Failed"));
  };
  cluster.on_spec = [&](const api::NodeSampler& before, const api::NodeSamplerSpec& after) {
    for (const api::Job& job : before.spec.jobs) {
      bool stays = std::any_of(after.jobs.begin(), after.jobs.end(),
                               [&](const api::Job& j) { return j.id == job.id; });
      auto session = cluster.sessions.find(SessionKey(job.session));
      bool alive = session != cluster.sessions.end() &&
                   session->second.metadata.uid == job.session.uid && !IsFinished(session->second);
      EXPECT_TRUE(stays || !alive) << "a job was taken from a running session";
    }
    for (const api::Job& job : after.jobs) {
      auto session = cluster.sessions.find(SessionKey(job.session));
      ASSERT_NE(session, cluster.sessions.end());
      EXPECT_TRUE(api::IsTrue(session->second.status.conditions, "Accepted"))
          << "a job before its acceptance was written";
      EXPECT_EQ(job.start_time, session->second.status.start_time)
          << "a window that status does not have";
    }
  };
}

struct Scenario {
  const char* name;
  std::function<void(Cluster&, std::mt19937_64&)> build;
  int64_t duration;
};

void TwoNodes(Cluster& cluster, std::mt19937_64& random) {
  cluster.AddNode("n1");
  cluster.AddNode("n2");
  for (uint64_t i = 0; i < 2 + random() % 4; ++i) {
    cluster.AddPod("web-" + std::to_string(random() % 10000) + "-" + std::to_string(i),
                   i % 2 == 0 ? "n1" : "n2", {{"app", "web"}});
  }
}

class CrashTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(CrashTest, ConvergesToTheSameEndWhereverItDies) {
  const Scenario& scenario = GetParam();
  auto run = [&](int crash_at, bool after) {
    auto cluster = std::make_unique<Cluster>();
    std::mt19937_64 random(Seed());
    cluster->crash_at = crash_at;
    cluster->crash_after = after;
    Guard(*cluster);
    scenario.build(*cluster, random);
    cluster->Run(scenario.duration);
    return cluster;
  };
  auto reference = run(-1, true);
  std::string expected = Outcome(*reference);
  ASSERT_GT(reference->writes, 2) << expected;
  for (int k = 0; k <= reference->writes; ++k) {
    for (bool after : {false, true}) {
      if (k == 0 && after) continue;
      auto crashed = run(k, after);
      EXPECT_EQ(Outcome(*crashed), expected)
          << scenario.name << ": dead " << (after ? "after" : "before") << " write " << k << " of "
          << reference->writes << " ("
          << (k < reference->writes ? reference->log[static_cast<size_t>(k)] : "none")
          << ") SEED=" << Seed();
      // A crash repeats at most the write whose answer was lost, and figures that the dead process
      // had written.
      EXPECT_LE(crashed->writes,
                reference->writes + 4 * static_cast<int>(reference->records.size()))
          << scenario.name << " " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, CrashTest,
    ::testing::Values(Scenario{"plain",
                               [](Cluster& c, std::mt19937_64& r) {
                                 TwoNodes(c, r);
                                 c.Apply("one", Selecting({{"app", "web"}}, 5));
                               },
                               8 * kSecond},
                      Scenario{"two sessions",
                               [](Cluster& c, std::mt19937_64& r) {
                                 TwoNodes(c, r);
                                 c.Apply("one", Selecting({{"app", "web"}}, 4));
                                 c.Apply("two", Selecting({{"app", "web"}}, 6));
                               },
                               9 * kSecond},
                      Scenario{"stopped",
                               [](Cluster& c, std::mt19937_64& r) {
                                 TwoNodes(c, r);
                                 c.Apply("one", Selecting({{"app", "web"}}, 60));
                                 c.on_step = [&c] {
                                   if (c.now == kEpoch + 3 * kSecond) c.Stop("shop/one");
                                 };
                               },
                               8 * kSecond},
                      Scenario{"waiting",
                               [](Cluster& c, std::mt19937_64& r) {
                                 TwoNodes(c, r);
                                 auto spec = Selecting({{"app", "late"}}, 4);
                                 spec.target.wait_seconds = 30;
                                 c.Apply("one", spec);
                                 c.on_step = [&c] {
                                   if (c.now == kEpoch + 3 * kSecond)
                                     c.AddPod("late-1", "n1", {{"app", "late"}});
                                 };
                               },
                               12 * kSecond},
                      Scenario{"a lost node",
                               [](Cluster& c, std::mt19937_64& r) {
                                 TwoNodes(c, r);
                                 c.Apply("one", Selecting({{"app", "web"}}, 5));
                                 c.on_step = [&c] {
                                   if (c.now == kEpoch + 3 * kSecond) c.silent.insert("n2");
                                 };
                               },
                               35 * kSecond},
                      Scenario{"a sink that is down",
                               [](Cluster& c, std::mt19937_64& r) {
                                 TwoNodes(c, r);
                                 auto spec = Selecting({{"app", "web"}}, 3);
                                 spec.publish_deadline_seconds = 30;
                                 c.Apply("one", spec);
                                 c.no_publishing = {"n1"};
                               },
                               45 * kSecond},
                      Scenario{"a time to live",
                               [](Cluster& c, std::mt19937_64& r) {
                                 TwoNodes(c, r);
                                 auto spec = Selecting({{"app", "web"}}, 3);
                                 spec.ttl_seconds_after_finished = 3;
                                 c.Apply("one", spec);
                               },
                               12 * kSecond}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

}  // namespace
}  // namespace borescope::op
