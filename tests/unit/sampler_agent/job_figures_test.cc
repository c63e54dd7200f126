// SPDX-License-Identifier: Apache-2.0
#include "sampler/agent/job_figures.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/api/json.h"
#include "sampler/agent/metrics.h"

namespace borescope::agent {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

stacks::Window MakeWindow(const std::vector<std::string>& stack, int64_t ns, int64_t count) {
  stacks::Window window;
  window.language = "cpp";
  window.profile.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
  std::vector<uint32_t> locations;
  for (const std::string& name : stack) {
    uint32_t function = window.profile.AddFunction({.name = name, .system_name = name, .filename = ""});
    locations.push_back(window.profile.AddLocation({.mapping = profile::kNone, .address = function + 1, .lines = {{function, 0}}}));
  }
  int64_t values[] = {count, ns};
  window.profile.AddSample(locations, values);
  return window;
}

TEST(JobFigures, AddsUpWindowsAndAccountsForEveryNanosecond) {
  JobFigures figures("cpu", nullptr);
  figures.OnWindow({"u", "pod", "app"}, MakeWindow({"leaf", "main"}, 3 * kSecond, 30));
  figures.OnWindow({"u", "pod", "app"}, MakeWindow({"other", "main"}, 1 * kSecond, 10));
  engine::JobCounters kernel;
  kernel.used_ns = 5 * kSecond;
  kernel.loss[LOSS_RING_FULL] = {2, kSecond / 2};
  kernel.loss[LOSS_TOO_DEEP] = {7, 0};
  kernel.loss[LOSS_TABLES_NOT_READY] = {9, 0};  // seven of them were unwound in user space
  stacks::JobStats user;
  user.sampled_ns = 4 * kSecond;
  user.collected = 40;
  user.truncated = 9;
  user.loss[LOSS_TOO_DEEP] = {7, 700};
  user.loss[LOSS_TABLES_NOT_READY] = {2, 200};
  figures.SetCounters(kernel, user, kSecond / 10);
  api::JobReport report;
  figures.Fill(report, {});
  EXPECT_EQ(report.cpu.used_ns, 4'900'000'000);
  EXPECT_EQ(report.cpu.sampled_ns, 4 * kSecond);
  EXPECT_EQ(report.cpu.lost_ns, kSecond / 2);
  EXPECT_EQ(report.cpu.unexplained_ns, 400'000'000);
  EXPECT_EQ(report.samples.collected, 40);
  EXPECT_EQ(report.samples.lost, 2);
  EXPECT_EQ(report.samples.truncated, 9);
  EXPECT_EQ(report.lost_ns, (std::map<std::string, int64_t>{{"ring_full", kSecond / 2}, {"tables_not_ready", 200}, {"too_deep", 700}}));
  EXPECT_EQ(figures.lost_ns(), (std::map<std::string, int64_t>{{"ring_full", kSecond / 2}}));
  JobFigures later("cpu", &report);  // after a restart
  EXPECT_EQ(later.cpu().lost_ns, kSecond / 2);
  api::JobReport again;
  later.Fill(again, {});
  EXPECT_EQ(again.lost_ns, report.lost_ns);
  ASSERT_EQ(report.top.size(), 3u);
  EXPECT_EQ(report.top[0].function, "leaf");
  EXPECT_EQ(report.top[0].own_ns, 3 * kSecond);
  EXPECT_EQ(report.top[0].language, "cpp");
  EXPECT_EQ(report.top[2].function, "main");
  EXPECT_EQ(report.top[2].total_ns, 4 * kSecond);
  EXPECT_EQ(report.top[2].own_ns, 0);
  ASSERT_EQ(report.containers.size(), 1u);
  EXPECT_EQ(report.containers[0].cpu_ns, 4 * kSecond);
  EXPECT_EQ(report.containers[0].samples, 40);
}

TEST(JobFigures, TakesOpenWindowsInWithoutKeepingThem) {
  JobFigures figures("cpu", nullptr);
  api::JobReport report;
  figures.Fill(report, {MakeWindow({"f", "f", "main"}, 10, 1)});
  ASSERT_EQ(report.top.size(), 2u);
  EXPECT_EQ(report.top[0].function, "f");
  EXPECT_EQ(report.top[0].own_ns, 10);
  EXPECT_EQ(report.top[0].total_ns, 10);
  EXPECT_EQ(report.sums["cpu"], 10);
  figures.OnWindow({"u", "pod", "app"}, MakeWindow({"g"}, 5, 1));
  figures.Fill(report, {});
  ASSERT_EQ(report.top.size(), 1u);
  EXPECT_EQ(report.top[0].function, "g");
  EXPECT_EQ(report.sums["cpu"], 5);
}

// A function is one row with the line of most of its time, over windows and restarts; the effective sample size is that of all.
TEST(JobFigures, LinesAndEffectiveSamplesAddUp) {
  auto window = [](int64_t line, int64_t ns, double squares) {
    stacks::Window w;
    w.language = "cpp";
    w.profile.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
    uint32_t function = w.profile.AddFunction({"f", "f", "/src/f.cc", 1});
    uint32_t location = w.profile.AddLocation({profile::kNone, static_cast<uint64_t>(line), {{function, line}}});
    int64_t values[] = {10, ns};
    w.profile.AddSample(std::vector<uint32_t>{location}, values);
    w.profile.squares = squares;
    return w;
  };
  JobFigures figures("cpu", nullptr);
  figures.OnWindow({"u", "pod", "app"}, window(10, 300, 30'000));
  figures.OnWindow({"u", "pod", "app"}, window(20, 200, 10'000));
  api::JobReport report;
  figures.Fill(report, {});
  ASSERT_EQ(report.top.size(), 1u);
  EXPECT_EQ(report.top[0].location, "f.cc:10");
  EXPECT_EQ(report.top[0].own_ns, 500);
  EXPECT_EQ(report.effective_samples["cpu"], 6) << "500² / 40 000";
  JobFigures later("cpu", &report);
  later.OnWindow({"u", "pod", "app"}, window(20, 600, 1));
  api::JobReport again;
  later.Fill(again, {});
  ASSERT_EQ(again.top.size(), 1u);
  EXPECT_EQ(again.top[0].location, "f.cc:20");
  EXPECT_EQ(again.top[0].own_ns, 1100);
  EXPECT_EQ(again.effective_samples["cpu"], 29) << "1100² / (500² / 6 + 1)";
}

TEST(JobFigures, AFailedPushIsLostNotSampled) {
  JobFigures figures("cpu", nullptr);
  engine::JobCounters kernel;
  kernel.used_ns = 10;
  stacks::JobStats user;
  user.sampled_ns = 10;
  figures.SetCounters(kernel, user, 0);
  publish::SinkProgress progress;
  progress.stored = 2;
  progress.failed = 1;
  progress.lost_ns = 4;
  progress.last_stored_start_ns = 77;
  figures.SetSinks({{"default", progress}}, {"default"}, {{"default", "http://x"}});
  api::JobReport report;
  figures.Fill(report, {});
  EXPECT_EQ(report.cpu.sampled_ns, 6);
  EXPECT_EQ(report.cpu.lost_ns, 4);
  EXPECT_EQ(report.cpu.unexplained_ns, 0);
  EXPECT_EQ(report.lost_ns["publish_failed"], 4);
  EXPECT_EQ(report.windows.stored, 2);
  EXPECT_EQ(report.windows.last_stored_start, 77);
  EXPECT_EQ(report.sinks.at(0).state, "Failed");
}

TEST(JobFigures, DroppedWindowsAreLostOrTakenBack) {
  JobFigures figures("cpu", nullptr);
  engine::JobCounters kernel;
  kernel.used_ns = 6 * kSecond;
  stacks::JobStats user;
  user.sampled_ns = 6 * kSecond;
  user.collected = 60;
  figures.SetCounters(kernel, user, 0);
  figures.DropWindow(MakeWindow({"main"}, 2 * kSecond, 20), true);
  figures.DropWindow(MakeWindow({"main"}, 1 * kSecond, 10), false);
  EXPECT_EQ(figures.lost_ns(), (std::map<std::string, int64_t>{{"unknown_container", 2 * kSecond}}));
  EXPECT_EQ(figures.cpu().used_ns, 5 * kSecond);
  EXPECT_EQ(figures.cpu().sampled_ns, 3 * kSecond);
  EXPECT_EQ(figures.cpu().unexplained_ns, 0);
  EXPECT_EQ(figures.samples().collected, 30);
  EXPECT_EQ(figures.samples().lost, 20);
}

TEST(Metrics, TotalsOfAResumedJobGrowOnlyByWhatIsNew) {
  api::JobReport before;
  before.cpu.used_ns = before.cpu.sampled_ns = 5 * kSecond;
  before.samples.collected = 50;
  metrics::Registry registry;
  Metrics metrics(registry);
  JobFigures figures("cpu", &before);
  metrics.Resume("j", before, figures);
  engine::JobCounters kernel;
  kernel.used_ns = 2 * kSecond;
  stacks::JobStats user;
  user.sampled_ns = 2 * kSecond;
  user.collected = 20;
  figures.SetCounters(kernel, user, 0);
  metrics.SetJob("j", "a/b", figures, user, {});
  std::string text = registry.Expose();
  EXPECT_NE(text.find("borescope_sampler_samples_total{outcome=\"collected\"} 20\n"), std::string::npos) << text;
  EXPECT_NE(text.find("borescope_sampler_target_cpu_seconds_total{part=\"used\"} 2\n"), std::string::npos) << text;
}

TEST(JobFigures, TheGapOfARestartIsALossRow) {
  api::JobReport before;
  before.cpu_at_arm_ns = 100 * kSecond;
  before.cpu_at_last_window_ns = 110 * kSecond;  // 10 s used up to the end of the last stored window
  before.windows = {.stored = 1, .pending = 0, .last_stored_start = 1000 * kSecond};
  before.cpu = {.used_ns = 14 * kSecond, .sampled_ns = 14 * kSecond, .lost_ns = 0, .unexplained_ns = 0};
  before.samples.collected = 1400;
  before.samples.truncated = 140;
  before.containers = {{"u", "pod", "app", "cpp", "Sampled", "", "", 10 * kSecond, 1000}};
  JobFigures figures("cpu", &before);
  // Stored until 1010 s; back at 1018 s: the pods have used 8 s since.
  figures.CountRestartGap(118 * kSecond, true, 1000 * kSecond, 1018 * kSecond, 1018 * kSecond);
  api::JobReport report;
  figures.Fill(report, {});
  EXPECT_EQ(report.lost_ns["sampler_restart"], 8 * kSecond);
  EXPECT_EQ(report.cpu.sampled_ns, 10 * kSecond);
  EXPECT_EQ(report.cpu.used_ns, 18 * kSecond);
  EXPECT_EQ(report.cpu.unexplained_ns, 0);
  EXPECT_EQ(report.windows.stored, 1);
  EXPECT_EQ(report.samples.collected, 1000);
  EXPECT_EQ(report.samples.truncated, 100);
}

TEST(JobFigures, AGapWithoutReadingsIsEstimatedFromTheRateSoFar) {
  api::JobReport before;
  before.windows = {.stored = 1, .pending = 0, .last_stored_start = 1000 * kSecond};
  before.cpu.used_ns = before.cpu.sampled_ns = 5 * kSecond;  // half a core in 10 s
  JobFigures figures("cpu", &before);
  figures.CountRestartGap(std::nullopt, true, 1000 * kSecond, 1014 * kSecond, 1014 * kSecond);
  EXPECT_EQ(figures.lost_ns().at("sampler_restart"), 2 * kSecond);
}

TEST(FitReport, CutsTopEvenlyAndNeverStatesOrLosses) {
  api::NodeSamplerReportStatus status;
  for (int j = 0; j < 12; ++j) {
    api::JobReport job;
    job.state = api::JobState::kSampled;
    job.lost_ns["ring_full"] = 5;
    for (int i = 0; i < 16; ++i) job.top.push_back({"cpu", std::string(100, 'f') + std::to_string(i), "file.cc:1", "cpp", 2, 1});
    for (int i = 0; i < 10; ++i) job.containers.push_back({"uid", "pod", "c" + std::to_string(i), "cpp", "Sampled", "", "", 1, 1});
    status.jobs["shop/checkout/" + std::to_string(j)] = job;
  }
  FitReport(status);
  api::NodeSamplerReport report;
  report.status = status;
  EXPECT_LE(api::ToJson(report).dump().size(), api::kMaxReportBytes);
  EXPECT_EQ(status.jobs.size(), 12u);
  for (const auto& [id, job] : status.jobs) {
    EXPECT_TRUE(job.top_truncated);
    EXPECT_EQ(job.lost_ns.at("ring_full"), 5);
    EXPECT_EQ(job.state, api::JobState::kSampled);
  }
  api::NodeSamplerReportStatus small;
  small.jobs["a"].top.push_back({"cpu", "f", "", "", 1, 1});
  FitReport(small);
  EXPECT_FALSE(small.jobs["a"].top_truncated);
  EXPECT_EQ(small.jobs["a"].top.size(), 1u);
}

}  // namespace
}  // namespace borescope::agent
