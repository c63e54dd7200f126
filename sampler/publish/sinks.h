// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace borescope::publish {

// Where profiles may go, as the administrator configured it.
struct Sink {
  std::string name;        // a DNS label, as sessions write it
  std::string base_url;    // http[s]://HOST[:PORT]
  std::string path;        // "" or "/prefix": what stands before /push.v1.PusherService/Push
  std::string token_file;  // bearer token, read again as it is renewed; may be empty
  std::string ca_file;     // PEM roots for https; empty: the system's
  std::string tenant;      // X-Scope-OrgID; may be empty
  std::string url() const { return base_url + path; }
};

// The file of --sinks: {"sinks": [{name, url, tokenFile, caFile, tenant}, …]} in YAML; 1 to 16 sinks. Unknown keys are refused:
// this file is written by hand. Errors name the path, the value and what is allowed.
Result<std::vector<Sink>> ParseSinks(std::string_view yaml);

}  // namespace borescope::publish
