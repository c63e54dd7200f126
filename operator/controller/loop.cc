// SPDX-License-Identifier: Apache-2.0
#include "operator/controller/loop.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/strings.h"
#include "operator/session/targets.h"

namespace borescope::op {
namespace {

// Several sessions that change a node at about the same time are one write.
constexpr int64_t kCoalesce = 20'000'000;

// resourceVersions of one kind are comparable; what does not parse is taken as new.
bool Older(const api::ObjectMeta& candidate, const api::ObjectMeta& known) {
  auto a = ParseUint(candidate.resource_version), b = ParseUint(known.resource_version);
  return a && b && *a < *b;
}

}  // namespace

Loop::Loop(ApiServer* server, std::string cluster, std::string store_url) : server_(server) {
  world_.cluster = std::move(cluster);
  world_.store_url = std::move(store_url);
}

// ---- What happened
// -------------------------------------------------------------------------------------------------------------

void Loop::OnSamplers(std::vector<api::NodeSampler> samplers, int64_t now) {
  std::set<std::string> names;
  for (api::NodeSampler& sampler : samplers) {
    names.insert(sampler.metadata.name);
    OnSampler(std::move(sampler), now);
  }
  std::vector<std::string> gone;
  for (const auto& [node, sampler] : world_.samplers) {
    if (!names.contains(node)) gone.push_back(node);
  }
  for (const std::string& node : gone) OnSamplerGone(node);
}

void Loop::OnSessions(std::vector<api::ProfilingSession> sessions, int64_t now) {
  std::set<std::string> keys;
  for (api::ProfilingSession& session : sessions) {
    keys.insert(SessionKey(session.metadata));
    OnSession(std::move(session));
  }
  std::vector<api::ObjectMeta> gone;
  for (const auto& [key, session] : world_.sessions) {
    if (!keys.contains(key)) gone.push_back(session.metadata);
  }
  for (const auto& [key, session] : world_.finished) {
    if (!keys.contains(key)) gone.push_back(session.metadata);
  }
  for (const api::ObjectMeta& metadata : gone) OnSessionGone(metadata, now);
  // Jobs whose session is not among them are orphans: look at every node once.
  for (const auto& [node, sampler] : world_.samplers) DirtyNode(node, now);
}

void Loop::OnReports(std::vector<api::NodeSamplerReport> reports, int64_t now) {
  std::set<std::string> names;
  for (api::NodeSamplerReport& report : reports) {
    names.insert(report.metadata.name);
    OnReport(std::move(report));
  }
  std::vector<std::string> gone;
  for (const auto& [node, report] : world_.reports) {
    if (!names.contains(node)) gone.push_back(node);
  }
  for (const std::string& node : gone) OnReportGone(node);
  OnReconnect(now);
}

void Loop::OnSampler(api::NodeSampler sampler, int64_t now) {
  std::string node = sampler.metadata.name;
  auto known = world_.samplers.find(node);
  if (known != world_.samplers.end() && Older(sampler.metadata, known->second.metadata)) return;
  DirtySessionsOf(node);  // of the jobs that stood there
  world_.SetSampler(std::move(sampler));
  DirtySessionsOf(node);
  // Sessions that are not placed yet may have waited for this node.
  for (const auto& [key, session] : world_.sessions) {
    if (!assignments_.contains(key)) dirty_sessions_.insert(key);
  }
  DirtyNode(node, now);
}

void Loop::OnSamplerGone(const std::string& node) {
  DirtySessionsOf(node);
  world_.RemoveSampler(node);
  world_.refused.erase(node);
  dirty_nodes_.erase(node);
}

void Loop::OnSession(api::ProfilingSession session) {
  std::string key = SessionKey(session.metadata);
  const api::ObjectMeta* known = nullptr;
  if (auto it = world_.sessions.find(key); it != world_.sessions.end())
    known = &it->second.metadata;
  if (auto it = world_.finished.find(key); it != world_.finished.end())
    known = &it->second.metadata;
  if (known != nullptr && Older(session.metadata, *known)) return;
  if (known != nullptr && known->uid != session.metadata.uid) {
    api::ObjectMeta before = *known;
    OnSessionGone(before, 0);
  }
  if (IsFinished(session)) {
    world_.sessions.erase(key);
    world_.finished[key] = Summarize(session);
  } else {
    world_.sessions[key] = std::move(session);
  }
  dirty_sessions_.insert(key);
}

void Loop::OnSessionGone(const api::ObjectMeta& session, int64_t now) {
  std::string key = SessionKey(session);
  auto active = world_.sessions.find(key);
  auto finished = world_.finished.find(key);
  bool is_active = active != world_.sessions.end() && active->second.metadata.uid == session.uid;
  bool is_finished =
      finished != world_.finished.end() && finished->second.metadata.uid == session.uid;
  if (!is_active && !is_finished) return;  // of an earlier one of that name
  if (is_active) world_.sessions.erase(active);
  if (is_finished) world_.finished.erase(finished);
  Forget(key, session.uid, now);
  dirty_sessions_.erase(key);
  At(key, 0);
  retries_.erase("s/" + key);
}

void Loop::OnReport(api::NodeSamplerReport report) {
  auto known = world_.reports.find(report.metadata.name);
  if (known != world_.reports.end() && Older(report.metadata, known->second.metadata)) return;
  std::string node = report.metadata.name;
  world_.reports[node] = std::move(report);
  DirtySessionsOf(node);
}

void Loop::OnReportGone(const std::string& node) {
  world_.reports.erase(node);
  DirtySessionsOf(node);
}

void Loop::OnPods(const std::string& ns, std::vector<Pod> pods) {
  auto interest = interest_.find(ns);
  if (interest == interest_.end()) return;
  PodNamespace& known = world_.namespaces[ns];
  known.pods.clear();
  known.total = static_cast<int64_t>(pods.size());
  known.error.clear();
  for (Pod& pod : pods) {
    if (SomebodyWants(pod)) known.pods.insert_or_assign(pod.uid, std::move(pod));
  }
  for (const auto& [key, uid] : interest->second) known.listed_for.insert(uid);
  DirtyNamespace(ns);
}

void Loop::OnPod(const std::string& ns, Pod pod, bool added) {
  auto it = world_.namespaces.find(ns);
  if (it == world_.namespaces.end()) return;
  PodNamespace& known = it->second;
  if (added) ++known.total;
  auto before = known.pods.find(pod.uid);
  if (before != known.pods.end() && pod.resource_version < before->second.resource_version) return;
  if (SomebodyWants(pod)) {
    known.pods.insert_or_assign(pod.uid, std::move(pod));
  } else if (before != known.pods.end()) {
    known.pods.erase(before);
  } else {
    return;
  }
  DirtyNamespace(ns);
}

void Loop::OnPodGone(const std::string& ns, const std::string& uid) {
  auto it = world_.namespaces.find(ns);
  if (it == world_.namespaces.end()) return;
  if (it->second.total > 0) --it->second.total;
  if (it->second.pods.erase(uid) > 0) DirtyNamespace(ns);
}

void Loop::OnPodError(const std::string& ns, std::string error) {
  if (!interest_.contains(ns)) return;
  PodNamespace& known = world_.namespaces[ns];
  if (known.error == error) return;
  known.error = std::move(error);
  DirtyNamespace(ns);
}

void Loop::OnReconnect(int64_t now) {
  world_.listening_since = now;
  for (const auto& [key, session] : world_.sessions) dirty_sessions_.insert(key);
}

// ---- What to do
// ----------------------------------------------------------------------------------------------------------------

int64_t Loop::RunOnce(int64_t now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    std::string key = timers_.begin()->second;
    At(key, 0);
    dirty_sessions_.insert(key);
  }
  // A plan's own writes make its session dirty again; the rounds are bounded so that the clock is
  // read in between.
  for (int round = 0; round < 4 && !dirty_sessions_.empty(); ++round) {
    std::set<std::string> now_dirty = std::exchange(dirty_sessions_, {});
    for (const std::string& key : now_dirty) Plan(key, now);
  }
  std::vector<std::string> due;
  for (const auto& [node, time] : dirty_nodes_) {
    if (time <= now) due.push_back(node);
  }
  for (const std::string& node : due) {
    dirty_nodes_.erase(node);
    WriteNode(node, now);
  }
  if (!dirty_sessions_.empty()) return now;
  int64_t next = timers_.empty() ? 0 : timers_.begin()->first;
  for (const auto& [node, time] : dirty_nodes_) next = next == 0 ? time : std::min(next, time);
  return next;
}

void Loop::Plan(const std::string& key, int64_t now) {
  if (auto finished = world_.finished.find(key); finished != world_.finished.end()) {
    Forget(key, finished->second.metadata.uid, now);
    PlanFinishedSession(FinishedSession(finished->second), now);
    return;
  }
  auto it = world_.sessions.find(key);
  if (it == world_.sessions.end()) return;
  ++stats_.plans;
  SessionPlan plan = PlanSession(world_, it->second, now);
  world_.memory[it->second.metadata.uid] = plan.memory;
  SetAssignments(key, std::move(plan.assignments), now);
  At(key, plan.requeue_at);
  // WriteStatus and ReadAgain may replace the session: what is needed of it later is taken first.
  const api::ProfilingSession session = it->second;
  for (const Lookup& lookup : plan.lookups) Answer(lookup, key, now);
  if (plan.list_pods) ListPods(session, key, now);
  if (plan.status) WriteStatus(session, plan, now);
}

void Loop::PlanFinishedSession(const FinishedSession& session, int64_t now) {
  std::string key = SessionKey(session.metadata);
  FinishedPlan plan = PlanFinished(session, now);
  At(key, plan.requeue_at);
  if (plan.remove) {
    Status status = server_->DeleteSession(session.metadata);
    Count("delete", status);
    if (status.ok() || status.error().code == ErrorCode::kNotFound)
      return;  // the watch says that it is gone
    if (status.error().code == ErrorCode::kConflict)
      return ReadAgain(session.metadata.namespace_name, session.metadata.name, now);
    return BackOff("s/" + key, now, status.error());
  }
  if (!plan.restamp) return;
  auto live = server_->ReadSession(session.metadata.namespace_name, session.metadata.name);
  if (!live.ok()) return BackOff("s/" + key, now, live.error());
  auto written = server_->WriteStatus(*live, Restamped(*live));
  Count("status", written.status());
  if (!written.ok()) return BackOff("s/" + key, now, written.error());
  OnSession(*std::move(written));
}

void Loop::WriteStatus(const api::ProfilingSession& before, SessionPlan& plan, int64_t now) {
  std::string key = SessionKey(before.metadata);
  if (api::IsTrue(plan.status->conditions, "Finished")) server_->Keep(before, *plan.status);
  auto written = server_->WriteStatus(before, *plan.status);
  Count("status", written.status());
  if (!written.ok()) {
    ErrorCode code = written.error().code;
    if (code == ErrorCode::kConflict || code == ErrorCode::kNotFound) {
      return ReadAgain(before.metadata.namespace_name, before.metadata.name, now);
    }
    return BackOff("s/" + key, now, written.error());
  }
  retries_.erase("s/" + key);
  // After the write, so that an event never tells of what did not come about.
  for (const EventNote& event : plan.events) {
    server_->Emit(before.metadata, event);
    ++stats_.events;
  }
  if (api::IsTrue(plan.status->conditions, "Accepted")) MakeReader(before.metadata);
  if (!plan.progress.empty()) {
    SessionMemory& memory = world_.memory[before.metadata.uid];
    memory.progress = plan.progress;
    memory.progress_written = now;
  }
  OnSession(*std::move(written));
}

void Loop::MakeReader(const api::ObjectMeta& session) {
  if (read_.contains(session.uid)) return;
  Status made = server_->MakeReader(session.namespace_name);
  // No answer: tried again with the session's next write. A namespace that is going needs none.
  if (!made.ok() && made.error().code != ErrorCode::kDenied &&
      made.error().code != ErrorCode::kNotFound) {
    return;
  }
  read_.insert(session.uid);
  if (made.ok() || made.error().code == ErrorCode::kNotFound) return;
  server_->Emit(session, {true, "ReaderNotMade",
                          "ServiceAccount borescope-reader could not be made, so that the profile "
                          "can't be read with kubectl borescope: make it with kubectl create "
                          "serviceaccount borescope-reader -n " +
                              session.namespace_name + ", or let the operator (" +
                              made.error().message + ")"});
  ++stats_.events;
}

void Loop::Answer(const Lookup& lookup, const std::string& key, int64_t now) {
  auto answer = server_->Look(lookup);
  Workload workload;
  if (answer.ok()) {
    workload = *std::move(answer);
  } else if (answer.error().code == ErrorCode::kUnavailable ||
             answer.error().code == ErrorCode::kExhausted) {
    return BackOff("s/" + key, now, answer.error());
  } else {
    workload.error = answer.error().message;
  }
  workload.checked_at = now;
  world_.workloads[lookup] = std::move(workload);
  dirty_sessions_.insert(key);
}

void Loop::ListPods(const api::ProfilingSession& session, const std::string& key, int64_t now) {
  const std::string& ns = session.metadata.namespace_name;
  bool watched = interest_.contains(ns);
  bool is_new = interest_[ns].emplace(key, session.metadata.uid).second;
  if (!watched) return server_->WatchPods(ns);
  auto known = world_.namespaces.find(ns);
  if (!is_new || known == world_.namespaces.end())
    return;  // the list that the watch begins with is on its way
  auto pods = server_->ListPods(ns);
  if (!pods.ok()) {
    interest_[ns].erase(key);
    known->second.error = pods.error().message;
    return BackOff("s/" + key, now, pods.error());
  }
  known->second.total = static_cast<int64_t>(pods->size());
  known->second.error.clear();
  for (Pod& pod : *pods) {
    if (!Interesting(world_, session, pod)) continue;
    auto before = known->second.pods.find(pod.uid);
    if (before != known->second.pods.end() &&
        before->second.resource_version > pod.resource_version)
      continue;
    known->second.pods.insert_or_assign(pod.uid, std::move(pod));
  }
  known->second.listed_for.insert(session.metadata.uid);
  dirty_sessions_.insert(key);
}

void Loop::WriteNode(const std::string& node, int64_t now) {
  auto sampler = world_.samplers.find(node);
  if (sampler == world_.samplers.end()) return;
  std::vector<const Assignment*> wanted;
  if (auto sessions = sessions_on_.find(node); sessions != sessions_on_.end()) {
    for (const std::string& key : sessions->second) wanted.push_back(&assignments_[key][node]);
  }
  NodePlan plan = ComposeNodeSpec(wanted, sampler->second.spec);
  if (plan.refused != world_.refused[node]) {
    world_.refused[node] = plan.refused;
    DirtySessionsOf(node);
  }
  if (plan.spec == sampler->second.spec) return;
  auto written = server_->WriteSpec(sampler->second, plan.spec);
  Count("spec", written.status());
  if (written.ok()) {
    retries_.erase("n/" + node);
    return OnSampler(*std::move(written), now);
  }
  if (written.error().code == ErrorCode::kConflict ||
      written.error().code == ErrorCode::kNotFound) {
    auto live = server_->ReadSampler(node);
    if (live.ok()) return OnSampler(*std::move(live), now);
    if (live.error().code == ErrorCode::kNotFound) return OnSamplerGone(node);
    return BackOff("n/" + node, now, live.error());
  }
  BackOff("n/" + node, now, written.error());
}

void Loop::SetAssignments(const std::string& key, std::map<std::string, Assignment> assignments,
                          int64_t now) {
  auto& current = assignments_[key];
  for (const auto& [node, assignment] : current) {
    if (assignments.contains(node)) continue;
    sessions_on_[node].erase(key);
    if (sessions_on_[node].empty()) sessions_on_.erase(node);
    DirtyNode(node, now);
  }
  for (const auto& [node, assignment] : assignments) {
    auto it = current.find(node);
    if (it != current.end() && it->second == assignment) continue;
    sessions_on_[node].insert(key);
    DirtyNode(node, now);
  }
  current = std::move(assignments);
  if (current.empty()) assignments_.erase(key);
}

void Loop::Forget(const std::string& key, const std::string& uid, int64_t now) {
  SetAssignments(key, {}, now);
  world_.memory.erase(uid);
  read_.erase(uid);
  size_t slash = key.find('/');
  std::string ns = key.substr(0, slash);
  // Also of sessions that never came as far as pods: their workload was missing.
  auto left = world_.sessions.lower_bound(ns + "/");
  if (left == world_.sessions.end() || !left->first.starts_with(ns + "/")) {
    std::erase_if(world_.workloads,
                  [&](const auto& entry) { return entry.first.namespace_name == ns; });
  }
  auto interest = interest_.find(ns);
  if (interest == interest_.end() || interest->second.erase(key) == 0) return;
  if (interest->second.empty()) {
    interest_.erase(interest);
    server_->UnwatchPods(ns);
    world_.namespaces.erase(ns);
    return;
  }
  auto known = world_.namespaces.find(ns);
  if (known == world_.namespaces.end()) return;
  known->second.listed_for.erase(uid);
  std::erase_if(known->second.pods,
                [&](const auto& entry) { return !SomebodyWants(entry.second); });
}

void Loop::ReadAgain(const std::string& ns, const std::string& name, int64_t now) {
  std::string key = ns + "/" + name;
  auto live = server_->ReadSession(ns, name);
  if (live.ok()) return OnSession(*std::move(live));
  if (live.error().code != ErrorCode::kNotFound) return BackOff("s/" + key, now, live.error());
  if (auto it = world_.sessions.find(key); it != world_.sessions.end()) {
    OnSessionGone(api::ObjectMeta(it->second.metadata), now);
  } else if (auto done = world_.finished.find(key); done != world_.finished.end()) {
    OnSessionGone(api::ObjectMeta(done->second.metadata), now);
  }
}

// ---- Small things
// --------------------------------------------------------------------------------------------------------------

bool Loop::SomebodyWants(const Pod& pod) const {
  auto interest = interest_.find(pod.namespace_name);
  if (interest == interest_.end()) return false;
  return std::any_of(interest->second.begin(), interest->second.end(), [&](const auto& entry) {
    auto session = world_.sessions.find(entry.first);
    return session != world_.sessions.end() && Interesting(world_, session->second, pod);
  });
}

void Loop::DirtyNode(const std::string& node, int64_t now) {
  if (world_.samplers.contains(node)) dirty_nodes_.try_emplace(node, now + kCoalesce);
}

void Loop::DirtyNamespace(const std::string& ns) {
  auto interest = interest_.find(ns);
  if (interest == interest_.end()) return;
  for (const auto& [key, uid] : interest->second) dirty_sessions_.insert(key);
}

void Loop::DirtySessionsOf(const std::string& node) {
  if (auto sessions = sessions_on_.find(node); sessions != sessions_on_.end()) {
    dirty_sessions_.insert(sessions->second.begin(), sessions->second.end());
  }
  if (auto sampler = world_.samplers.find(node); sampler != world_.samplers.end()) {
    for (const api::Job& job : sampler->second.spec.jobs) {
      if (world_.sessions.contains(SessionKey(job.session)))
        dirty_sessions_.insert(SessionKey(job.session));
    }
  }
}

void Loop::At(const std::string& key, int64_t time) {
  if (auto it = timer_of_.find(key); it != timer_of_.end()) {
    timers_.erase({it->second, key});
    timer_of_.erase(it);
  }
  if (time == 0) return;
  timers_.emplace(time, key);
  timer_of_[key] = time;
}

void Loop::BackOff(const std::string& what, int64_t now, const Error& error) {
  int64_t at = now + std::chrono::nanoseconds(retries_[what].backoff.Next()).count();
  Log(LogLevel::kWarning, "will try again",
      {{"what", what.substr(2)}, {"error", error.ToString()}});
  if (what[0] == 'n') {
    if (world_.samplers.contains(what.substr(2))) dirty_nodes_[what.substr(2)] = at;
    return;
  }
  std::string key = what.substr(2);
  auto timer = timer_of_.find(key);
  if (timer == timer_of_.end() || timer->second > at) At(key, at);
}

void Loop::Count(std::string_view kind, const Status& status) {
  std::string result = status.ok()                                   ? "ok"
                       : status.error().code == ErrorCode::kConflict ? "conflict"
                                                                     : "error";
  ++stats_.writes[{std::string(kind), result}];
}

}  // namespace borescope::op
