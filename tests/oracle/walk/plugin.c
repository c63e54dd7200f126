// SPDX-License-Identifier: Apache-2.0
// Two shared objects of the same size that differ by their frames: loaded by turns they come to lie at the same addresses.
__attribute__((noinline)) void work(void (*leaf)(void)) {
  volatile char room[ROOM];
  for (int i = 0; i < 40; ++i) {
    room[i] = (char)i;
    leaf();
    room[(i + 1) % ROOM] = room[i];
  }
}
