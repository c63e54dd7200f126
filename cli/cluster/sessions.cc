// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/sessions.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/api/json.h"
#include "common/base/strings.h"
#include "common/http/message.h"

namespace borescope::cli {
namespace {

using nlohmann::json;

constexpr std::string_view kResource = "profilingsessions";
constexpr std::string_view kReader = "borescope-reader";
constexpr std::string_view kStore = "http:borescope-store:http";
constexpr std::string_view kAudience = "borescope-store";
constexpr int kTokenSeconds = 600;  // the least that the API server gives

Result<Stored> Read(json object) {
  auto session = api::ParseProfilingSession(object);
  if (!session.ok()) return session.error().WithContext("the API server's session is not understood; is this program older than the cluster's Borescope?");
  return Stored{*std::move(session), CleanJson(std::move(object))};
}

// status.token of a TokenRequest.
std::string TokenOf(const json& reply) {
  if (!reply.is_object() || !reply.contains("status") || !reply["status"].is_object()) return "";
  const json& status = reply["status"];
  return status.contains("token") && status["token"].is_string() ? status["token"].get<std::string>() : "";
}

}  // namespace

std::string CleanJson(json object) {
  if (object.contains("metadata") && object["metadata"].is_object()) object["metadata"].erase("managedFields");
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<Stored> CreateSession(Cluster& cluster, const std::string& name, const json& spec, bool dry_run) {
  const json object = {{"apiVersion", api::kApiVersion},
                       {"kind", api::kProfilingSessionKind},
                       {"metadata", {{"name", name}, {"namespace", cluster.ns()}}},
                       {"spec", spec}};
  kube::KubeError details;
  auto made = cluster.api().Create(kSessions, cluster.ns(), object, {.dry_run = dry_run, .error = &details, .max_tries = 2});
  if (!made.ok()) return cluster.Explain(made.error(), details, {.verb = "create", .resource = kResource, .ns = cluster.ns(), .role = "borescope-edit"});
  return Read(*std::move(made));
}

Result<Stored> GetSession(Cluster& cluster, const std::string& name) {
  kube::KubeError details;
  auto got = cluster.api().Get(kSessions, cluster.ns(), name, {.error = &details, .max_tries = 2});
  if (!got.ok()) return cluster.Explain(got.error(), details, {.verb = "get", .resource = kResource, .ns = cluster.ns(), .name = name, .role = "borescope-view"});
  return Read(*std::move(got));
}

Result<Stored> StopSession(Cluster& cluster, const std::string& name) {
  kube::KubeError details;
  auto patched = cluster.api().Patch(kSessions, cluster.ns(), name, {{"spec", {{"desiredState", "Stop"}}}},
                                     {.timeout = std::chrono::milliseconds(10'000), .error = &details, .max_tries = 2});
  if (!patched.ok()) return cluster.Explain(patched.error(), details, {.verb = "patch", .resource = kResource, .ns = cluster.ns(), .name = name, .role = "borescope-edit"});
  return Read(*std::move(patched));
}

Result<SessionList> ListSessions(Cluster& cluster, bool all_namespaces) {
  const std::string ns = all_namespaces ? "" : cluster.ns();
  kube::KubeError details;
  auto found = cluster.api().List(kSessions, {.ns = ns}, {.error = &details, .max_tries = 2});
  if (!found.ok()) {
    Error error = cluster.Explain(found.error(), details, {.verb = "list", .resource = kResource, .ns = ns, .role = "borescope-view"});
    if (all_namespaces && error.code == ErrorCode::kDenied) error.message += "; or list one namespace: -n NAMESPACE";
    return error;
  }
  SessionList out;
  json list = {{"apiVersion", "v1"}, {"kind", "List"}, {"items", json::array()}};
  for (json& item : found->items) {
    // The items of a list come without these.
    item["apiVersion"] = std::string(api::kApiVersion);
    item["kind"] = std::string(api::kProfilingSessionKind);
    if (auto session = api::ParseProfilingSession(item); session.ok()) out.sessions.push_back(*std::move(session));
    if (item.contains("metadata")) item["metadata"].erase("managedFields");
    list["items"].push_back(std::move(item));
  }
  out.json = list.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  return out;
}

Result<std::string> FetchPprof(Cluster& cluster, const api::ProfilingSession& session, std::string_view which) {
  const std::string& ns = session.metadata.namespace_name;
  const std::string& name = session.metadata.name;
  if (session.status.start_time == 0) return Error{ErrorCode::kNotFound, "session " + name + " has not begun: there is no profile yet"};
  const api::SessionResult* result = nullptr;
  for (const api::SessionResult& row : session.status.results) {
    if ((which.empty() || row.profile == which) && !row.query.empty()) {
      result = &row;
      break;
    }
  }
  if (result == nullptr) {
    return Error{ErrorCode::kNotFound, "session " + name + " has no profile" + (which.empty() ? std::string() : " named \"" + SanitizeName(which) + "\"") + " in a store (yet)"};
  }

  kube::KubeError details;
  http::Request ask;
  ask.method = "POST";
  ask.path = kube::Resource{"", "v1", "serviceaccounts"}.Path(ns, kReader, "token");
  ask.body = json{{"apiVersion", "authentication.k8s.io/v1"},
                  {"kind", "TokenRequest"},
                  {"spec", {{"audiences", {kAudience}}, {"expirationSeconds", kTokenSeconds}}}}
                 .dump();
  auto answer = cluster.api().Call(ask, {.timeout = std::chrono::milliseconds(15'000), .error = &details, .max_tries = 2});
  if (!answer.ok()) {
    if (details.http_status == 404 && !details.message.empty()) {
      return Error{ErrorCode::kNotFound, "there is no ServiceAccount " + std::string(kReader) + " in namespace " + ns +
                                             ": the operator makes it when it accepts a session there. Is a current operator running? See kubectl get pods -n " +
                                             cluster.flags().store_namespace};
    }
    return cluster.Explain(answer.error(), details, {.verb = "create", .resource = "serviceaccounts/token of borescope-reader", .ns = ns, .role = "borescope-view"});
  }
  const std::string token = TokenOf(json::parse(answer->body, nullptr, false));
  if (token.empty()) return Error{ErrorCode::kUnavailable, "the API server gave no token of ServiceAccount " + std::string(kReader) + " in namespace " + ns};

  http::Request read;
  read.path = "/api/v1/namespaces/" + http::PercentEncode(cluster.flags().store_namespace) + "/services/" + std::string(kStore) + "/proxy/pyroscope/render";
  // Milliseconds, outwards: a window that touches either end belongs to the session.
  read.query = {{"query", result->query},
                {"from", std::to_string(session.status.start_time / 1'000'000)},
                {"until", std::to_string((session.status.end_time + 999'999) / 1'000'000)},
                {"format", "pprof"}};
  read.headers["Borescope-Token"] = token;
  read.headers["Accept"] = "*/*";
  answer = cluster.api().Call(read, {.timeout = std::chrono::milliseconds(60'000), .error = &details, .max_tries = 3});
  if (answer.ok()) return std::move(answer->body);
  const std::string& store = cluster.flags().store_namespace;
  if (details.http_status == 403 && details.message.find("services/proxy") != std::string::npos) {
    return Error{ErrorCode::kDenied, "you may not reach Borescope's store in namespace " + store + " (" + details.message +
                                         "): its chart grants that to everybody who is logged in; is it installed in another namespace? Then give --store-namespace"};
  }
  if (details.http_status == 404 && details.message.find("services \"") != std::string::npos) {
    return Error{ErrorCode::kNotFound, "there is no service borescope-store in namespace " + store + ": give the namespace of Borescope with --store-namespace"};
  }
  if (details.http_status == 503 && details.message.find("no endpoints") != std::string::npos) {
    return Error{ErrorCode::kUnavailable, "Borescope's store in namespace " + store + " does not run: see kubectl get pods -n " + store};
  }
  if (details.http_status == 0) return cluster.Explain(answer.error(), details, {});
  return Error{answer.error().code, "the store says: " + (details.message.empty() ? answer.error().message : details.message)};
}

}  // namespace borescope::cli
