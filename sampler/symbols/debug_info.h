// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "sampler/symbols/elf_file.h"

namespace borescope::symbols {

// One function at an address, as the compiler described it.
struct SourceFrame {
  std::string function;     // linkage name when there is one (see DisplayName), else the qualified name; empty: not described
  std::string file;         // as the compiler was told, joined to its directory; empty: unknown
  uint32_t line = 0;        // 0: unknown
  uint32_t start_line = 0;  // where the function is declared; 0: unknown
};

// The files that hold the debug information of one executable. They must outlive the DebugInfo.
struct DebugFiles {
  ElfFile* main = nullptr;   // what is mapped
  ElfFile* debug = nullptr;  // the separate debug file, or null
  ElfFile* alt = nullptr;    // what its .gnu_debugaltlink names, or null
  // Split debug information: the .dwo file that a unit names, or the .dwp that holds it, or null. Kept while the unit is.
  std::function<std::shared_ptr<ElfFile>(std::string_view name, std::string_view comp_dir, uint64_t dwo_id)> split;
};

struct DebugLimits {
  size_t memory_bytes = 64 << 20;  // of what is kept and of what one look-up builds
  uint64_t steps = 100'000'000;    // entries and line rows that one look-up reads at most: a few seconds
};

// Functions, files and lines by address from DWARF 2 to 5. The sections are read in windows of some KiB, never as a whole (compressed
// ones must fit into the limit); opening indexes the units by address, the rest is read when an address asks for it. Not thread-safe.
class DebugInfo {
 public:
  // kNotFound: no debug information here; kExhausted: more than the limits allow.
  static Result<std::unique_ptr<DebugInfo>> Open(DebugFiles files, DebugLimits limits = {});
  virtual ~DebugInfo() = default;

  // What is at a linked address: innermost inlined function first, last the function that is really there. Empty: no unit holds the
  // address. Code without a described function (assembly) is one frame without a name. kExhausted: beyond the limits; kInvalid: the
  // bytes make no sense.
  virtual Result<std::vector<SourceFrame>> Find(uint64_t vaddr) = 0;
  // What kept names or lines away so far: a .dwo file that is missing, a unit that cannot be read. Empty: nothing.
  virtual const std::string& problem() const = 0;
  virtual size_t memory_bytes() const = 0;
};

}  // namespace borescope::symbols
