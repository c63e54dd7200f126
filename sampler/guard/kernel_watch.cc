// SPDX-License-Identifier: Apache-2.0
#include "sampler/guard/kernel_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/klog.h>
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
constexpr int kBetweenAsksMs = 200;        // of syslog(2): the kernel goes through its whole log each time
constexpr int kReadAll = 3;                // SYSLOG_ACTION_READ_ALL: the newest lines, for the others to read too
constexpr size_t kAskBytes = 16 << 10;     // a report has some 100 lines of 80

std::string Ask() {
  std::string text(kAskBytes, '\0');
  int n = ::klogctl(kReadAll, text.data(), static_cast<int>(text.size()));
  text.resize(static_cast<size_t>(std::max(n, 0)));
  return text;
}

}  // namespace

std::vector<std::string> LogText::News(std::string_view text) {
  std::vector<std::string> news;
  if (text.empty()) return news;
  if (!last_line_.empty()) {
    if (size_t at = text.rfind(last_line_); at != text.npos) {
      text.remove_prefix(at + last_line_.size());
    } else {
      ++sequence_;
    }
  }
  for (std::string_view line : Split(text, '\n')) {
    if (line.empty()) continue;
    last_line_ = std::string(line) + "\n";
    size_t end = line.find('>');
    auto level = line.front() == '<' && end != line.npos ? ParseUint(line.substr(1, end - 1)) : std::nullopt;
    if (!level) continue;  // the first one may be cut
    line.remove_prefix(end + 1);
    uint64_t microseconds = 0;  // the kernel may be told to print no times
    if (line.starts_with('[')) {
      std::string_view time = Trim(line.substr(1, std::min(line.find(']'), line.size()) - 1));
      size_t dot = std::min(time.find('.'), time.size());
      microseconds = ParseUint(time.substr(0, dot)).value_or(0) * 1'000'000 + (dot < time.size() ? ParseUint(time.substr(dot + 1)).value_or(0) : 0);
      // "[TIME] TEXT" or, where the kernel prints who spoke, "[TIME][CALLER] TEXT".
      if (size_t close = line.find("] "); close != line.npos) line.remove_prefix(close + 2);
    }
    news.push_back(std::to_string(*level) + "," + std::to_string(sequence_++) + "," + std::to_string(microseconds) + ",-;" + std::string(line) + "\n");
  }
  return news;
}

Result<std::unique_ptr<KernelWatch>> KernelWatch::Open(const std::string& path, OnFault on_fault) {
  UniqueFd log(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log.valid()) {
    Error error = ErrnoError("opening " + path);
    std::array<char, 256> some;
    if (path == kKernelLog && ::klogctl(kReadAll, some.data(), some.size()) >= 0) return Start(UniqueFd(), std::move(on_fault));
    error.message += ": a kernel fault in a BPF program will not stop the sampling; give the sampler the device /dev/kmsg, and CAP_SYSLOG where kernel.dmesg_restrict is 1";
    return error;
  }
  return Start(std::move(log), std::move(on_fault));
}

Result<std::unique_ptr<KernelWatch>> KernelWatch::Start(UniqueFd log, OnFault on_fault) {
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
    if (log_.valid()) {
      ::lseek(log_.get(), 0, SEEK_END);
    } else {
      text_.News(Ask());
    }
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
    int wait_ms = armed || !watching ? -1 : static_cast<int>(left_ns / 1'000'000 + 1);
    if (watching && !log_.valid()) wait_ms = kBetweenAsksMs;
    ::poll(fds.data(), fds.size(), wait_ms);
    uint64_t count;
    while (::read(wake_.get(), &count, sizeof count) > 0) {
    }
    if (watching && !log_.valid()) {
      ReadAll();
      continue;
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
    if (!log_.valid()) {
      for (const std::string& record : text_.News(Ask())) Read(record, faults);
    }
    std::array<char, kRecordBytes> record;
    for (int i = 0; log_.valid() && i < kRecordsAtOnce; ++i) {
      ssize_t n = ::read(log_.get(), record.data(), record.size());
      if (n < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: overwritten; the next read goes on with what is there
      if (n <= 0) break;
      Read(std::string_view(record.data(), static_cast<size_t>(n)), faults);
    }
  }
  for (const KernelFault& fault : faults) on_fault_(fault);
}

void KernelWatch::Read(std::string_view record, std::vector<KernelFault>& faults) {
  size_t comma = record.find(',');
  if (auto sequence = comma == record.npos ? std::nullopt : ParseUint(record.substr(comma + 1, record.find(',', comma + 1) - comma - 1))) {
    if (next_sequence_ != 0 && *sequence > next_sequence_) missed_ += *sequence - next_sequence_;
    next_sequence_ = *sequence + 1;
  }
  if (auto fault = detector_.Read(record)) faults.push_back(*std::move(fault));
}

}  // namespace borescope::guard
