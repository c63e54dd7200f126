// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sampler/guard/kernel_fault.h"

// Records of the kernel's log, each ended by a zero byte.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  borescope::guard::FaultDetector detector;
  while (!input.empty()) {
    size_t end = std::min(input.find('\0'), input.size());
    if (auto fault = detector.Read(input.substr(0, end))) {
      if (!fault->program.starts_with("bpf_") || fault->program.size() > 200 || fault->headline.empty() || fault->headline.size() > 200) std::abort();
    }
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  return 0;
}
