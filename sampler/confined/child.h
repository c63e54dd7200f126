// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace borescope::confined {

struct ConfineLimits {
  uint64_t memory_bytes = uint64_t{2} << 30;  // of address space; not in builds with a sanitizer
  uint64_t answer_bytes = 128 << 20;          // the largest file that can be written
  uint64_t descriptors = 16;                  // open at a time
};

// From here on this process can read and write descriptors that it has or is sent, and compute: no capabilities, no new files, sockets,
// processes, signals, no more memory than the limits; what is forbidden fails with EPERM. Descriptors above 2 are closed.
Status Confine(const ConfineLimits& limits);

// The first message of a child: that it is confined, or why not.
struct Hello {
  uint32_t confined = 0;
  char problem[508] = {};
};

// How a child begins its life: it ends with the sampler and before it, confines itself, and says so on the socket. name: what people see
// of it, at most 15 bytes. False: it must end.
bool Begin(int socket, const char* name, const ConfineLimits& limits);

// One message of a SOCK_SEQPACKET socket. Never raises SIGPIPE; false: the other side is gone.
bool SendMessage(int socket, const void* data, size_t bytes);
// The length of the message; -1: the other side is gone, the message is longer than `capacity`, or it has more descriptors than max_files.
ptrdiff_t ReceiveMessage(int socket, void* into, size_t capacity, std::vector<UniqueFd>* files, size_t max_files);

}  // namespace borescope::confined
