// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "common/base/result.h"
#include "sampler/symbols/elf_file.h"
#include "sampler/unwind/cfi.h"
#include "sampler/unwind/rows.h"

namespace borescope::unwind {

// Rows from Go's function table (.gopclntab), which says for each instruction how far the stack pointer is below the return address; where
// a function saves the frame pointer is read from its code. Of functions that move to another stack it is known where they come from as long
// as their own frame pointer is (UNWIND_RULE_SWITCH). Returns the number of rows before merging; 0: no such table, or none that is
// understood. kExhausted: more than max_rows.
Result<uint64_t> ReadGoRows(symbols::ElfFile& elf, const CodeOffsets& code, size_t max_rows, Rules* rules, Layer* layer);

}  // namespace borescope::unwind
