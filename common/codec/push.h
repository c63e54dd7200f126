// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace borescope::codec {

// push.v1.PushRequest (proto/push/v1/push.proto).

using Labels = std::vector<std::pair<std::string, std::string>>;

struct PushWindow {
  std::string pprof;  // gzip or plain
  std::string id;     // UUID, or empty
};

struct PushSeries {
  Labels labels;
  std::vector<PushWindow> windows;
};

// Entries that a request may have; what is in them is the receiver's to check.
struct PushLimits {
  size_t max_series = 256;
  size_t max_windows = 256;  // in all series together
  size_t max_labels = 30;    // of one series
};

std::string EncodePush(const std::vector<PushSeries>& series);

// kInvalid: not a PushRequest; kExhausted: one of the limits, named with what to do.
Result<std::vector<PushSeries>> DecodePush(std::string_view bytes, const PushLimits& limits = {});
// The same message as protobuf's JSON writes it: {"series": [{"labels": [{"name", "value"}], "samples": [{"rawProfile": BASE64, "ID"}]}]}.
// Keys that are not known are left alone.
Result<std::vector<PushSeries>> DecodePushJson(std::string_view text, const PushLimits& limits = {});

}  // namespace borescope::codec
