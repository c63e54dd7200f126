// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "store/db/database.h"

namespace re2 {
class RE2;
}

namespace borescope::store {

struct Matcher {
  enum class Op { kEqual, kNotEqual, kMatch, kNotMatch };
  std::string name;
  Op op = Op::kEqual;
  std::string value;
  std::shared_ptr<const re2::RE2> regex;  // of the last two; anchored at both ends

  // A label that is not there has the value "".
  bool Matches(const Labels& sorted_labels) const;
  std::string ToString() const;
};

// The grammar of Prometheus' label matchers: {a="b", c=~"d|e", f!="g", h!~"i",}; names with other characters than
// [a-zA-Z0-9_.] in quotes. At most 4 KiB and 32 matchers; regular expressions are RE2's, with bounded memory and linear time.
// kInvalid names the position and what is expected there.
Result<std::vector<Matcher>> ParseSelector(std::string_view text);

}  // namespace borescope::store
