// SPDX-License-Identifier: Apache-2.0
// program MS: burns so much CPU time and ends. Built without frame pointers.
// program MS COUNT WIDTH [PATH…]: runs itself (or the PATHs in turn) COUNT times, WIDTH at once; prints the CPU time that these used, in ns.
#define _GNU_SOURCE 1
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sink;

static long cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

__attribute__((noinline, noclone)) unsigned long short_leaf(unsigned long x) {
  for (int i = 0; i < 50000; ++i) x = x * 2862933555777941757u + 3037000493u;
  return x;
}

__attribute__((noinline, noclone)) void short_work(unsigned long x) {
  volatile char block[200];
  block[x % 200] = 1;
  sink = short_leaf(x) + (unsigned long)block[7];
}

__attribute__((noinline, noclone)) void short_run(long until) {
  while (cpu_ns() < until) short_work(sink);
  sink = sink + 1;
}

int main(int argc, char** argv) {
  const long ms = argc > 1 ? atol(argv[1]) : 5;
  if (argc <= 3) {
    short_run(ms * 1000000);
    return 0;
  }
  const int count = atoi(argv[2]), width = atoi(argv[3]);
  long used = 0;
  int running = 0, failed = 0;
  for (int started = 0; started < count || running > 0;) {
    if (started < count && running < width) {
      const char* path = argc > 4 ? argv[4 + started % (argc - 4)] : argv[0];
      pid_t pid = fork();
      if (pid == 0) {
        execl(path, path, argv[1], (char*)NULL);
        _exit(127);
      }
      ++started, ++running;
      continue;
    }
    struct rusage usage;
    int status;
    if (wait4(-1, &status, 0, &usage) < 0) return 1;
    --running;
    failed += status != 0;
    used += (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000L + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000L;
  }
  printf("%d %ld %d\n", (int)getpid(), used, failed);
  return 0;
}
