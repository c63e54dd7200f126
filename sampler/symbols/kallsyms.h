// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace borescope::symbols {

// Text symbols of the kernel, its modules and BPF programs: sorted arrays over one string pool.
//
// The kernel makes the lines of /proc/kallsyms as they are read, 0.3 µs each and more than 100 000 of them; those of the kernel proper
// come in rising order. So the file is read only as far as the addresses that are asked for.
class Kallsyms {
 public:
  struct Found {
    std::string_view name, module;  // module empty: the kernel proper; valid until the next Find
    uint64_t start = 0;
  };

  // Opens PROC_ROOT/kallsyms. kDenied: all addresses are zero (CAP_SYSLOG is missing, or kptr_restrict is 2).
  static Result<Kallsyms> Load(const std::string& proc_root);
  static Result<Kallsyms> Parse(std::string_view text);

  // Reads on when the address lies behind what was read. What can no longer be read has no name.
  std::optional<Found> Find(uint64_t address);
  uint64_t text_start() const { return text_start_; }  // _stext, or the lowest symbol
  size_t memory_bytes() const;

 private:
  struct Entry {
    uint64_t address;
    uint32_t name;    // offset in pool_, NUL-terminated
    uint32_t module;  // the same; 0: none
  };

  Kallsyms();
  std::string_view NameOf(const Entry& e) const { return pool_.data() + e.name; }
  bool Plainer(const Entry& a, const Entry& b) const;
  void AddLine(std::string_view line);
  uint32_t ModuleOffset(std::string_view module);
  Status ReadOn();
  bool Covers(uint64_t address) const;
  void Finish();
  Status CheckEntries() const;

  std::vector<Entry> entries_;  // each address once; sorted when rising_ or complete
  std::string pool_;
  std::unordered_map<std::string, uint32_t> modules_;
  uint64_t text_start_ = 0, text_end_ = 0;  // 0: not read yet
  size_t text_symbols_ = 0;
  bool rising_ = true;  // so far only symbols of the kernel proper, in order

  UniqueFd file_;  // while there is more to read
  std::string part_;
  size_t held_ = 0;  // bytes of part_: a line that is not whole yet
};

}  // namespace borescope::symbols
