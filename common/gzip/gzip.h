// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace borescope::gzip {

// gzip with any number of members, bounded: it never holds more than max_bytes of output, and gives up on input that grows by
// more than max_ratio once 1 MiB has come out.
class GunzipStream {
 public:
  GunzipStream(size_t max_bytes, size_t max_ratio);
  ~GunzipStream();
  GunzipStream(const GunzipStream&) = delete;
  GunzipStream& operator=(const GunzipStream&) = delete;

  // Appends to *out what `input` inflates to. kInvalid: not gzip; kExhausted: a bound is reached.
  Status Append(std::string_view input, std::string* out);
  // kInvalid when the input ended inside a member. No input at all is fine: an empty body.
  Status Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Result<std::string> Gunzip(std::string_view input, size_t max_bytes, size_t max_ratio = 1032);
std::string Gzip(std::string_view input, int level = 1);

}  // namespace borescope::gzip
