// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/http/message.h"
#include "common/metrics/metrics.h"
#include "store/db/database.h"
#include "store/query/label_query.h"

namespace borescope::store {

// What reads profiles over HTTP, each request within its scope. Thread-safe.
class QueryService {
 public:
  QueryService(Database* database, metrics::Registry* metrics, const Clock* clock);

  // GET /pyroscope/render?query=TYPE{SELECTOR}&from=now-1h&until=now&format=json|pprof|collapsed
  http::Response Render(const http::Request& request);
  // POST /querier.v1.QuerierService/SelectMergeProfile; the reply is the pprof message itself.
  http::Response SelectMergeProfile(const http::Request& request);
  // POST /querier.v1.QuerierService/{ProfileTypes,LabelNames,LabelValues,Series}, protobuf or JSON, and GET of the same path (JSON).
  http::Response AnswerLabels(LabelMethod method, const http::Request& request);
  static constexpr std::pair<std::string_view, LabelMethod> kLabelMethods[] = {{"ProfileTypes", LabelMethod::kProfileTypes},
                                                                               {"LabelNames", LabelMethod::kLabelNames},
                                                                               {"LabelValues", LabelMethod::kLabelValues},
                                                                               {"Series", LabelMethod::kSeries}};

 private:
  Result<http::Response> TryRender(const http::Request& request);
  Result<http::Response> TrySelectMergeProfile(const http::Request& request);
  Result<http::Response> TryLabels(LabelMethod method, const http::Request& request);
  http::Response Finish(std::string_view route, int64_t began_ns, Result<http::Response> result);

  Database* database_;
  const Clock* clock_;
  metrics::Family &queries_, &seconds_;
};

}  // namespace borescope::store
