// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace borescope::naming {

constexpr uint64_t kChildMemoryBytes = 256 << 20;  // address space of borescope-names, so its resident memory too

// The life of borescope-names: confines itself, answers requests (wire.h) on `socket` until that is closed. Returns the exit code.
int RunNames(int socket);

}  // namespace borescope::naming
