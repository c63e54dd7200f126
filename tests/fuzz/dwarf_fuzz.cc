// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/symbols/debug_info.h"
#include "tests/fuzz/debug_sections.h"

using namespace borescope;

static std::unique_ptr<symbols::ElfFile> File(const std::vector<fuzz::Part>& parts) {
  auto elf = symbols::ElfFile::Parse(symbols::MemorySource(fuzz::Image(parts)));
  if (!elf.ok()) std::abort();
  return *std::move(elf);
}

// A program, what it shares with others, and a split file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 1 << 16) return 0;
  auto parts = fuzz::Parts(std::string_view(reinterpret_cast<const char*>(data), size), 3);
  auto main = File(parts[0]);
  std::unique_ptr<symbols::ElfFile> alt = parts[1].empty() ? nullptr : File(parts[1]);
  std::shared_ptr<symbols::ElfFile> split = parts[2].empty() ? nullptr : File(parts[2]);
  symbols::DebugLimits limits{.memory_bytes = 4 << 20, .steps = 200'000};
  auto information = symbols::DebugInfo::Open({main.get(), nullptr, alt.get(), [&](std::string_view, std::string_view, uint64_t) { return split; }}, limits);
  if (!information.ok()) return 0;
  for (uint64_t address = fuzz::kText; address < fuzz::kText + 0x400; address += 11) {
    auto frames = (*information)->Find(address);
    if (frames.ok() && frames->size() > 4096) std::abort();
  }
  if ((*information)->memory_bytes() > limits.memory_bytes + (16 << 20)) std::abort();
  return 0;
}
