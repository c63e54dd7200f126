// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sampler/symbols/perf_map.h"

// The file arrives in two parts, as it does when it grows; whatever is in it, no two entries answer for one address.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  borescope::symbols::PerfMap whole, parts;
  whole.Add(text);
  size_t taken = parts.Add(text.substr(0, size / 2));
  if (taken > size / 2) std::abort();
  parts.Find(0x1000);
  parts.Add(text.substr(taken));
  for (uint64_t address = 0; address < 0x10000; address += 0x171) {
    auto a = whole.Find(address), b = parts.Find(address);
    if (a.has_value() != b.has_value()) std::abort();
    if (!a) continue;
    if (a->name != b->name || address < a->start || address >= a->end) std::abort();
    if (a->name.size() > borescope::symbols::PerfMap::kMaxName) std::abort();
  }
  return 0;
}
