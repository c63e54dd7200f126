// SPDX-License-Identifier: Apache-2.0
#include "common/api/types.h"

#include <algorithm>
#include <cmath>

#include "common/base/strings.h"

namespace borescope::api {
namespace {

constexpr std::array<std::string_view, 12> kReservedLabels = {
    "service_name",  "namespace", "pod",      "container", "node",    "cluster", "workload",
    "workload_kind", "version",   "language", "restart",   "profiling_session"};

bool IsWordCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

}  // namespace

const Condition* FindCondition(const std::vector<Condition>& conditions, std::string_view type) {
  auto it = std::find_if(conditions.begin(), conditions.end(), [&](const Condition& c) { return c.type == type; });
  return it == conditions.end() ? nullptr : &*it;
}

bool IsTrue(const std::vector<Condition>& conditions, std::string_view type) {
  const Condition* condition = FindCondition(conditions, type);
  return condition != nullptr && condition->status == "True";
}

bool SetCondition(std::vector<Condition>& conditions, Condition condition, int64_t now) {
  auto it = std::find_if(conditions.begin(), conditions.end(), [&](const Condition& c) { return c.type == condition.type; });
  if (it == conditions.end()) {
    condition.last_transition_time = now;
    conditions.push_back(std::move(condition));
    return true;
  }
  condition.last_transition_time = it->status == condition.status ? it->last_transition_time : now;
  if (*it == condition) return false;
  *it = std::move(condition);
  return true;
}

std::optional<ProfileKind> ProfileKindFromName(std::string_view name) {
  auto it = std::find(kProfileKindNames.begin(), kProfileKindNames.end(), name);
  if (it == kProfileKindNames.end()) return std::nullopt;
  return static_cast<ProfileKind>(it - kProfileKindNames.begin());
}

bool Matches(const LabelSelector& selector, const std::map<std::string, std::string>& labels) {
  for (const auto& [key, value] : selector.match_labels) {
    auto it = labels.find(key);
    if (it == labels.end() || it->second != value) return false;
  }
  for (const LabelRequirement& requirement : selector.match_expressions) {
    auto it = labels.find(requirement.key);
    bool present = it != labels.end();
    bool listed = present && std::find(requirement.values.begin(), requirement.values.end(), it->second) != requirement.values.end();
    bool holds = requirement.op == "In"             ? listed
                 : requirement.op == "NotIn"        ? !listed
                 : requirement.op == "Exists"       ? present
                 : requirement.op == "DoesNotExist" ? !present
                                                    : false;
    if (!holds) return false;
  }
  return true;
}

double ShareError(double share, double effective_samples) {
  if (!(effective_samples > 0)) return 1;
  double variance = std::max(share * (1 - share), 1 / effective_samples);
  return std::min(1.0, 3 * std::sqrt(variance / effective_samples));
}

std::pair<std::string_view, int64_t> SplitLocation(std::string_view location) {
  size_t colon = location.rfind(':');
  if (colon == std::string_view::npos) return {location, 0};
  auto line = ParseUint(location.substr(colon + 1));
  if (!line || *line == 0 || *line > INT32_MAX) return {location, 0};
  return {location.substr(0, colon), static_cast<int64_t>(*line)};
}

std::string TopDisplay(const TopFunction& top) {
  std::string text = SanitizeName(top.function, 40);
  if (!top.location.empty()) text += "  " + SanitizeName(top.location, 24);
  text += "  " + std::to_string((top.own_per_mille + 5) / 10) + "%";
  if (top.error_per_mille > 0) text += " ±" + std::to_string((top.error_per_mille + 9) / 10);
  return text;
}

std::string JobId(std::string_view namespace_name, std::string_view name, std::string_view uid) {
  std::string id(namespace_name);
  id += '/';
  id += name;
  id += '/';
  id += uid;
  return id;
}

std::string ProfileLabelName(std::string_view key) {
  std::string name(key);
  for (char& c : name) {
    if (!IsWordCharacter(c)) c = '_';
  }
  return name;
}

bool ReservedLabel(std::string_view key) {
  std::string name = ProfileLabelName(key);
  return name.starts_with("__") || std::find(kReservedLabels.begin(), kReservedLabels.end(), name) != kReservedLabels.end();
}

std::string ReservedLabelList() {
  std::string text;
  for (std::string_view label : kReservedLabels) text.append(text.empty() ? "" : ", ").append(label);
  return text;
}

}  // namespace borescope::api
