// SPDX-License-Identifier: Apache-2.0
#include "operator/session/reconcile.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "common/api/json.h"
#include "common/base/clock.h"
#include "operator/session/refusals.h"
#include "operator/session/results.h"
#include "operator/session/targets.h"

namespace borescope::op {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;
// A refusal must come within 5 s; what could still change is given this long.
constexpr int64_t kPatience = 3 * kSecond;
// How late the first container's report may come after the wait is over.
constexpr int64_t kWaitGrace = 1 * kSecond;
// Below, loss is noise and no reason to call a session degraded.
constexpr int64_t kLostPerMilleDegraded = 5;

enum class PodState { kPending, kWaiting, kSampling, kPublishing, kSucceeded, kFailed };
constexpr std::string_view kPodStateNames[] = {"Pending",    "Waiting",   "Sampling",
                                               "Publishing", "Succeeded", "Failed"};

// One pod of the session, and how it stands.
struct PodView {
  std::string uid, name, node;
  PodState state = PodState::kPending;
  std::string reason, message;
};

// One node of the session, and how it stands.
struct NodeView {
  std::string node;
  const Assignment* assignment = nullptr;
  const api::Job* given = nullptr;  // as it stands in the NodeSampler now
  const api::JobReport* report = nullptr;
  PodState state = PodState::kPending;  // kSucceeded: everything stored
  std::string reason, message;          // of kFailed, and of kPending when the sampler is silent
  bool silent = false;                  // no answer for kAnswerTime
  bool final() const { return state == PodState::kSucceeded || state == PodState::kFailed; }
};

class Planner {
 public:
  Planner(const World& world, const api::ProfilingSession& session, int64_t now)
      : world_(world),
        session_(session),
        now_(now),
        job_id_(JobIdOf(session)),
        status_(session.status) {}

  SessionPlan Run() {
    if (auto it = world_.memory.find(session_.metadata.uid); it != world_.memory.end())
      plan_.memory = it->second;
    if (plan_.memory.first_seen == 0) plan_.memory.first_seen = now_;
    if (session_.metadata.deletion_time != 0)
      return std::move(plan_);  // deletion is the stop: no jobs, no more words
    status_.observed_generation = session_.metadata.generation;
    if (api::IsTrue(session_.status.conditions, "Accepted")) {
      Follow();
    } else {
      Accept();
    }
    // As it would be written: texts are cut to the bounds of the CRD on their way, so that what was
    // read back is never equal to a longer one.
    if (!api::SessionStatusPatch(session_.metadata, session_.status, status_).empty()) {
      plan_.events = Transitions();
      plan_.status = std::move(status_);
    }
    return std::move(plan_);
  }

 private:
  const api::Target& target() const { return session_.spec.target; }
  const std::string& ns() const { return session_.metadata.namespace_name; }
  bool stop() const { return session_.spec.desired_state == api::DesiredState::kStop; }

  void Set(std::string_view type, std::string_view state, std::string_view reason,
           std::string message) {
    api::SetCondition(status_.conditions,
                      {.type = std::string(type),
                       .status = std::string(state),
                       .reason = std::string(reason),
                       .message = std::move(message),
                       .observed_generation = session_.metadata.generation},
                      now_);
  }
  void Requeue(int64_t at) {
    if (at > now_ && (plan_.requeue_at == 0 || at < plan_.requeue_at)) plan_.requeue_at = at;
  }

  // ---- Before acceptance
  // ---------------------------------------------------------------------------------------------------

  void Accept() {
    if (stop()) {
      const std::string kMessage = "`spec.desiredState` is 'Stop': stopped before it began";
      Set("Accepted", "False", "Stopped", kMessage);
      return Finish(api::Phase::kStopped, "Stopped", kMessage);
    }
    if (auto problem = Unsupported(session_.spec)) return Refuse(problem->reason, problem->message);

    Match match = MatchPods(world_, session_, now_);
    if (!match.known) {
      plan_.lookups = match.lookups;
      plan_.list_pods = match.list_pods;
      if (!match.error.empty() && now_ >= plan_.memory.first_seen + kPatience) {
        return Refuse("TargetsUnreadable",
                      "the pods of " + DescribeTarget(target()) + " can't be read: " + match.error +
                          "; the operator's service account needs get, list and watch on them");
      }
      return Pend("Resolving", match.error.empty()
                                   ? "looking for the pods of " + DescribeTarget(target())
                                   : match.error);
    }
    bool may_wait = target().wait_seconds > 0;
    if (match.pods.empty()) {
      if (may_wait) return AcceptNow(0, match);
      return Refuse("NoMatchingPods", NothingMatched(world_, session_, match));
    }
    if (auto message = UnknownContainer(session_.spec.target, match.pods))
      return Refuse("UnknownContainer", *message);

    std::vector<const Pod*> usable;
    std::optional<Problem> problem;
    for (const Pod* pod : match.pods) {
      if (pod->node.empty()) continue;
      auto found = NodeProblem(world_, session_.spec, *pod);
      if (!found) {
        usable.push_back(pod);
      } else if (!problem || (found->passing && !problem->passing)) {
        problem = found;
      }
    }
    if (usable.empty() && problem) {
      if (problem->passing && now_ < plan_.memory.first_seen + kPatience) {
        Requeue(plan_.memory.first_seen + kPatience);
        return Pend(problem->reason, problem->message);
      }
      return Refuse(problem->reason, problem->message);
    }
    if (usable.empty()) {
      if (may_wait) return AcceptNow(0, match);
      return Refuse(
          "NoRunningPods",
          DescribeTarget(target()) + " names " + Count(match.pods.size(), "pod") +
              " in namespace " + Quote(ns()) +
              ", but none is bound to a node yet: " + List(NamesOf(match.pods)) +
              "; see `kubectl describe pod`, or set `spec.target.waitSeconds` to wait for one");
    }
    bool running =
        std::any_of(usable.begin(), usable.end(), [&](const Pod* pod) { return Runs(*pod); });
    AcceptNow(may_wait && !running ? 0 : now_ / kMillisecond * kMillisecond, match);
  }

  void AcceptNow(int64_t start, const Match& match) {
    status_.targets.matched = static_cast<int64_t>(match.pods.size());
    status_.phase = start == 0 ? api::Phase::kWaiting : api::Phase::kPending;
    if (start != 0) {
      SetWindow(start);
      Set("Accepted", "True", "Valid",
          "window fixed: " + FormatMicroTime(status_.start_time) + " to " +
              FormatMicroTime(status_.end_time));
      Set("TargetsResolved", "True", "Resolved",
          DescribeTarget(target()) + " names " + Count(match.pods.size(), "pod"));
      Set("Started", "False", "NotStarted", "the samplers are being told");
    } else {
      Set("Accepted", "True", "Valid",
          "waits at most " + std::to_string(target().wait_seconds) +
              " s for a first running container");
      Set("TargetsResolved", "Unknown", "Waiting",
          DescribeTarget(target()) + " names " + Count(match.pods.size(), "pod") +
              " so far, none of them runs");
      Set("Started", "False", "Waiting", "the window begins with the first container");
    }
    Set("Published", "False", "NotStarted", "nothing has been sampled yet");
    Unfinished();
    Set("Degraded", "False", "AsExpected", "");
  }

  void Unfinished() {
    Set("Finished", "False", "Running", "");
    Set("Complete", "False", "NotFinished", "");
    Set("Failed", "False", "NotFailed", "");
  }

  // Not decided yet. Said only when it takes so long that somebody may look.
  void Pend(std::string_view reason, std::string message) {
    if (now_ < plan_.memory.first_seen + kSecond && !status_.phase) {
      Requeue(plan_.memory.first_seen + kSecond);
      status_ = session_.status;
      return;
    }
    Requeue(now_ + kSecond);
    status_.phase = api::Phase::kPending;
    Set("Accepted", "Unknown", reason, message);
    Set("TargetsResolved", "Unknown", reason, message);
    Set("Started", "False", "NotStarted", "");
    Set("Published", "False", "NotStarted", "");
    Unfinished();
    Set("Degraded", "False", "AsExpected", "");
  }

  void Refuse(std::string_view reason, const std::string& message) {
    Set("Accepted", "False", reason, message);
    Finish(api::Phase::kFailed, reason, message);
  }

  bool Wanted(const std::string& container) const {
    const auto& names = target().container_names;
    return names.empty() || std::find(names.begin(), names.end(), container) != names.end();
  }
  bool Runs(const Pod& pod) const {
    return std::any_of(pod.containers.begin(), pod.containers.end(),
                       [&](const auto& c) { return c.running && Wanted(c.name); });
  }

  // ---- From acceptance to the end
  // ------------------------------------------------------------------------------------------

  int64_t accepted_at() const {
    return api::FindCondition(session_.status.conditions, "Accepted")->last_transition_time;
  }
  int64_t wait_until() const { return accepted_at() + target().wait_seconds * kSecond; }
  int64_t duration() const { return session_.spec.duration_seconds * kSecond; }
  void SetWindow(int64_t start) {
    status_.start_time = start;
    status_.end_time = start + duration();
  }
  // Whether any plan was written since acceptance, which leaves "NotStarted".
  bool followed() const {
    const api::Condition* published = api::FindCondition(session_.status.conditions, "Published");
    return published != nullptr && published->reason != "NotStarted";
  }
  bool waiting() const { return session_.status.start_time == 0; }
  // Ended before its time, by the user.
  bool stopped() const {
    return status_.start_time != 0 && status_.end_time < status_.start_time + duration();
  }

  void Follow() {
    if (stop()) {
      if (waiting())
        return Finish(api::Phase::kStopped, "Stopped",
                      "`spec.desiredState` is 'Stop': stopped before a container ran");
      status_.end_time = std::min(status_.end_time, now_);
    }
    open_ = !stop() && now_ < (waiting() ? wait_until() : status_.end_time);
    Match match = MatchPods(world_, session_, now_);
    plan_.lookups = match.lookups;
    plan_.list_pods = match.list_pods;
    if (open_ && !match.missing.empty()) Requeue(now_ + 2 * kSecond);
    Keep();
    if (open_ && match.known) {
      if (waiting() && !match.pods.empty()) {
        if (auto message = UnknownContainer(session_.spec.target, match.pods))
          return Refuse("UnknownContainer", *message);
      }
      Pick(match);
    }
    if (waiting()) BeginWithFirstContainer();
    LookAtNodes();
    CountTargets(match);
    if (waiting() && status_.start_time == 0) {
      StillWaiting(match);
    } else {
      Describe();
    }
  }

  // The pods that samplers already have stay: their records stand in the NodeSamplers, whatever has
  // become of the pods.
  void Keep() {
    auto nodes = world_.nodes_of.find(job_id_);
    if (nodes == world_.nodes_of.end()) return;
    for (const std::string& node : nodes->second) {
      const api::Job* job = world_.FindJob(node, job_id_);
      Assignment& assignment = NewAssignment(node);
      for (const std::string& uid : job->pod_uids) {
        const api::NodePod* pod = world_.FindPod(node, uid);
        if (pod == nullptr) continue;
        api::NodePod copy = *pod;
        std::erase_if(copy.pod_labels, [&](const auto& label) {
          const auto& wanted = session_.spec.pod_labels;
          return std::find(wanted.begin(), wanted.end(), label.first) == wanted.end();
        });
        assignment.job.pod_uids.push_back(uid);
        assignment.pods.push_back(std::move(copy));
        kept_.insert(uid);
      }
    }
  }

  // Fills what is left of maxPods with pods that came since.
  void Pick(const Match& match) {
    std::vector<const Pod*> already, candidates;
    std::vector<std::pair<const Pod*, Problem>> unusable;
    for (const Pod* pod : match.pods) {
      if (kept_.contains(pod->uid)) {
        already.push_back(pod);
      } else if (!pod->node.empty()) {
        auto problem = NodeProblem(world_, session_.spec, *pod);
        // A node that has the job has passed these checks, and may be in the middle of a restart.
        if (problem && !plan_.assignments.contains(pod->node)) {
          unusable.emplace_back(pod, *problem);
        } else {
          candidates.push_back(pod);
        }
      }
    }
    size_t most = static_cast<size_t>(target().max_pods);
    size_t slots = most > already.size() ? most - already.size() : 0;
    std::vector<const Pod*> chosen = ChoosePods(candidates, already, slots, session_.metadata.uid);
    for (const Pod* pod : chosen) {
      Assignment& assignment = NewAssignment(pod->node);
      Controller top = *TopController(world_, *pod, nullptr);
      assignment.job.pod_uids.push_back(pod->uid);
      assignment.pods.push_back(MakeNodePod(*pod, top, world_.cluster, session_.spec.pod_labels));
    }
    for (auto& [node, assignment] : plan_.assignments) {
      std::sort(assignment.job.pod_uids.begin(), assignment.job.pod_uids.end());
      std::sort(assignment.pods.begin(), assignment.pods.end(),
                [](const auto& a, const auto& b) { return a.uid < b.uid; });
    }
    // Pods that would have been chosen but for their node count as failed, so that "3/5" is honest.
    size_t left = slots - chosen.size();
    for (const auto& [pod, problem] : unusable) {
      if (left-- == 0) break;
      pods_.push_back({pod->uid, pod->name, pod->node,
                       problem.passing ? PodState::kPending : PodState::kFailed, problem.reason,
                       problem.message});
    }
  }

  Assignment& NewAssignment(const std::string& node) {
    auto [it, is_new] = plan_.assignments.try_emplace(node);
    if (!is_new) return it->second;
    const api::ProfilingSessionSpec& spec = session_.spec;
    const api::ProfilingSessionStatus& written =
        session_.status;  // never what is only about to be written
    api::Job& job = it->second.job;
    job.id = job_id_;
    job.session = {ns(), session_.metadata.name, session_.metadata.uid};
    job.container_names = spec.target.container_names;
    for (const api::Profile& profile : spec.profiles) {
      job.profiles.push_back(
          {profile.name, std::string(api::ProfileKindName(profile.kind)), profile.frequency_hertz});
    }
    job.kernel_stacks = spec.kernel_stacks;
    job.pod_labels = spec.pod_labels;
    job.labels = spec.labels;
    job.sink_names = spec.sink_names;
    job.duration_seconds = spec.duration_seconds;
    job.start_time = written.start_time;
    if (written.start_time != 0) job.end_time = written.start_time + duration();
    if (target().wait_seconds > 0) job.wait_until = wait_until();
    job.publish_deadline_seconds = spec.publish_deadline_seconds;
    job.budget = spec.budget;
    job.stop = stop();
    return it->second;
  }

  void BeginWithFirstContainer() {
    int64_t first = 0;
    for (const auto& [node, assignment] : plan_.assignments) {
      const api::JobReport* report = world_.FindReport(node, job_id_);
      if (report == nullptr || report->first_container_time == 0) continue;
      // A node's word moves the window of all: it can't be before the session or in the future.
      int64_t time =
          std::clamp(report->first_container_time, accepted_at(), std::max(now_, accepted_at()));
      first = first == 0 ? time : std::min(first, time);
    }
    if (first != 0) SetWindow(first);
  }

  int64_t publish_deadline() const {
    return std::max(status_.end_time + session_.spec.publish_deadline_seconds * kSecond,
                    world_.listening_since + kSilenceGrace);
  }
  int64_t silence_deadline() const {
    int64_t grace = std::min(kSilenceGrace, session_.spec.publish_deadline_seconds * kSecond);
    return std::max(status_.end_time, world_.listening_since) + grace;
  }

  void LookAtNodes() {
    std::map<std::string, int64_t> given_at;
    for (const auto& [node, assignment] : plan_.assignments) {
      NodeView view;
      view.node = node;
      view.assignment = &assignment;
      view.given = world_.FindJob(node, job_id_);
      view.report = world_.FindReport(node, job_id_);
      if (view.given != nullptr) {
        auto known = plan_.memory.given_at.find(node);
        given_at[node] = known == plan_.memory.given_at.end() ? now_ : known->second;
      }
      Judge(view, view.given != nullptr ? given_at[node] : now_);
      nodes_.push_back(std::move(view));
    }
    plan_.memory.given_at = std::move(given_at);
    // Nobody who could sample: no reason to make the user wait for the end of the window.
    auto none = [&](auto predicate) {
      return !nodes_.empty() && std::all_of(nodes_.begin(), nodes_.end(), predicate);
    };
    bool began = api::IsTrue(session_.status.conditions, "Started");
    unanswered_ = !began && none([](const NodeView& n) { return n.silent; });
    hopeless_ =
        !began && none([](const NodeView& n) { return n.silent || n.state == PodState::kFailed; });
    hopeless_ |= none([](const NodeView& n) { return n.state == PodState::kFailed; });
    for (NodeView& view : nodes_) {
      if (hopeless_ && view.silent) view.state = PodState::kFailed;
      LookAtPods(view);
    }
    Remember();
  }

  // What the status said of pods that can't be judged any more: a node that went away took its
  // objects along, and pods that no node could take are not looked for after the end.
  void Remember() {
    for (const api::TargetDetail& row : session_.status.target_details) {
      bool known = std::any_of(pods_.begin(), pods_.end(), [&](const PodView& pod) {
        return pod.name == row.pod && pod.node == row.node;
      });
      if (known || row.node.empty()) continue;
      bool never_placed = row.reason == "NoSamplerOnNode";
      if (!never_placed && !world_.samplers.contains(row.node)) {
        pods_.push_back({"", row.pod, row.node, PodState::kFailed, "NodeGone",
                         "the NodeSampler of node " + Quote(row.node) +
                             " is gone, and with it what it had not published"});
      } else if (!open_ && row.state == kPodStateNames[static_cast<size_t>(PodState::kFailed)]) {
        pods_.push_back({"", row.pod, row.node, PodState::kFailed, row.reason, row.message});
      }
    }
  }

  void Fail(NodeView& view, std::string_view reason, std::string message) const {
    view.state = PodState::kFailed;
    view.reason = reason;
    view.message = std::move(message);
  }

  void Judge(NodeView& view, int64_t given_at) {
    bool window = status_.start_time != 0;
    if (view.given == nullptr) {
      auto refused = world_.refused.find(view.node);
      if (refused != world_.refused.end() && refused->second.contains(job_id_)) {
        return Fail(view, "TooManyTargetsOnNode",
                    "node " + Quote(view.node) +
                        " has no room for this job: its NodeSampler holds at most " +
                        std::to_string(api::kMaxJobsPerNode) + " jobs, " +
                        std::to_string(api::kMaxPodsPerNode) + " pods, " +
                        std::to_string(kMaxPodLabels) + " `podLabels` of one pod and " +
                        std::to_string(api::kMaxNodeSamplerSpecBytes >> 10) +
                        " KiB; lower `spec.target.maxPods`, ask for fewer `spec.podLabels`, or "
                        "wait for other sessions to end");
      }
    } else if (view.report == nullptr) {
      int64_t answer_by = std::max(given_at, world_.listening_since) + kAnswerTime;
      view.silent = now_ >= answer_by;
      Requeue(answer_by);
      if (view.silent) {
        view.reason = "SamplerNotResponding";
        view.message = "the sampler on node " + Quote(view.node) +
                       " has not taken up the job within 3 s; is its pod running? See its log, and "
                       "`kubectl describe nodesampler " +
                       view.node + "`";
      }
    } else {
      switch (view.report->state) {
        case api::JobState::kAccepted:
          view.state = PodState::kPending;
          break;
        case api::JobState::kWaiting:
          view.state = PodState::kWaiting;
          break;
        case api::JobState::kSampling:
          view.state = PodState::kSampling;
          break;
        case api::JobState::kSampled:
          view.state = PodState::kPublishing;
          break;
        case api::JobState::kPublished:
          view.state = PodState::kSucceeded;
          return;
        case api::JobState::kFailed:
          return Fail(view, view.report->reason.empty() ? "SamplerFailed" : view.report->reason,
                      view.report->message);
      }
    }
    if (!window || now_ < status_.end_time) return;
    Requeue(silence_deadline());
    Requeue(publish_deadline());
    if (now_ >= publish_deadline() && view.state == PodState::kPublishing) {
      Fail(view, "PublishFailed",
           "after " + std::to_string(session_.spec.publish_deadline_seconds) + " s " +
               Count(static_cast<size_t>(std::max<int64_t>(view.report->windows.pending, 0)),
                     "window") +
               " of node " + Quote(view.node) + " are not stored yet" + SinkMessage(*view.report) +
               "; see `kubectl logs` of the sampler, and whether the sink answers");
    } else if (now_ >= silence_deadline() && view.state != PodState::kPublishing) {
      Fail(view, "SamplerLost",
           "the sampler on node " + Quote(view.node) +
               " has not reported the end of the job; what it had not published is lost. See "
               "whether its pod and node are up");
    }
  }

  static std::string SinkMessage(const api::JobReport& report) {
    for (const api::ReportedSink& sink : report.sinks) {
      if (!sink.message.empty()) return " (sink " + Quote(sink.name) + ": " + sink.message + ")";
    }
    return "";
  }

  const Pod* CachedPod(const std::string& uid) const {
    auto it = world_.namespaces.find(ns());
    if (it == world_.namespaces.end()) return nullptr;
    auto pod = it->second.pods.find(uid);
    return pod == it->second.pods.end() ? nullptr : &pod->second;
  }

  void LookAtPods(const NodeView& view) {
    for (const api::NodePod& node_pod : view.assignment->pods) {
      PodView pod{node_pod.uid, node_pod.name, view.node, view.state, view.reason, view.message};
      const auto* given = view.given;
      bool on_node = given != nullptr && std::find(given->pod_uids.begin(), given->pod_uids.end(),
                                                   node_pod.uid) != given->pod_uids.end();
      auto refused = world_.refused.find(view.node);
      if (!on_node && refused != world_.refused.end() && refused->second.contains(job_id_) &&
          view.state != PodState::kFailed) {
        pod.state = PodState::kFailed;
        pod.reason = "TooManyTargetsOnNode";
        pod.message = "the NodeSampler of node " + Quote(view.node) +
                      " is full; lower `spec.target.maxPods`, ask for fewer `spec.podLabels`, or "
                      "wait for other sessions to end";
      } else if (view.report != nullptr && view.state != PodState::kFailed) {
        JudgePod(*view.report, node_pod.uid, pod);
      }
      pods_.push_back(std::move(pod));
    }
  }

  void JudgePod(const api::JobReport& report, const std::string& uid, PodView& pod) const {
    const Pod* cached = CachedPod(uid);
    bool seen = false, alive = false;
    for (const api::ReportedContainer& container : report.containers) {
      if (container.pod_uid != uid) continue;
      seen = true;
      alive |= container.state != "Failed";
      if (container.state == "Failed" && pod.reason.empty()) {
        pod.reason = container.reason;
        pod.message = container.message;
      }
    }
    if (seen && !alive) {
      pod.state = PodState::kFailed;
      return;
    }
    pod.reason.clear();
    pod.message.clear();
    // A report names the containers that used CPU time; an idle one is known from the pod's status.
    bool ran = seen || (cached != nullptr &&
                        std::any_of(cached->containers.begin(), cached->containers.end(),
                                    [&](const auto& c) { return c.started && Wanted(c.name); }));
    if (!ran && pod.state == PodState::kSampling) pod.state = PodState::kPending;
    if (!ran && pod.state == PodState::kSucceeded) {
      pod.state = PodState::kFailed;
      pod.reason = "NotRunning";
      pod.message =
          "none of its chosen containers ran inside the window; see `kubectl describe pod " +
          pod.name + " -n " + ns() + "`";
      return;
    }
    if (cached != nullptr && cached->creation_time > status_.start_time + kSecond &&
        cached->creation_time < status_.end_time) {
      pod.message = "created " +
                    std::to_string((cached->creation_time - status_.start_time) / kSecond) +
                    " s into the window: the rest of it was sampled";
    }
  }

  void CountTargets(const Match& match) {
    std::set<std::string> uids;
    for (const PodView& pod : pods_) uids.insert(pod.uid);
    size_t chosen = pods_.size();
    size_t matched = chosen;
    if (match.known) {
      for (const Pod* pod : match.pods) matched += uids.insert(pod->uid).second ? 1 : 0;
    }
    api::TargetCounts counts;
    counts.matched = std::max(status_.targets.matched, static_cast<int64_t>(matched));
    // Details are bounded: pods that fell off the list are still among those that failed.
    counts.selected = open_ ? static_cast<int64_t>(chosen)
                            : std::max(static_cast<int64_t>(chosen), status_.targets.selected);
    counts.failed = counts.selected - static_cast<int64_t>(chosen);
    for (const PodView& pod : pods_) {
      counts.sampling += pod.state == PodState::kSampling ? 1 : 0;
      counts.succeeded += pod.state == PodState::kSucceeded ? 1 : 0;
      counts.failed += pod.state == PodState::kFailed ? 1 : 0;
    }
    // Between the end of sampling and the last window's 200 a pod is neither: it keeps its place in
    // "3/5".
    for (const PodView& pod : pods_) counts.sampling += pod.state == PodState::kPublishing ? 1 : 0;
    status_.targets = counts;
  }

  void StillWaiting(const Match& match) {
    status_.phase = api::Phase::kWaiting;
    Details();
    if (now_ < wait_until() + kWaitGrace) {
      Requeue(wait_until());
      Requeue(wait_until() + kWaitGrace);
      if (unanswered_) return Refuse("SamplerNotResponding", nodes_.front().message);
      if (!hopeless_) return;
    }
    auto failed = std::find_if(pods_.begin(), pods_.end(),
                               [](const PodView& p) { return p.state == PodState::kFailed; });
    if (failed != pods_.end()) return Finish(api::Phase::kFailed, failed->reason, failed->message);
    Finish(api::Phase::kFailed, match.pods.empty() ? "NoMatchingPods" : "NoRunningPods",
           "no container of " + DescribeTarget(target()) +
               " ran within `spec.target.waitSeconds` (" + std::to_string(target().wait_seconds) +
               " s); " + Count(match.pods.size(), "pod") + " matched. See `kubectl get pods -n " +
               ns() + "`, or wait longer");
  }

  void Describe() {
    std::vector<const api::JobReport*> reports;
    std::set<std::string> sampling_nodes, versions;
    std::string progress;
    for (const NodeView& view : nodes_) {
      if (view.report == nullptr) continue;
      reports.push_back(view.report);
      progress += view.node + ":" + std::to_string(static_cast<int>(view.report->state)) + ":" +
                  std::to_string(view.report->samples.collected) + ":" +
                  std::to_string(view.report->cpu.used_ns) + ":" +
                  std::to_string(view.report->windows.stored) + ":" +
                  std::to_string(view.report->windows.pending) + ";";
      bool armed = view.report->state == api::JobState::kSampling ||
                   view.report->state == api::JobState::kSampled ||
                   view.report->state == api::JobState::kPublished;
      if (armed || view.report->samples.collected > 0) sampling_nodes.insert(view.node);
    }
    for (const auto& [node, assignment] : plan_.assignments) {
      for (const api::NodePod& pod : assignment.pods) {
        for (const api::PodContainer& container : pod.containers) {
          if (Wanted(container.name)) versions.insert(container.version);
        }
      }
    }

    // When the session ends, and how.
    bool all_final =
        std::all_of(nodes_.begin(), nodes_.end(), [](const NodeView& n) { return n.final(); });
    bool over = now_ >= status_.end_time;
    if (!over) Requeue(status_.end_time);
    bool finished = hopeless_ || (over && all_final);

    // Figures, when they are new and (unless it is the end) not too soon.
    bool changed_figures = progress != plan_.memory.progress;
    bool may_write = finished || plan_.memory.progress_written == 0 ||
                     now_ >= plan_.memory.progress_written + kProgressPeriod;
    if (finished || (changed_figures && may_write)) {
      SumReports(reports, session_.spec, std::min(now_, status_.end_time) - status_.start_time,
                 status_);
      status_.results = MakeResults(session_, status_, reports, finished, world_.store_url);
      plan_.progress = progress;
    } else if (changed_figures) {
      Requeue(plan_.memory.progress_written + kProgressPeriod);
    }
    Details();

    size_t chosen = pods_.size();
    std::string where = Count(chosen, "pod") + " on " + Count(nodes_.size(), "node");
    std::vector<std::string> names;
    for (const PodView& pod : pods_) names.push_back(pod.name);
    std::sort(names.begin(), names.end());
    std::string resolved = DescribeTarget(target()) + " names " +
                           Count(static_cast<size_t>(status_.targets.matched), "pod") + "; " +
                           where + ": " + List(names, 20);
    if (status_.targets.matched > static_cast<int64_t>(chosen)) {
      resolved += " (`maxPods` " + std::to_string(target().max_pods) + ", spread over nodes and " +
                  Count(versions.size(), "version") + ")";
    }
    if (chosen > 0) Set("TargetsResolved", "True", "Resolved", resolved);

    if (!sampling_nodes.empty()) {
      Set("Started", "True", "Sampling",
          "samples have been taken on " + List({sampling_nodes.begin(), sampling_nodes.end()}));
    } else {
      const NodeView* first = nodes_.empty() ? nullptr : &nodes_.front();
      for (const NodeView& view : nodes_) {
        if (view.silent || view.state == PodState::kFailed) first = &view;
      }
      bool told = first != nullptr && !first->reason.empty();
      Set("Started", "False", told ? first->reason : "NotStarted",
          told ? first->message : "the samplers are being told");
    }

    int64_t stored = 0, pending = 0;
    for (const api::JobReport* report : reports) {
      stored += std::clamp<int64_t>(report->windows.stored, 0, 1 << 30);
      pending += std::clamp<int64_t>(report->windows.pending, 0, 1 << 30);
    }
    Degradation();

    if (!finished) {
      status_.phase = over                     ? api::Phase::kPublishing
                      : sampling_nodes.empty() ? api::Phase::kPending
                                               : api::Phase::kSampling;
      Set("Published", "False", over ? "Publishing" : "Sampling",
          over ? "the last windows are on their way to " + List(session_.spec.sink_names)
               : "the window is not over");
      Unfinished();
      return;
    }
    if (unanswered_) return Refuse("SamplerNotResponding", nodes_.front().message);
    End(stored, pending);
  }

  // Everything is known: which end is it?
  void End(int64_t stored, int64_t pending) {
    std::string windows = Count(static_cast<size_t>(stored), "window") + " stored in " +
                          List(session_.spec.sink_names);
    auto unpublished = std::find_if(nodes_.begin(), nodes_.end(),
                                    [](const NodeView& n) { return n.reason == "PublishFailed"; });
    if (unpublished != nodes_.end()) {
      Set("Published", "False", "PublishFailed",
          windows + ", " + std::to_string(pending) + " not: " + unpublished->message);
      return Finish(api::Phase::kFailed, "PublishFailed", unpublished->message);
    }
    const api::TargetCounts& targets = status_.targets;
    if (targets.succeeded == 0) {
      if (stored > 0) {
        Set("Published", "True", "Published", windows);
      } else {
        Set("Published", "False", "NothingCollected", "no window was stored");
      }
      std::set<std::string> reasons;
      for (const PodView& pod : pods_) reasons.insert(pod.reason);
      auto first = std::find_if(pods_.begin(), pods_.end(),
                                [](const PodView& p) { return p.state == PodState::kFailed; });
      // Stopping early is no failure, also when nothing had run by then.
      if (stopped() && (nodes_.empty() || reasons == std::set<std::string>{"NotRunning"})) {
        return Finish(api::Phase::kStopped, "Stopped",
                      "stopped by `spec.desiredState` before anything was sampled");
      }
      if (pods_.empty() && targets.matched > 0 && !followed()) {
        const std::string kMessage =
            "the operator was not running inside the window; create the session again";
        Set("Started", "False", "NotStarted", kMessage);
        return Finish(api::Phase::kFailed, "NotStarted", kMessage);
      }
      std::string reason = reasons.size() == 1 && !reasons.begin()->empty() ? *reasons.begin()
                           : pods_.empty()                                  ? "NoMatchingPods"
                                                                            : "AllTargetsFailed";
      std::string message = pods_.empty() ? "no pod of " + DescribeTarget(target()) + " is left"
                            : first == pods_.end()
                                ? ""
                                : "pod " + Quote(first->name) + ": " + first->message;
      if (pods_.size() > 1)
        message = "all " + std::to_string(pods_.size()) + " pods failed, such as " + message;
      return Finish(api::Phase::kFailed, reason, message);
    }
    Set("Published", "True", "Published", windows);
    std::string of = std::to_string(targets.succeeded) + " of " + Count(pods_.size(), "pod") +
                     " sampled, " + windows;
    if (stopped())
      return Finish(api::Phase::kStopped, "Stopped",
                    "stopped by `spec.desiredState` after " +
                        std::to_string((status_.end_time - status_.start_time) / kSecond) + " s; " +
                        of);
    Finish(api::Phase::kComplete, targets.failed > 0 ? "PartiallyCompleted" : "Completed", of);
  }

  void Degradation() {
    auto failed = std::find_if(pods_.begin(), pods_.end(), [](const PodView& p) {
      return p.state == PodState::kFailed || !p.reason.empty();
    });
    auto gap = status_.lost_ns.find("sampler_restart");
    if (failed != pods_.end()) {
      Set("Degraded", "True",
          failed->state == PodState::kFailed ? "SomeTargetsFailed" : failed->reason,
          "pod " + Quote(failed->name) + ": " + failed->message);
    } else if (gap != status_.lost_ns.end() && gap->second > 0) {
      Set("Degraded", "True", "SamplerRestarted",
          "a sampler was restarted inside the window; the gap is in `status.lost` as "
          "'sampler_restart'");
    } else if (status_.cpu.lost_ns > 0 &&
               status_.cpu.lost_ns / kLostPerMilleDegraded > status_.cpu.used_ns / 1000) {
      Set("Degraded", "True", "SamplesLost",
          "more than 0.5 % of the CPU time was not sampled; `status.lost` says why");
    } else if (status_.samples.truncated > status_.samples.collected / 100) {
      Set("Degraded", "True", "StacksCut",
          "more than 1 % of the stacks are cut; `status.lost` says why, docs/operations.md what "
          "mends it");
    } else if (auto limited = std::find_if(nodes_.begin(), nodes_.end(),
                                           [](const NodeView& v) {
                                             return v.report != nullptr &&
                                                    v.report->reason == api::kFrequencyLimited;
                                           });
               limited != nodes_.end()) {
      Set("Degraded", "True", api::kFrequencyLimited,
          "node " + Quote(limited->node) + ": " + limited->report->message);
    } else {
      Set("Degraded", "False", "AsExpected", "");
    }
  }

  // At most kMaxTargetDetails rows, failures first, then what is still to come.
  void Details() {
    std::vector<std::pair<int, api::TargetDetail>> rows;
    for (const PodView& pod : pods_) {
      int rank = pod.state == PodState::kFailed      ? 0
                 : pod.state == PodState::kSucceeded ? 3
                 : pod.state == PodState::kSampling  ? 2
                                                     : 1;
      std::string state(kPodStateNames[static_cast<size_t>(pod.state)]);
      const api::JobReport* report =
          pod.uid.empty() ? nullptr : world_.FindReport(pod.node, job_id_);
      size_t before = rows.size();
      if (report != nullptr) {
        for (const api::ReportedContainer& c : report->containers) {
          if (c.pod_uid != pod.uid) continue;
          bool failed = c.state == "Failed" || pod.state == PodState::kFailed;
          rows.emplace_back(
              failed ? 0 : rank,
              api::TargetDetail{pod.name, pod.node, c.container, c.language,
                                failed ? "Failed" : state, c.reason.empty() ? pod.reason : c.reason,
                                c.message.empty() ? pod.message : c.message});
        }
      }
      if (rows.size() == before)
        rows.emplace_back(
            rank, api::TargetDetail{pod.name, pod.node, "", "", state, pod.reason, pod.message});
    }
    std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first, a.second.pod, a.second.container) <
             std::tie(b.first, b.second.pod, b.second.container);
    });
    if (rows.size() > api::kMaxTargetDetails) rows.resize(api::kMaxTargetDetails);
    status_.target_details.clear();
    for (auto& [rank, row] : rows) status_.target_details.push_back(std::move(row));
  }

  // ---- The end
  // -------------------------------------------------------------------------------------------------------------

  void Finish(api::Phase phase, std::string_view reason, const std::string& message) {
    bool failed = phase == api::Phase::kFailed;
    status_.phase = phase;
    status_.completion_time = now_ / 1000 * 1000;
    // Whatever was still open is decided now: nobody will come back to it.
    for (std::string_view type : {"Accepted", "TargetsResolved", "Started", "Published"}) {
      const api::Condition* c = api::FindCondition(status_.conditions, type);
      if (c == nullptr || c->status == "Unknown") {
        Set(type, "False", "NotAccepted", "");
      } else {
        Set(type, c->status, std::string(c->reason), std::string(c->message));
      }
    }
    if (const api::Condition* c = api::FindCondition(status_.conditions, "Degraded")) {
      Set("Degraded", c->status, std::string(c->reason), std::string(c->message));
    } else {
      Set("Degraded", "False", "AsExpected", "");
    }
    Set("Complete", failed ? "False" : "True", failed ? "Failed" : reason, failed ? "" : message);
    Set("Failed", failed ? "True" : "False", failed ? reason : "NotFailed", failed ? message : "");
    Set("Finished", "True", reason, message);
    plan_.requeue_at = 0;
    plan_.lookups.clear();
    plan_.list_pods = false;
  }

  // Events tell of transitions, never of states: one each time a condition turns.
  std::vector<EventNote> Transitions() const {
    std::vector<EventNote> events;
    auto turned = [&](std::string_view type, std::string_view to) -> const api::Condition* {
      const api::Condition* before = api::FindCondition(session_.status.conditions, type);
      const api::Condition* after = api::FindCondition(status_.conditions, type);
      bool is = after != nullptr && after->status == to;
      bool was = before != nullptr && before->status == to;
      return is && !was ? after : nullptr;
    };
    if (const auto* c = turned("Accepted", "True"))
      events.push_back({false, "Accepted", c->message});
    if (const auto* c = turned("Started", "True")) events.push_back({false, "Started", c->message});
    const api::Condition* finished = turned("Finished", "True");
    if (const auto* c = turned("Degraded", "True"); c != nullptr && finished == nullptr)
      events.push_back({true, c->reason, c->message});
    if (finished != nullptr)
      events.push_back(
          {api::IsTrue(status_.conditions, "Failed"), finished->reason, finished->message});
    return events;
  }

  const World& world_;
  const api::ProfilingSession& session_;
  const int64_t now_;
  const std::string job_id_;
  api::ProfilingSessionStatus status_;
  SessionPlan plan_;
  std::set<std::string> kept_;  // uids of the pods that samplers already have
  std::vector<NodeView> nodes_;
  std::vector<PodView> pods_;
  bool open_ = false;        // pods that come now are still taken
  bool unanswered_ = false;  // no sampler has taken up the job in time
  bool hopeless_ = false;    // none will sample
};

}  // namespace

SessionPlan PlanSession(const World& world, const api::ProfilingSession& session, int64_t now) {
  return Planner(world, session, now).Run();
}

FinishedPlan PlanFinished(const FinishedSession& session, int64_t now) {
  FinishedPlan plan;
  if (session.metadata.deletion_time != 0) return plan;
  plan.restamp = session.observed_generation != session.metadata.generation;
  if (!session.ttl_seconds) return plan;
  int64_t at = session.completion_time + *session.ttl_seconds * kSecond;
  plan.remove = now >= at;
  if (!plan.remove) plan.requeue_at = at;
  return plan;
}

api::ProfilingSessionStatus Restamped(const api::ProfilingSession& session) {
  api::ProfilingSessionStatus status = session.status;
  status.observed_generation = session.metadata.generation;
  for (api::Condition& condition : status.conditions)
    condition.observed_generation = session.metadata.generation;
  return status;
}

bool IsFinished(const api::ProfilingSession& session) {
  return api::IsTrue(session.status.conditions, "Finished");
}

FinishedSession Summarize(const api::ProfilingSession& session) {
  return {session.metadata, session.status.observed_generation, session.status.completion_time,
          session.spec.ttl_seconds_after_finished};
}

}  // namespace borescope::op
