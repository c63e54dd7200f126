// SPDX-License-Identifier: Apache-2.0
#include "sampler/agent/api_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "common/http/server.h"

namespace borescope::agent {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;
using testing::HasSubstr;

const std::string kBase = "/apis/profiling.borescope.dev/v1alpha1/";

http::Response Refused(int code, const std::string& reason, const std::string& message) {
  return http::Response::Json(code, Json{{"kind", "Status"}, {"status", "Failure"}, {"code", code}, {"reason", reason}, {"message", message}}.dump());
}

// An API server that answers as the test says, and remembers what it was asked.
class ApiLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* plural : {"nodesamplers", "nodesamplerreports"}) {
      std::string name = plural;
      server_.Handle("POST", kBase + name, [this, name](const http::Request& r) {
        std::lock_guard lock(mutex_);
        if (r.Query("dryRun") == "All") return foreign_(name);
        ++created_[name];
        return http::Response::Json(201, r.body);
      });
    }
    server_.Handle("PATCH", kBase + "nodesamplerreports/n1", [this](const http::Request& r) {
      std::lock_guard lock(mutex_);
      Json patch = Json::parse(r.body, nullptr, false);
      if (fail_patches_ > 0 && !patch.empty()) {
        --fail_patches_;
        return Refused(500, "InternalError", "etcd is away");
      }
      if (!patch.empty()) report_patches_.push_back(patch);
      report_.merge_patch(patch);
      return http::Response::Json(200, report_.dump());
    });
    server_.Handle("PATCH", kBase + "nodesamplers/n1/status", [this](const http::Request& r) {
      std::lock_guard lock(mutex_);
      status_patches_.push_back(Json::parse(r.body, nullptr, false));
      return http::Response::Json(200, r.body);
    });
    server_.Handle("GET", kBase + "nodesamplers", [this](const http::Request& r) {
      std::lock_guard lock(mutex_);
      watch_query_ = r.query;
      return http::Response::Json(200, Json{{"type", "ADDED"}, {"object", sampler_}}.dump() + "\n");
    });
    ASSERT_TRUE(server_.Start("127.0.0.1:0").ok());
    kube::Config config;
    config.server = "http://127.0.0.1:" + std::to_string(server_.port());
    auto link = ApiLink::Create(std::move(config), {.node = "n1", .wake = [] {}, .unprotected_interval = 0s});
    ASSERT_TRUE(link.ok()) << link.error().message;
    link_ = *std::move(link);
  }
  void TearDown() override {
    link_.reset();
    server_.Stop();
  }

  // Collects what arrives until it satisfies the condition.
  ApiLink::Inbox Until(const std::function<bool(const ApiLink::Inbox&)>& condition) {
    ApiLink::Inbox all;
    for (int i = 0; i < 2000; ++i) {
      ApiLink::Inbox inbox = link_->Take();
      if (inbox.sampler) all.sampler = inbox.sampler;
      if (inbox.report_found) all.report_found = inbox.report_found;
      if (inbox.is_protected) {
        all.is_protected = inbox.is_protected;
        all.unprotected_why = inbox.unprotected_why;
      }
      if (condition(all)) return all;
      std::this_thread::sleep_for(1ms);
    }
    ADD_FAILURE() << "did not arrive";
    return all;
  }

  std::mutex mutex_;
  std::function<http::Response(const std::string&)> foreign_ = [](const std::string&) {
    return Refused(403, "Forbidden", "denied: " + std::string(api::kAdmissionPolicyMessage) + ": found …");
  };
  std::map<std::string, int> created_;
  int fail_patches_ = 0;
  std::vector<Json> report_patches_, status_patches_;
  http::QueryMap watch_query_;
  Json report_ = {{"metadata", {{"name", "n1"}}}};
  Json sampler_ = {{"metadata", {{"name", "n1"}, {"uid", "u"}, {"generation", 3}}}};
  http::Server server_;
  std::unique_ptr<ApiLink> link_;
};

TEST_F(ApiLinkTest, MakesItsObjectsGetsItsReportBackAndWatchesOneName) {
  report_["status"] = {{"incarnation", "old"}, {"jobs", {{"a/b/c", {{"state", "Sampling"}, {"deadlineBootNs", "7"}}}}}};
  link_->Start();
  auto inbox = Until([](const auto& i) { return i.sampler && i.report_found && i.is_protected; });
  EXPECT_TRUE(*inbox.is_protected);
  EXPECT_EQ(inbox.sampler->metadata.generation, 3);
  ASSERT_TRUE(inbox.report_found->jobs.contains("a/b/c"));
  EXPECT_EQ(inbox.report_found->jobs["a/b/c"].deadline_boot_ns, 7);
  std::lock_guard lock(mutex_);
  EXPECT_EQ(created_["nodesamplerreports"], 1);
  EXPECT_EQ(watch_query_["fieldSelector"], "metadata.name=n1");
  EXPECT_EQ(watch_query_["resourceVersion"], "0");
  EXPECT_FALSE(watch_query_.contains("labelSelector"));
}

TEST_F(ApiLinkTest, ADryRunThatIsLetInMeansUnprotectedUntilItIsRefused) {
  foreign_ = [](const std::string&) { return http::Response::Json(201, "{}"); };
  link_->Start();
  auto inbox = Until([](const auto& i) { return i.is_protected.has_value(); });
  EXPECT_FALSE(*inbox.is_protected);
  EXPECT_THAT(inbox.unprotected_why, HasSubstr("ValidatingAdmissionPolicy"));
  {
    std::lock_guard lock(mutex_);
    foreign_ = [](const std::string&) { return Refused(403, "Forbidden", std::string(api::kAdmissionPolicyMessage)); };
  }
  Until([](const auto& i) { return i.is_protected && *i.is_protected; });
}

TEST_F(ApiLinkTest, AnotherRefusalIsNoProtection) {
  foreign_ = [](const std::string& plural) {
    return Refused(403, "Forbidden", plural == "nodesamplers" ? std::string(api::kAdmissionPolicyMessage) : "reports is forbidden: no role");
  };
  link_->Start();
  auto inbox = Until([](const auto& i) { return i.is_protected.has_value(); });
  EXPECT_FALSE(*inbox.is_protected);
  EXPECT_THAT(inbox.unprotected_why, HasSubstr("NodeSamplerReport"));
}

TEST_F(ApiLinkTest, ReportsAreDifferencesRepeatedUntilTheyAreWritten) {
  link_->Start();
  Until([](const auto& i) { return i.report_found.has_value(); });
  {
    std::lock_guard lock(mutex_);
    fail_patches_ = 1;
  }
  api::NodeSamplerReportStatus report;
  report.incarnation = "i";
  report.jobs["a/b/c"].message = "one";
  report.jobs["d/e/f"].message = "two";
  link_->SetReport(report);
  auto written = [&](size_t count) {
    for (int i = 0; i < 3000; ++i) {
      {
        std::lock_guard lock(mutex_);
        if (report_patches_.size() >= count) return;
      }
      std::this_thread::sleep_for(1ms);
    }
    FAIL() << "not written";
  };
  written(1);
  report.jobs.erase("a/b/c");
  report.jobs["d/e/f"].message = "three";
  link_->SetReport(report);
  written(2);
  std::lock_guard lock(mutex_);
  EXPECT_EQ(report_patches_[1], (Json{{"status", {{"jobs", {{"a/b/c", nullptr}, {"d/e/f", {{"message", "three"}}}}}}}}));
}

TEST_F(ApiLinkTest, TheStatusIsWrittenOnce) {
  link_->Start();
  api::NodeSamplerStatus status;
  status.incarnation = "i";
  link_->SetStatus(status);
  for (int i = 0; i < 200; ++i) std::this_thread::sleep_for(1ms);
  std::lock_guard lock(mutex_);
  ASSERT_EQ(status_patches_.size(), 1u);
  EXPECT_EQ(status_patches_[0], (Json{{"status", {{"incarnation", "i"}}}}));
}

TEST(ApiLink, NeedsANode) {
  kube::Config config;
  config.server = "http://127.0.0.1:1";
  auto link = ApiLink::Create(std::move(config), {.node = "", .wake = [] {}});
  ASSERT_FALSE(link.ok());
  EXPECT_THAT(link.error().message, HasSubstr("--node"));
}

}  // namespace
}  // namespace borescope::agent
