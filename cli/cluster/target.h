// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "common/api/types.h"
#include "common/base/result.h"

namespace borescope::cli {

// "deploy/checkout" as kubectl abbreviates it: pod, deploy, sts, ds, rs or job, and a name. kInvalid says what is allowed.
Result<api::Target> ParseTarget(std::string_view text);
// "deploy/checkout", "pods of app=web,tier in (a, b)".
std::string DescribeTarget(const api::Target& target);

// A name nobody has, for a session like `base`: at most 63 characters, "checkout-5f2a1". What such a name ends in is replaced.
std::string NewSessionName(std::string_view base);

}  // namespace borescope::cli
