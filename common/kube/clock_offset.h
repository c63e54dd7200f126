// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace borescope::kube {

// How far another machine's clock is ahead of ours, from time stamps in whole seconds (the Date header): each one says that the
// offset lies in an interval of one second and the round trip; the intersection of many soon is far narrower. Clocks mostly agree:
// of the offsets that are possible the one nearest to 0 is taken, so that good clocks are never corrected by mere coarseness.
class ClockOffset {
 public:
  struct Estimate {
    bool known = false;
    int64_t offset_ns = 0;  // theirs - ours
    int64_t error_ns = 0;   // ±
  };

  // They wrote `their_second` between our sent_ns and received_ns (wall clock).
  void Observe(int64_t their_second, int64_t sent_ns, int64_t received_ns);
  Estimate estimate() const;

 private:
  bool known_ = false;
  int64_t low_ns_ = 0, high_ns_ = 0;
  int64_t at_ns_ = 0;
};

}  // namespace borescope::kube
