// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "common/codec/collapsed.h"
#include "common/codec/flamebearer.h"
#include "common/codec/html.h"
#include "common/codec/pprof.h"

// What decodes must survive its own encoding with the same sums, merge with itself, and print.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace borescope;
  auto first = codec::DecodePprof({reinterpret_cast<const char*>(data), size});
  if (!first.ok()) return 0;
  auto second = codec::DecodePprof(codec::EncodePprof(*first));
  if (!second.ok() || second->samples().size() != first->samples().size()) abort();
  for (size_t i = 0; i < first->sample_types.size(); ++i) {
    if (first->Total(i) != second->Total(i)) abort();
  }
  if (first->squares != second->squares) abort();
  profile::Profile merged;
  if (!merged.Merge(*first) || !merged.Merge(*second)) abort();
  codec::EncodeCollapsed(merged, 0);
  codec::EncodeFlamebearer(merged, 0, "fuzz");
  codec::EncodeHtml(merged, 0, {.title = "fuzz"});
  profile::Top(merged, 0, 16);
  return 0;
}
