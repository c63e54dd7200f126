// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <random>

namespace borescope {

// Exponential back-off with full jitter in the upper half: each delay is in [d/2, d), d doubles from `first` up to `most`.
class Backoff {
 public:
  Backoff(std::chrono::milliseconds first, std::chrono::milliseconds most, uint64_t seed = std::random_device{}())
      : first_(first), most_(most), next_(first), random_(seed) {}

  std::chrono::milliseconds Next() {
    auto d = next_;
    next_ = std::min(most_, next_ * 2);
    std::uniform_real_distribution<double> jitter(0.5, 1.0);
    return std::chrono::milliseconds(static_cast<int64_t>(static_cast<double>(d.count()) * jitter(random_)));
  }
  void Reset() { next_ = first_; }

 private:
  std::chrono::milliseconds first_, most_, next_;
  std::mt19937_64 random_;
};

}  // namespace borescope
