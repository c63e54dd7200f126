// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sampler/targets/mountinfo.h"

// First line: the pod's uid; the rest: mountinfo.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  size_t line = std::min(input.find('\n'), input.size());
  std::string_view uid = input.substr(0, line), mountinfo = input.substr(std::min(line + 1, input.size()));
  borescope::targets::ContainerMount mount = borescope::targets::FindContainerMount(mountinfo, uid);
  if (mount.name.size() > 63 || (!mount.name.empty() && !mount.pod_seen)) std::abort();
  return 0;
}
