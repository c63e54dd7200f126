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
  // From a file, in pieces, it must come out the same; every fourth input, for files are slow.
  if (size % 4 == 0) {
    if (!borescope::WriteFileAtomically(Folder() + "/kallsyms", std::string(text) + "\n").ok()) std::abort();
    auto loaded = Kallsyms::Load(Folder());
    if (loaded.ok() != table.ok()) std::abort();
    if (loaded.ok() && (loaded->text_start() != table->text_start() || loaded->text_end() != table->text_end())) std::abort();
  }
  if (!table.ok()) return 0;
  for (uint64_t address : {uint64_t{0}, uint64_t{0x1000}, table->text_start(), table->text_end() - 1, UINT64_MAX}) {
    auto found = table->Find(address);
    if (found && (found->start > address || found->name.empty())) std::abort();
  }
  if (table->memory_bytes() == 0) std::abort();
  return 0;
}
