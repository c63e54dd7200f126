// SPDX-License-Identifier: Apache-2.0
// Sampled by walk_oracle: without frame pointers, who calls whom is fixed. `walk_workload MODE [N]`; see main.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

volatile uint64_t sink;
static void (*at_the_leaf)(void);

NOINLINE void leaf_spin(void) {
  uint64_t x = sink;
  for (int i = 0; i < 100000; ++i) x = x * 2862933555777941757u + 3037000493u;
  sink = x;
}

NOINLINE void leaf_read(void) {
  static char buffer[1 << 20];
  int fd = open("/dev/zero", O_RDONLY);
  for (int i = 0; i < 20; ++i) sink += (uint64_t)read(fd, buffer, sizeof(buffer));
  close(fd);
}

NOINLINE void handler(int signal) {
  (void)signal;
  for (int i = 0; i < 50; ++i) leaf_spin();
}

NOINLINE void leaf_raise(void) {
  raise(SIGUSR1);
  sink += 1;
}

NOINLINE void level4(uint64_t x) {
  at_the_leaf();
  sink += x;
}
NOINLINE void level3(uint64_t x) {  // a large frame
  volatile uint64_t room[700];
  for (int i = 0; i < 700; ++i) room[i] = x + (uint64_t)i;
  level4(room[x % 700]);
  sink += room[3];
}
NOINLINE void level2(uint64_t x) {  // a frame of unknown size
  volatile char* room = __builtin_alloca(x % 512 + 16);
  room[5] = (char)x;
  level3(x + 1);
  sink += (uint64_t)room[5];
}
NOINLINE void level1(uint64_t x) {  // a realigned frame
  volatile char room[256] __attribute__((aligned(256)));
  room[x % 256] = (char)x;
  level2(x + 3);
  sink += (uint64_t)room[7];
}

NOINLINE uint64_t recurse(uint64_t depth) {
  if (depth == 0) {
    leaf_spin();
    return sink;
  }
  return recurse(depth - 1) + sink * depth;
}

static void* thread(void* unused) {
  for (;;) level1(sink);
  return unused;
}

// Code of which nobody knows anything: with frame pointers, or with a wild one. Calls leaf_spin again and again.
static void jit(int wild) {
  static const unsigned char framed[] = {0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x83, 0xec, 0x08,  // push rbp; mov rbp, rsp; push rbx; sub rsp, 8
                                         0x48, 0x89, 0xfb,                                      // mov rbx, rdi
                                         0xff, 0xd3, 0xeb, 0xfc};                               // 1: call rbx; jmp 1b
  static const unsigned char spoiled[] = {0x48, 0x89, 0xfd, 0xeb, 0xfe};                        // mov rbp, rdi; 1: jmp 1b
  unsigned char* code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(code, wild ? spoiled : framed, wild ? sizeof(spoiled) : sizeof(framed));
  mprotect(code, 4096, PROT_READ | PROT_EXEC);
  // A wild frame pointer: into memory of ours that is no stack.
  uintptr_t trap = (uintptr_t)mmap(NULL, 1 << 26, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ((void (*)(uintptr_t))(uintptr_t)code)(wild ? trap : (uintptr_t)leaf_spin);
}

NOINLINE void level_jit(int wild) {
  jit(wild);
  sink += 1;
}

// Another plugin at the same place again and again.
NOINLINE void level_plugins(void) {
  for (int i = 0;; ++i) {
    void* plugin = dlopen(i % 2 == 0 ? PLUGINS "/walk_plugin_small.so" : PLUGINS "/walk_plugin_large.so", RTLD_NOW);
    if (plugin == NULL) abort();
    ((void (*)(void (*)(void)))(uintptr_t)dlsym(plugin, "work"))(leaf_spin);
    dlclose(plugin);
  }
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "spin";
  uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
  struct sigaction action = {.sa_handler = handler};
  at_the_leaf = leaf_spin;
  if (strcmp(mode, "read") == 0) at_the_leaf = leaf_read;
  if (strcmp(mode, "signal") == 0 || strcmp(mode, "altstack") == 0) {
    if (mode[0] == 'a') {
      stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
      sigaltstack(&stack, NULL);
      action.sa_flags = SA_ONSTACK;
    }
    sigaction(SIGUSR1, &action, NULL);
    at_the_leaf = leaf_raise;
  }
  if (strcmp(mode, "jit") == 0) level_jit(0);
  if (strcmp(mode, "wild") == 0) level_jit(1);
  if (strcmp(mode, "plugins") == 0) level_plugins();
  if (strcmp(mode, "thread") == 0) {
    pthread_t t;
    pthread_create(&t, NULL, thread, NULL);
    pthread_join(t, NULL);
  }
  while (strcmp(mode, "recurse") == 0) sink += recurse(n);
  for (;;) level1(sink);
}
