// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "sampler/unwind/code.h"

namespace borescope::unwind {

// What RulesFromCode gives for aarch64: there all instructions have 4 bytes, so that one pass along each function's paths is enough.
std::vector<CodeRow> Arm64RulesFromCode(symbols::ElfFile& elf, symbols::ElfFile* debug, std::span<const CodeRange> uncovered, Rules* rules,
                                        const CodeOptions& options, CodeStats* stats);

}  // namespace borescope::unwind
