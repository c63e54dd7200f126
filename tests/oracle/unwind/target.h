// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#ifdef __clang__
#define STEP __attribute__((noinline, used))
#define WITH_FRAME_POINTER
#else
#define STEP __attribute__((noinline, noclone, used))
#define WITH_FRAME_POINTER __attribute__((optimize("no-omit-frame-pointer")))
#endif

extern "C" {
uint64_t step_of_library(uint64_t x);
void step_library_calls_back(uint64_t x, void (*back)(uint64_t));
}
