// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "sampler/symbols/go_table.h"

using namespace borescope;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto source = symbols::MemorySource(std::string(reinterpret_cast<const char*>(data), size));
  auto table = symbols::GoTable::Parse(*source, 0, size, 0x1000);
  if (!table) return 0;
  for (uint64_t pc = 0xff0; pc < 0x3000; pc += 7) {
    auto function = table->Find(pc);
    if (function && (pc < function->start || pc >= function->end)) std::abort();
    table->StackDelta(pc);
  }
  return 0;
}
