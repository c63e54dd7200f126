// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace borescope::symbols {

// What people read in a flame graph: the qualified name without parameters and return type; template arguments stay, long ones are
// cut by SanitizeName. Rust's legacy hash is left off. Names that are not mangled come back as they are. Never longer than 256 bytes,
// valid UTF-8, no control characters.
std::string DisplayName(std::string_view symbol);

}  // namespace borescope::symbols
