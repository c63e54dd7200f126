// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/sinks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/kube/yaml.h"

namespace borescope::publish {
namespace {

constexpr size_t kMaxSinks = 16;

Error Invalid(const std::string& path, const std::string& found, const std::string& next) {
  return {ErrorCode::kInvalid, path + ": found " + found + "; " + next};
}

bool IsDnsLabel(std::string_view s) {
  return !s.empty() && s.size() <= 63 && s.front() != '-' && s.back() != '-' &&
         std::all_of(s.begin(), s.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

Result<Sink> ParseSink(const nlohmann::json& item, const std::string& path) {
  if (!item.is_object()) return Invalid(path, item.type_name(), "give an object with name and url");
  Sink sink;
  std::string url;
  for (const auto& [key, value] : item.items()) {
    std::string* target = key == "name"        ? &sink.name
                          : key == "url"       ? &url
                          : key == "tokenFile" ? &sink.token_file
                          : key == "caFile"    ? &sink.ca_file
                          : key == "tenant"    ? &sink.tenant
                                               : nullptr;
    if (target == nullptr) return Invalid(path, "the key \"" + key + "\"", "known are name, url, tokenFile, caFile, tenant");
    if (!value.is_string()) return Invalid(path + "." + key, value.dump(), "give a string");
    *target = value.get<std::string>();
  }
  if (!IsDnsLabel(sink.name)) {
    return Invalid(path + ".name", "\"" + sink.name + "\"", "give 1 to 63 lower-case letters, digits and '-'");
  }
  size_t scheme = url.starts_with("http://") ? 7 : url.starts_with("https://") ? 8 : 0;
  size_t slash = std::min(url.find('/', scheme), url.size());
  bool printable = std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (scheme == 0 || slash == scheme || !printable || url.find_first_of("?#@") != std::string::npos) {
    return Invalid(path + ".url", "\"" + url + "\"", "give http://HOST:PORT or https://HOST:PORT, without user, query or fragment");
  }
  sink.base_url = url.substr(0, slash);
  sink.path = url.substr(slash);
  while (sink.path.ends_with('/')) sink.path.pop_back();
  bool tenant_ok = sink.tenant.size() <= 150 && std::all_of(sink.tenant.begin(), sink.tenant.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!tenant_ok) return Invalid(path + ".tenant", "\"" + sink.tenant + "\"", "give at most 150 printable characters");
  return sink;
}

}  // namespace

Result<std::vector<Sink>> ParseSinks(std::string_view yaml) {
  ASSIGN_OR_RETURN(nlohmann::json document, kube::YamlToJson(yaml));
  if (!document.is_object() || document.size() != 1 || !document.contains("sinks") || !document["sinks"].is_array()) {
    return Invalid("sinks", document.is_object() ? "other keys" : document.type_name(), "give one list: sinks: [{name: default, url: …}]");
  }
  const nlohmann::json& list = document["sinks"];
  if (list.empty() || list.size() > kMaxSinks) {
    return Invalid("sinks", std::to_string(list.size()) + " entries", "give 1 to " + std::to_string(kMaxSinks));
  }
  std::vector<Sink> sinks;
  for (size_t i = 0; i < list.size(); ++i) {
    std::string path = "sinks[" + std::to_string(i) + "]";
    ASSIGN_OR_RETURN(Sink sink, ParseSink(list[i], path));
    bool twice = std::any_of(sinks.begin(), sinks.end(), [&](const Sink& s) { return s.name == sink.name; });
    if (twice) return Invalid(path + ".name", "\"" + sink.name + "\" a second time", "names are unique");
    sinks.push_back(std::move(sink));
  }
  return sinks;
}

}  // namespace borescope::publish
