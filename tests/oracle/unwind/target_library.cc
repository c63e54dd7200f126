// SPDX-License-Identifier: Apache-2.0
// Called through stubs of the linker.
#include "target.h"

extern "C" {
STEP uint64_t step_library_leaf(uint64_t x) { return x * 5 + 1; }
STEP uint64_t step_of_library(uint64_t x) { return step_library_leaf(x) + step_library_leaf(x + 1); }
STEP void step_library_calls_back(uint64_t x, void (*back)(uint64_t)) { back(step_library_leaf(x)); }
}
