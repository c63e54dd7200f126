// SPDX-License-Identifier: Apache-2.0
// The program that single_step_test runs instruction by instruction: optimised, without frame pointers.
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

volatile uint64_t sink;
uint64_t state;

uint64_t Next() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

__attribute__((noinline)) uint64_t Leaf(uint64_t x) {
  for (int i = 0; i < 3; ++i) x = x * 31 + 7;
  return x;
}

// An early way out before the frame is made.
__attribute__((noinline)) uint64_t Shrink(uint64_t x, std::string& text) {
  if (__builtin_expect((x & 3) == 0, 1)) return x + 1;
  text += std::to_string(Leaf(x));
  return text.size();
}

__attribute__((noinline)) uint64_t Recurse(int depth, uint64_t x) {
  if (depth == 0) return Leaf(x);
  return Recurse(depth - 1, x + 1) * 3 + Leaf(x);
}

__attribute__((noinline)) uint64_t Tail(uint64_t x) { return Recurse(static_cast<int>(x & 3), x); }  // becomes a jump

// The stack is realigned.
__attribute__((noinline)) uint64_t Aligned(uint64_t x) {
  alignas(64) uint64_t block[16];
  for (auto& b : block) b = x++;
  sink = reinterpret_cast<uintptr_t>(block);
  return Leaf(block[x & 15]);
}

__attribute__((noinline)) uint64_t Dynamic(uint64_t n) {
  auto* block = static_cast<char*>(alloca(16 + n % 200));
  memset(block, 1, 16 + n % 200);
  sink = block[n % 16];
  return Leaf(n);
}

int Compare(const void* a, const void* b) {
  uint64_t x = *static_cast<const uint64_t*>(a), y = *static_cast<const uint64_t*>(b);
  Leaf(x);
  return x < y ? -1 : x > y;
}

__attribute__((noinline)) void Sort() {
  std::vector<uint64_t> values(12);
  for (auto& v : values) v = Next();
  qsort(values.data(), values.size(), sizeof(uint64_t), Compare);
  sink = values[0];
}

__attribute__((noinline)) void Copy() {
  static char from[4096], to[4096];
  memcpy(to, from, 1 + Next() % 300);
  sink = static_cast<uint64_t>(to[Next() % 100]);
}

struct Shape {
  virtual ~Shape() = default;
  virtual uint64_t Area(uint64_t x) = 0;
};
struct Square : Shape {
  uint64_t Area(uint64_t x) override { return Leaf(x) * 2; }
};
struct Round : Shape {
  uint64_t Area(uint64_t x) override { return Recurse(2, x); }
};

__attribute__((noinline)) void Virtual() {
  std::unique_ptr<Shape> shape;
  if (Next() & 1) {
    shape = std::make_unique<Square>();
  } else {
    shape = std::make_unique<Round>();
  }
  sink = shape->Area(Next());
}

__attribute__((noinline)) void Format() {
  char text[64];
  snprintf(text, sizeof(text), "%d-%s", static_cast<int>(Next() & 1023), "x");
  sink = static_cast<uint64_t>(text[0]);
}

__attribute__((noinline)) void Throw() {
  try {
    if (Next() != 1) throw 3;
  } catch (int) {
    sink = Leaf(3);
  }
}

void OnSignal(int) { sink = Recurse(2, 5); }

}  // namespace

int main(int argc, char** argv) {
  state = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1;
  signal(SIGUSR1, OnSignal);
  std::string text;
  std::function<void()> parts[] = {Sort, Copy, Virtual, Format, [&] { sink = Shrink(Next(), text); }, [] { sink = Tail(Next()); },
                                   [] { sink = Aligned(Next()); }, [] { sink = Dynamic(Next()); }};
  for (int i = 0; i < 6; ++i) parts[Next() % std::size(parts)]();
  raise(SIGUSR1);
  Throw();
  for (int i = 0; i < 1000; ++i) parts[Next() % std::size(parts)]();
  return 0;
}
