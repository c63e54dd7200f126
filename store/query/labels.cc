// SPDX-License-Identifier: Apache-2.0
#include "store/query/labels.h"

#include <querier/v1/querier.pb.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "store/query/query.h"

namespace borescope::store {
namespace {

using nlohmann::json;

// Texts in an answer are what senders pushed: ingest has seen to it that they are UTF-8.
std::string Encode(Encoding encoding, const std::set<std::string>& names) {
  if (encoding == Encoding::kJson) return names.empty() ? "{}" : json{{"names", names}}.dump();
  querier::v1::LabelNamesResponse message;  // the same on the wire as LabelValuesResponse
  for (const std::string& name : names) message.add_names(name);
  return message.SerializeAsString();
}

std::string Encode(Encoding encoding, const std::map<std::string, ProfileType>& types) {
  if (encoding == Encoding::kJson) {
    json list = json::array();
    for (const auto& [id, type] : types) {
      json& one = list.emplace_back(json{{"ID", id}, {"name", type.name}, {"sampleType", type.sample.type}});
      for (const auto& [key, value] : {std::pair{"sampleUnit", &type.sample.unit}, {"periodType", &type.period.type}, {"periodUnit", &type.period.unit}}) {
        if (!value->empty()) one[key] = *value;
      }
    }
    return list.empty() ? "{}" : json{{"profileTypes", list}}.dump();
  }
  querier::v1::ProfileTypesResponse message;
  for (const auto& [id, type] : types) {
    querier::v1::ProfileType& one = *message.add_profile_types();
    one.set_id(id);
    one.set_name(type.name);
    one.set_sample_type(type.sample.type);
    one.set_sample_unit(type.sample.unit);
    one.set_period_type(type.period.type);
    one.set_period_unit(type.period.unit);
  }
  return message.SerializeAsString();
}

std::string Encode(Encoding encoding, const std::set<Labels>& sets) {
  if (encoding == Encoding::kJson) {
    json list = json::array();
    for (const Labels& labels : sets) {
      json& one = list.emplace_back(json{{"labels", json::array()}});
      for (const auto& [name, value] : labels) one["labels"].push_back({{"name", name}, {"value", value}});
    }
    return list.empty() ? "{}" : json{{"labelsSet", list}}.dump();
  }
  querier::v1::SeriesResponse message;
  for (const Labels& labels : sets) {
    types::v1::Labels& one = *message.add_labels_set();
    for (const auto& [name, value] : labels) {
      types::v1::LabelPair& pair = *one.add_labels();
      pair.set_name(name);
      pair.set_value(value);
    }
  }
  return message.SerializeAsString();
}

}  // namespace

std::vector<Labels> LabelSetsOf(const SeriesKey& key) {
  std::vector<Labels> sets;
  for (const profile::ValueType& sample : key.sample_types) {
    Labels labels = key.labels;
    labels.emplace_back("__profile_type__", ProfileType{std::string(NameOf(key)), sample, key.period_type}.ToString());
    labels.emplace_back("__type__", sample.type);
    labels.emplace_back("__unit__", sample.unit);
    labels.emplace_back("__period_type__", key.period_type.type);
    labels.emplace_back("__period_unit__", key.period_type.unit);
    std::erase_if(labels, [](const auto& label) { return label.second.empty(); });
    std::ranges::sort(labels);
    sets.push_back(std::move(labels));
  }
  return sets;
}

Result<std::string> AnswerLabelQuery(LabelMethod method, Encoding encoding, const View& view, const LabelQuery& query) {
  for (const auto& matchers : query.selectors) RETURN_IF_ERROR(CheckNamespace(view, matchers));
  ASSIGN_OR_RETURN(std::vector<Series> all, view.ListSeries(query.from_ns, query.until_ns));
  std::set<std::string> names;
  std::map<std::string, ProfileType> types;
  std::set<Labels> sets;
  const std::set<std::string> wanted(query.label_names.begin(), query.label_names.end());
  for (const Series& series : all) {
    std::vector<Labels> of_types = LabelSetsOf(series.key);
    for (size_t i = 0; i < of_types.size(); ++i) {
      const Labels& labels = of_types[i];
      bool matches = query.selectors.empty() || std::ranges::any_of(query.selectors, [&](const std::vector<Matcher>& matchers) {
                       return std::ranges::all_of(matchers, [&](const Matcher& matcher) { return matcher.Matches(labels); });
                     });
      if (!matches) continue;
      if (method == LabelMethod::kProfileTypes) {
        ProfileType type{std::string(NameOf(series.key)), series.key.sample_types[i], series.key.period_type};
        types.emplace(type.ToString(), std::move(type));
        continue;
      }
      Labels kept;
      for (const auto& label : labels) {
        if (method == LabelMethod::kLabelNames) names.insert(label.first);
        if (method == LabelMethod::kLabelValues && label.first == query.name) names.insert(label.second);
        if (method == LabelMethod::kSeries && (wanted.empty() || wanted.contains(label.first))) kept.push_back(label);
      }
      if (!kept.empty()) sets.insert(std::move(kept));
    }
  }
  if (method == LabelMethod::kProfileTypes) return Encode(encoding, types);
  return method == LabelMethod::kSeries ? Encode(encoding, sets) : Encode(encoding, names);
}

}  // namespace borescope::store
