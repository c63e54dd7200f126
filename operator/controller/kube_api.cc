// SPDX-License-Identifier: Apache-2.0
#include "operator/controller/kube_api.h"

#include <array>
#include <nlohmann/json.hpp>

#include "common/api/json.h"
#include "common/base/clock.h"
#include "common/base/log.h"

namespace borescope::op {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kCallTimeout{10'000};
constexpr std::chrono::milliseconds kStoreTimeout{2'000};
// A store that does not answer must not hold up the sessions that end after it.
constexpr std::chrono::seconds kStoreRest{30};

const kube::Resource kPods{"", "v1", "pods"};
const kube::Resource kServiceAccounts{"", "v1", "serviceaccounts"};

// The kinds that a session may name, and those on the way from a pod to them.
struct WorkloadKind {
  std::string_view kind;
  std::string_view group;
  std::string_view plural;
};
constexpr std::array<WorkloadKind, 5> kWorkloadKinds = {{{"Deployment", "apps", "deployments"},
                                                         {"StatefulSet", "apps", "statefulsets"},
                                                         {"DaemonSet", "apps", "daemonsets"},
                                                         {"ReplicaSet", "apps", "replicasets"},
                                                         {"Job", "batch", "jobs"}}};

const json& Child(const json& object, std::string_view key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}
std::string Text(const json& object, std::string_view key) {
  const json& value = Child(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

api::LabelSelector ParseSelector(const json& selector) {
  api::LabelSelector out;
  if (const json& labels = Child(selector, "matchLabels"); labels.is_object()) {
    for (const auto& [key, value] : labels.items()) {
      if (value.is_string()) out.match_labels[key] = value.get<std::string>();
    }
  }
  if (const json& list = Child(selector, "matchExpressions"); list.is_array()) {
    for (const json& item : list) {
      api::LabelRequirement requirement{Text(item, "key"), Text(item, "operator"), {}};
      if (const json& values = Child(item, "values"); values.is_array()) {
        for (const json& value : values) {
          if (value.is_string()) requirement.values.push_back(value.get<std::string>());
        }
      }
      out.match_expressions.push_back(std::move(requirement));
    }
  }
  return out;
}

std::vector<Pod> ParsePods(const std::vector<json>& items) {
  std::vector<Pod> pods;
  for (const json& item : items) {
    if (auto pod = ParsePod(item); pod.ok()) pods.push_back(*std::move(pod));
  }
  return pods;
}

kube::ObjectReference Reference(const api::ObjectMeta& session) {
  return {std::string(api::kApiVersion), std::string(api::kProfilingSessionKind),
          session.namespace_name, session.name, session.uid};
}

}  // namespace

kube::Resource ResourceOf(std::string_view plural) {
  return {std::string(api::kGroup), std::string(api::kVersion), std::string(plural)};
}

kube::CallOptions KubeApi::Options(std::string subresource) const {
  last_call_ = NowNs(CLOCK_MONOTONIC);
  kube::CallOptions options;
  options.subresource = std::move(subresource);
  options.timeout = kCallTimeout;
  options.canceller = canceller_;
  options.max_tries = 2;  // the loop has its own back-off
  return options;
}

Status KubeApi::MayWrite() const {
  if (may_write_()) return OkStatus();
  return Error{ErrorCode::kUnavailable, "another operator leads by now"};
}

Result<api::ProfilingSession> KubeApi::WriteStatus(const api::ProfilingSession& before,
                                                   const api::ProfilingSessionStatus& status) {
  json patch = api::SessionStatusPatch(before.metadata, before.status, status);
  if (patch.empty()) return before;
  RETURN_IF_ERROR(MayWrite());
  ASSIGN_OR_RETURN(json object, client_->Patch(ResourceOf(api::kProfilingSessions),
                                               before.metadata.namespace_name, before.metadata.name,
                                               patch, Options("status")));
  return api::ParseProfilingSession(object);
}

Result<api::NodeSampler> KubeApi::WriteSpec(const api::NodeSampler& before,
                                            const api::NodeSamplerSpec& spec) {
  RETURN_IF_ERROR(MayWrite());
  json patch = api::SpecPatch(spec, before.metadata.resource_version);
  ASSIGN_OR_RETURN(json object, client_->Patch(ResourceOf(api::kNodeSamplers), "",
                                               before.metadata.name, patch, Options()));
  return api::ParseNodeSampler(object);
}

Status KubeApi::DeleteSession(const api::ObjectMeta& session) {
  RETURN_IF_ERROR(MayWrite());
  return client_->Delete(ResourceOf(api::kProfilingSessions), session.namespace_name, session.name,
                         {session.uid, session.resource_version}, Options());
}

Result<api::ProfilingSession> KubeApi::ReadSession(const std::string& ns, const std::string& name) {
  ASSIGN_OR_RETURN(json object,
                   client_->Get(ResourceOf(api::kProfilingSessions), ns, name, Options()));
  return api::ParseProfilingSession(object);
}

Result<api::NodeSampler> KubeApi::ReadSampler(const std::string& node) {
  ASSIGN_OR_RETURN(json object, client_->Get(ResourceOf(api::kNodeSamplers), "", node, Options()));
  return api::ParseNodeSampler(object);
}

Result<Workload> KubeApi::Look(const Lookup& lookup) {
  for (const WorkloadKind& kind : kWorkloadKinds) {
    if (kind.kind != lookup.kind) continue;
    kube::Resource resource{std::string(kind.group), "v1", std::string(kind.plural)};
    auto object = client_->Get(resource, lookup.namespace_name, lookup.name, Options());
    Workload workload;
    if (!object.ok()) {
      if (object.error().code == ErrorCode::kNotFound) return workload;
      return object.error();
    }
    const json& metadata = Child(*object, "metadata");
    workload.uid = Text(metadata, "uid");
    // Another object of that name is not the one that a pod belongs to.
    workload.found = !workload.uid.empty() && (lookup.uid.empty() || lookup.uid == workload.uid);
    if (!workload.found) return workload;
    workload.selector = ParseSelector(Child(Child(*object, "spec"), "selector"));
    if (const json& owners = Child(metadata, "ownerReferences"); owners.is_array()) {
      for (const json& owner : owners) {
        const json& controller = Child(owner, "controller");
        if (controller.is_boolean() && controller.get<bool>()) {
          workload.controller =
              Controller{Text(owner, "kind"), Text(owner, "name"), Text(owner, "uid")};
        }
      }
    }
    return workload;
  }
  return Error{
      ErrorCode::kUnsupported,
      "kind '" + lookup.kind + "' is none of Deployment, StatefulSet, DaemonSet, ReplicaSet, Job"};
}

Result<std::vector<Pod>> KubeApi::ListPods(const std::string& ns) {
  kube::ListOptions list;
  list.ns = ns;
  list.projection = kube::Projection(PodPaths());
  for (const char* path :
       {"metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion"})
    list.projection.Add(path);
  ASSIGN_OR_RETURN(kube::ObjectList objects, client_->List(kPods, list, Options()));
  return ParsePods(objects.items);
}

void KubeApi::WatchPods(const std::string& ns) {
  PodWatch watch;
  watch.alive = std::make_shared<std::atomic<bool>>(true);
  kube::Reflector::Options options;
  options.resource = kPods;
  options.ns = ns;
  options.projection = kube::Projection(PodPaths());
  kube::Reflector::Handler handler;
  handler.on_list = [this, ns, alive = watch.alive](std::vector<json> items) {
    inbox_->Put([ns, alive, pods = ParsePods(items)](Loop& loop, int64_t) mutable {
      if (*alive) loop.OnPods(ns, std::move(pods));
    });
  };
  handler.on_event = [this, ns, alive = watch.alive](kube::EventType type, json object) {
    auto pod = ParsePod(object);
    if (!pod.ok()) return;
    inbox_->Put([ns, alive, type, pod = *std::move(pod)](Loop& loop, int64_t) mutable {
      if (!*alive) return;
      if (type == kube::EventType::kDeleted) return loop.OnPodGone(ns, pod.uid);
      loop.OnPod(ns, std::move(pod), type == kube::EventType::kAdded);
    });
  };
  watch.reflector =
      std::make_unique<kube::Reflector>(client_, std::move(options), std::move(handler));
  watch.reflector->Start();
  watches_[ns] = std::move(watch);
}

void KubeApi::UnwatchPods(const std::string& ns) {
  auto it = watches_.find(ns);
  if (it == watches_.end()) return;
  *it->second.alive = false;
  watches_.erase(it);
}

void KubeApi::CheckWatches() {
  for (const auto& [ns, watch] : watches_) {
    if (watch.reflector->synced()) continue;
    std::string error = watch.reflector->stats().last_error;
    if (error.empty()) continue;
    inbox_->Put([ns = ns, error](Loop& loop, int64_t) { loop.OnPodError(ns, error); });
  }
}

void KubeApi::Emit(const api::ObjectMeta& session, const EventNote& event) {
  if (event.warning) {
    events_->Warning(Reference(session), event.reason, "Reconcile", event.note);
  } else {
    events_->Normal(Reference(session), event.reason, "Reconcile", event.note);
  }
}

Status KubeApi::MakeReader(const std::string& ns) {
  if (store_ == nullptr) return OkStatus();
  RETURN_IF_ERROR(MayWrite());
  json account = {{"apiVersion", "v1"},
                  {"kind", "ServiceAccount"},
                  {"metadata",
                   {{"name", "borescope-reader"},
                    {"labels", {{"app.kubernetes.io/managed-by", "borescope-operator"}}}}},
                  {"automountServiceAccountToken", false}};
  auto made = client_->Create(kServiceAccounts, ns, account, Options());
  if (made.ok() || made.error().code == ErrorCode::kConflict) return OkStatus();
  return made.error();
}

void KubeApi::Keep(const api::ProfilingSession& session,
                   const api::ProfilingSessionStatus& status) {
  if (store_ == nullptr || !may_write_()) return;
  auto now = std::chrono::steady_clock::now();
  Status outcome;
  if (now < store_rests_until_) {
    outcome = Error{ErrorCode::kUnavailable, "the store did not answer a moment ago"};
  } else {
    api::ProfilingSession record = session;
    record.status = status;
    http::Request request;
    request.method = "PUT";
    request.path = "/api/v1/sessions/" + session.metadata.namespace_name + "/" +
                   session.metadata.name + "/" + session.metadata.uid;
    request.headers["Content-Type"] = "application/json";
    request.body = api::ToJson(record).dump();
    auto response = store_->Send(request, {kStoreTimeout, canceller_});
    if (!response.ok()) {
      outcome = response.error();
      store_rests_until_ = now + kStoreRest;
    } else if (response->status / 100 != 2) {
      outcome = Error{ErrorCode::kInvalid, "HTTP " + std::to_string(response->status) + ": " +
                                               response->body.substr(0, 200)};
    }
  }
  if (outcome.ok()) return;
  ++records_lost_;
  Log(LogLevel::kWarning, "the store did not take a session's record",
      {{"session", SessionKey(session.metadata)}, {"error", outcome.error().ToString()}});
}

}  // namespace borescope::op
