// SPDX-License-Identifier: Apache-2.0
//
// What the drawn functions (e2e/workloads/generate) and the program around them share.

#pragma once

#include <cstddef>
#include <cstdint>

// A function that the compiler neither inlines, clones, merges nor learns from: it stands in the
// symbol table under its own name and on the stack as its own frame.
#define WHOLE __attribute__((noipa))

inline constexpr size_t kCopyBytes = 16 << 10;
inline constexpr int kSortItems = 512;

// One run along a path. `steps` are indices of functions, outermost first, ended by -1; the last
// function works `work` rounds.
struct Slice {
  const int* steps;
  uint64_t work;
  char* scratch;  // 2 * kCopyBytes
};

using PathFunction = uint64_t (*)(const Slice& slice, int depth);

struct Path {
  PathFunction first;
  const int* steps;
  const char* kind;      // burn, copy or sort
  const char* callback;  // of qsort, or null
  int share;             // per mille of the CPU that the program aims at
};

// Drawn.
extern const char* const kNames[];  // by index of function
extern const Path kPaths[];
extern const int kPathCount;
extern const uint64_t kSeed;
extern void* (*const kThread)(void*);  // the function of every thread but the first
extern const char* const kThreadName;

// Runs a worker's slices until the program ends.
void Run(void* worker);

// Makes the value unknown to the compiler. Behind a call it also keeps the call from becoming a
// jump, which would take the caller off the stack.
template <typename T>
inline T Hidden(T value) {
  asm volatile("" : "+r"(value) : : "memory");
  return value;
}

__attribute__((always_inline)) inline uint64_t Burn(uint64_t rounds, uint64_t value,
                                                    uint64_t factor) {
  for (uint64_t i = 0; i < rounds; ++i) {
    value = value * factor + 1;
    asm("" : "+r"(value));
  }
  return value;
}
