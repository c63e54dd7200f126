// SPDX-License-Identifier: Apache-2.0
#include <sys/signalfd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/http/server.h"
#include "common/kube/config.h"
#include "common/metrics/metrics.h"
#include "sampler/agent/agent.h"
#include "sampler/publish/sinks.h"

namespace borescope {
namespace {

constexpr const char* kVersion = BORESCOPE_VERSION;
#ifdef BORESCOPE_FIXED_PERIOD
constexpr bool kFixedPeriod = true;
#else
constexpr bool kFixedPeriod = false;
#endif

// Asked to end: readable once, on whatever thread waits for it.
Result<UniqueFd> StopSignals() {
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return ErrnoError("pthread_sigmask");
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd.valid()) return ErrnoError("signalfd");
  return fd;
}

void AddHandlers(http::Server& server, metrics::Registry& registry, agent::Agent& agent) {
  server.Handle("GET", "/metrics", [&](const http::Request&) {
    agent.RefreshMetrics();
    http::Response response;
    response.headers["Content-Type"] = metrics::Registry::kContentType;
    response.body = registry.Expose();
    return response;
  });
  server.Handle("GET", "/healthz", [](const http::Request&) { return http::Response::Text(200, "ok"); });
  server.Handle("GET", "/readyz", [&](const http::Request&) {
    std::string why = agent.NotReady();
    return why.empty() ? http::Response::Text(200, "ok") : http::Response::Text(503, why);
  });
}

struct Flags {
  kube::ConfigFlags kube;
  std::string node, sinks_file, samples_file, unwind_cache;
  int unwind_memory_mib = 64;
  std::vector<std::string> kernel_overrides;
  std::string listen = "127.0.0.1:8082";
};

Status Run(const Flags& flags) {
  ASSIGN_OR_RETURN(UniqueFd stop, StopSignals());
  ASSIGN_OR_RETURN(std::string sinks_yaml, ReadFile(flags.sinks_file, 1 << 20));
  Result<std::vector<publish::Sink>> sinks = publish::ParseSinks(sinks_yaml);
  if (!sinks.ok()) return sinks.error().WithContext("--sinks " + flags.sinks_file);
  ASSIGN_OR_RETURN(kube::Config kube, kube::LoadConfig(flags.kube));

  metrics::Registry registry;
  agent::AgentOptions options;
  options.engine.fixed_period = kFixedPeriod;
  options.engine.kernel_overrides = {flags.kernel_overrides.begin(), flags.kernel_overrides.end()};
  RETURN_IF_ERROR(engine::CheckOverrides(options.engine.kernel_overrides).WithContext("--kernel-override"));
  options.kube = std::move(kube);
  options.node = flags.node;
  options.sinks = *std::move(sinks);
  options.samples_file = flags.samples_file;
  options.unwind_cache = flags.unwind_cache;
  options.unwind_bytes = static_cast<size_t>(flags.unwind_memory_mib) << 20;
  options.version = kVersion;
  options.registry = &registry;
  ASSIGN_OR_RETURN(std::unique_ptr<agent::Agent> agent, agent::Agent::Create(std::move(options)));

  http::Server server;
  AddHandlers(server, registry, *agent);
  RETURN_IF_ERROR(server.Start(flags.listen).WithContext("--listen"));
  agent->Run(stop.get());
  server.Stop();
  return OkStatus();
}

}  // namespace
}  // namespace borescope

int main(int argc, char** argv) {
  CLI::App app("Samples the pods of this node as its NodeSampler says; one on each node.");
  borescope::Flags flags;
  app.add_option("--kubeconfig", flags.kube.kubeconfig, "Reach the API server as this file says")->type_name("FILE");
  app.add_option("--in-cluster-dir", flags.kube.in_cluster_dir, "Folder with token, ca.crt and namespace")->type_name("DIR")->capture_default_str();
  app.add_option("--api-server", flags.kube.api_server, "https://HOST:PORT; default from KUBERNETES_SERVICE_HOST and _PORT")->type_name("URL");
  app.add_option("--node", flags.node, "This node's name; default: the one in the token")->type_name("NAME");
  app.add_option("--sinks", flags.sinks_file, "YAML file that says where profiles may go")->type_name("FILE")->required();
  app.add_option("--listen", flags.listen, "Where /metrics, /healthz and /readyz are")->type_name("HOST:PORT")->capture_default_str();
  app.add_option("--samples", flags.samples_file, "Append every sample to FILE, one JSON object a line")->type_name("FILE");
  app.add_option("--unwind-cache", flags.unwind_cache, "Keep unwind tables in this folder, at most 512 MiB; default: they are made anew at each start")->type_name("DIR");
  app.add_option("--unwind-memory", flags.unwind_memory_mib, "Kernel memory for unwind tables, in MiB")->check(CLI::Range(4, 4096))->capture_default_str();
  app.add_option("--kernel-override", flags.kernel_overrides, "Sample although the kernel has this fault (NodeSampler status names it); may be given more than once")->type_name("NAME")->allow_extra_args(false);
  app.set_version_flag("--version", std::string("borescope-sampler ") + borescope::kVersion);
  CLI11_PARSE(app, argc, argv);

  borescope::Status status = borescope::Run(flags);
  if (status.ok()) return 0;
  borescope::Log(borescope::LogLevel::kError, "the sampler can't run", {{"error", status.error().message}});
  return 2;
}
