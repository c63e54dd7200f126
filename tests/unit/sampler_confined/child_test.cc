// SPDX-License-Identifier: Apache-2.0
#include "sampler/confined/child.h"
#include "sanitized.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace borescope::confined {
namespace {

using testing::kSanitized;

// Exit code of `what` in a child that has confined itself: by it the errno of a call that failed, 0 of one that did not.
int Confined(const std::function<int()>& what) {
  pid_t pid = fork();
  if (pid == 0) {
    if (!Confine({}).ok()) _exit(255);
    _exit(what());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int ErrnoOf(long result) { return result < 0 ? errno : 0; }

TEST(Confine, WhatIsForbiddenFails) {
  const pid_t parent = getpid();
  const std::vector<std::pair<const char*, std::function<long()>>> forbidden = {
      {"open", [] { return syscall(SYS_openat, AT_FDCWD, "/etc/passwd", O_RDONLY); }},
      {"open with O_PATH", [] { return syscall(SYS_openat, AT_FDCWD, "/", O_PATH); }},
      {"openat2", [] { uint64_t how[3] = {}; return syscall(SYS_openat2, AT_FDCWD, "/etc/passwd", how, sizeof(how)); }},
      {"create", [] { return syscall(SYS_openat, AT_FDCWD, "/tmp/borescope-confined", O_CREAT | O_WRONLY, 0600); }},
      {"unlink", [] { return syscall(SYS_unlinkat, AT_FDCWD, "/tmp/borescope-nothing", 0); }},
      {"stat", [] { char st[256]; return syscall(SYS_newfstatat, AT_FDCWD, "/", st, 0); }},
      {"inet socket", [] { return syscall(SYS_socket, AF_INET, SOCK_STREAM, 0); }},
      {"unix socket", [] { return syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0); }},
      {"socketpair", [] { int fds[2]; return syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, fds); }},
      {"connect", [] { return syscall(SYS_connect, 0, nullptr, 0); }},
      {"kill", [=] { return syscall(SYS_kill, parent, 0); }},
      {"tgkill", [=] { return syscall(SYS_tgkill, parent, parent, 0); }},
      {"pidfd_open", [=] { return syscall(SYS_pidfd_open, parent, 0); }},
      {"ptrace", [=] { return syscall(SYS_ptrace, PTRACE_ATTACH, parent, 0, 0); }},
      {"process_vm_readv", [=] { return syscall(SYS_process_vm_readv, parent, nullptr, 0, nullptr, 0, 0); }},
      {"clone", [] { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }},
      {"clone3", [] { return syscall(SYS_clone3, nullptr, 0); }},
      {"execve", [] { return syscall(SYS_execve, "/bin/true", nullptr, nullptr); }},
      {"bpf", [] { return syscall(SYS_bpf, 0, nullptr, 0); }},
      {"perf_event_open", [] { return syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0); }},
      {"io_uring", [] { return syscall(SYS_io_uring_setup, 1, nullptr); }},
      {"unshare", [] { return syscall(SYS_unshare, CLONE_NEWUSER); }},
      {"prctl", [] { return syscall(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0); }},
      {"setrlimit", [] { rlimit l{RLIM_INFINITY, RLIM_INFINITY}; return syscall(SYS_prlimit64, 0, RLIMIT_AS, &l, nullptr); }},
      {"memfd", [] { return syscall(SYS_memfd_create, "x", 0); }},
      {"executable memory", [] { return reinterpret_cast<long>(mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)); }},
      {"writing to others than stderr", [] { return syscall(SYS_write, 1, "x", 1); }},
  };
  for (const auto& [name, call] : forbidden) {
    if (kSanitized && std::string(name).starts_with("writing")) continue;  // a sanitizer looks by it whether memory is readable
    EXPECT_EQ(Confined([&] { return ErrnoOf(call()); }), EPERM) << name;
  }
}

TEST(Confine, MemoryIsBoundedAndOrdinaryMemoryIsThere) {
  EXPECT_EQ(Confined([] { return ErrnoOf(reinterpret_cast<long>(mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))); }), 0);
  if (kSanitized) return;
  EXPECT_EQ(Confined([] { return ErrnoOf(reinterpret_cast<long>(mmap(nullptr, size_t{2} << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))); }), ENOMEM);
}

TEST(Confine, DescriptorsOfOthersAreClosed) {
  UniqueFd fd(eventfd(0, 0));
  const int number = fd.get();
  EXPECT_EQ(Confined([=] { char c; return ErrnoOf(syscall(SYS_pread64, number, &c, 1, 0)); }), EBADF);
}

}  // namespace
}  // namespace borescope::confined
