// SPDX-License-Identifier: Apache-2.0
// Objects from an API server, hostile ones: no crash, and what was read can be written and read again as the same value.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/api/json.h"

namespace {

using nlohmann::json;

template <typename T>
void Again(borescope::Result<T> (*parse)(const json&), const json& object) {
  borescope::Result<T> value = parse(object);
  if (!value.ok()) return;
  // The first writing may cut texts; from then on nothing changes.
  json written = borescope::api::ToJson(*value);
  borescope::Result<T> again = parse(written);
  if (!again.ok() || borescope::api::ToJson(*again) != written) std::abort();
  if (written.dump().empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  json object = json::parse(data, data + size, nullptr, false);
  if (object.is_discarded()) return 0;
  Again(borescope::api::ParseProfilingSession, object);
  Again(borescope::api::ParseNodeSampler, object);
  Again(borescope::api::ParseNodeSamplerReport, object);
  return 0;
}
