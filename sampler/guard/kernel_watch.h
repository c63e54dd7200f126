// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/guard/kernel_fault.h"

namespace borescope::guard {

// Makes records out of the newest part of the log as syslog(2) gives it, again and again: "<LEVEL>[SECONDS.MICROSECONDS] TEXT\n…".
class LogText {
 public:
  // What was not in the text of last time, each as a record of /dev/kmsg. When nothing of that is left in this one, a record is missing:
  // the numbers have a gap there.
  std::vector<std::string> News(std::string_view text);

 private:
  std::string last_line_;
  uint64_t sequence_ = 1;
};

// Follows the kernel's log while programs of ours are attached, and says when the kernel reports a fault with a BPF program on the stack. On a thread of
// its own: the others may be stuck in what went wrong.
class KernelWatch {
 public:
  // Called on the watch's thread, once for each fault.
  using OnFault = std::function<void(const KernelFault&)>;
  // `path`: kKernelLog. A container has not the device: there syslog(2) is asked again and again, which takes CAP_SYSLOG. Error: neither
  // can be read; the message says what that means and what would help.
  static Result<std::unique_ptr<KernelWatch>> Open(const std::string& path, OnFault on_fault);
  ~KernelWatch();

  static constexpr const char* kKernelLog = "/dev/kmsg";

  // From now on: what stood in the log before does not count.
  void Arm();
  // Goes on for kLinger: lockups and stalls are told 20 to 60 s after they began.
  void Disarm();
  // Records that were overwritten before they were read.
  uint64_t missed() const { return missed_; }

  static constexpr int64_t kLingerNs = 120'000'000'000;

 private:
  static Result<std::unique_ptr<KernelWatch>> Start(UniqueFd log, OnFault on_fault);
  KernelWatch(UniqueFd log, OnFault on_fault);
  void Run();
  void ReadAll();
  void Read(std::string_view record, std::vector<KernelFault>& faults);

  const UniqueFd log_, wake_;  // log_ is invalid: syslog(2)
  const OnFault on_fault_;
  std::mutex mutex_;  // guards what follows, and the position in the log
  bool armed_ = false, stop_ = false;
  int64_t until_mono_ns_ = 0;  // when not armed
  FaultDetector detector_;
  std::atomic<uint64_t> missed_{0};
  uint64_t next_sequence_ = 0;  // 0: not known
  LogText text_;                // of syslog(2)
  std::thread thread_;
};

}  // namespace borescope::guard
