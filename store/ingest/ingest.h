// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/codec/pprof.h"
#include "common/codec/push.h"
#include "common/http/message.h"
#include "common/metrics/metrics.h"
#include "store/connect/connect.h"
#include "store/db/database.h"

namespace borescope::store {

struct IngestLimits {
  codec::PushLimits push;
  codec::PprofLimits pprof;
  size_t max_label_name_bytes = 1024;
  size_t max_label_value_bytes = 2048;
  size_t max_id_bytes = 64;
  std::chrono::nanoseconds max_age = std::chrono::hours(1);
  std::chrono::nanoseconds max_ahead = std::chrono::minutes(10);
};

// A whole push request (protobuf, or its JSON) as windows to store, or the first thing that is wrong with it: kInvalid for all that would be wrong again
// the next time. Labels of the protocol's own (those that begin with "__", but for __name__ and __session_id__) are not kept.
Result<std::vector<Window>> DecodeWindows(std::string_view body, int64_t now_ns, Encoding encoding = Encoding::kProto, const IngestLimits& limits = {});

// push.v1.PusherService/Push. Thread-safe.
class Ingester {
 public:
  Ingester(Database* database, metrics::Registry* metrics, const Clock* clock);
  // 200 when every window of the request is durable, whether this request or an earlier one brought it.
  http::Response Push(const http::Request& request);

 private:
  http::Response Refuse(const Error& error);

  Database* database_;
  const Clock* clock_;
  metrics::Family &windows_, &refused_, &bytes_;
};

}  // namespace borescope::store
