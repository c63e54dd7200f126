// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "common/codec/push.h"

// What decodes from JSON must come out of the protobuf form unchanged, within the limits.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace borescope;
  codec::PushLimits limits;
  auto first = codec::DecodePushJson({reinterpret_cast<const char*>(data), size}, limits);
  if (!first.ok()) return 0;
  auto second = codec::DecodePush(codec::EncodePush(*first), limits);
  if (!second.ok() || second->size() != first->size()) abort();
  for (size_t i = 0; i < first->size(); ++i) {
    if ((*first)[i].labels != (*second)[i].labels || (*first)[i].windows.size() != (*second)[i].windows.size()) abort();
    for (size_t j = 0; j < (*first)[i].windows.size(); ++j) {
      if ((*first)[i].windows[j].pprof != (*second)[i].windows[j].pprof || (*first)[i].windows[j].id != (*second)[i].windows[j].id) abort();
    }
  }
  return 0;
}
