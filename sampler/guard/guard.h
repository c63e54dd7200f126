// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sampler/engine/engine.h"

namespace borescope::guard {

// What the sampler costs, in all, since it started or now.
struct Cost {
  int64_t user_space_ns = 0;                  // CPU time of all our threads, and of the children that make unwind tables and names
  int64_t bpf_ns = 0;                         // own run time of the BPF programs, in the interrupts of others
  int64_t tick_ns = 0;                        // the bare clock interrupts, beside the others: MeasureCost leaves it
  std::map<std::string, int64_t> by_thread;   // user space by thread name
  int64_t resident_bytes = 0;                 // without what map_bytes holds
  int64_t map_bytes = 0;                      // BPF maps and rings
};

// Reads our own /proc entries. children_ns: CPU time of the children.
Cost MeasureCost(const engine::Counters& counters, int64_t children_ns, const std::string& proc_root = "/proc");

// What one session has cost so far: its part of the sampler while it was armed.
struct Overhead {
  int64_t cpu_ns = 0;
  int64_t peak_cpu_millis = 0;
  int64_t average_cpu_millis = 0;
  int64_t peak_memory_bytes = 0;
  int64_t tick_ns = 0;      // not in cpu_ns
  int64_t tick_millis = 0;  // average, rounded up
};

// Shares the sampler's cost out among the jobs that are armed, by their samples (evenly while there are none). The parts of CPU
// time add up to the whole; memory is the whole sampler's for each, because the last session to leave frees it.
class Ledger {
 public:
  // Call about once a second. samples: of each armed job, in all so far.
  void Account(const Cost& cost, const std::map<std::string, uint64_t>& samples_by_job, int64_t mono_ns);
  void Forget(const std::string& job_id) { jobs_.erase(job_id); }
  // Zero for a job that was never accounted.
  Overhead Of(const std::string& job_id) const;

 private:
  struct Job {
    Overhead overhead;
    uint64_t samples = 0;
    int64_t armed_ns = 0;
  };
  std::map<std::string, Job> jobs_;
  int64_t last_cpu_ns_ = -1, last_tick_ns_ = 0, last_mono_ns_ = 0;
};

}  // namespace borescope::guard
