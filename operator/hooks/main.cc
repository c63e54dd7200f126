// SPDX-License-Identifier: Apache-2.0
//
// What the chart's hooks run. `test`: a pod that profiles itself through the whole path; exit code 0 when its own function stands in the
// result. `clean`: after the uninstall, the objects of the nodes go, which their samplers made.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/api/json.h"
#include "common/base/clock.h"
#include "common/kube/config.h"
#include "common/kube/rest.h"

namespace borescope {

// Has this name in the profile.
[[gnu::noinline]] uint64_t HelmTestSpin(int64_t until_ns) {
  uint64_t x = 1;
  while (NowNs(CLOCK_MONOTONIC) < until_ns) {
    for (int i = 0; i < 20'000; ++i) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      asm volatile("" : "+r"(x));
    }
  }
  return x;
}

namespace {

constexpr std::string_view kFunction = "HelmTestSpin";
constexpr int64_t kSecond = 1'000'000'000;

struct Flags {
  kube::ConfigFlags kube;
  int duration_seconds = 5;
  int wait_seconds = 90;
};

const api::Condition* FindCondition(const api::ProfilingSession& session, std::string_view type) {
  for (const api::Condition& condition : session.status.conditions) {
    if (condition.type == type) return &condition;
  }
  return nullptr;
}

// What the session found, or why it is not good enough.
Status Judge(const api::ProfilingSession& session) {
  const api::Condition* complete = FindCondition(session, "Complete");
  const api::Condition* finished = FindCondition(session, "Finished");
  if (complete == nullptr || complete->status != "True") {
    return Error{ErrorCode::kUnavailable, "the session did not complete: " + (finished == nullptr ? "no condition Finished" : finished->reason + ": " + finished->message)};
  }
  if (session.status.samples.collected == 0) return Error{ErrorCode::kUnavailable, "the session has no samples, though this pod was busy all the time"};
  for (const api::TopFunction& row : session.status.top) {
    if (row.function.find(kFunction) == std::string::npos) continue;
    std::printf("%lld samples; %s: %lld per mille of the CPU time\n", static_cast<long long>(session.status.samples.collected), row.function.c_str(),
                static_cast<long long>(row.own_per_mille));
    return OkStatus();
  }
  std::string found = session.status.top.empty() ? "nothing" : session.status.top.front().function;
  return Error{ErrorCode::kInternal, "status.top does not name " + std::string(kFunction) + "; its first row is " + found};
}

Result<api::ProfilingSession> WaitFinished(kube::RestClient& client, const kube::Resource& sessions, const std::string& ns, const std::string& name, int wait_seconds) {
  int64_t deadline = NowNs(CLOCK_MONOTONIC) + wait_seconds * kSecond;
  for (;;) {
    HelmTestSpin(NowNs(CLOCK_MONOTONIC) + kSecond / 2);
    ASSIGN_OR_RETURN(nlohmann::json object, client.Get(sessions, ns, name));
    ASSIGN_OR_RETURN(api::ProfilingSession session, api::ParseProfilingSession(object));
    const api::Condition* finished = FindCondition(session, "Finished");
    if (finished != nullptr && finished->status == "True") return session;
    if (NowNs(CLOCK_MONOTONIC) > deadline) {
      return Error{ErrorCode::kUnavailable, "the session is not finished after " + std::to_string(wait_seconds) + " s; see: kubectl -n " + ns + " describe psess " + name};
    }
  }
}

Status Clean(const Flags& flags) {
  ASSIGN_OR_RETURN(kube::Config config, kube::LoadConfig(flags.kube));
  ASSIGN_OR_RETURN(std::unique_ptr<kube::RestClient> client, kube::RestClient::Create(std::move(config), "borescope-hooks"));
  for (const char* plural : {"nodesamplers", "nodesamplerreports"}) {
    kube::Resource kind{"profiling.borescope.dev", "v1alpha1", plural};
    kube::ListOptions all;
    all.projection = {"metadata.name"};
    Result<kube::ObjectList> list = client->List(kind, all);
    if (!list.ok() && list.error().code == ErrorCode::kNotFound) continue;  // the CRDs went first
    RETURN_IF_ERROR(list);
    for (const nlohmann::json& item : list->items) {
      Status gone = client->Delete(kind, "", item["metadata"]["name"].get<std::string>());
      if (!gone.ok() && gone.error().code != ErrorCode::kNotFound) return gone;
    }
    std::printf("%zu %s deleted\n", list->items.size(), plural);
  }
  return OkStatus();
}

Status Test(const Flags& flags) {
  ASSIGN_OR_RETURN(kube::Config config, kube::LoadConfig(flags.kube));
  if (config.token == nullptr) return Error{ErrorCode::kInvalid, "no token: run this in a pod, as `helm test` does"};
  ASSIGN_OR_RETURN(std::string token, config.token->Get());
  ASSIGN_OR_RETURN(kube::TokenClaims self, kube::ReadTokenClaims(token));
  if (self.pod_name.empty()) return Error{ErrorCode::kInvalid, "the token is of no pod: run this in a pod, as `helm test` does"};
  ASSIGN_OR_RETURN(std::unique_ptr<kube::RestClient> client, kube::RestClient::Create(std::move(config), "borescope-helm-test"));

  kube::Resource sessions{"profiling.borescope.dev", "v1alpha1", "profilingsessions"};
  nlohmann::json session = {{"apiVersion", "profiling.borescope.dev/v1alpha1"},
                            {"kind", "ProfilingSession"},
                            {"metadata", {{"generateName", "borescope-helm-test-"}}},
                            {"spec", {{"target", {{"podName", self.pod_name}}}, {"durationSeconds", flags.duration_seconds}}}};
  ASSIGN_OR_RETURN(nlohmann::json created, client->Create(sessions, self.ns, session));
  std::string name = created["metadata"]["name"];
  std::printf("session %s/%s of pod %s on node %s\n", self.ns.c_str(), name.c_str(), self.pod_name.c_str(), self.node_name.c_str());
  std::fflush(stdout);
  Result<api::ProfilingSession> finished = WaitFinished(*client, sessions, self.ns, name, flags.wait_seconds);
  Status verdict = finished.ok() ? Judge(*finished) : finished.status();
  // One that failed stays, to be looked at.
  if (verdict.ok()) return client->Delete(sessions, self.ns, name);
  return verdict;
}

}  // namespace
}  // namespace borescope

int main(int argc, char** argv) {
  borescope::Flags flags;
  CLI::App app("What the hooks of the Helm chart run.");
  app.require_subcommand(1);
  app.add_option("--in-cluster-dir", flags.kube.in_cluster_dir, "Folder with token, ca.crt and namespace")->type_name("DIR")->capture_default_str();
  app.add_option("--api-server", flags.kube.api_server, "https://HOST:PORT; default from KUBERNETES_SERVICE_HOST and _PORT")->type_name("URL");
  CLI::App* test = app.add_subcommand("test", "Profile the pod that this runs in, through API server, operator, sampler and store, and check the result");
  test->add_option("--duration", flags.duration_seconds, "Seconds to sample")->check(CLI::Range(1, 60))->capture_default_str();
  test->add_option("--wait", flags.wait_seconds, "Seconds until the session must be finished")->check(CLI::Range(1, 600))->capture_default_str();
  app.add_subcommand("clean", "Delete the NodeSamplers and NodeSamplerReports");
  CLI11_PARSE(app, argc, argv);
  borescope::Status status = test->parsed() ? borescope::Test(flags) : borescope::Clean(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "FAILED: %s\n", status.error().message.c_str());
  return 1;
}
