// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/rates.h"

#include <algorithm>
#include <functional>
#include <set>

#include "bpf/abi/record.h"

namespace borescope::engine {

RatePlan PlanRates(const std::vector<int>& frequencies_hz) {
  RatePlan plan;
  std::set<int, std::greater<>> distinct(frequencies_hz.begin(), frequencies_hz.end());
  for (int hz : distinct) {
    if (plan.rates_hz.size() < BORESCOPE_MAX_RATES) plan.rates_hz.push_back(hz);
  }
  for (int hz : frequencies_hz) {
    int rate = plan.rates_hz.front();
    for (int candidate : plan.rates_hz) {
      if (candidate >= hz) rate = candidate;  // ends at the lowest that is high enough
    }
    plan.served.push_back({rate, static_cast<double>(hz) / rate});
  }
  return plan;
}

int ClampFrequency(int frequency_hz, uint64_t max_sample_rate, uint64_t scheduler_hz) {
  if (max_sample_rate == 0) return frequency_hz;
  if (max_sample_rate <= scheduler_hz) return 0;
  return static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(frequency_hz), max_sample_rate / 2));
}

}  // namespace borescope::engine
