// SPDX-License-Identifier: Apache-2.0
//
// spin [THREADS [SECONDS]]: keeps THREADS CPUs busy in SpinLeaf, for ever by default.

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace spin {

__attribute__((noipa)) uint64_t SpinLeaf(uint64_t value) {
  for (int i = 0; i < 1'000'000; ++i) {
    value = value * 6364136223846793005ull + 1;
    asm volatile("" : "+r"(value));
  }
  return value;
}

__attribute__((noipa)) void SpinThread() {
  for (uint64_t value = 1;;) {
    value = SpinLeaf(value);
    asm volatile("" : "+r"(value));
  }
}

}  // namespace spin

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 1;
  if (threads < 1 || threads > 64) {
    fprintf(stderr, "spin: THREADS: %s; give a number from 1 to 64\n", argv[1]);
    return 2;
  }
  if (argc > 2) alarm(static_cast<unsigned>(atoi(argv[2])));
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(spin::SpinThread);
  spin::SpinThread();
}
