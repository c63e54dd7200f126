// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "bpf/abi/control.h"
#include "common/base/fd.h"
#include "common/base/result.h"

namespace borescope::engine {

// The cpu-clock events, one for each (CPU, rate), with the tick program attached.
//
// A fixed period locks step with loops that sleep round times, so each event's period is redrawn within ±25 % about every 200 ms.
// A redraw throws away the time since the last tick. So it is done 0.2 ms after a tick, and what was thrown away is added, evenly,
// to the ticks up to the next redraw: `extra_ns` of the clock, which the tick adds to its period.
class Clocks {
 public:
  // `shared`: the clocks map, BORESCOPE_MAX_RATES entries a CPU.
  Clocks(int tick_program_fd, std::span<borescope_clock> shared, bool fixed_period, uint64_t seed);

  // Opens and starts the events of one rate on the CPUs; on error nothing stays open.
  Status Start(int rate, int frequency_hz, const std::vector<int>& cpus);
  void Stop(int rate);

  // Redraws what is due; returns when to call again (CLOCK_MONOTONIC ns; INT64_MAX: nothing to do).
  int64_t RedrawDue(int64_t now_ns);

 private:
  struct Event {
    UniqueFd link, event;  // destroyed in the reverse order of Start: see Stop
    borescope_clock* clock = nullptr;
    int64_t nominal_ns = 0, period_ns = 0;
    int64_t epoch_start_ns = 0;  // of the last redraw
    int64_t due_ns = 0;
    int tries = 0;
  };
  int64_t DrawPeriod(int64_t nominal_ns);
  void Redraw(Event& e);

  const int program_fd_;
  const std::span<borescope_clock> shared_;
  const bool fixed_period_;
  std::mt19937_64 random_;
  std::array<std::vector<Event>, BORESCOPE_MAX_RATES> events_;
};

}  // namespace borescope::engine
