// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <csignal>
#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/http/server.h"
#include "common/kube/rest.h"
#include "common/metrics/metrics.h"
#include "store/access/access.h"
#include "store/access/reviewer.h"
#include "store/connect/connect.h"
#include "store/db/database.h"
#include "store/ingest/ingest.h"
#include "store/query/handlers.h"
#include "store/sessions/sessions.h"

namespace borescope::store {
namespace {

struct Flags {
  std::string data, listen = "127.0.0.1:4040", token_file, retention = "168h", sampler_account, operator_account;
  bool token_review = false;
  kube::ConfigFlags kube;
  int64_t max_bytes = int64_t{8} << 30;
};

// "168h", "30m", "7d"; at least two hours, because a sender may bring a window again that long after it was stored.
Result<int64_t> ParseRetention(std::string_view text) {
  Error bad{ErrorCode::kInvalid, "--retention is " + JsonQuote(text) + ": give a number of m, h or d, from 2h to 3650d"};
  if (text.size() < 2) return bad;
  auto count = ParseUint(text.substr(0, text.size() - 1));
  int64_t unit_minutes = text.back() == 'm' ? 1 : text.back() == 'h' ? 60 : text.back() == 'd' ? 1440 : 0;
  if (!count || *count > 10'000'000 || unit_minutes == 0) return bad;
  int64_t minutes = static_cast<int64_t>(*count) * unit_minutes;
  if (minutes < 120 || minutes > 3650 * 1440) return bad;
  return minutes * 60'000'000'000;
}

http::Response Metrics(Database* database, metrics::Registry* registry, const http::Server& server) {
  auto usage = database->GetUsage();
  if (!usage.ok()) return ConnectError(usage.error());
  registry->Gauge("borescope_store_windows", "Windows in the store.").Set({}, static_cast<double>(usage->windows));
  registry->Gauge("borescope_store_series", "Series in the store.").Set({}, static_cast<double>(usage->series));
  registry->Gauge("borescope_store_database_bytes", "Bytes in use in the database.").Set({}, static_cast<double>(usage->bytes));
  if (usage->oldest_ns) {
    registry->Gauge("borescope_store_oldest_window_timestamp_seconds", "Start of the oldest window, since the epoch.")
        .Set({}, static_cast<double>(*usage->oldest_ns) / 1e9);
  }
  http::ServerStats stats = server.stats();
  metrics::Family& requests = registry->Counter("borescope_store_http_requests_total", "Connections by what became of them.");
  requests.Set({{"outcome", "handled"}}, static_cast<double>(stats.requests));
  requests.Set({{"outcome", "refused"}}, static_cast<double>(stats.refused));
  requests.Set({{"outcome", "overloaded"}}, static_cast<double>(stats.overloaded));
  http::Response response;
  response.headers["Content-Type"] = metrics::Registry::kContentType;
  response.body = registry->Expose();
  return response;
}

void Evict(Database* database, metrics::Family* evicted, int64_t retention_ns, int64_t max_bytes) {
  auto done = database->Evict(NowNs(CLOCK_REALTIME) - retention_ns, max_bytes);
  if (!done.ok()) {
    Log(LogLevel::kError, "cannot delete old windows", {{"error", done.error().message}});
    return;
  }
  evicted->Add({{"reason", "age"}}, static_cast<double>(done->by_age));
  evicted->Add({{"reason", "bytes"}}, static_cast<double>(done->by_bytes));
  if (done->by_age + done->by_bytes > 0) {
    Log(LogLevel::kInfo, "old windows deleted", {{"by_age", done->by_age}, {"by_bytes", done->by_bytes}});
  }
}

Status CheckAccount(std::string_view flag, const std::string& user) {
  if (ParseServiceAccountName(user)) return OkStatus();
  return Error{ErrorCode::kInvalid, std::string(flag) + " is " + JsonQuote(user) + ": with --token-review give system:serviceaccount:NAMESPACE:NAME"};
}

Status Run(const Flags& flags) {
  ASSIGN_OR_RETURN(int64_t retention_ns, ParseRetention(flags.retention));
  ASSIGN_OR_RETURN(http::HostPort address, http::ParseHostPort(flags.listen));
  if (!http::IsLoopback(address.host) && flags.token_file.empty() && !flags.token_review) {
    return Error{ErrorCode::kInvalid,
                 "--listen is " + flags.listen + ", which others can reach: give --token-review or --token-file too, or listen on 127.0.0.1"};
  }
  if (!flags.token_file.empty()) RETURN_IF_ERROR(ReadToken(flags.token_file).status().WithContext("--token-file"));
  std::unique_ptr<kube::RestClient> kube;
  if (flags.token_review) {
    if (!flags.token_file.empty()) return Error{ErrorCode::kInvalid, "both --token-review and --token-file: give one of them"};
    RETURN_IF_ERROR(CheckAccount("--sampler-account", flags.sampler_account));
    RETURN_IF_ERROR(CheckAccount("--operator-account", flags.operator_account));
    ASSIGN_OR_RETURN(kube::Config config, kube::LoadConfig(flags.kube));
    ASSIGN_OR_RETURN(kube, kube::RestClient::Create(std::move(config), "borescope-store"));
  }

  // Before any thread, so that only we get them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  ASSIGN_OR_RETURN(std::unique_ptr<Database> database, Database::Open(flags.data));
  metrics::Registry registry;
  metrics::Family& evicted = registry.Counter("borescope_store_evicted_windows_total", "Windows deleted, by reason: age or bytes.");
  Ingester ingester(database.get(), &registry, &Clock::System());
  QueryService queries(database.get(), &registry, &Clock::System());
  SessionRecords sessions(database.get(), &Clock::System());

  std::optional<TokenReviewer> reviewer;
  if (kube) reviewer.emplace(kube.get(), &registry, &Clock::System(), TokenReviewer::Options{.lasting = {flags.sampler_account, flags.operator_account}});
  Access access({flags.token_file, reviewer ? &*reviewer : nullptr, flags.sampler_account, flags.operator_account}, &registry);

  http::ServerOptions options;
  options.workers = 8;  // twice as many as may wait for the API server
  options.authorize = [&](http::Request& head) { return access.Authorize(head); };
  options.refuse = ConnectRefusal;
  http::Server server(options);
  auto ok = [](const http::Request&) { return http::Response::Text(200, "ok"); };
  server.Handle("GET", "/healthz", ok);
  server.Handle("GET", "/readyz", [&](const http::Request& request) {
    auto usage = database->GetUsage();
    return usage.ok() ? ok(request) : ConnectError(usage.error());
  });
  server.Handle("GET", "/metrics", [&](const http::Request&) { return Metrics(database.get(), &registry, server); });
  server.Handle("POST", "/push.v1.PusherService/Push", [&](const http::Request& r) { return ingester.Push(r); });
  server.Handle("POST", "/querier.v1.QuerierService/SelectMergeProfile", [&](const http::Request& r) { return queries.SelectMergeProfile(r); });
  server.Handle("GET", "/pyroscope/render", [&](const http::Request& r) { return queries.Render(r); });
  for (const auto& [name, method] : QueryService::kLabelMethods) {
    auto labels = [&queries, method = method](const http::Request& r) { return queries.AnswerLabels(method, r); };
    for (const char* verb : {"GET", "POST"}) server.Handle(verb, "/querier.v1.QuerierService/" + std::string(name), labels);
  }
  server.Handle("GET", std::string(Access::kWhoAmI), [&](const http::Request& r) { return access.WhoAmI(r); });
  server.Handle("PUT", std::string(SessionRecords::kPrefix) + "*", [&](const http::Request& r) { return sessions.Put(r); });
  server.Handle("GET", std::string(SessionRecords::kPrefix) + "*", [&](const http::Request& r) { return sessions.Get(r); });
  RETURN_IF_ERROR(server.Start(flags.listen).WithContext("--listen"));
  Log(LogLevel::kInfo, "listening", {{"address", flags.listen}, {"port", server.port()}, {"data", flags.data}});

  constexpr timespec kBetweenEvictions{30, 0};
  do {
    Evict(database.get(), &evicted, retention_ns, flags.max_bytes);
  } while (sigtimedwait(&ends, nullptr, &kBetweenEvictions) < 0);
  Log(LogLevel::kInfo, "ending");
  server.Stop();
  return OkStatus();
}

}  // namespace
}  // namespace borescope::store

int main(int argc, char** argv) {
  borescope::store::Flags flags;
  CLI::App app{"borescope-store: keeps profiles and answers queries about them (Pyroscope's push and query protocol)"};
  app.add_option("--data", flags.data, "Directory of the database; made when missing")->required();
  app.add_option("--listen", flags.listen, "Address; other than loopback only with --token-review or --token-file")->capture_default_str();
  app.add_option("--token-file", flags.token_file, "File with the bearer token that every request must carry");
  app.add_flag("--token-review", flags.token_review, "Ask the API server whose a request's token is: borescope-reader of a namespace reads what is of it");
  app.add_option("--sampler-account", flags.sampler_account, "With --token-review: who may push, system:serviceaccount:NAMESPACE:NAME");
  app.add_option("--operator-account", flags.operator_account, "With --token-review: who may put sessions' records, likewise");
  app.add_option("--kubeconfig", flags.kube.kubeconfig, "Reach the API server as this file says (outside a cluster)");
  app.add_option("--in-cluster-dir", flags.kube.in_cluster_dir, "Folder with token, ca.crt and namespace")->capture_default_str();
  app.add_option("--api-server", flags.kube.api_server, "https://HOST:PORT; default from KUBERNETES_SERVICE_HOST and _PORT");
  app.add_option("--retention", flags.retention, "How long windows are kept")->capture_default_str();
  app.add_option("--max-bytes", flags.max_bytes, "Bytes of the database beyond which the oldest windows are deleted")
      ->check(CLI::Range(int64_t{1} << 20, INT64_MAX))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  borescope::Status status = borescope::store::Run(flags);
  if (status.ok()) return 0;
  borescope::Log(borescope::LogLevel::kError, "cannot run", {{"error", status.error().message}});
  return 2;
}
