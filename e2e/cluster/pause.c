// SPDX-License-Identifier: Apache-2.0
//
// Holds namespaces: waits for ever, reaps what is left to it as PID 1, ends on SIGTERM.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void End(int signal) {
  (void)signal;
  _exit(0);
}

static void Reap(int signal) {
  (void)signal;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction end = {.sa_handler = End};
  struct sigaction reap = {.sa_handler = Reap, .sa_flags = SA_NOCLDSTOP};
  sigaction(SIGINT, &end, 0);
  sigaction(SIGTERM, &end, 0);
  sigaction(SIGCHLD, &reap, 0);
  for (;;) pause();
}
