// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampler/symbols/elf_file.h"
#include "sampler/unwind/rows.h"

namespace borescope::unwind {

struct CodeRange {
  uint64_t start = 0, end = 0;  // end is exclusive
};

struct CodeRow {
  uint64_t start = 0, end = 0;  // file offsets, end is exclusive
  uint16_t rule = 0;            // of Rules; kNoRule: code that was looked at and not understood
};

struct CodeOptions {
  std::vector<uint64_t> starts;  // linked addresses where functions start, known beside the file's symbols
  bool use_symbols = true;       // false in tests
  uint64_t max_bytes = 256u << 20;
  // Work: so many instructions are looked at, and so many more for each byte of code, at most.
  uint64_t base_instructions = 1 << 20, instructions_per_byte = 8;
  // And in all, whatever the size: some seconds. What is certainly reached comes first; the rest of the code stays without rules.
  uint64_t max_instructions = 20'000'000;
};

struct CodeStats {
  uint64_t bytes = 0, known_bytes = 0;     // of code that was looked at; that has a rule now
  uint64_t functions = 0;
  uint64_t instructions = 0;
  bool out_of_budget = false;
};

// Unwind rules for code of which the file tells nothing, from the instructions themselves: `uncovered` are file offsets in executable
// segments, in order. Walks each function from where it certainly starts (symbols, calls, the entry point) or seems to, and follows stack
// pointer and frame pointer along all its paths; rows are what these agree on. "Never a wrong caller" is the rule: where paths disagree,
// or a function returns with another stack than it began with, nothing is told. Signal trampolines, PLT stubs, the first function of the
// program and of threads are known by their code. `debug`, the separate debug file, may be null: its symbols are used.
// aarch64: arm64_code.h; code that only a switch's table or a pointer leads to is told of less there.
// Rows are in order, without an overlap. Bytes are hostile: time and memory are bounded by the number of bytes.
std::vector<CodeRow> RulesFromCode(symbols::ElfFile& elf, symbols::ElfFile* debug, std::span<const CodeRange> uncovered, Rules* rules,
                                   const CodeOptions& options = {}, CodeStats* stats = nullptr);

}  // namespace borescope::unwind
