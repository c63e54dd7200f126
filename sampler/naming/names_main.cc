// SPDX-License-Identifier: Apache-2.0
// borescope-names: names addresses of files that the sampler hands it. Nobody starts it by hand.
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>

#include "sampler/naming/names_child.h"

int main() {
  int type = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(0, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
    std::fputs("borescope-names is started by borescope and borescope-sampler, with a socket as its standard input\n", stderr);
    return 2;
  }
  // Nothing is left to be done at the end, and little may be.
  std::_Exit(borescope::naming::RunNames(0));
}
