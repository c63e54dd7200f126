// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/guard/kernel_fault.h"

namespace borescope::guard {

// Follows the kernel's log while programs of ours are attached, and says when the kernel reports a fault with a BPF program on the stack. On a thread of
// its own: the others may be stuck in what went wrong.
class KernelWatch {
 public:
  // Called on the watch's thread, once for each fault.
  using OnFault = std::function<void(const KernelFault&)>;
  // `path`: /dev/kmsg. Error: it cannot be read; the message says what that means and what would help.
  static Result<std::unique_ptr<KernelWatch>> Open(const std::string& path, OnFault on_fault);
  ~KernelWatch();

  // From now on: what stood in the log before does not count.
  void Arm();
  // Goes on for kLinger: lockups and stalls are told 20 to 60 s after they began.
  void Disarm();
  // Records that were overwritten before they were read.
  uint64_t missed() const { return missed_; }

  static constexpr int64_t kLingerNs = 120'000'000'000;

 private:
  KernelWatch(UniqueFd log, OnFault on_fault);
  void Run();
  void ReadAll();

  const UniqueFd log_, wake_;
  const OnFault on_fault_;
  std::mutex mutex_;  // guards what follows, and the position in the log
  bool armed_ = false, stop_ = false;
  int64_t until_mono_ns_ = 0;  // when not armed
  FaultDetector detector_;
  std::atomic<uint64_t> missed_{0};
  uint64_t next_sequence_ = 0;  // 0: not known
  std::thread thread_;
};

}  // namespace borescope::guard
