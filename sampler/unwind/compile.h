// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/base/result.h"
#include "sampler/symbols/elf_file.h"
#include "sampler/unwind/compiled_table.h"

namespace borescope::unwind {

struct CompileLimits {
  size_t max_rows = 16u << 20;
};

// Every unwind rule that a file tells: .eh_frame (with or without .eh_frame_hdr), .debug_frame (also of `debug`, its separate debug file,
// may be null), .gopclntab; and what it does not tell but follows from its code: PLT stubs, signal trampolines, thread entries,
// functions without CFI. Bytes are hostile: bounded in time and memory. kNotFound: the file tells nothing.
Result<CompiledTable> Compile(symbols::ElfFile& elf, symbols::ElfFile* debug, const CompileLimits& limits = {});

}  // namespace borescope::unwind
