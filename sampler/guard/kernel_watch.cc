// SPDX-License-Identifier: Apache-2.0
#include "sampler/guard/kernel_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "common/base/clock.h"
#include "common/base/strings.h"

namespace borescope::guard {
namespace {

constexpr int kBetweenReadsMs = 100;       // a log that is flooded wakes us no more often
constexpr int kRecordsAtOnce = 4096;
constexpr size_t kRecordBytes = 16 << 10;  // twice the longest that kernels make

}  // namespace

Result<std::unique_ptr<KernelWatch>> KernelWatch::Open(const std::string& path, OnFault on_fault) {
  UniqueFd log(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.valid()) {
    Error error = ErrnoError("opening " + path);
    error.message += ": a kernel fault in a BPF program will not stop the sampling; give the sampler the device /dev/kmsg, and CAP_SYSLOG where kernel.dmesg_restrict is 1";
    return error;
  }
  std::unique_ptr<KernelWatch> watch(new KernelWatch(std::move(log), std::move(on_fault)));
  if (!watch->wake_.valid()) return ErrnoError("eventfd");
  watch->thread_ = std::thread([w = watch.get()] { w->Run(); });
  return watch;
}

KernelWatch::KernelWatch(UniqueFd log, OnFault on_fault)
    : log_(std::move(log)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), on_fault_(std::move(on_fault)) {}

KernelWatch::~KernelWatch() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  if (wake_.valid()) WakeEventFd(wake_.get());
  if (thread_.joinable()) thread_.join();
}

void KernelWatch::Arm() {
  std::lock_guard lock(mutex_);
  if (!armed_ && NowNs(CLOCK_MONOTONIC) >= until_mono_ns_) {
    ::lseek(log_.get(), 0, SEEK_END);
    detector_.Reset();
    next_sequence_ = 0;
  }
  armed_ = true;
  WakeEventFd(wake_.get());
}

void KernelWatch::Disarm() {
  std::lock_guard lock(mutex_);
  if (!armed_) return;
  armed_ = false;
  until_mono_ns_ = NowNs(CLOCK_MONOTONIC) + kLingerNs;
  WakeEventFd(wake_.get());
}

void KernelWatch::Run() {
  pthread_setname_np(pthread_self(), "kernel-watch");
  while (true) {
    int64_t left_ns = 0;
    bool armed = false;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      armed = armed_;
      left_ns = until_mono_ns_ - NowNs(CLOCK_MONOTONIC);
    }
    bool watching = armed || left_ns > 0;
    std::array<pollfd, 2> fds = {{{wake_.get(), POLLIN, 0}, {watching ? log_.get() : -1, POLLIN, 0}}};
    ::poll(fds.data(), fds.size(), armed || !watching ? -1 : static_cast<int>(left_ns / 1'000'000 + 1));
    uint64_t count;
    while (::read(wake_.get(), &count, sizeof count) > 0) {
    }
    if (fds[1].revents == 0) continue;
    ReadAll();
    pollfd wake{wake_.get(), POLLIN, 0};
    ::poll(&wake, 1, kBetweenReadsMs);
  }
}

void KernelWatch::ReadAll() {
  std::vector<KernelFault> faults;
  {
    std::lock_guard lock(mutex_);
    std::array<char, kRecordBytes> record;
    for (int i = 0; i < kRecordsAtOnce; ++i) {
      ssize_t n = ::read(log_.get(), record.data(), record.size());
      if (n < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: overwritten; the next read goes on with what is there
      if (n <= 0) break;
      std::string_view text(record.data(), static_cast<size_t>(n));
      size_t comma = text.find(',');
      if (auto sequence = comma == text.npos ? std::nullopt : ParseUint(text.substr(comma + 1, text.find(',', comma + 1) - comma - 1))) {
        if (next_sequence_ != 0 && *sequence > next_sequence_) missed_ += *sequence - next_sequence_;
        next_sequence_ = *sequence + 1;
      }
      if (auto fault = detector_.Read(text)) faults.push_back(*std::move(fault));
    }
  }
  for (const KernelFault& fault : faults) on_fault_(fault);
}

}  // namespace borescope::guard
