// SPDX-License-Identifier: Apache-2.0
#include "operator/controller/program.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/api/json.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/strings.h"

namespace borescope::op {
namespace {

using nlohmann::json;

constexpr int64_t kTick = 1'000'000'000;
// The loop may hang in a call for its time-outs, and make many; longer without one means that it is
// stuck.
constexpr int64_t kStuck = 60'000'000'000;
constexpr std::chrono::milliseconds kEventGrace{2'000};
constexpr char kLeaseName[] = "borescope-operator";

std::string ObjectName(const json& object) {
  if (!object.is_object() || !object.contains("metadata") || !object["metadata"].is_object())
    return "?";
  const json& metadata = object["metadata"];
  auto text = [&](const char* key) {
    return metadata.contains(key) && metadata[key].is_string() ? metadata[key].get<std::string>()
                                                               : "";
  };
  return text("namespace").empty() ? text("name") : text("namespace") + "/" + text("name");
}

template <typename T>
using Parser = Result<T> (*)(const json&);

// An object of ours that we can't read is one of a later version, or was written past the CRD:
// named, and left alone.
template <typename T>
std::vector<T> ParseAll(const std::vector<json>& items, Parser<T> parse) {
  std::vector<T> out;
  for (const json& item : items) {
    auto value = parse(item);
    if (value.ok()) {
      out.push_back(*std::move(value));
    } else {
      Log(LogLevel::kWarning, "an object can't be read",
          {{"object", ObjectName(item)}, {"error", value.error().message}});
    }
  }
  return out;
}

// Items of a list carry no kind; the parsers take its absence.
template <typename T>
std::unique_ptr<kube::Reflector> MakeReflector(kube::RestClient* client, std::string_view plural,
                                               kube::Projection projection, Parser<T> parse,
                                               std::function<void(std::vector<T>)> on_list,
                                               std::function<void(T)> on_change,
                                               std::function<void(T)> on_gone) {
  kube::Reflector::Options options;
  options.resource = ResourceOf(plural);
  options.projection = std::move(projection);
  kube::Reflector::Handler handler;
  handler.on_list = [parse, on_list](std::vector<json> items) {
    on_list(ParseAll<T>(items, parse));
  };
  handler.on_event = [parse, on_change, on_gone](kube::EventType type, json object) {
    auto value = parse(object);
    if (!value.ok()) {
      Log(LogLevel::kWarning, "an object can't be read",
          {{"object", ObjectName(object)}, {"error", value.error().message}});
      return;
    }
    (type == kube::EventType::kDeleted ? on_gone : on_change)(*std::move(value));
  };
  return std::make_unique<kube::Reflector>(client, std::move(options), std::move(handler));
}

// managedFields are half of an object, and nobody here reads them.
kube::Projection OwnKind() {
  return {"apiVersion", "kind",  "metadata.creationTimestamp", "metadata.deletionTimestamp",
          "spec",       "status"};
}

int64_t ResidentBytes() {
  auto statm = ReadFile("/proc/self/statm", 4096);
  if (!statm.ok()) return 0;
  auto fields = Split(*statm, ' ');
  return fields.size() < 2
             ? 0
             : static_cast<int64_t>(ParseUint(fields[1]).value_or(0)) * sysconf(_SC_PAGESIZE);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string HostName() {
  char host[256] = {};
  return gethostname(host, sizeof host - 1) == 0 ? host : "borescope-operator";
}

std::string InstanceName() { return HostName().substr(0, 100) + "-" + std::to_string(getpid()); }

}  // namespace

Result<std::unique_ptr<Program>> Program::Create(ProgramOptions options) {
  ASSIGN_OR_RETURN(kube::Config config, kube::LoadConfig(options.kube));
  std::unique_ptr<kube::RestClient> lease_client;
  if (!options.lease_namespace.empty()) {
    // Its own, so that a call which hangs is never in the way of a renewal.
    ASSIGN_OR_RETURN(lease_client, kube::RestClient::Create(config, "borescope-operator-lease"));
    if (options.identity.empty()) options.identity = HostName();
  }
  ASSIGN_OR_RETURN(auto client, kube::RestClient::Create(std::move(config), "borescope-operator"));
  std::unique_ptr<http::Client> store;
  if (!options.store_url.empty()) {
    http::ClientOptions store_options;
    store_options.base_url = options.store_url;
    store_options.user_agent = "borescope-operator";
    if (!options.store_token_file.empty()) {
      store_options.bearer = [token = kube::TokenSource::FromFile(options.store_token_file)] {
        return token->Get();
      };
    }
    ASSIGN_OR_RETURN(store, http::Client::Create(std::move(store_options)));
  }
  return std::unique_ptr<Program>(new Program(std::move(options), std::move(client),
                                              std::move(store), std::move(lease_client)));
}

Program::Program(ProgramOptions options, std::unique_ptr<kube::RestClient> client,
                 std::unique_ptr<http::Client> store,
                 std::unique_ptr<kube::RestClient> lease_client)
    : options_(std::move(options)),
      client_(std::move(client)),
      store_(std::move(store)),
      events_(client_.get(), "borescope-operator", InstanceName()) {
  if (lease_client == nullptr) return;
  kube::LeaseOptions lease;
  lease.ns = options_.lease_namespace;
  lease.name = kLeaseName;
  lease.identity = options_.identity;
  election_ = std::make_unique<kube::LeaderElection>(std::move(lease_client), std::move(lease),
                                                     [this](bool leading) {
                                                       elected_ = leading;
                                                       if (!leading) CancelReign();
                                                       inbox_.Wake();
                                                     });
}

Program::~Program() {
  Stop();
}

Status Program::Start() {
  server_.Handle("GET", "/metrics", [this](const http::Request&) {
    http::Response response = http::Response::Text(200, registry_.Expose());
    response.headers["Content-Type"] = std::string(metrics::Registry::kContentType);
    return response;
  });
  server_.Handle("GET", "/healthz", [this](const http::Request&) {
    int64_t last_call = 0;
    {
      std::lock_guard lock(reign_mutex_);
      if (reign_) last_call = reign_->api.last_call();
    }
    int64_t age = NowNs(CLOCK_MONOTONIC) - std::max(last_tick_.load(), last_call);
    if (age < kStuck) return http::Response::Text(200, "ok");
    return http::Response::Text(500,
                                "the loop has not run for " + std::to_string(age / kTick) + " s");
  });
  server_.Handle("GET", "/readyz", [this](const http::Request&) {
    return ready_ ? http::Response::Text(200, "ok")
                  : http::Response::Text(503,
                                         "waiting for the Lease, or for the first lists of "
                                         "NodeSamplers, ProfilingSessions and NodeSamplerReports");
  });
  last_tick_ = NowNs(CLOCK_MONOTONIC);
  RETURN_IF_ERROR(server_.Start(options_.listen));
  if (election_) election_->Start();
  thread_ = std::thread([this] { Run(); });
  Log(LogLevel::kInfo, "started",
      {{"server", client_->config().server}, {"listen", options_.listen}});
  return OkStatus();
}

void Program::Stop() {
  if (stopping_.exchange(true)) return;
  CancelReign();
  inbox_.Wake();
  if (thread_.joinable()) thread_.join();
  // Only now, when nothing is written any more, a successor may begin.
  if (election_) election_->Stop();
  events_.Stop(kEventGrace);
  server_.Stop();
}

void Program::CancelReign() {
  std::lock_guard lock(reign_mutex_);
  if (reign_) reign_->canceller.Cancel();
}

void Program::WatchKinds() {
  // The NodeSamplers first, the sessions only when those are known: a job whose session is missing
  // from a later list is an orphan.
  auto begin_others = [this] {
    reign_->sessions = MakeReflector<api::ProfilingSession>(
        client_.get(), api::kProfilingSessions, OwnKind(), &api::ParseProfilingSession,
        [this](std::vector<api::ProfilingSession> all) {
          inbox_.Put([this, all = std::move(all)](Loop& loop, int64_t now) mutable {
            loop.OnSessions(std::move(all), now);
            reign_->lists |= 2;
          });
        },
        [this](api::ProfilingSession one) {
          inbox_.Put([one = std::move(one)](Loop& loop, int64_t) mutable {
            loop.OnSession(std::move(one));
          });
        },
        [this](api::ProfilingSession one) {
          inbox_.Put([one = std::move(one)](Loop& loop, int64_t now) {
            loop.OnSessionGone(one.metadata, now);
          });
        });
    reign_->reports = MakeReflector<api::NodeSamplerReport>(
        client_.get(), api::kNodeSamplerReports, OwnKind(), &api::ParseNodeSamplerReport,
        [this](std::vector<api::NodeSamplerReport> all) {
          inbox_.Put([this, all = std::move(all)](Loop& loop, int64_t now) mutable {
            loop.OnReports(std::move(all), now);
            reign_->lists |= 4;
          });
        },
        [this](api::NodeSamplerReport one) {
          inbox_.Put([one = std::move(one)](Loop& loop, int64_t) mutable {
            loop.OnReport(std::move(one));
          });
        },
        [this](api::NodeSamplerReport one) {
          inbox_.Put([one = std::move(one)](Loop& loop, int64_t) {
            loop.OnReportGone(one.metadata.name);
          });
        });
    reign_->sessions->Start();
    reign_->reports->Start();
  };
  reign_->samplers = MakeReflector<api::NodeSampler>(
      client_.get(), api::kNodeSamplers, OwnKind(), &api::ParseNodeSampler,
      [this, begin_others](std::vector<api::NodeSampler> all) {
        inbox_.Put([this, begin_others, all = std::move(all)](Loop& loop, int64_t now) mutable {
          loop.OnSamplers(std::move(all), now);
          if ((reign_->lists & 1) == 0) begin_others();
          reign_->lists |= 1;
        });
      },
      [this](api::NodeSampler one) {
        inbox_.Put([one = std::move(one)](Loop& loop, int64_t now) mutable {
          loop.OnSampler(std::move(one), now);
        });
      },
      [this](api::NodeSampler one) {
        inbox_.Put(
            [one = std::move(one)](Loop& loop, int64_t) { loop.OnSamplerGone(one.metadata.name); });
      });
  reign_->samplers->Start();
}

int64_t Program::Now() const {
  int64_t now = NowNs(CLOCK_REALTIME);
  kube::ClockOffset::Estimate offset = client_->clock_offset();
  // Below its own error an estimate is noise.
  return offset.known && std::abs(offset.offset_ns) > offset.error_ns ? now + offset.offset_ns
                                                                      : now;
}

bool Program::Leads() const { return !election_ || (elected_ && election_->Holds()); }

void Program::Run() {
  while (!stopping_) {
    if (!Leads()) {
      StandBy();
      continue;
    }
    Begin();
    Rule();
    End();
  }
}

void Program::StandBy() {
  inbox_.Take(std::chrono::nanoseconds(kTick));
  last_tick_ = NowNs(CLOCK_MONOTONIC);
  kube::LeaderElection::Seen seen = election_->seen();
  // It has been told who leads, so it could take over.
  if (!seen.holder.empty() && seen.error.empty()) ready_ = true;
  Publish();
}

void Program::Begin() {
  auto reign = std::make_unique<Reign>(client_.get(), &events_, &inbox_, store_.get(),
                                       [this] { return Leads(); }, options_);
  {
    std::lock_guard lock(reign_mutex_);
    reign_ = std::move(reign);
  }
  // Stop, or the loss of the lease, may have come just before.
  if (stopping_ || !Leads()) CancelReign();
  WatchKinds();
}

void Program::Rule() {
  int64_t next = 0, next_tick = 0;
  while (!stopping_ && Leads()) {
    int64_t now = Now();
    int64_t until = std::min(next == 0 ? INT64_MAX : next, next_tick);
    auto messages =
        inbox_.Take(std::chrono::nanoseconds(std::clamp<int64_t>(until - now, 0, kTick)));
    now = Now();
    for (const Inbox::Message& message : messages) message(reign_->loop, now);
    last_tick_ = NowNs(CLOCK_MONOTONIC);
    if (reign_->lists == 7 && Leads()) {
      ready_ = true;
      next = reign_->loop.RunOnce(now);
    }
    if (now >= next_tick) {
      Tick(now);
      next_tick = now + kTick;
    }
  }
}

void Program::End() {
  // The order: who tells, what was told, who was told.
  for (auto* reflector : {&reign_->sessions, &reign_->reports, &reign_->samplers}) {
    if (*reflector) (*reflector)->Stop();
  }
  for (const auto& [family, counts] : CountsOfReign()) {
    for (const auto& [what, count] : counts) past_[family][what] += count;
  }
  std::unique_ptr<Reign> over;
  {
    std::lock_guard lock(reign_mutex_);
    over = std::move(reign_);
  }
  over.reset();  // with its watches of pods
  inbox_.Take(std::chrono::nanoseconds(0));
}

void Program::Tick(int64_t now) {
  reign_->api.CheckWatches();
  // While nothing could be heard, nothing could be answered: what the samplers had to say may still
  // be on its way.
  if (reign_->reports) {
    bool broken = !reign_->reports->stats().last_error.empty();
    if (reign_->cut_off || broken) reign_->loop.OnReconnect(now);
    reign_->cut_off = broken;
  }
  Publish();
}

std::map<std::string, Program::Counts> Program::CountsOfReign() const {
  std::map<std::string, Counts> counts;
  if (!reign_) return counts;
  counts["plans"][{}] = reign_->loop.stats().plans;
  counts["records_lost"][{}] = reign_->api.records_lost();
  for (const auto& [what, count] : reign_->loop.stats().writes) counts["writes"][what] = count;
  for (const auto& [kind, reflector] :
       {std::pair{"nodesamplers", reign_->samplers.get()},
        std::pair{"profilingsessions", reign_->sessions.get()},
        std::pair{"nodesamplerreports", reign_->reports.get()}}) {
    if (reflector == nullptr) continue;
    kube::WatchStats stats = reflector->stats();
    for (const auto& [what, count] :
         {std::pair{"events", stats.events}, std::pair{"bookmarks", stats.bookmarks},
          std::pair{"connects", stats.connects}, std::pair{"relists", stats.relists},
          std::pair{"idle_closed", stats.idle_closed}, std::pair{"errors", stats.errors},
          std::pair{"skipped", stats.skipped}}) {
      counts["watch"][{kind, what}] = count;
    }
  }
  return counts;
}

void Program::Publish() {
  static const World kNothing;
  const World& world = reign_ ? reign_->loop.world() : kNothing;
  std::map<std::string, Counts> counts = CountsOfReign();
  for (const auto& [family, past] : past_) {
    for (const auto& [what, count] : past) counts[family][what] += count;
  }
  registry_
      .Gauge("borescope_operator_leader",
             "1: this operator does the work (holds the Lease, or is the only one); 0: it stands by")
      .Set({}, reign_ ? 1 : 0);
  if (election_) {
    registry_
        .Counter("borescope_operator_lease_transitions_total",
                 "Changes of the leader, as the Lease counts them")
        .Set({}, static_cast<double>(election_->seen().transitions));
  }
  auto& sessions = registry_.Gauge(
      "borescope_operator_sessions",
      "ProfilingSessions by phase; Finished stands for Complete, Failed and Stopped");
  std::map<std::string, double> phases = {
      {"Pending", 0}, {"Waiting", 0}, {"Sampling", 0}, {"Publishing", 0}};
  for (const auto& [key, session] : world.sessions) {
    ++phases[std::string(api::PhaseName(session.status.phase.value_or(api::Phase::kPending)))];
  }
  phases["Finished"] = static_cast<double>(world.finished.size());
  for (const auto& [phase, count] : phases) sessions.Set({{"phase", phase}}, count);

  size_t pods = 0;
  for (const auto& [ns, known] : world.namespaces) pods += known.pods.size();
  auto& cached = registry_.Gauge("borescope_operator_cached_objects", "Objects that the operator holds");
  cached.Set({{"kind", "nodesamplers"}}, static_cast<double>(world.samplers.size()));
  cached.Set({{"kind", "nodesamplerreports"}}, static_cast<double>(world.reports.size()));
  cached.Set({{"kind", "pods"}}, static_cast<double>(pods));
  registry_
      .Gauge("borescope_operator_pod_watches",
             "Namespaces whose pods are watched because a session looks there")
      .Set({}, reign_ ? static_cast<double>(reign_->api.pod_watches()) : 0);

  registry_.Counter("borescope_operator_reconcile_total", "Plans made")
      .Set({}, static_cast<double>(counts["plans"][{}]));
  auto& writes = registry_.Counter(
      "borescope_operator_writes_total", "Writes of a session's status, of a NodeSampler's spec, deletions");
  for (const auto& [what, count] : counts["writes"]) {
    writes.Set({{"kind", what.first}, {"result", what.second}}, static_cast<double>(count));
  }
  registry_
      .Counter("borescope_operator_records_lost_total",
               "Records of finished sessions that the store did not take")
      .Set({}, static_cast<double>(counts["records_lost"][{}]));

  kube::EventStats events = events_.stats();
  auto& event_total = registry_.Counter("borescope_operator_events_total", "Kubernetes Events by outcome");
  event_total.Set({{"outcome", "created"}}, static_cast<double>(events.created));
  event_total.Set({{"outcome", "repeated"}}, static_cast<double>(events.repeated));
  event_total.Set({{"outcome", "dropped"}}, static_cast<double>(events.dropped));

  kube::RestStats rest = client_->stats();
  auto& requests = registry_.Counter("borescope_operator_rest_responses_total",
                                     "Responses of the API server by status; 0 = none");
  for (const auto& [code, count] : rest.responses)
    requests.Set({{"code", std::to_string(code)}}, static_cast<double>(count));
  registry_.Counter("borescope_operator_rest_retries_total", "Calls repeated because the API server said so")
      .Set({}, static_cast<double>(rest.retries));

  auto& watch = registry_.Counter("borescope_operator_watch_total", "What the watches went through");
  for (const auto& [what, count] : counts["watch"]) {
    watch.Set({{"kind", what.first}, {"what", what.second}}, static_cast<double>(count));
  }
  kube::ClockOffset::Estimate offset = client_->clock_offset();
  if (offset.known) {
    registry_.Gauge("borescope_operator_clock_offset_seconds", "The API server's clock minus ours")
        .Set({}, static_cast<double>(offset.offset_ns) / 1e9);
  }
  registry_.Gauge("borescope_operator_resident_memory_bytes", "RSS of this process")
      .Set({}, static_cast<double>(ResidentBytes()));
  registry_.Counter("borescope_operator_cpu_seconds_total", "CPU time of this process")
      .Set({}, CpuSeconds());
}

}  // namespace borescope::op
