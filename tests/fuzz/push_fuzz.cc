// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "common/codec/push.h"

// What decodes must come out of its own encoding unchanged.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace borescope;
  auto first = codec::DecodePush({reinterpret_cast<const char*>(data), size});
  if (!first.ok()) return 0;
  auto second = codec::DecodePush(codec::EncodePush(*first));
  if (!second.ok() || second->size() != first->size()) abort();
  for (size_t i = 0; i < first->size(); ++i) {
    if ((*first)[i].labels != (*second)[i].labels || (*first)[i].windows.size() != (*second)[i].windows.size()) abort();
  }
  return 0;
}
