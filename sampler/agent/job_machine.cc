// SPDX-License-Identifier: Apache-2.0
#include "sampler/agent/job_machine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/clock.h"

namespace borescope::agent {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

bool Terminal(api::JobState state) { return state == api::JobState::kPublished || state == api::JobState::kFailed; }

std::string Listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

}  // namespace

JobMachine::JobMachine(Config config) : config_(std::move(config)) {}

void JobMachine::Restore(std::map<std::string, api::JobReport> entries) {
  restored_ = std::move(entries);
}

const JobRecord* JobMachine::Find(const std::string& job_id) const {
  auto it = jobs_.find(job_id);
  return it == jobs_.end() ? nullptr : &it->second;
}

std::set<std::string> JobMachine::TakeChanged() { return std::exchange(changed_, {}); }

void JobMachine::Go(JobRecord& job, api::JobState state, std::string reason, std::string message) {
  job.state = state;
  job.reason = std::move(reason);
  job.message = std::move(message);
  changed_.insert(job.spec.id);
}

Status JobMachine::Refusal(const api::Job& spec, std::string* reason) const {
  if (spec.profiles.empty()) {
    *reason = "KindNotSupported";
    return Error{ErrorCode::kInvalid, "profiles: found none; give one of: " + Listed(config_.kinds)};
  }
  for (const api::JobProfile& profile : spec.profiles) {
    if (config_.kinds.contains(profile.kind)) continue;
    *reason = "KindNotSupported";
    return Error{ErrorCode::kUnsupported, "profiles: found the kind \"" + profile.kind + "\"; this node can take: " + Listed(config_.kinds)};
  }
  for (const std::string& sink : spec.sink_names) {
    if (config_.sinks.contains(sink)) continue;
    *reason = "UnknownSink";
    return Error{ErrorCode::kNotFound, "sinkNames: found \"" + sink + "\"; this node's sampler is configured with: " + Listed(config_.sinks)};
  }
  return OkStatus();
}

void JobMachine::FixWindow(JobRecord& job, Now now) {
  const api::Job& spec = job.spec;
  int64_t duration = spec.duration_seconds * kSecond;
  int64_t until_start = spec.start_time - now.real_ns;
  job.start_real_ns = spec.start_time;
  job.start_boot_ns = now.boot_ns + until_start;
  // Nobody samples longer than durationSeconds from now or from the start, wherever the wall clocks stand.
  job.deadline_boot_ns = now.boot_ns + std::min(spec.end_time - now.real_ns, std::max<int64_t>(until_start, 0) + duration);
}

void JobMachine::Accept(const api::Job& spec, Now now, std::vector<Action>& actions) {
  JobRecord& job = jobs_[spec.id] = JobRecord{.spec = spec};
  std::string reason;
  if (Status refusal = Refusal(spec, &reason); !refusal.ok()) {
    Go(job, api::JobState::kFailed, reason, refusal.error().message);
    return;
  }
  if (spec.start_time != 0) {
    FixWindow(job, now);
    if (job.deadline_boot_ns <= now.boot_ns) {
      Go(job, api::JobState::kFailed, "WindowPassed",
         "the window ended at " + FormatTime(spec.end_time) + ", before this node's sampler was given the job; apply the session again");
      return;
    }
  }
  if (spec.stop) {
    job.end_real_ns = now.real_ns;
    Go(job, api::JobState::kPublished, "Stopped", "stopped before sampling began");
    return;
  }
  Go(job, api::JobState::kAccepted);
  actions.push_back({Action::Kind::kArm, spec.id});
}

void JobMachine::Resume(const api::Job& spec, const api::JobReport& before, Now now, std::vector<Action>& actions) {
  JobRecord job{.spec = spec};
  job.before = &before;
  job.first_container_real_ns = before.first_container_time;
  if (Terminal(before.state)) {
    job.start_real_ns = before.start_time;
    job.end_real_ns = before.end_time;
    jobs_[spec.id] = job;
    Go(jobs_[spec.id], before.state, before.reason, before.message);
    return;
  }
  bool same_boot = before.boot_id == config_.boot_id;
  if (spec.start_time != 0) {
    FixWindow(job, now);
  } else if (job.first_container_real_ns != 0) {
    job.start_real_ns = job.first_container_real_ns;
    job.start_boot_ns = now.boot_ns + (job.start_real_ns - now.real_ns);
    job.deadline_boot_ns = job.start_boot_ns + spec.duration_seconds * kSecond;
  }
  // The deadline that was fixed needs no wall clock: it holds as long as the machine has not been started anew.
  if (same_boot && before.deadline_boot_ns != 0 && job.start_real_ns != 0) job.deadline_boot_ns = before.deadline_boot_ns;
  jobs_[spec.id] = job;
  JobRecord& record = jobs_[spec.id];
  bool over = before.state == api::JobState::kSampled || spec.stop || (record.deadline_boot_ns != 0 && record.deadline_boot_ns <= now.boot_ns);
  if (!over) {
    std::string reason;
    if (Status refusal = Refusal(spec, &reason); !refusal.ok()) {
      Go(record, api::JobState::kFailed, reason, refusal.error().message);
      return;
    }
    Go(record, api::JobState::kAccepted, "SamplerRestarted", "taken up again after a restart of the sampler");
    actions.push_back({Action::Kind::kArm, spec.id});
    return;
  }
  record.end_real_ns = before.end_time != 0 ? before.end_time : std::min(spec.end_time != 0 ? spec.end_time : now.real_ns, now.real_ns);
  actions.push_back({Action::Kind::kSettle, spec.id});
  if (before.windows.stored > 0) {
    Go(record, api::JobState::kPublished, "SamplerRestarted",
       "the sampler restarted during the session; what was not stored by then is lost, see lost.sampler_restart");
  } else {
    Go(record, api::JobState::kFailed, "SamplerRestarted",
       "the sampler restarted before any profile was stored and the window is over; apply the session again");
  }
}

void JobMachine::EndNow(JobRecord& job, Now now, std::vector<Action>& actions) {
  if (!job.armed) return;
  // A waiting job has no window yet: an empty one, now.
  if (job.start_boot_ns == 0) {
    job.start_boot_ns = now.boot_ns;
    job.start_real_ns = now.real_ns;
  }
  job.deadline_boot_ns = job.deadline_boot_ns == 0 ? now.boot_ns : std::min(job.deadline_boot_ns, now.boot_ns);
  actions.push_back({Action::Kind::kSetWindow, job.spec.id});
}

void JobMachine::Update(JobRecord& job, const api::Job& spec, Now now, std::vector<Action>& actions) {
  api::Job old = std::exchange(job.spec, spec);
  if (Terminal(job.state) || job.state == api::JobState::kSampled) return;
  if (old.pod_uids != spec.pod_uids && job.armed) actions.push_back({Action::Kind::kSetPods, spec.id});
  if (old.start_time == 0 && spec.start_time != 0) {
    int64_t start_boot_ns = job.start_boot_ns, start_real_ns = job.start_real_ns;
    FixWindow(job, now);
    if (start_real_ns != 0) {  // windows have begun on our own grid: it stays
      job.start_boot_ns = start_boot_ns;
      job.start_real_ns = start_real_ns;
    }
    actions.push_back({Action::Kind::kSetWindow, spec.id});
    changed_.insert(spec.id);
  }
  if (spec.stop && !old.stop) {
    job.reason = "Stopped";
    EndNow(job, now, actions);
  }
}

std::map<std::string, JobRecord>::iterator JobMachine::Leave(std::map<std::string, JobRecord>::iterator job, std::vector<Action>& actions) {
  actions.push_back({Action::Kind::kForget, job->first});
  changed_.erase(job->first);
  restored_.erase(job->first);  // should it come back, it begins with nothing
  return jobs_.erase(job);
}

std::vector<Action> JobMachine::OnSpec(const api::NodeSamplerSpec& spec, bool take_new, Now now) {
  std::vector<Action> actions;
  std::set<std::string> wanted;
  for (const api::Job& job : spec.jobs) {
    if (!wanted.insert(job.id).second) continue;
    auto known = jobs_.find(job.id);
    if (known != jobs_.end() && known->second.leaving && !known->second.armed) {  // its end is drained: it is taken anew
      Leave(known, actions);
      known = jobs_.end();
    }
    if (known != jobs_.end() && !known->second.leaving) {
      Update(known->second, job, now, actions);
    } else if (known != jobs_.end()) {
      continue;  // comes back while its end is still being drained: the spec is to be applied again after kForget
    } else if (!take_new) {
      continue;
    } else if (auto before = restored_.find(job.id); before != restored_.end()) {
      Resume(job, before->second, now, actions);
    } else {
      Accept(job, now, actions);
    }
  }
  for (auto& [id, job] : jobs_) {
    if (wanted.contains(id) || job.leaving) continue;
    job.leaving = true;
    if (job.state != api::JobState::kSampled && !Terminal(job.state)) EndNow(job, now, actions);
  }
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    if (it->second.leaving && !it->second.armed) {
      it = Leave(it, actions);
    } else {
      ++it;
    }
  }
  // Entries of an earlier incarnation whose jobs went while nobody was here. (Kept while new jobs are not taken.)
  for (auto it = restored_.begin(); take_new && it != restored_.end();) {
    if (!wanted.contains(it->first)) {
      if (!jobs_.contains(it->first)) actions.push_back({Action::Kind::kForget, it->first});
      it = jobs_.contains(it->first) ? std::next(it) : restored_.erase(it);
    } else {
      ++it;
    }
  }
  return actions;
}

std::vector<Action> JobMachine::OnArmed(const std::string& job_id, const Status& status, Now now, std::string_view reason) {
  auto it = jobs_.find(job_id);
  if (it == jobs_.end()) return {};
  JobRecord& job = it->second;
  if (!status.ok()) {
    ErrorCode code = status.error().code;
    Go(job, api::JobState::kFailed,
       !reason.empty()                   ? std::string(reason)
       : code == ErrorCode::kDenied      ? "CapabilityMissing"
       : code == ErrorCode::kUnsupported ? "KernelNotSupported"
       : code == ErrorCode::kExhausted   ? "TooManyJobs"
                                         : "EngineFailed",
       status.error().message);
    return {};
  }
  job.armed = true;
  std::vector<Action> actions;
  if (job.start_boot_ns == 0) {
    Go(job, api::JobState::kWaiting, job.reason, job.message);
  } else if (job.start_boot_ns <= now.boot_ns) {
    Go(job, api::JobState::kSampling, job.reason, job.message);
  }
  return actions;
}

std::vector<Action> JobMachine::OnKernelFault(const std::string& message, Now now) {
  std::vector<Action> actions;
  for (auto& [id, job] : jobs_) {
    if (!job.armed) continue;
    job.armed = false;
    job.end_real_ns = job.deadline_boot_ns != 0 && job.deadline_boot_ns < now.boot_ns ? now.real_ns - (now.boot_ns - job.deadline_boot_ns) : now.real_ns;
    actions.push_back({Action::Kind::kFinish, id});
    Go(job, api::JobState::kFailed, std::string(api::kKernelUnsafe), message);
  }
  return actions;
}

std::vector<Action> JobMachine::OnContainer(const std::string& job_id, int64_t made_boot_ns, Now now) {
  auto it = jobs_.find(job_id);
  if (it == jobs_.end() || it->second.state != api::JobState::kWaiting) return {};
  JobRecord& job = it->second;
  if (job.first_container_real_ns == 0) {
    job.first_container_real_ns = now.real_ns - (now.boot_ns - made_boot_ns);
    changed_.insert(job_id);
  }
  if (job.start_boot_ns != 0) return {};
  job.start_boot_ns = made_boot_ns;
  job.start_real_ns = job.first_container_real_ns;
  job.deadline_boot_ns = made_boot_ns + job.spec.duration_seconds * kSecond;
  Go(job, api::JobState::kSampling, job.reason, job.message);
  return {{Action::Kind::kSetWindow, job_id}};
}

std::vector<Action> JobMachine::OnTick(Now now, const std::function<bool(const std::string& job_id)>& awaits_names) {
  std::vector<Action> actions;
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    JobRecord& job = it->second;
    // Not in the tick that finishes it: what it has brought is still to be named and published.
    if (job.leaving && !job.armed) {
      it = Leave(it, actions);
      continue;
    }
    if (job.armed && job.start_boot_ns == 0 && job.spec.wait_until != 0 && now.real_ns > job.spec.wait_until + kWaitGraceNs) {
      job.armed = false;
      actions.push_back({Action::Kind::kFinish, it->first});
      Go(job, api::JobState::kFailed, "WaitExpired",
         "no chosen container started on this node before " + FormatTime(job.spec.wait_until) + " (waitSeconds)");
    }
    bool begun = job.start_boot_ns != 0 && job.start_boot_ns <= now.boot_ns;
    if (job.armed && begun && (job.state == api::JobState::kAccepted || job.state == api::JobState::kWaiting)) {
      Go(job, api::JobState::kSampling, job.reason, job.message);
    }
    bool over = job.armed && job.deadline_boot_ns != 0 && now.boot_ns >= job.deadline_boot_ns + kDrainNs;
    if (over && now.boot_ns < job.deadline_boot_ns + kNamesNs && awaits_names && awaits_names(it->first)) {
      constexpr int64_t kLookNs = 20'000'000;
      over = false;
      job.look_again_boot_ns = now.boot_ns + kLookNs;
    }
    if (over) {
      job.armed = false;
      job.end_real_ns = now.real_ns - (now.boot_ns - job.deadline_boot_ns);
      actions.push_back({Action::Kind::kFinish, it->first});
      Go(job, api::JobState::kSampled, job.reason, job.message);
    }
    ++it;
  }
  return actions;
}

int64_t JobMachine::NextTickBootNs() const {
  int64_t next = INT64_MAX;
  for (const auto& [id, job] : jobs_) {
    if (!job.armed && job.leaving) return 0;
    if (!job.armed) continue;
    if (job.start_boot_ns != 0 && job.state != api::JobState::kSampling) next = std::min(next, job.start_boot_ns);
    if (job.deadline_boot_ns != 0) next = std::min(next, std::max(job.deadline_boot_ns + kDrainNs, job.look_again_boot_ns));
  }
  return next;
}

void JobMachine::OnPublishing(const std::string& job_id, const Publishing& publishing, Now) {
  auto it = jobs_.find(job_id);
  if (it == jobs_.end() || it->second.state != api::JobState::kSampled || publishing.pending > 0) return;
  JobRecord& job = it->second;
  if (publishing.failed > 0) {
    Go(job, api::JobState::kFailed, "PublishFailed", publishing.message);
  } else {
    Go(job, api::JobState::kPublished, job.reason, job.message);
  }
}

}  // namespace borescope::agent
