// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "common/base/result.h"

namespace borescope::kube {

struct YamlLimits {
  size_t max_bytes = 1 << 20;
  size_t max_nodes = 100'000;  // after aliases are expanded
  size_t max_depth = 64;
};

// One YAML document as JSON, by the rules by which kubectl reads a manifest: quoted scalars are strings, plain ones numbers,
// booleans or null where they look like one. Refused, with line:column: a second document, duplicate keys, merge keys, keys that
// are no scalar, tags other than the core ones, plain yes/no/on/off/y/n and 0-leading integers (YAML 1.1 and 1.2 differ: quote
// them), .inf and .nan, and what exceeds the limits. An empty document is null.
Result<nlohmann::json> YamlToJson(std::string_view yaml, const YamlLimits& limits = {});

}  // namespace borescope::kube
