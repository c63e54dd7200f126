// SPDX-License-Identifier: Apache-2.0
// Sampled by stacks_oracle: optimised, without frame pointers. Which function calls which is fixed, so that each pair of neighbours in a
// stack can be judged. `workload short` spins for some milliseconds and ends; `workload forks N` starts N of those, one after the other.
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

extern "C" {
volatile uint64_t sink;

__attribute__((noinline)) uint64_t leaf_spin(uint64_t x) {
  for (int i = 0; i < 100000; ++i) x = x * 2862933555777941757u + 3037000493u;
  return x;
}
__attribute__((noinline)) void level3(uint64_t x) { sink = leaf_spin(x) + 1; }
__attribute__((noinline)) void level2(uint64_t x) {
  level3(x);
  sink = sink + leaf_spin(x);
}
__attribute__((noinline)) void level1(uint64_t x) {
  level2(x);
  sink = sink + 1;
}

__attribute__((noinline)) uint64_t compare_work(uint64_t x) {
  for (int i = 0; i < 60; ++i) x = x * 31 + 7;
  return x;
}
__attribute__((noinline)) int compare(const void* a, const void* b) {
  uint64_t x = *static_cast<const uint64_t*>(a), y = *static_cast<const uint64_t*>(b);
  sink = compare_work(x);
  return x < y ? -1 : x > y;
}
__attribute__((noinline)) void do_sort() {
  static thread_local uint64_t values[256];
  uint64_t x = sink;
  for (auto& v : values) v = x = x * 6364136223846793005u + 1;
  qsort(values, 256, sizeof(uint64_t), compare);
  sink = values[3] + 1;
}
__attribute__((noinline)) void do_copy() {
  static thread_local char from[1 << 16], to[1 << 16];
  for (int i = 0; i < 4; ++i) memcpy(to, from, sizeof(to));
  sink = static_cast<uint64_t>(to[5]) + 1;
}
__attribute__((noinline)) void round_of_work() {
  level1(sink);
  do_sort();
  do_copy();
  sink = sink + 1;
}
__attribute__((noinline)) void thread_body() {
  for (;;) round_of_work();
}
__attribute__((noinline)) void short_spin() {
  timespec begin, now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  do {
    level1(sink);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < 5000000);
  sink = sink + 1;
}
}

int main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "short") {
    short_spin();
    return 0;
  }
  if (mode == "forks") {
    for (int n = atoi(argv[2]); n > 0; --n) {
      char* args[] = {argv[0], const_cast<char*>("short"), nullptr};
      pid_t pid;
      if (posix_spawn(&pid, argv[0], nullptr, nullptr, args, nullptr) != 0) return 1;
      waitpid(pid, nullptr, 0);
    }
    return 0;
  }
  std::thread worker(thread_body);
  for (;;) round_of_work();
}
