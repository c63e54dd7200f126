// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/naming/namer.h"
#include "tests/fuzz/debug_sections.h"

using namespace borescope;

// A program, its debug file, what that shares with others, and a split file or package: which of them is asked for, and how, the input says
// in their links and build ids. A .gnu_debuglink that is "packed" gets the check sum that fits.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 1 << 15) return 0;
  auto parts = fuzz::Parts(std::string_view(reinterpret_cast<const char*>(data), size), 4);
  std::string debug = fuzz::Image(parts[1]), alt = fuzz::Image(parts[2]), split = fuzz::Image(parts[3]), link;
  for (fuzz::Part& part : parts[0]) {
    if (part.name != ".gnu_debuglink" || part.packing == 0) continue;
    link = std::string(part.bytes.substr(0, part.bytes.find('\0')));
    link.resize((link.size() + 1 + 3) / 4 * 4);
    auto crc = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(debug.data()), static_cast<uInt>(debug.size())));
    link.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
    part.bytes = link;
    part.packing = 0;
  }
  auto namer = naming::Namer::Open(symbols::MemorySource(fuzz::Image(parts[0])), [&](const naming::Wanted& wanted) -> std::unique_ptr<symbols::ByteSource> {
    if (wanted.attempt > 1) return nullptr;
    switch (wanted.kind) {
      case naming::Wanted::kBuildId: case naming::Wanted::kDebugLink: return symbols::MemorySource(debug);
      case naming::Wanted::kAltLink: return symbols::MemorySource(alt);
      case naming::Wanted::kPackage: case naming::Wanted::kSplit: return symbols::MemorySource(split);
    }
    std::abort();
  });
  if (!namer.ok()) return 0;
  for (uint64_t address = fuzz::kText; address < fuzz::kText + 0x200; address += 23) {
    naming::AddressNames names = (*namer)->Find(address, /*lines=*/address % 2);
    if (names.lines.size() > naming::kMaxInlined || naming::EncodedBytes(names) > naming::NameReply::kMaxBytes) std::abort();
  }
  return 0;
}
