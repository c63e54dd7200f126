// SPDX-License-Identifier: Apache-2.0
#include "sampler/confined/child.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace borescope::confined {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BORESCOPE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BORESCOPE_SANITIZED 1
#endif
#endif
#ifdef BORESCOPE_SANITIZED
constexpr bool kSanitized = true;  // needs terabytes of address space, and pipes to find out what memory is readable
#else
constexpr bool kSanitized = false;
#endif

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

Status Limit(__rlimit_resource resource, uint64_t value, const char* name) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return ErrnoError(name);
  limit.rlim_max = std::min<rlim_t>(limit.rlim_max, value);
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(resource, &limit) != 0) return ErrnoError(name);
  return OkStatus();
}

Status DropCapabilities() {
  // Without CAP_SETPCAP, which the sampler lacks, the bounding set stays: with no_new_privs and without execve nothing comes out of it.
  for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EPERM) return ErrnoError("drop a capability of the bounding set");
  }
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return ErrnoError("clear ambient capabilities");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  if (::syscall(SYS_capset, &header, none) != 0) return ErrnoError("capset");
  return OkStatus();
}

Status Filter() {
  std::vector<sock_filter> program;
  auto load = [&](uint32_t offset) { program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset)); };
  auto give = [&](uint32_t action) { program.push_back(BPF_STMT(BPF_RET | BPF_K, action)); };
  constexpr uint32_t kForbidden = SECCOMP_RET_ERRNO | EPERM;
  constexpr uint32_t kNumber = offsetof(seccomp_data, nr);
  auto low = [](size_t argument) { return static_cast<uint32_t>(offsetof(seccomp_data, args) + argument * sizeof(uint64_t)); };

  load(offsetof(seccomp_data, arch));
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
  give(SECCOMP_RET_KILL_PROCESS);
  // Numbers of the x32 ABI equal none of these.
  load(kNumber);
  for (uint32_t number : {__NR_recvmsg, __NR_sendmsg, __NR_pread64, __NR_pwrite64, __NR_close, __NR_munmap, __NR_mremap, __NR_brk, __NR_madvise,
                          __NR_futex, __NR_getrandom, __NR_clock_gettime, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_restart_syscall, __NR_getpid,
                          __NR_gettid, __NR_exit, __NR_exit_group}) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    give(SECCOMP_RET_ALLOW);
  }
  for (uint32_t number : {__NR_pipe2, __NR_write, __NR_sigaltstack, __NR_sched_yield}) {
    if (!kSanitized) break;
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
    give(SECCOMP_RET_ALLOW);
  }
#ifdef __NR_pipe
  if (kSanitized) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pipe, 0, 1));
    give(SECCOMP_RET_ALLOW);
  }
#endif
  // Memory, but none that can be executed.
  for (uint32_t number : {__NR_mmap, __NR_mprotect}) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4));
    load(low(2));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1));
    give(kForbidden);
    give(SECCOMP_RET_ALLOW);
  }
  // The last words of an assertion.
  for (uint32_t number : {__NR_write, __NR_writev}) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4));
    load(low(0));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, STDERR_FILENO, 0, 1));
    give(SECCOMP_RET_ALLOW);
    give(kForbidden);
  }
  give(kForbidden);

  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) return ErrnoError("seccomp");
  return OkStatus();
}

}  // namespace

Status Confine(const ConfineLimits& limits) {
  if (::close_range(STDERR_FILENO + 1, ~0U, 0) != 0) return ErrnoError("close_range");
  RETURN_IF_ERROR(Limit(RLIMIT_CORE, 0, "RLIMIT_CORE"));
  RETURN_IF_ERROR(Limit(RLIMIT_NOFILE, limits.descriptors, "RLIMIT_NOFILE"));
  RETURN_IF_ERROR(Limit(RLIMIT_NPROC, 0, "RLIMIT_NPROC"));
  RETURN_IF_ERROR(Limit(RLIMIT_FSIZE, limits.answer_bytes, "RLIMIT_FSIZE"));
  if (!kSanitized) RETURN_IF_ERROR(Limit(RLIMIT_AS, limits.memory_bytes, "RLIMIT_AS"));
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit fails instead
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return ErrnoError("PR_SET_DUMPABLE");
  RETURN_IF_ERROR(DropCapabilities());
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoError("PR_SET_NO_NEW_PRIVS");
  return Filter();
}

bool Begin(int socket, const char* name, const ConfineLimits& limits) {
  // When the kernel is short of memory, this process goes rather than the sampler.
  if (UniqueFd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)); score.valid()) {
    [[maybe_unused]] ssize_t written = ::write(score.get(), "1000", 4);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  ::prctl(PR_SET_NAME, name, 0, 0, 0);  // started by a descriptor, it bears the descriptor's number
  Hello hello;
  Status confined = Confine(limits);
  hello.confined = confined.ok();
  if (!confined.ok()) {
    const std::string& text = confined.error().message;
    std::memcpy(hello.problem, text.data(), std::min(text.size(), sizeof(hello.problem) - 1));
  }
  return SendMessage(socket, &hello, sizeof(hello)) && confined.ok();
}

bool SendMessage(int socket, const void* data, size_t bytes) {
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

ptrdiff_t ReceiveMessage(int socket, void* into, size_t capacity, std::vector<UniqueFd>* files, size_t max_files) {
  constexpr size_t kMaxFiles = 16;
  iovec data{into, capacity};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFiles * sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(std::min(max_files, kMaxFiles) * sizeof(int));
  ssize_t got;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return -1;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
      files->emplace_back(fd);
    }
  }
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return -1;
  return got;
}

}  // namespace borescope::confined
