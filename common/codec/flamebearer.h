// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/profile/profile.h"

namespace borescope::codec {

// The flame graph as JSON: {version, flamebearer: {names, levels, numTicks, maxSelf}, metadata: {format, spyName, sampleRate, units, name}}.
// A level is a flat list of four numbers a bar: offset from the end of the bar before it, total, self, index into names; names[0] is "total".
std::string EncodeFlamebearer(const profile::Profile& profile, size_t value_index, std::string_view name);

}  // namespace borescope::codec
