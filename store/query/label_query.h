// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/http/message.h"
#include "store/connect/connect.h"
#include "store/query/selector.h"

namespace borescope::store {

// The questions about what there is: ProfileTypes, LabelNames, LabelValues, Series.
enum class LabelMethod { kProfileTypes, kLabelNames, kLabelValues, kSeries };

struct LabelQuery {
  std::string name;                             // of LabelValues
  std::vector<std::vector<Matcher>> selectors;  // a series counts that matches one of them, or when there is none
  std::vector<std::string> label_names;         // of Series: only these; empty: all
  int64_t from_ns = 0, until_ns = INT64_MAX;    // only series with a window in [from, until)
};

// The body of a POST: the method's message, as protobuf or JSON, at most 64 KiB. kInvalid says what is wrong.
Result<LabelQuery> ParseLabelQuery(LabelMethod method, Encoding encoding, std::string_view body);
// The same of a GET: ?from=now-1h&until=now&matchers={…}&name=pod&labelNames=a,b
Result<LabelQuery> ParseLabelQuery(LabelMethod method, const http::Request& get, int64_t now_ns);

}  // namespace borescope::store
