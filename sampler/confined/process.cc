// SPDX-License-Identifier: Apache-2.0
#include "sampler/confined/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "sampler/confined/child.h"
#include "sampler/symbols/elf_file.h"

namespace borescope::confined {
namespace {

constexpr int kProgramFd = 3;
constexpr int64_t kReapNs = 1'000'000'000;
constexpr int kLookMs = 100;                // so often the time it has taken is looked at
constexpr int64_t kSliceNs = 50'000'000;    // a child that was paused goes on when it has so much

std::string Seconds(int64_t ns) { return std::to_string(ns / 1'000'000'000) + " s"; }

}  // namespace

Result<Program> OpenProgram(std::string path, const std::string& name, const std::string& purpose) {
  if (path.empty()) {
    char self[4096];
    ssize_t n = ::readlink("/proc/self/exe", self, sizeof(self));
    if (n <= 0) return ErrnoError("readlink /proc/self/exe");
    path.assign(self, static_cast<size_t>(n));
    path = path.substr(0, path.rfind('/')) + "/" + name;
  }
  Program program;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat st;
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    return Error{ErrorCode::kNotFound, path + ", which " + purpose + ", is not there; install it beside the program that samples"};
  }
  program.fd.Reset(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!program.fd.valid()) return ErrnoError("dup " + path);
  std::string id;
  if (auto source = symbols::OpenSource(std::move(fd)); source.ok()) {
    if (auto elf = symbols::ElfFile::Parse(*std::move(source)); elf.ok()) id = (*elf)->build_id();
  }
  program.version = !id.empty() ? HexEncode(id).substr(0, 16)
                                : std::to_string(st.st_mtim.tv_sec) + "." + std::to_string(st.st_mtim.tv_nsec) + "." + std::to_string(st.st_size);
  program.path = std::move(path);
  return program;
}

void CpuBudget::Spend(int64_t ns, int64_t now_ns) { left_ns_ = Left(now_ns) - ns; }

int64_t CpuBudget::Left(int64_t now_ns) {
  if (seen_ns_ != 0 && now_ns > seen_ns_) {
    left_ns_ = std::min(allowance_ns_, left_ns_ + static_cast<int64_t>(static_cast<double>(now_ns - seen_ns_) * share_));
  }
  seen_ns_ = now_ns;
  return left_ns_;
}

int64_t CpuBudget::WaitNs(int64_t need_ns, int64_t now_ns) {
  const int64_t missing = std::min(need_ns, allowance_ns_) - Left(now_ns);
  return missing <= 0 ? 0 : static_cast<int64_t>(static_cast<double>(missing) / share_) + 1;
}

Status Process::Start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return ErrnoError("socketpair");
  UniqueFd ours(ends[0]), theirs(ends[1]);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, program_.fd.get(), kProgramFd);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, kProgramFd + 1);
  // Its own group and no handlers of ours: Ctrl-C at a terminal is for us, not for it.
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string name = program_.path.substr(program_.path.rfind('/') + 1);
  char* arguments[] = {name.data(), nullptr};
  char* environment[] = {nullptr};
  int error = ::posix_spawn(&pid_, ("/proc/self/fd/" + std::to_string(kProgramFd)).c_str(), &actions, &attributes, arguments, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    pid_ = 0;
    return Error{ErrorCode::kInternal, options_.title + " can't run: " + ErrnoError("start " + program_.path, error).message};
  }
  socket_ = std::move(ours);
  theirs.Reset();
  cpu_seen_ns_ = 0;
  paused_ = false;
  work_cpu_ns_ = 0;
  work_start_ns_ = NowNs(CLOCK_MONOTONIC);

  Hello hello;
  Result<size_t> got = Receive(&hello, sizeof(hello));
  if (!got.ok() && got.error().code == ErrorCode::kGone) return got.error();
  if (!got.ok()) return Error{ErrorCode::kInternal, options_.title + " can't run: " + program_.path + ": " + got.error().message};
  if (*got != sizeof(hello) || !hello.confined) {
    Stop();
    hello.problem[sizeof(hello.problem) - 1] = '\0';
    return Error{ErrorCode::kInternal, options_.title + " can't run: " + program_.path + " can't confine itself: " + SanitizeName(hello.problem, sizeof(hello.problem))};
  }
  return OkStatus();
}

Error Process::Useless(const std::string& what) {
  Stop();
  return Error{ErrorCode::kUnavailable, options_.title + " " + what};
}

Status Process::BeginWork() {
  char byte;
  if (::recv(socket_.get(), &byte, sizeof(byte), MSG_DONTWAIT) > 0) return Useless("spoke without being asked");
  if (options_.budget) {
    for (int64_t wait; (wait = options_.budget->WaitNs(kSliceNs, NowNs(CLOCK_MONOTONIC))) > 0;) {
      pollfd stop{stop_fd_, POLLIN, 0};
      if (::poll(&stop, 1, static_cast<int>(wait / 1'000'000 + 1)) > 0) {
        Stop();
        return Error{ErrorCode::kGone, "given up"};
      }
    }
  }
  Account();
  work_cpu_ns_ = 0;
  work_start_ns_ = NowNs(CLOCK_MONOTONIC);
  return OkStatus();
}

Status Process::Send(const void* data, size_t bytes, std::span<const int> fds) {
  constexpr size_t kMaxFds = 4;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    fds = fds.first(std::min(fds.size(), kMaxFds));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes)) return OkStatus();
  Error error = ErrnoError("send to " + options_.title);
  Stop();  // it died since
  return Error{ErrorCode::kUnavailable, error.message};
}

Result<size_t> Process::Receive(void* into, size_t capacity) {
  while (true) {
    pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    int ready = ::poll(fds, 2, kLookMs);
    if (ready < 0 && errno != EINTR) {
      Error error = ErrnoError("poll");
      Stop();
      return error;
    }
    if (ready > 0 && fds[1].revents != 0) {
      Stop();
      return Error{ErrorCode::kGone, "given up"};
    }
    Account();
    if (ready > 0 && fds[0].revents != 0) {
      ssize_t got = ::recv(socket_.get(), into, capacity, MSG_DONTWAIT | MSG_TRUNC);
      if (got > static_cast<ssize_t>(capacity)) return Useless("gave an answer that is none");
      if (got > 0) return static_cast<size_t>(got);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      return Error{ErrorCode::kUnavailable, options_.title + " " + Reap()};
    }
    const int64_t now = NowNs(CLOCK_MONOTONIC);
    if (work_cpu_ns_ > options_.cpu_ns || now - work_start_ns_ > options_.wall_ns) {
      const bool by_cpu = work_cpu_ns_ > options_.cpu_ns;  // else it may be the machine
      Stop();
      return Error{by_cpu ? ErrorCode::kExhausted : ErrorCode::kUnavailable,
                   options_.work + " took longer than " + Seconds(by_cpu ? options_.cpu_ns : options_.wall_ns) + ": given up"};
    }
    if (!options_.budget) continue;
    const bool pause = paused_ ? options_.budget->WaitNs(kSliceNs, now) > 0 : options_.budget->Left(now) < 0;
    if (pause != paused_) ::kill(pid_, pause ? SIGSTOP : SIGCONT);
    paused_ = pause;
  }
}

int64_t Process::CpuNow() const {
  clockid_t clock;
  timespec time{};
  if (pid_ == 0 || ::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

void Process::Account() {
  const int64_t used = std::max<int64_t>(0, CpuNow() - cpu_seen_ns_);
  cpu_seen_ns_ += used;
  work_cpu_ns_ += used;
  cpu_ns_ += used;
  if (options_.budget) options_.budget->Spend(used, NowNs(CLOCK_MONOTONIC));
}

void Process::Stop() {
  if (pid_ != 0) Reap();
}

// Says how it ended; what is still there of it is ended. One that is ending by itself does not become another for that. Not waited for
// without limit: a process that reads a file of a network file system may not be killed before that is there.
std::string Process::Reap() {
  socket_.Reset();
  std::erase_if(left_, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
  const pid_t pid = std::exchange(pid_, 0);
  ::kill(pid, SIGKILL);
  int status = 0;
  pid_t reaped = 0;
  for (int64_t end = NowNs(CLOCK_MONOTONIC) + kReapNs, pause_us = 100; reaped <= 0; pause_us = std::min<int64_t>(2 * pause_us, 20'000)) {
    reaped = ::waitpid(pid, &status, WNOHANG);
    if (reaped < 0 && errno != EINTR) return "is gone";
    if (reaped > 0) break;
    if (NowNs(CLOCK_MONOTONIC) > end) {
      left_.push_back(pid);
      return "does not end";
    }
    ::usleep(static_cast<useconds_t>(pause_us));
  }
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status)) + " (" + ::strsignal(WTERMSIG(status)) + ")";
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace borescope::confined
