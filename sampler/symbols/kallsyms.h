// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace borescope::symbols {

// Text symbols of the kernel, its modules and BPF programs: sorted arrays over one string pool.
class Kallsyms {
 public:
  struct Found {
    std::string_view name, module;  // module empty: the kernel proper; valid while the object lives
    uint64_t start = 0;
  };

  // Reads PROC_ROOT/kallsyms. kDenied: all addresses are zero (CAP_SYSLOG is missing, or kptr_restrict is 2).
  static Result<Kallsyms> Load(const std::string& proc_root);
  static Result<Kallsyms> Parse(std::string_view text);

  std::optional<Found> Find(uint64_t address) const;
  uint64_t text_start() const { return text_start_; }  // _stext, or the lowest symbol
  uint64_t text_end() const { return text_end_; }      // _etext, or the end of the kernel proper
  size_t memory_bytes() const;

 private:
  struct Entry {
    uint64_t address;
    uint32_t name;    // offset in pool_, NUL-terminated
    uint32_t module;  // the same; 0: none
  };
  class Builder;

  std::vector<Entry> entries_;
  std::string pool_;
  uint64_t text_start_ = 0, text_end_ = 0;
};

}  // namespace borescope::symbols
