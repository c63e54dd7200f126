// SPDX-License-Identifier: Apache-2.0
#include "store/query/query.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/codec/pprof.h"

namespace borescope::store {
namespace {

constexpr size_t kMaxMergedSamples = 1'000'000;
constexpr size_t kHints = 5;

std::string TypeId(const SeriesKey& key, const profile::ValueType& sample) {
  return ProfileType{std::string(NameOf(key)), sample, key.period_type}.ToString();
}

size_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, 64);
  b = b.substr(0, 64);
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// "\"checkout\", \"cart\" (2 of 17)": the nearest of what there is.
std::string Nearest(std::string_view wanted, const std::set<std::string>& there) {
  std::vector<std::pair<size_t, std::string_view>> ranked;
  for (const std::string& text : there) ranked.emplace_back(EditDistance(wanted, text), text);
  std::ranges::sort(ranked);
  std::string out;
  size_t shown = std::min(kHints, ranked.size());
  for (size_t i = 0; i < shown; ++i) out += (i == 0 ? "" : ", ") + JsonQuote(SanitizeName(ranked[i].second, 100));
  if (shown < ranked.size()) out += " (" + std::to_string(shown) + " of " + std::to_string(ranked.size()) + ")";
  return out;
}

bool TypeMatches(const Query& query, const SeriesKey& key) { return !query.type || query.type->IndexIn(key).has_value(); }

std::string Describe(const Query& query) {
  std::string text = query.type ? query.type->ToString() + "{" : "{";
  for (size_t i = 0; i < query.matchers.size(); ++i) text += (i == 0 ? "" : ", ") + query.matchers[i].ToString();
  return text + "} from " + FormatTime(query.from_ns) + " until " + FormatTime(query.until_ns);
}

// Why nothing matches, and what is near.
std::string Explain(const Query& query, const View& view, const std::vector<Series>& all) {
  if (all.empty()) return "the store holds no profile " + (view.ns() ? "of namespace " + std::string(*view.ns()) + " " : "") + "yet";
  std::string why;
  if (std::ranges::none_of(all, [&](const Series& series) { return TypeMatches(query, series.key); })) {
    std::set<std::string> types;
    for (const Series& series : all) {
      for (const profile::ValueType& sample : series.key.sample_types) types.insert(TypeId(series.key, sample));
    }
    why += "; no series has this profile type, there are " + Nearest(query.type->ToString(), types);
  }
  for (const Matcher& matcher : query.matchers) {
    if (std::ranges::any_of(all, [&](const Series& series) { return matcher.Matches(series.key.labels); })) continue;
    std::set<std::string> values, names;
    for (const Series& series : all) {
      for (const auto& [name, value] : series.key.labels) {
        names.insert(name);
        if (name == matcher.name) values.insert(value);
      }
    }
    if (values.empty()) {
      why += "; no series has a label \"" + SanitizeName(matcher.name, 100) + "\", there are " + Nearest(matcher.name, names);
    } else {
      why += "; no series has " + SanitizeName(matcher.ToString(), 200) + ", there are " + Nearest(matcher.value, values);
    }
  }
  return why.empty() ? "each part alone matches something, but no series matches all of them: leave one out" : why.substr(2);
}

profile::Profile OnlyValue(const profile::Profile& from, size_t index) {
  // Merging into a profile without samples copies the tables; the samples are then added with the one value.
  profile::Profile to;
  to.sample_types = {from.sample_types[index]};
  to.period_type = from.period_type;
  to.period = from.period;
  to.time_ns = from.time_ns;
  to.duration_ns = from.duration_ns;
  to.default_sample_type = from.sample_types[index].type;
  to.comments = from.comments;
  if (index == from.DefaultValue()) to.squares = from.squares;
  // Tables without doubles keep their positions.
  for (const profile::Mapping& mapping : from.mappings()) to.AddMapping(mapping);
  for (const profile::Function& function : from.functions()) to.AddFunction(function);
  for (const profile::Location& location : from.locations()) to.AddLocation(location);
  for (const profile::Sample& sample : from.samples()) {
    if (sample.values[index] != 0) to.AddSample(sample.locations, {&sample.values[index], 1}, sample.labels);
  }
  return to;
}

}  // namespace

Result<ProfileType> ProfileType::Parse(std::string_view id) {
  std::vector<std::string_view> parts = Split(id, ':');
  // Some clients add a sixth, ":delta".
  if ((parts.size() != 5 && parts.size() != 6) || parts[0].empty() || parts[1].empty()) {
    return Error{ErrorCode::kInvalid, "query: " + JsonQuote(SanitizeName(id, 100)) +
                                          " is no profile type: the form is name:sample_type:sample_unit:period_type:period_unit, "
                                          "as process_cpu:cpu:nanoseconds:cpu:nanoseconds"};
  }
  return ProfileType{std::string(parts[0]), {std::string(parts[1]), std::string(parts[2])}, {std::string(parts[3]), std::string(parts[4])}};
}

std::string ProfileType::ToString() const {
  return name + ":" + sample.type + ":" + sample.unit + ":" + period.type + ":" + period.unit;
}

std::optional<size_t> ProfileType::IndexIn(const SeriesKey& series) const {
  if (NameOf(series) != name || series.period_type != period) return std::nullopt;
  auto it = std::ranges::find(series.sample_types, sample);
  if (it == series.sample_types.end()) return std::nullopt;
  return static_cast<size_t>(it - series.sample_types.begin());
}

Result<Query> ParseQuery(std::string_view text, int64_t from_ns, int64_t until_ns) {
  text = Trim(text);
  if (text.empty()) return Error{ErrorCode::kInvalid, "query: it is empty: give {label=\"value\"}, with a profile type before it if you like"};
  if (from_ns >= until_ns) {
    return Error{ErrorCode::kInvalid, "query: from (" + FormatTime(from_ns) + ") is not before until (" + FormatTime(until_ns) + ")"};
  }
  Query query;
  query.from_ns = from_ns;
  query.until_ns = until_ns;
  size_t brace = std::min(text.find('{'), text.size());
  std::string_view type = Trim(text.substr(0, brace));
  if (!type.empty()) {
    ASSIGN_OR_RETURN(query.type, ProfileType::Parse(type));
  }
  if (brace < text.size()) {
    ASSIGN_OR_RETURN(query.matchers, ParseSelector(text.substr(brace)));
  }
  return query;
}

std::string_view NameOf(const SeriesKey& key) {
  for (const auto& [name, value] : key.labels) {
    if (name == "__name__") return value;
  }
  return "";
}

Status CheckNamespace(const View& view, const std::vector<Matcher>& matchers) {
  if (!view.ns()) return OkStatus();
  for (const Matcher& matcher : matchers) {
    if (matcher.name == "namespace" && !matcher.Matches({{"namespace", std::string(*view.ns())}})) return OtherNamespace(*view.ns(), matcher.value);
  }
  return OkStatus();
}

Result<profile::Profile> Select(const View& view, const Query& query) {
  RETURN_IF_ERROR(CheckNamespace(view, query.matchers));
  ASSIGN_OR_RETURN(std::vector<Series> all, view.ListSeries());
  std::vector<const Series*> matching;
  for (const Series& series : all) {
    bool matches = TypeMatches(query, series.key) &&
                   std::ranges::all_of(query.matchers, [&](const Matcher& matcher) { return matcher.Matches(series.key.labels); });
    if (matches) matching.push_back(&series);
  }
  if (matching.empty()) {
    return Error{ErrorCode::kNotFound, "nothing matches " + Describe(query) + ": " + Explain(query, view, all)};
  }

  // Profiles of equal sample types are merged as they are; the one that is asked for is taken out of each at the end.
  std::map<std::vector<profile::ValueType>, profile::Profile> merged;
  std::set<std::string> names;
  for (const Series* series : matching) {
    profile::Profile& into = merged[series->key.sample_types];
    bool any = false;
    RETURN_IF_ERROR(view.ForEachWindow(*series, query.from_ns, query.until_ns, [&](std::string_view pprof) -> Status {
      any = true;
      auto status = codec::MergePprof(pprof, &into, {.max_bytes = 16 << 20});
      if (!status.ok()) return Error{ErrorCode::kInternal, "query: a stored profile is damaged: " + status.error().message};
      if (into.samples().size() > kMaxMergedSamples) {
        return Error{ErrorCode::kExhausted, "query: " + Describe(query) + " holds more than " + std::to_string(kMaxMergedSamples) +
                                                " distinct stacks: ask for a shorter time or fewer series"};
      }
      return OkStatus();
    }));
    if (any) names.insert(std::string(NameOf(series->key)));
  }
  std::erase_if(merged, [](const auto& entry) { return entry.second.sample_types.empty(); });
  if (merged.empty()) {
    int64_t first = INT64_MAX, last = 0;
    for (const Series* series : matching) {
      ASSIGN_OR_RETURN(auto range, view.SeriesRange(*series));
      first = std::min(first, range.first);
      last = std::max(last, range.second);
    }
    return Error{ErrorCode::kNotFound, "nothing matches " + Describe(query) + ": " + std::to_string(matching.size()) +
                                           " series match, with windows from " + FormatTime(first) + " to " + FormatTime(last) +
                                           ": set from and until around them"};
  }
  if (!query.type) {
    if (merged.size() == 1 && names.size() == 1) return std::move(merged.begin()->second);
    std::set<std::string> types;
    for (const Series* series : matching) {
      for (const profile::ValueType& sample : series->key.sample_types) types.insert(TypeId(series->key, sample));
    }
    return Error{ErrorCode::kInvalid, "query: " + Describe(query) + " matches profiles of several kinds; put one of these before the brace: " +
                                          Nearest("process_cpu:cpu:nanoseconds:cpu:nanoseconds", types)};
  }
  profile::Profile result;
  for (const auto& [types, profile] : merged) {
    auto index = static_cast<size_t>(std::ranges::find(types, query.type->sample) - types.begin());
    result.Merge(OnlyValue(profile, index));
  }
  return result;
}

}  // namespace borescope::store
