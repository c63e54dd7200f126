// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "operator/controller/loop.h"

namespace borescope::op {

// What the threads of the watches have for the loop. Unbounded, as the watches themselves are
// slowed down by the API server only; what waits here are projected values.
class Inbox {
 public:
  using Message = std::function<void(Loop& loop, int64_t now)>;

  void Put(Message message) {
    std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_one();
  }
  // All that has come, after at most `wait` when there is nothing.
  std::deque<Message> Take(std::chrono::nanoseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [&] { return !messages_.empty() || woken_; });
    woken_ = false;
    return std::exchange(messages_, {});
  }
  void Wake() {
    std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  bool woken_ = false;
};

}  // namespace borescope::op
