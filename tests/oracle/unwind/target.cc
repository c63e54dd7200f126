// SPDX-License-Identifier: Apache-2.0
// The program that single_step_oracle runs instruction by instruction. Each function named step_… has another way to begin, to end or to
// keep its frame; the test looks at every instruction of theirs that runs.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "target.h"

volatile uint64_t sink;

namespace {

jmp_buf jump;

struct Cleanup {
  ~Cleanup();
};

struct First {
  virtual ~First() = default;
  virtual void step_virtual_first(uint64_t x) = 0;
};
struct Second {
  virtual ~Second() = default;
  virtual void step_virtual_second(uint64_t x) = 0;
};
// The second base's table holds a thunk that corrects `this`.
struct Both : First, Second {
  void step_virtual_first(uint64_t x) override;
  void step_virtual_second(uint64_t x) override;
};

}  // namespace

extern "C" {

STEP uint64_t step_leaf(uint64_t x) { return x * 31 + 7; }

// Locals below the stack pointer.
STEP uint64_t step_leaf_red_zone(uint64_t x) {
  volatile uint64_t block[8];
  for (int i = 0; i < 8; ++i) block[i] = x + static_cast<uint64_t>(i);
  return block[x & 7];
}

// Every register that a callee must keep, pushed one by one.
STEP uint64_t step_leaf_saves(uint64_t x) {
  uint64_t a = x, b = x * 3, c = x * 5, d = x * 7, e = x * 11, f = x * 13, g = x ^ 1, h = x ^ 2, i = x ^ 4, j = x ^ 8, k = x ^ 16, l = x ^ 32, m = x ^ 64;
  for (int n = 0; n < 2; ++n) {
    a += b, b ^= c, c += d, d ^= e, e += f, f ^= g, g += h, h ^= i, i += j, j ^= k, k += l, l ^= m, m += a;
  }
  return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h ^ i ^ j ^ k ^ l ^ m;
}

STEP void step_saves(uint64_t x) {
  uint64_t a = x * 3, b = x * 5, c = x * 7, d = x * 11, e = x * 13, f = x * 17;
  sink = step_leaf(x);
  sink = a ^ b ^ c ^ d ^ e ^ f;
}

STEP WITH_FRAME_POINTER void step_frame_pointer(uint64_t x) {
  sink = step_leaf(x) + step_leaf_saves(x);
}

// More than one page of stack.
STEP void step_large(uint64_t x) {
  volatile char block[70000];
  block[0] = static_cast<char>(x);
  sink = step_leaf(x) + static_cast<uint64_t>(block[0]);
}

STEP void step_realigned(uint64_t x) {
  alignas(64) volatile uint64_t block[8];
  for (auto& b : block) b = x++;
  sink = step_leaf(block[x & 7]);
}

// Realigned, and the stack pointer moves: the frame is found through a register of its own.
STEP void step_realigned_dynamic(uint64_t x) {
  alignas(64) volatile uint64_t block[8];
  for (auto& b : block) b = x++;
  volatile char* more = static_cast<volatile char*>(__builtin_alloca(16 + (x & 127)));
  more[0] = 1;
  sink = step_leaf(block[x & 7]) + static_cast<uint64_t>(more[0]);
}

// Realigned with arguments on the stack.
STEP uint64_t step_realigned_arguments(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
  alignas(128) volatile uint64_t block[16];
  for (auto& w : block) w = a + g;
  sink = step_leaf(block[b & 15] + c + d + e + f);
  return h + block[3];
}

STEP void step_dynamic(uint64_t x) {
  volatile char* block = static_cast<volatile char*>(__builtin_alloca(16 + x % 200));
  block[x % 16] = 3;
  sink = step_leaf(x) + static_cast<uint64_t>(block[0]);
}

STEP uint64_t step_variadic(int n, ...) {
  va_list list;
  va_start(list, n);
  uint64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += va_arg(list, uint64_t);
  va_end(list);
  return step_leaf(sum);
}

// Pushes its arguments for the call.
STEP void step_pushes(uint64_t x) {
  sink = step_realigned_arguments(x, x, x, x, x, x, x, 5) + step_variadic(9, x, x, x, x, x, x, x, x, x);
}

STEP uint64_t step_recursive(uint64_t depth) {
  if (depth == 0) return step_leaf(depth);
  return step_recursive(depth - 1) * 3 + step_leaf(depth);
}

STEP void step_tail(uint64_t x) {
  sink = x;
  step_saves(x + 1);
}

STEP void step_tail_after_frame(uint64_t x) {
  uint64_t a = x * 3, b = x * 5;
  sink = step_leaf(x);
  sink = a ^ b;
  step_saves(a);
}

STEP void step_plt(uint64_t x) {
  sink = step_of_library(x) + 1;
}

STEP void step_tail_through_plt(uint64_t x) {
  sink = x;
  step_library_calls_back(x, step_saves);
}

STEP void step_early_way_out(uint64_t x) {
  if (__builtin_expect((x & 3) != 0, 1)) {
    sink = x;
    return;
  }
  uint64_t a = x * 3, b = x * 5, c = x * 7;
  sink = step_leaf(x);
  sink = a ^ b ^ c;
}

STEP uint64_t step_jump_table(uint64_t x) {
  switch (x & 7) {
    case 0: return step_leaf(x);
    case 1: return step_leaf_saves(x) + 1;
    case 2: sink = 5; return 3;
    case 3: return step_leaf_red_zone(x) + 3;
    case 4: return step_recursive(1) + 4;
    case 5: sink = 7; return x + 2;
    default: return step_leaf(x + 9) * 9;
  }
}

__attribute__((noreturn)) STEP void step_throws(uint64_t x) {
  sink = step_leaf(x);
  throw x;
}

// Its last instruction is a call.
STEP void step_falls_off(uint64_t x) {
  sink = x;
  step_throws(x + 1);
}

STEP void step_cleans_up(uint64_t x) {
  Cleanup cleanup;
  step_falls_off(x);
}

STEP void step_catches(uint64_t x) {
  try {
    step_cleans_up(x);
  } catch (uint64_t value) {
    sink = step_leaf(value);
  }
  sink = sink + 1;
}

__attribute__((noreturn)) STEP void step_jumps(uint64_t x) {
  sink = step_leaf(x);
  longjmp(jump, 1);
}

STEP void step_returns_twice(uint64_t x) {
  if (setjmp(jump) == 0) step_jumps(x);
  sink = sink + 1;
}

STEP void step_handler(int number) { sink = step_recursive(static_cast<uint64_t>(number) & 1); }

STEP void step_raises(uint64_t) {
  raise(SIGUSR1);
  sink = sink + 1;
}

STEP int step_compare(const void* a, const void* b) {
  uint64_t x = *static_cast<const uint64_t*>(a), y = *static_cast<const uint64_t*>(b);
  sink = step_leaf(x);
  return x < y ? -1 : x > y;
}

STEP void step_sorts(uint64_t x) {
  uint64_t values[6];
  for (auto& v : values) v = x = x * 6364136223846793005u + 1;
  qsort(values, 6, sizeof(uint64_t), step_compare);
  std::sort(values, values + 6, [](uint64_t a, uint64_t b) __attribute__((noinline)) { return step_leaf(a) > step_leaf(b); });
  sink = values[0];
}

STEP void step_function(uint64_t x) {
  std::function<void()> f = [x] { sink = step_leaf(x); };
  f();
  sink = sink + 1;
}

STEP void step_copies(uint64_t x) {
  static char from[300], to[300];
  memcpy(to, from, 1 + x % 290);
  memset(from, static_cast<int>(x), 1 + x % 290);
  sink = static_cast<uint64_t>(to[3]);
}

STEP void step_vdso(uint64_t) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  sink = static_cast<uint64_t>(now.tv_nsec);
}

STEP void step_virtual(uint64_t x) {
  static Both both;
  First* volatile first = &both;
  Second* volatile second = &both;
  first->step_virtual_first(x);
  second->step_virtual_second(x);
  sink = sink + 1;
}

// By hand: a frame pointer that is made by enter and leave.
void step_enter(uint64_t x);
asm(R"(
.text
.globl step_enter
.type step_enter, @function
step_enter:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  pushq %rbx
  .cfi_offset %rbx, -24
  subq $24, %rsp
  call step_leaf
  movq %rax, %rbx
  movq -8(%rbp), %rbx
  leave
  .cfi_def_cfa %rsp, 8
  ret
  .cfi_endproc
.size step_enter, .-step_enter
)");
}

namespace {

Cleanup::~Cleanup() { sink = step_leaf(5); }
STEP void Both::step_virtual_first(uint64_t x) { sink = step_leaf(x); }
STEP void Both::step_virtual_second(uint64_t x) { sink = step_leaf(x) + 1; }

}  // namespace

int main(int argc, char** argv) {
  uint64_t state = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1;
  signal(SIGUSR1, step_handler);
  using Part = void (*)(uint64_t);
  static const Part parts[] = {step_saves,  step_frame_pointer, step_large,    step_realigned, step_realigned_dynamic, step_dynamic,  step_pushes,
                               step_tail,   step_tail_after_frame, step_plt,   step_tail_through_plt, step_early_way_out, step_returns_twice,
                               step_raises, step_sorts,         step_function, step_copies,    step_vdso,              step_virtual,  step_enter,
                               [](uint64_t x) { for (uint64_t i = 0; i < 8; ++i) sink = step_jump_table(x & ~7ul | i); }, [](uint64_t x) { step_early_way_out(x << 2); }, [](uint64_t x) { sink = step_leaf_red_zone(x) + step_leaf_saves(x); },
                               step_catches};
  // What the seed says, for ever; an exception, which takes ten thousand instructions, at the end of the first round only.
  for (size_t i = 0;; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = state >> 33;
    parts[i < std::size(parts) ? i : x % (std::size(parts) - 1)](x >> 5);
  }
}
