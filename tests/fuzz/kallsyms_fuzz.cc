// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "sampler/symbols/kallsyms.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto table = borescope::symbols::Kallsyms::Parse({reinterpret_cast<const char*>(data), size});
  if (!table.ok()) return 0;
  for (uint64_t address : {uint64_t{0}, uint64_t{0x1000}, table->text_start(), table->text_end() - 1, UINT64_MAX}) {
    auto found = table->Find(address);
    if (found && (found->start > address || found->name.empty())) std::abort();
  }
  return 0;
}
