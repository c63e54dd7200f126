// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "store/db/database.h"
#include "store/query/label_query.h"

namespace borescope::store {

// The labels of a series, once for each of its sample types, which are told by __profile_type__, __type__, __unit__,
// __period_type__ and __period_unit__. Sorted by name.
std::vector<Labels> LabelSetsOf(const SeriesKey& key);

// The method's answer, sorted, each thing once. kDenied: a selector asks for another namespace than the view's.
Result<std::string> AnswerLabelQuery(LabelMethod method, Encoding encoding, const View& view, const LabelQuery& query);

}  // namespace borescope::store
