// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "common/base/fd.h"

namespace borescope::http {

// Ends, from any thread and at once, whatever a Client does on behalf of its holder: connecting, TLS, waiting for a response or
// for the next bytes of a stream. For good: a cancelled one stays cancelled. (Only the resolver can't be hurried.)
class Canceller {
 public:
  void Cancel();
  bool cancelled() const;
  // Sleeps; returns early and true when cancelled.
  bool WaitFor(std::chrono::milliseconds duration);

  // For Client: `socket` is shut down on Cancel, until Detach of the ticket. 0: already cancelled, nothing attached.
  uint64_t Attach(int socket);
  void Detach(uint64_t ticket);

 private:
  struct Attached {
    uint64_t ticket;
    UniqueFd socket;  // a duplicate, so that a number closed and used again elsewhere is never shut down
  };
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  uint64_t next_ticket_ = 1;
  std::vector<Attached> attached_;
};

}  // namespace borescope::http
