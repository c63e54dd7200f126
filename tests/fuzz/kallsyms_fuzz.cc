// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "sampler/symbols/kallsyms.h"

using borescope::symbols::Kallsyms;

namespace {

// A folder with a file `kallsyms`, for the life of the process.
const std::string& Folder() {
  // Never destroyed: the handler at exit still needs it.
  static const std::string* const folder = [] {
    char path[] = "/tmp/kallsyms_fuzz.XXXXXX";
    if (mkdtemp(path) == nullptr) std::abort();
    std::atexit([] { std::filesystem::remove_all(Folder()); });
    return new std::string(path);
  }();
  return *folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  auto table = Kallsyms::Parse(text);
  const uint64_t start = table.ok() ? table->text_start() : 0x1000;
  const uint64_t addresses[] = {start, start + 1, start + 0x100, start + 0x1000, 0, UINT64_MAX, start + 0x10};
  auto check = [](const auto& found, uint64_t address) {
    if (found && (found->start > address || found->name.empty())) std::abort();
  };
  // From a file, as far as it is needed, and read whole (the last address but one is behind all), it must come out the same; every
  // fourth input, for files are slow.
  if (size % 4 == 0) {
    if (!borescope::WriteFileAtomically(Folder() + "/kallsyms", std::string(text) + "\n").ok()) std::abort();
    auto loaded = Kallsyms::Load(Folder());
    if (loaded.ok() != table.ok()) std::abort();
    if (loaded.ok()) {
      for (uint64_t address : addresses) check(loaded->Find(address), address);
      for (uint64_t address : addresses) {
        auto one = loaded->Find(address), other = table->Find(address);
        if (one.has_value() != other.has_value()) std::abort();
        if (one && (one->name != other->name || one->module != other->module || one->start != other->start)) std::abort();
      }
    }
  }
  if (!table.ok()) return 0;
  for (uint64_t address : addresses) check(table->Find(address), address);
  if (table->memory_bytes() == 0) std::abort();
  return 0;
}
