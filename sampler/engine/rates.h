// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace borescope::engine {

// How the frequencies of all jobs are served by at most BORESCOPE_MAX_RATES clocks.
struct RatePlan {
  struct Served {
    int rate_hz;  // the clock
    double keep;  // fraction of its ticks that the job takes
  };
  std::vector<int> rates_hz;   // to be armed: distinct, highest first
  std::vector<Served> served;  // one for each frequency given
};

// The highest distinct frequencies get a clock of their own; any other is thinned out of the next higher one.
RatePlan PlanRates(const std::vector<int>& frequencies_hz);

// What kernel.perf_event_max_sample_rate leaves of a frequency: at most half of it, for near it the kernel drops ticks without a
// word. 0: nothing; also when it is no more than scheduler_hz, the kernel's own ticks a second: it then allows one sample between two of these and
// stops the clock after each. max_sample_rate 0: not known, no limit.
int ClampFrequency(int frequency_hz, uint64_t max_sample_rate, uint64_t scheduler_hz);

}  // namespace borescope::engine
