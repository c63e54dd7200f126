// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <csignal>

#include "common/base/log.h"
#include "operator/controller/program.h"

int main(int argc, char** argv) {
  borescope::op::ProgramOptions options;
  CLI::App app{
      "borescope-operator: turns ProfilingSessions into jobs of the samplers, and their reports "
      "into status"};
  app.add_option("--kubeconfig", options.kube.kubeconfig, "kubeconfig file (outside a cluster)");
  app.add_option("--in-cluster-dir", options.kube.in_cluster_dir,
                 "folder with token, ca.crt, namespace")
      ->capture_default_str();
  app.add_option("--api-server", options.kube.api_server,
                 "https://HOST:PORT (default: from KUBERNETES_SERVICE_HOST and _PORT)");
  app.add_option("--listen", options.listen, "HOST:PORT of /metrics, /healthz, /readyz")
      ->capture_default_str();
  app.add_option("--cluster", options.cluster, "the label `cluster` of every profile");
  app.add_option("--store-url", options.store_url,
                 "http://HOST:PORT of the store: in the command that opens a profile; finished "
                 "sessions' records go there");
  app.add_option("--store-token-file", options.store_token_file,
                 "file with the store's bearer token");
  auto* lease = app.add_option("--lease-namespace", options.lease_namespace,
                               "of several operators one leads, by the Lease borescope-operator in this "
                               "namespace (default: this is the only one)");
  app.add_option("--identity", options.identity, "name of this one in the Lease (default: the host name, in a pod its name)")
      ->needs(lease);
  CLI11_PARSE(app, argc, argv);

  std::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // Before any thread is made: all inherit it, and only sigwait below takes them.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  auto program = borescope::op::Program::Create(std::move(options));
  if (!program.ok()) {
    borescope::Log(borescope::LogLevel::kError, "can't start",
                   {{"error", program.error().message}});
    return 2;
  }
  if (borescope::Status status = (*program)->Start(); !status.ok()) {
    borescope::Log(borescope::LogLevel::kError, "can't start", {{"error", status.error().message}});
    return 2;
  }
  int signal = 0;
  sigwait(&signals, &signal);
  borescope::Log(borescope::LogLevel::kInfo, "stopping", {{"signal", signal}});
  (*program)->Stop();
  return 0;
}
