// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sampler/naming/wire.h"

using namespace borescope;

// What a child says: it may have been taken over by a file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto reply = naming::Decode({reinterpret_cast<const char*>(data), size});
  if (!reply) return 0;
  auto again = naming::Decode(naming::Encode(*reply));
  if (!again || *again != *reply) std::abort();
  return 0;
}
