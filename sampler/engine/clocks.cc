// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/clocks.h"

#include <bpf/bpf.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <string>

#include "common/base/clock.h"
#include "sampler/engine/engine.h"

namespace borescope::engine {
namespace {

constexpr double kJitter = 0.25;
constexpr int64_t kEpochNs = 200'000'000;
constexpr int64_t kIdleEpochNs = 1'000'000'000;  // without any tick
constexpr int64_t kMinTicksPerEpoch = 4;
constexpr int64_t kAfterTickNs = 200'000;    // so long after a tick a redraw is aimed at
constexpr int64_t kLateNs = 300'000;         // later than this (or a quarter of the period) and we wait for the next tick
constexpr int kMostTries = 5;

int64_t LastTick(borescope_clock* clock) {
  return static_cast<int64_t>(std::atomic_ref<__u64>(clock->last_tick_ns).load(std::memory_order_relaxed));
}

int64_t TicksPerEpoch(int64_t period_ns) { return std::max(kMinTicksPerEpoch, (kEpochNs + period_ns / 2) / period_ns); }

}  // namespace

Clocks::Clocks(int tick_program_fd, std::span<borescope_clock> shared, bool fixed_period, uint64_t seed)
    : program_fd_(tick_program_fd), shared_(shared), fixed_period_(fixed_period), random_(seed) {}

int64_t Clocks::DrawPeriod(int64_t nominal_ns) {
  if (fixed_period_) return nominal_ns;
  std::uniform_real_distribution<double> factor(1 - kJitter, 1 + kJitter);
  return static_cast<int64_t>(static_cast<double>(nominal_ns) * factor(random_));
}

Status Clocks::Start(int rate, int frequency_hz, const std::vector<int>& cpus) {
  std::vector<Event> events;
  for (int cpu : cpus) {
    Event e;
    e.nominal_ns = 1'000'000'000 / frequency_hz;
    e.period_ns = DrawPeriod(e.nominal_ns);
    e.clock = &shared_[static_cast<size_t>(cpu) * BORESCOPE_MAX_RATES + static_cast<size_t>(rate)];
    std::atomic_ref<__u64>(e.clock->extra_ns).store(0, std::memory_order_relaxed);
    std::string what = "cpu-clock event of " + std::to_string(frequency_hz) + " Hz on CPU " + std::to_string(cpu);
    perf_event_attr attr{};
    attr.size = sizeof(attr);
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.sample_period = static_cast<uint64_t>(e.period_ns);
    attr.disabled = 1;
    // Ticks of the idle task are nobody's. They count against the kernel's limit on samples, too: after a rest it would drop ticks of work.
    attr.exclude_idle = 1;
    e.event.Reset(static_cast<int>(syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC)));
    if (!e.event.valid() && errno == ENODEV) continue;  // went offline just now
    if (!e.event.valid()) return ErrnoError("perf_event_open (" + what + ")");
    LIBBPF_OPTS(bpf_link_create_opts, options, .perf_event = {.bpf_cookie = BORESCOPE_COOKIE(rate, frequency_hz)});
    e.link.Reset(bpf_link_create(program_fd_, e.event.get(), BPF_PERF_EVENT, &options));
    if (!e.link.valid()) return ErrnoError("attaching the sampling program to the " + what);
    events.push_back(std::move(e));
  }
  for (Event& e : events) {
    if (ioctl(e.event.get(), PERF_EVENT_IOC_ENABLE, 0) != 0) return ErrnoError("starting the cpu-clock events");
    e.epoch_start_ns = NowNs(CLOCK_MONOTONIC);
    e.due_ns = e.epoch_start_ns + TicksPerEpoch(e.period_ns) * e.period_ns + kAfterTickNs;
  }
  events_[static_cast<size_t>(rate)] = std::move(events);
  return OkStatus();
}

void Clocks::Stop(int rate) {
  auto& events = events_[static_cast<size_t>(rate)];
  for (Event& e : events) e.link.Reset();  // all links before any event
  events.clear();
}

int64_t Clocks::RedrawDue(int64_t now_ns) {
  int64_t next = std::numeric_limits<int64_t>::max();
  if (fixed_period_) return next;
  for (auto& events : events_) {
    for (Event& e : events) {
      if (e.due_ns <= now_ns) Redraw(e);
      next = std::min(next, e.due_ns);
    }
  }
  return next;
}

void Clocks::Redraw(Event& e) {
  int64_t now = NowNs(CLOCK_MONOTONIC), last = LastTick(e.clock);
  if (last <= e.epoch_start_ns && now - e.epoch_start_ns < kIdleEpochNs) {  // an idle CPU: nothing to lock step with
    e.due_ns = now + kEpochNs;
    return;
  }
  // An idle CPU skips ticks, yet the clock keeps its phase.
  int64_t since = (now - std::max(last, e.epoch_start_ns)) % e.period_ns;
  if (since > std::max(kLateNs, e.period_ns / 4) && e.tries < kMostTries) {
    ++e.tries;
    e.due_ns = now - since + e.period_ns + kAfterTickNs;
    return;
  }
  e.tries = 0;
  int64_t period = DrawPeriod(e.nominal_ns);
  auto argument = static_cast<__u64>(period);
  int64_t before = NowNs(CLOCK_MONOTONIC);
  int result = ioctl(e.event.get(), PERF_EVENT_IOC_PERIOD, &argument);
  int64_t after = NowNs(CLOCK_MONOTONIC);
  if (result != 0) {  // the CPU went offline: the period stays
    e.due_ns = after + kEpochNs;
    return;
  }
  // The new period counts from within the call; a tick may have come between our look and the call.
  int64_t applied = before + (after - before) / 2;
  int64_t ticks = TicksPerEpoch(period);
  int64_t thrown_away = std::max<int64_t>(0, applied - std::max(LastTick(e.clock), e.epoch_start_ns)) % e.period_ns;
  std::atomic_ref<__u64>(e.clock->extra_ns).store(static_cast<uint64_t>(thrown_away / ticks), std::memory_order_relaxed);
  e.period_ns = period;
  e.epoch_start_ns = after;
  e.due_ns = after + ticks * period + kAfterTickNs;
}

// A loop that looks at the clock sees each tick as a gap. Other interruptions are rare beside 10 000 ticks a second: the median is the tick's.
int64_t MeasureBareTick() {
  constexpr int64_t kPeriodNs = 100'000, kLongestNs = 500'000'000, kLeastGapNs = 300;
  constexpr size_t kTicks = 100;
  perf_event_attr attr{};
  attr.size = sizeof(attr);
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_CPU_CLOCK;
  attr.sample_period = kPeriodNs;
  UniqueFd event(static_cast<int>(syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC)));
  if (!event.valid()) return 0;
  std::vector<int64_t> gaps;
  int64_t start = NowNs(CLOCK_MONOTONIC), before = start, least = kPeriodNs;
  while (gaps.size() < kTicks && before - start < kLongestNs) {
    int64_t now = NowNs(CLOCK_MONOTONIC);
    least = std::min(least, now - before);
    if (now - before > kLeastGapNs) gaps.push_back(now - before);
    before = now;
  }
  if (gaps.size() < kTicks) return 0;
  auto median = gaps.begin() + kTicks / 2;
  std::nth_element(gaps.begin(), median, gaps.end());
  return *median - least;
}

}  // namespace borescope::engine
