// SPDX-License-Identifier: Apache-2.0
#pragma once

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

}  // namespace borescope::engine
