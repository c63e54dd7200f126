// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace borescope::kube {

// Cuts the bytes of a watch into JSON objects, however they were split on the wire. Objects end with the closing brace, so that
// a proxy that takes the newlines away does no harm. Linear in the bytes fed.
class WatchFramer {
 public:
  static constexpr size_t kMaxObjectBytes = 16 << 20;

  explicit WatchFramer(size_t max_object_bytes = kMaxObjectBytes) : max_(max_object_bytes) {}

  // Hands over each object that is complete. False from on_object: no more is read and the framer is done with.
  // kExhausted: an object is larger than the bound; kInvalid: something else than objects and white space. Both: drop the stream.
  Status Feed(std::string_view bytes, const std::function<bool(std::string_view object)>& on_object);
  // True between objects.
  bool at_boundary() const { return depth_ == 0; }

 private:
  Error TooLarge() const;

  size_t max_;
  std::string partial_;  // the object so far
  int64_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace borescope::kube
