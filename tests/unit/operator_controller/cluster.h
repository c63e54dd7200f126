// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/api/json.h"
#include "operator/controller/loop.h"

namespace borescope::op {

inline constexpr int64_t kSecond = 1'000'000'000;
inline constexpr int64_t kStep = 50'000'000;
inline constexpr int64_t kEpoch = 1'790'000'000 * kSecond;

inline uint64_t Seed() {
  static uint64_t seed = [] {
    const char* given = std::getenv("SEED");
    uint64_t value = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

// The objects of a cluster as an API server holds them, samplers that obey the contract, and an
// operator that may die between any two of its writes. Values go through their JSON and merge
// patches, as in life. Time stands still but for Run.
class Cluster : public ApiServer {
 public:
  Cluster() { StartOperator(); }

  // ---- The world outside the operator
  // ---------------------------------------------------------------------------------------

  void AddNode(const std::string& name, std::vector<std::string> sinks = {"default"}) {
    api::NodeSampler sampler;
    sampler.metadata = {.namespace_name = "",
                        .name = name,
                        .uid = "uid-" + name,
                        .resource_version = NextVersion(),
                        .generation = 1,
                        .creation_time = 0,
                        .deletion_time = 0};
    sampler.status.kinds = {"cpu"};
    sampler.status.sink_names = std::move(sinks);
    api::SetCondition(sampler.status.conditions,
                      {.type = "Protected",
                       .status = "True",
                       .reason = "Refused",
                       .message = "",
                       .observed_generation = 0,
                       .last_transition_time = 0},
                      now);
    samplers[name] = sampler;
    api::NodeSamplerReport report;
    report.metadata.name = name;
    report.metadata.resource_version = NextVersion();
    reports[name] = report;
  }
  void RemoveNode(const std::string& name) {
    samplers.erase(name);
    reports.erase(name);
  }
  Pod& AddPod(const std::string& name, const std::string& node,
              std::map<std::string, std::string> labels, const std::string& ns = "shop") {
    Pod pod;
    pod.namespace_name = ns;
    pod.name = name;
    pod.uid = "uid-" + name;
    pod.node = node;
    pod.labels = std::move(labels);
    pod.creation_time = now;
    pod.resource_version = ++version_;
    pod.containers = {{"app", "registry/app:v1", !node.empty(), !node.empty()},
                      {"proxy", "registry/proxy:v7", !node.empty(), !node.empty()}};
    return pods[pod.uid] = pod;
  }
  void Touch(Pod& pod) { pod.resource_version = ++version_; }
  void Apply(const std::string& name, api::ProfilingSessionSpec spec,
             const std::string& ns = "shop") {
    api::ProfilingSession session;
    session.metadata = {.namespace_name = ns,
                        .name = name,
                        .uid = "uid-" + name + std::to_string(++version_),
                        .resource_version = NextVersion(),
                        .generation = 1,
                        .creation_time = now,
                        .deletion_time = 0};
    session.spec = std::move(spec);
    sessions[ns + "/" + name] = session;
  }
  void Stop(const std::string& key) {
    api::ProfilingSession& session = sessions.at(key);
    session.spec.desired_state = api::DesiredState::kStop;
    ++session.metadata.generation;
    session.metadata.resource_version = NextVersion();
  }

  // ---- Time
  // -----------------------------------------------------------------------------------------------------------------

  void Run(int64_t duration) {
    for (int64_t end = now + duration; now < end;) {
      now += kStep;
      if (on_step) on_step();
      for (auto& [node, sampler] : samplers) {
        if (!silent.contains(node)) RunSampler(node);
      }
      if (dead_ && now >= restart_at_) StartOperator();
      if (!dead_) {
        Deliver();
        // Bounded: a loop that spins is to fail a test, not to hang it.
        for (int rounds = 0; !dead_ && rounds < 100; ++rounds) {
          int64_t next = loop->RunOnce(now);
          if (next == 0 || next > now) break;
        }
      }
      if (crash_at >= 0 && writes >= crash_at && !crashed) {
        crashed = dead_ = true;
        restart_at_ = now + 600'000'000;
      }
    }
  }

  const api::ProfilingSession& Session(const std::string& key) const { return sessions.at(key); }
  std::string Reason(const std::string& key, std::string_view type) const {
    const api::Condition* condition = api::FindCondition(Session(key).status.conditions, type);
    return condition == nullptr ? "" : condition->status + "/" + condition->reason;
  }
  std::string Message(const std::string& key, std::string_view type) const {
    const api::Condition* condition = api::FindCondition(Session(key).status.conditions, type);
    return condition == nullptr ? "" : condition->message;
  }

  // ---- ApiServer
  // ------------------------------------------------------------------------------------------------------------

  Result<api::ProfilingSession> WriteStatus(const api::ProfilingSession& before,
                                            const api::ProfilingSessionStatus& status) override {
    if (!Alive()) return Dead();
    auto it = sessions.find(SessionKey(before.metadata));
    if (it == sessions.end()) return Error{ErrorCode::kNotFound, "no session"};
    if (it->second.metadata.resource_version != before.metadata.resource_version)
      return Error{ErrorCode::kConflict, "rv"};
    nlohmann::json patch = api::SessionStatusPatch(before.metadata, before.status, status);
    if (patch.empty()) return it->second;
    nlohmann::json object = api::ToJson(it->second);
    object["status"].merge_patch(patch["status"]);
    auto parsed = api::ParseProfilingSession(object);
    if (!parsed.ok()) return parsed.error();
    if (on_status) on_status(it->second, parsed->status);
    it->second.status = parsed->status;
    it->second.metadata.resource_version = NextVersion();
    if (!Wrote("status " + SessionKey(before.metadata))) return Dead();
    return it->second;
  }
  Result<api::NodeSampler> WriteSpec(const api::NodeSampler& before,
                                     const api::NodeSamplerSpec& spec) override {
    if (!Alive()) return Dead();
    auto it = samplers.find(before.metadata.name);
    if (it == samplers.end()) return Error{ErrorCode::kNotFound, "no sampler"};
    if (it->second.metadata.resource_version != before.metadata.resource_version)
      return Error{ErrorCode::kConflict, "rv"};
    nlohmann::json object = api::ToJson(it->second);
    object.merge_patch(api::SpecPatch(spec, before.metadata.resource_version));
    auto parsed = api::ParseNodeSampler(object);
    if (!parsed.ok()) return parsed.error();
    if (on_spec) on_spec(it->second, parsed->spec);
    it->second.spec = parsed->spec;
    ++it->second.metadata.generation;
    it->second.metadata.resource_version = NextVersion();
    if (!Wrote("spec " + before.metadata.name)) return Dead();
    return it->second;
  }
  Status DeleteSession(const api::ObjectMeta& session) override {
    if (!Alive()) return Dead();
    auto it = sessions.find(SessionKey(session));
    if (it == sessions.end()) return Error{ErrorCode::kNotFound, "no session"};
    if (it->second.metadata.uid != session.uid ||
        it->second.metadata.resource_version != session.resource_version)
      return Error{ErrorCode::kConflict, "precondition"};
    sessions.erase(it);
    if (!Wrote("delete " + SessionKey(session))) return Dead();
    return OkStatus();
  }
  Result<api::ProfilingSession> ReadSession(const std::string& ns,
                                            const std::string& name) override {
    if (!Alive()) return Dead();
    auto it = sessions.find(ns + "/" + name);
    if (it == sessions.end()) return Error{ErrorCode::kNotFound, "no session"};
    return it->second;
  }
  Result<api::NodeSampler> ReadSampler(const std::string& node) override {
    if (!Alive()) return Dead();
    auto it = samplers.find(node);
    if (it == samplers.end()) return Error{ErrorCode::kNotFound, "no sampler"};
    return it->second;
  }
  Result<Workload> Look(const Lookup& lookup) override {
    if (!Alive()) return Dead();
    auto it = workloads.find({lookup.namespace_name, lookup.kind, lookup.name, ""});
    if (it == workloads.end() || (!lookup.uid.empty() && it->second.uid != lookup.uid))
      return Workload{};
    return it->second;
  }
  Result<std::vector<Pod>> ListPods(const std::string& ns) override {
    if (!Alive()) return Dead();
    return PodsOf(ns);
  }
  void WatchPods(const std::string& ns) override { watched[ns] = false; }
  void UnwatchPods(const std::string& ns) override { watched.erase(ns); }
  void Emit(const api::ObjectMeta& session, const EventNote& event) override {
    events.push_back(session.name + " " + event.reason);
  }
  Status MakeReader(const std::string& ns) override {
    if (!Alive()) return Dead();
    ++reader_calls;
    if (reader_error) return *reader_error;
    readers.insert(ns);
    return OkStatus();
  }
  void Keep(const api::ProfilingSession& session, const api::ProfilingSessionStatus&) override {
    records.insert(session.metadata.uid);
  }

  int64_t now = kEpoch;
  std::map<std::string, api::ProfilingSession> sessions;
  std::map<std::string, api::NodeSampler> samplers;
  std::map<std::string, api::NodeSamplerReport> reports;
  std::map<std::string, Pod> pods;
  std::map<Lookup, Workload> workloads;
  std::set<std::string> silent;         // nodes whose sampler is dead
  std::set<std::string> no_publishing;  // nodes whose sink does not answer
  std::vector<std::string> log;         // of the writes
  std::set<std::string> readers;        // namespaces with the ServiceAccount borescope-reader
  std::optional<Error> reader_error;    // instead of making one
  int reader_calls = 0;
  std::vector<std::string> events;
  std::set<std::string> records;
  std::function<void()> on_step;
  std::function<void(const api::ProfilingSession&, const api::ProfilingSessionStatus&)> on_status;
  std::function<void(const api::NodeSampler&, const api::NodeSamplerSpec&)> on_spec;
  int writes = 0;
  int crash_at = -1;        // dies at this write …
  bool crash_after = true;  // … after it took effect (the answer is lost), or before
  bool crashed = false;
  std::unique_ptr<Loop> loop;
  std::map<std::string, bool> watched;  // namespace -> its first list has been handed over

 private:
  std::string NextVersion() { return std::to_string(++version_); }
  static Error Dead() { return {ErrorCode::kUnavailable, "crashed"}; }
  bool Alive() {
    if (!dead_ && !crashed && !crash_after && writes == crash_at) {
      crashed = dead_ = true;
      restart_at_ = now + 600'000'000;
    }
    return !dead_;
  }
  bool Wrote(std::string what) {
    log.push_back(std::move(what));
    ++writes;
    if (!crashed && crash_after && writes == crash_at) {
      crashed = dead_ = true;
      restart_at_ = now + 600'000'000;
    }
    return !dead_;
  }
  std::vector<Pod> PodsOf(const std::string& ns) const {
    std::vector<Pod> out;
    for (const auto& [uid, pod] : pods) {
      if (pod.namespace_name == ns) out.push_back(pod);
    }
    return out;
  }
  template <typename T>
  static std::vector<T> Values(const std::map<std::string, T>& map) {
    std::vector<T> out;
    for (const auto& [key, value] : map) out.push_back(value);
    return out;
  }

  void StartOperator() {
    dead_ = false;
    watched.clear();
    loop = std::make_unique<Loop>(this, "test", "http://store:4040");
    loop->OnSamplers(Values(samplers), now);
    loop->OnSessions(Values(sessions), now);
    loop->OnReports(Values(reports), now);
    Remember();
  }
  void Remember() {
    seen_sessions_ = sessions;
    seen_samplers_ = samplers;
    seen_reports_ = reports;
    seen_pods_ = pods;
  }
  // What a watch would tell.
  void Deliver() {
    for (const auto& [key, s] : seen_sessions_) {
      auto it = sessions.find(key);
      if (it == sessions.end() || it->second.metadata.uid != s.metadata.uid)
        loop->OnSessionGone(s.metadata, now);
    }
    for (const auto& [key, s] : sessions) {
      auto it = seen_sessions_.find(key);
      if (it == seen_sessions_.end() ||
          it->second.metadata.resource_version != s.metadata.resource_version)
        loop->OnSession(s);
    }
    for (const auto& [node, s] : seen_samplers_) {
      if (!samplers.contains(node)) loop->OnSamplerGone(node);
    }
    for (const auto& [node, s] : samplers) {
      auto it = seen_samplers_.find(node);
      if (it == seen_samplers_.end() ||
          it->second.metadata.resource_version != s.metadata.resource_version)
        loop->OnSampler(s, now);
    }
    for (const auto& [node, r] : reports) {
      auto it = seen_reports_.find(node);
      if (it == seen_reports_.end() ||
          it->second.metadata.resource_version != r.metadata.resource_version)
        loop->OnReport(r);
    }
    for (auto& [ns, listed] : watched) {
      if (!listed) {
        loop->OnPods(ns, PodsOf(ns));
        listed = true;
        continue;
      }
      for (const auto& [uid, pod] : seen_pods_) {
        if (pod.namespace_name == ns && !pods.contains(uid)) loop->OnPodGone(ns, uid);
      }
      for (const auto& [uid, pod] : pods) {
        auto it = seen_pods_.find(uid);
        if (pod.namespace_name == ns &&
            (it == seen_pods_.end() || it->second.resource_version != pod.resource_version)) {
          loop->OnPod(ns, pod, it == seen_pods_.end());
        }
      }
    }
    Remember();
  }

  // A sampler as the contract has it, with figures that follow from the pods' uids.
  void RunSampler(const std::string& node) {
    const api::NodeSamplerSpec& spec = samplers.at(node).spec;
    api::NodeSamplerReport& report = reports.at(node);
    api::NodeSamplerReportStatus after = report.status;
    std::erase_if(after.jobs, [&](const auto& entry) {
      return std::none_of(spec.jobs.begin(), spec.jobs.end(),
                          [&](const api::Job& job) { return job.id == entry.first; });
    });
    for (const api::Job& job : spec.jobs) {
      api::JobReport& r = after.jobs[job.id];
      auto running = [&](const std::string& uid) {
        return pods.contains(uid) && pods.at(uid).containers[0].running;
      };
      if (job.start_time == 0) {
        r.state = api::JobState::kWaiting;
        for (const std::string& uid : job.pod_uids) {
          if (running(uid) && r.first_container_time == 0) r.first_container_time = now;
        }
        continue;
      }
      bool over = job.stop || now >= job.end_time;
      if (r.state == api::JobState::kAccepted || r.state == api::JobState::kWaiting)
        r.state = api::JobState::kSampling;
      if (r.state == api::JobState::kSampling) {
        r.start_time = job.start_time;
        r.cpu = {};
        r.samples = {};
        r.containers.clear();
        for (const std::string& uid : job.pod_uids) {
          if (!running(uid)) continue;
          int64_t ns = 100'000'000 + static_cast<int64_t>(uid.size()) * 1'000'000;
          r.cpu.used_ns += ns;
          r.cpu.sampled_ns += ns;
          r.samples.collected += ns / 10'000'000;
          r.containers.push_back(
              {uid, pods.at(uid).name, "app", "Cpp", "Sampled", "", "", ns, ns / 10'000'000});
        }
        r.sums = {{"cpu", r.cpu.used_ns}};
        r.top = {{"cpu", "Work" + node, "work.cc:1", "Cpp", r.cpu.used_ns, r.cpu.used_ns / 2}};
        r.sinks = {{"default", "Pending", "", "http://store:4040", 0, 1}};
        r.windows = {0, 1, 0};
        if (over) r.state = api::JobState::kSampled;
      } else if (r.state == api::JobState::kSampled && !no_publishing.contains(node)) {
        r.state = api::JobState::kPublished;
        r.windows = {1, 0, 0};
        r.sinks = {{"default", "Published", "", "http://store:4040", 1, 0}};
      }
    }
    if (after == report.status) return;
    report.status = after;
    report.metadata.resource_version = NextVersion();
  }

  uint64_t version_ = 100;
  bool dead_ = false;
  int64_t restart_at_ = 0;
  std::map<std::string, api::ProfilingSession> seen_sessions_;
  std::map<std::string, api::NodeSampler> seen_samplers_;
  std::map<std::string, api::NodeSamplerReport> seen_reports_;
  std::map<std::string, Pod> seen_pods_;
};

inline api::ProfilingSessionSpec Selecting(std::map<std::string, std::string> labels, int seconds) {
  api::ProfilingSessionSpec spec;
  spec.target.pod_selector = api::LabelSelector{std::move(labels), {}};
  spec.duration_seconds = seconds;
  return spec;
}

}  // namespace borescope::op
