// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace borescope {

// Base64 in the standard or the URL alphabet; padding may be missing, line ends are skipped. Nothing on any other character.
std::optional<std::string> Base64Decode(std::string_view s);

}  // namespace borescope
