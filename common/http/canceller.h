// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <vector>
#include <mutex>

#include "common/base/fd.h"

namespace borescope {

// Ends, from any thread and at once, whatever an HttpClient does on behalf of its holder: connecting, TLS, waiting for a
// response or for the next bytes of a stream. For good: a cancelled one stays cancelled. (Only the resolver can't be hurried.)
class Canceller {
 public:
  void Cancel();
  bool cancelled() const;
  // Sleeps; returns early and true when cancelled.
  bool WaitFor(std::chrono::milliseconds duration);

  // For HttpClient: `socket` is shut down on Cancel until Detach. False: already cancelled, nothing attached.
  bool Attach(int socket);
  void DetachAll();

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  std::vector<UniqueFd> sockets_;  // duplicates, so that a number closed and used again elsewhere is never shut down
};

}  // namespace borescope
