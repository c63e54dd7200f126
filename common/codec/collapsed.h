// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "common/profile/profile.h"

namespace borescope::codec {

// One line for each distinct stack of names, sorted: "root;...;leaf 123\n". ";" and line ends in a name become ":" and " ".
std::string EncodeCollapsed(const profile::Profile& profile, size_t value_index);

}  // namespace borescope::codec
