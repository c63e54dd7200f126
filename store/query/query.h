// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/profile/profile.h"
#include "store/db/database.h"
#include "store/query/selector.h"

namespace borescope::store {

// "process_cpu:cpu:nanoseconds:cpu:nanoseconds": name, sample type and unit, period type and unit (the last two may be empty).
struct ProfileType {
  std::string name;
  profile::ValueType sample, period;

  static Result<ProfileType> Parse(std::string_view id);
  std::string ToString() const;
  // The position of our sample type in the series' profiles, or nothing when it is of another kind.
  std::optional<size_t> IndexIn(const SeriesKey& series) const;
};

struct Query {
  std::optional<ProfileType> type;  // nothing: whatever the selector matches, with all its sample types
  std::vector<Matcher> matchers;
  int64_t from_ns = 0, until_ns = 0;
};

// TYPE, TYPE{SELECTOR} or {SELECTOR}.
Result<Query> ParseQuery(std::string_view text, int64_t from_ns, int64_t until_ns);

// All windows of the view that match, merged. With a type the profile has this one sample type only.
// kNotFound says what was looked for and what there is instead; kInvalid: several kinds match; kExhausted: too much of it; kDenied:
// the selector asks for another namespace than the view's.
Result<profile::Profile> Select(const View& view, const Query& query);

// kDenied when a matcher leaves nothing of the view's namespace.
Status CheckNamespace(const View& view, const std::vector<Matcher>& matchers);
// The `__name__` of a series.
std::string_view NameOf(const SeriesKey& key);

}  // namespace borescope::store
