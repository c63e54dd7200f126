// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace borescope::kube {

// The parts of an object that somebody wants. Everything else is dropped while parsing and never held.
//
// A path is a list of keys joined by dots; it keeps the whole value found there. "*" is any key; a dot inside a key is written
// "\."; arrays are walked through ("spec.containers.name" keeps [{name: …}, …]). Objects and arrays on the way are kept even when
// nothing is in them. Without any path all is kept.
class Projection {
 public:
  Projection() = default;
  Projection(std::initializer_list<std::string_view> paths);  // NOLINT: implicit on purpose
  explicit Projection(const std::vector<std::string>& paths);

  // Adds more paths.
  void Add(std::string_view path);
  // This projection for the value at `prefix` ("object", "items").
  Projection Under(std::string_view prefix) const;
  void Merge(const Projection& other);

  // Parses `json`, at most max_depth deep. kInvalid: not JSON (with the byte offset), or too deep.
  Result<nlohmann::json> Parse(std::string_view json, size_t max_depth = 64) const;

  struct Node {
    std::map<std::string, Node, std::less<>> children;  // "*" is any key
    bool whole = false;                                  // the path ends here
  };

 private:
  Node root_;
};

}  // namespace borescope::kube
