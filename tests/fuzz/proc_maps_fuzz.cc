// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sampler/symbols/proc_maps.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto maps = borescope::symbols::ParseMaps(text, 100);
  if (maps.size() > 100) std::abort();
  for (const auto& m : maps) {
    if (m.start >= m.end || !m.executable || m.path.size() > size) std::abort();
  }
  if (borescope::symbols::ParseInnermostPid(text) < 0) std::abort();
  return 0;
}
