// SPDX-License-Identifier: Apache-2.0
#include "common/http/canceller.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>

namespace borescope::http {

void Canceller::Cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (const Attached& a : attached_) ::shutdown(a.socket.get(), SHUT_RDWR);
  changed_.notify_all();
}

bool Canceller::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool Canceller::WaitFor(std::chrono::milliseconds duration) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, duration, [this] { return cancelled_; });
}

uint64_t Canceller::Attach(int socket) {
  UniqueFd copy(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
  std::lock_guard lock(mutex_);
  if (cancelled_) return 0;
  attached_.push_back({next_ticket_, std::move(copy)});
  return next_ticket_++;
}

void Canceller::Detach(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  std::erase_if(attached_, [ticket](const Attached& a) { return a.ticket == ticket; });
}

}  // namespace borescope::http
