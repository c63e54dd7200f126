// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "bpf/abi/record.h"
#include "sampler/engine/engine.h"

namespace borescope::engine {

// A sample as the programs wrote it; the spans point into the record.
struct SampleRecord {
  borescope_sample head;
  std::span<const uint64_t> kernel, user;
  std::optional<MissingFile> missing;
  std::optional<RawStack> raw;
};

// False: it is not what bpf/abi/record.h says. The record must lie at a multiple of 8.
bool ParseSample(std::string_view record, SampleRecord* out);

}  // namespace borescope::engine
