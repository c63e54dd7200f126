// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/result.h"
#include "sampler/unwind/compile.h"
#include "sampler/unwind/content.h"

namespace borescope::unwind {

// What goes over the socket between the sampler and borescope-unwind-tables, after the child's confined::Hello. For each file: kIdentify with
// the file's descriptor and that of its debug file if there is one, the answer is the hash of their content; and if its table is not known
// yet, kCompile with a memory file for the table, the answer says how much stands in it.
struct CompilerRequest {
  enum Kind : uint32_t { kIdentify, kCompile };  // kCompile: of the file that was identified last
  uint64_t number = 0;                           // the answer has it, too
  uint32_t kind = kIdentify;
  uint32_t pad = 0;
  uint64_t bytes = 0;        // size of the file
  uint64_t debug_bytes = 0;  // 0: there is no debug file
  HashKey key = {};
};
struct CompilerAnswer {
  enum Kind : uint32_t { kContent, kTable, kNothing, kError, kChanged };
  uint64_t number = 0;
  uint32_t kind = kError;
  uint32_t pad = 0;
  uint64_t bytes = 0;         // of the serialised table
  uint8_t content[16] = {};   // hash of what was identified
  char text[472] = {};        // what is wrong
};

using CompileFunction = std::function<Result<CompiledTable>(symbols::ElfFile& elf, symbols::ElfFile* debug)>;
// The child's life: confines itself, answers requests on `socket` until that is closed. Returns the exit code.
int RunCompiler(int socket, const CompileFunction& compile);

}  // namespace borescope::unwind
