// SPDX-License-Identifier: Apache-2.0
//
// bench-load [THREADS [FRAMES]]: keeps THREADS CPUs busy with stacks of FRAMES frames (20; 5 to 100), 200 different ones. Without a clock of its own: what it
// does is always the same. Built twice: with frame pointers, and as bench-load-plain without.

#include <pthread.h>

#include <cstdint>
#include <cstdlib>

namespace load {

constexpr int kMostLevels = 97;
int levels = 17;  // and the thread's function, its callers in libc and the leaf: 3 and a bit

__attribute__((noipa)) uint64_t Leaf(uint64_t value) {
  for (int i = 0; i < 200'000; ++i) {
    value = value * 6364136223846793005ull + 1;
    asm volatile("" : "+r"(value));
  }
  asm volatile("" : "+m"(value));  // keeps the frame pointer
  return value;
}

// Two functions a level; bit LEVEL of `path` says which is called. Their frames are of different sizes.
template <int level, bool right>
__attribute__((noipa)) uint64_t Step(uint64_t path, uint64_t value) {
  char room[level % 7 * 24 + 8];
  asm volatile("" : : "r"(room) : "memory");
  if (level >= levels) {
    value = Leaf(value);
  } else if constexpr (level < kMostLevels) {
    if ((path >> level % 40 & 1) != 0) {
      value = Step<level + 1, true>(path, value);
    } else {
      value = Step<level + 1, false>(path, value);
    }
  }
  asm volatile("" : "+r"(value));  // no tail call
  return value;
}

__attribute__((noipa)) void* Thread(void* seed) {
  for (uint64_t value = reinterpret_cast<uintptr_t>(seed);;) {
    uint64_t path = ((value >> 33) % 200 + 1) * 0x9e3779b97f4a7c15ull >> 20;
    value = Step<1, false>(path, value) + 0x632be59bd9b4e019ull;
  }
}

}  // namespace load

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 1;
  if (argc > 2) load::levels = atoi(argv[2]) - 3;
  for (int i = 1; i < threads; ++i) {
    pthread_t thread;  // not std::thread: its own code has no frame pointer
    if (pthread_create(&thread, nullptr, load::Thread, reinterpret_cast<void*>(static_cast<uintptr_t>(i) * 77)) != 0) return 2;
  }
  load::Thread(nullptr);
}
