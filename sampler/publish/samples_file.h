// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/stacks/aggregator.h"

namespace borescope::publish {

// --samples FILE: one JSON object a line for each sample and session:
// {"time_ns":…,"tid":…,"tgid":…,"session":"…","weight_ns":…,"frames":["leaf",…],"end":"none"}
// time_ns is CLOCK_MONOTONIC, pids are those of our PID namespace, end is a name of the loss table ("none": a whole stack).
// Not thread-safe. Lines are written in blocks; a write that fails is logged once and ends the writing.
class SamplesFile {
 public:
  enum class Mode { kTruncate, kAppend };
  static Result<std::unique_ptr<SamplesFile>> Open(const std::string& path, Mode mode = Mode::kTruncate);
  ~SamplesFile();  // flushes

  void Write(const stacks::NamedSample& sample, std::string_view session);
  void Flush();

 private:
  SamplesFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
  std::string buffer_;
};

}  // namespace borescope::publish
