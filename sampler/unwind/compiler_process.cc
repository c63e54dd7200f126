// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/compiler_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
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
#include "sampler/symbols/elf_file.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace borescope::unwind {
namespace {

constexpr int kProgramFd = 3;
constexpr int64_t kReapNs = 1'000'000'000;
constexpr int kLookMs = 100;  // so often the time it has taken is looked at

std::string Seconds(int64_t ns) { return std::to_string(ns / 1'000'000'000) + " s"; }

}  // namespace

Result<CompilerProgram> OpenCompiler(std::string path) {
  if (path.empty()) {
    char self[4096];
    ssize_t n = ::readlink("/proc/self/exe", self, sizeof(self));
    if (n <= 0) return ErrnoError("readlink /proc/self/exe");
    path.assign(self, static_cast<size_t>(n));
    path = path.substr(0, path.rfind('/')) + "/borescope-unwind-tables";
  }
  CompilerProgram program;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat st;
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    return Error{ErrorCode::kNotFound, path + ", which compiles unwind tables, is not there; install it beside the program that samples"};
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

Status CompilerProcess::Start() {
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
  char* arguments[] = {const_cast<char*>("borescope-unwind-tables"), nullptr};
  char* environment[] = {nullptr};
  int error = ::posix_spawn(&pid_, ("/proc/self/fd/" + std::to_string(kProgramFd)).c_str(), &actions, &attributes, arguments, environment);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    pid_ = 0;
    return ErrnoError("start " + program_.path, error);
  }
  socket_ = std::move(ours);
  theirs.Reset();
  files_ = 0;

  CompilerAnswer answer;
  if (Status status = Receive(0, &answer); !status.ok()) return status.WithContext(program_.path);
  if (answer.kind != CompilerAnswer::kReady) {
    Stop();
    answer.text[sizeof(answer.text) - 1] = '\0';
    return Error{ErrorCode::kInternal, program_.path + " can't confine itself: " + SanitizeName(answer.text, sizeof(answer.text))};
  }
  return OkStatus();
}

Result<std::string> CompilerProcess::Identify(const File& file, const File& debug, const HashKey& key) {
  identified_ = false;
  if (files_ >= kMaxFiles) Stop();
  if (pid_ == 0) {
    if (Status started = Start(); !started.ok()) {
      return Error{started.error().code == ErrorCode::kGone ? ErrorCode::kGone : ErrorCode::kInternal,
                   "the compiler of unwind tables can't run: " + started.error().message};
    }
  }
  ++files_;
  CompilerRequest request;
  request.kind = CompilerRequest::kIdentify;
  request.bytes = file.bytes;
  request.debug_bytes = debug.fd >= 0 ? debug.bytes : 0;
  request.key = key;
  const int fds[] = {file.fd, debug.fd};
  ASSIGN_OR_RETURN(CompilerAnswer answer, Ask(request, fds, request.debug_bytes > 0 ? 2 : 1));
  if (answer.kind == CompilerAnswer::kError) return Error{ErrorCode::kInvalid, SanitizeName(answer.text, sizeof(answer.text))};
  if (answer.kind != CompilerAnswer::kContent) {
    Stop();
    return Error{ErrorCode::kUnavailable, "the compiler of unwind tables gave an answer that is none"};
  }
  identified_ = true;
  return HexEncode(std::string_view(reinterpret_cast<const char*>(answer.content), sizeof(answer.content)));
}

Result<CompilerAnswer> CompilerProcess::Ask(CompilerRequest request, const int* fds, size_t count) {
  auto useless = [&](const std::string& what) {
    Stop();
    return Error{ErrorCode::kUnavailable, "the compiler of unwind tables " + what};
  };
  CompilerAnswer answer;
  if (::recv(socket_.get(), &answer, sizeof(answer), MSG_DONTWAIT) > 0) return useless("spoke without being asked");
  request.number = ++number_;
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  iovec data{&request, sizeof(request)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(part), fds, count * sizeof(int));
  const int64_t cpu_start = CpuNow();
  if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(sizeof(request))) {
    Error error = ErrnoError("send a file to the compiler of unwind tables");
    Stop();  // it died since the last file
    return Error{ErrorCode::kUnavailable, error.message};
  }
  RETURN_IF_ERROR(Receive(cpu_start, &answer));
  if (answer.number != request.number) return useless("answered what it was not asked");
  answer.text[sizeof(answer.text) - 1] = '\0';
  return answer;
}

Result<std::string> CompilerProcess::Compile() {
  if (pid_ == 0 || !std::exchange(identified_, false)) return Error{ErrorCode::kUnavailable, "no file was named to the compiler of unwind tables"};
  UniqueFd table(::memfd_create("unwind-table", MFD_CLOEXEC | MFD_NOEXEC_SEAL));
  if (!table.valid() && errno == EINVAL) table.Reset(::memfd_create("unwind-table", MFD_CLOEXEC));  // before 6.3
  if (!table.valid()) return ErrnoError("memfd_create");
  CompilerRequest request;
  request.kind = CompilerRequest::kCompile;
  const int fd = table.get();
  ASSIGN_OR_RETURN(CompilerAnswer answer, Ask(request, &fd, 1));
  switch (answer.kind) {
    case CompilerAnswer::kNothing:
      return Error{ErrorCode::kNotFound, SanitizeName(answer.text, sizeof(answer.text))};
    case CompilerAnswer::kError:
      return Error{ErrorCode::kInvalid, SanitizeName(answer.text, sizeof(answer.text))};
    case CompilerAnswer::kChanged:
      return Error{ErrorCode::kUnavailable, SanitizeName(answer.text, sizeof(answer.text))};
    case CompilerAnswer::kTable:
      break;
    default:
      Stop();
      return Error{ErrorCode::kUnavailable, "the compiler of unwind tables gave an answer that is none"};
  }
  // Read, not mapped: its writer may still cut it.
  if (answer.bytes > ConfineLimits().answer_bytes) {
    Stop();
    return Error{ErrorCode::kUnavailable, "the compiler of unwind tables speaks of " + std::to_string(answer.bytes) + " bytes"};
  }
  std::string bytes(answer.bytes, '\0');
  for (size_t at = 0; at < bytes.size();) {
    ssize_t got = ::pread(table.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      Stop();
      return Error{ErrorCode::kUnavailable, "the compiler of unwind tables wrote less than it says"};
    }
    at += static_cast<size_t>(got);
  }
  return bytes;
}

Status CompilerProcess::Receive(int64_t cpu_start, CompilerAnswer* answer) {
  const int64_t start = NowNs(CLOCK_MONOTONIC);
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
    const int64_t cpu = CpuNow() - cpu_start;
    if (ready > 0 && fds[0].revents != 0) {
      ssize_t got = ::recv(socket_.get(), answer, sizeof(*answer), MSG_DONTWAIT);
      if (got == static_cast<ssize_t>(sizeof(*answer))) {
        cpu_ns_ += std::max<int64_t>(cpu, 0);
        return OkStatus();
      }
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      return Error{ErrorCode::kUnavailable, "the compiler of unwind tables " + Reap()};
    }
    if (cpu > limits_.cpu_ns || NowNs(CLOCK_MONOTONIC) - start > limits_.wall_ns) {
      cpu_ns_ += std::max<int64_t>(cpu, 0);
      Stop();
      const bool by_cpu = cpu > limits_.cpu_ns;  // else it may be the machine
      return Error{by_cpu ? ErrorCode::kExhausted : ErrorCode::kUnavailable,
                   "compiling its unwind table took longer than " + Seconds(by_cpu ? limits_.cpu_ns : limits_.wall_ns) + ": given up"};
    }
  }
}

int64_t CompilerProcess::CpuNow() const {
  clockid_t clock;
  timespec time{};
  if (pid_ == 0 || ::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

void CompilerProcess::Stop() {
  if (pid_ != 0) Reap();
}

// Says how it ended; what is still there of it is ended. One that is ending by itself does not become another for that. Not waited for
// without limit: a process that reads a file of a network file system may not be killed before that is there.
std::string CompilerProcess::Reap() {
  socket_.Reset();
  identified_ = false;
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

}  // namespace borescope::unwind
