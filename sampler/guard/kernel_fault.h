// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace borescope::guard {

struct KernelFault {
  std::string headline;  // what the kernel said first: "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [app:1234]"
  std::string program;   // on the stack: "bpf_prog_6deef7357e7b4530_tick", "bpf_trampoline_6442"
};

// Reads the kernel's log and tells when it reports a fault (an oops, a lockup, an RCU stall) with a BPF program, of whomever, on the stack.
// Tenants get text into that log (names of processes, of files): only what stands where the kernel itself puts it counts.
class FaultDetector {
 public:
  // One record of /dev/kmsg: "LEVEL,SEQUENCE,MICROSECONDS,FLAGS[,...];TEXT\n" and lines of properties. Anything else is passed over.
  std::optional<KernelFault> Read(std::string_view record);
  // Forgets a report that has begun.
  void Reset() { headline_.clear(); }

 private:
  std::string headline_;  // of the report that is being read; empty: none
  uint64_t begun_us_ = 0;
  int records_ = 0;  // since then
};

}  // namespace borescope::guard
