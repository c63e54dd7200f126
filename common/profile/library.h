// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace borescope::profile {

// Who can change a function: the application's author, or only that of a library, the runtime or the kernel.
enum class FrameKind {
  kApplication,
  kLibrary,
  kEntry,  // of a library, and every thread or program begins in it: a row of it would say nothing
  kCut,    // no function: "[truncated: …]"
};

// What is known of a frame; an empty part is not known.
struct FrameText {
  std::string_view name;         // demangled
  std::string_view system_name;  // as in the symbol table
  std::string_view source;       // path of the source file
  std::string_view mapping;      // "/usr/bin/app", "//anon", "[kernel.kallsyms]"
};

// By the mapping, the source file and the name, in this order; by the tables in library_rows.inc. A name that they do not know is the
// application's: so is what a runtime interprets or compiles.
FrameKind Classify(const FrameText& frame);

// Whether a mapping is of no file: code that was made at run time, or that nobody knows.
bool IsAnonymous(std::string_view mapping);

}  // namespace borescope::profile
