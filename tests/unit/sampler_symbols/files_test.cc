// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "common/base/clock.h"
#include "temporary_directory.h"

namespace borescope::symbols {
namespace {

// A file system with one file, whose server answers what it takes to map that file once, and then nothing any more.
void Serve(int fd) {
  alignas(8) char in[FUSE_MIN_READ_BUFFER + 4096];
  while (true) {
    ssize_t n = read(fd, in, sizeof(in));
    if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) return;
    fuse_in_header header;
    std::memcpy(&header, in, sizeof(header));
    struct {
      fuse_out_header header;
      char body[512];
    } out = {};
    size_t bytes = 0;
    fuse_attr attr{};
    attr.ino = 2;
    attr.size = 1 << 20;
    attr.mode = S_IFREG | 0755;
    attr.nlink = 1;
    switch (header.opcode) {
      case FUSE_INIT: {
        fuse_init_out init{};
        init.major = FUSE_KERNEL_VERSION;
        init.minor = FUSE_KERNEL_MINOR_VERSION;
        init.max_write = 4096;
        std::memcpy(out.body, &init, bytes = sizeof(init));
        break;
      }
      case FUSE_LOOKUP: {
        fuse_entry_out entry{};
        entry.nodeid = 2;
        entry.attr = attr;  // valid for no time at all: it would be asked for again
        std::memcpy(out.body, &entry, bytes = sizeof(entry));
        break;
      }
      case FUSE_OPEN: {
        fuse_open_out open{};
        std::memcpy(out.body, &open, bytes = sizeof(open));
        break;
      }
      default:
        out.header.error = -ENOSYS;
    }
    out.header.len = static_cast<uint32_t>(sizeof(out.header) + bytes);
    out.header.unique = header.unique;
    if (write(fd, &out, out.header.len) < 0) return;
    if (header.opcode == FUSE_OPEN) return;
  }
}

constexpr int kSkip = 77;

// In namespaces of its own, where anybody may mount.
int OpenWhatHangs(const std::string& directory) {
  const uid_t uid = getuid();
  const gid_t gid = getgid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return kSkip;
  for (const auto& [path, text] : {std::pair<std::string, std::string>{"/proc/self/setgroups", "deny"},
                                  {"/proc/self/uid_map", "0 " + std::to_string(uid) + " 1"},
                                  {"/proc/self/gid_map", "0 " + std::to_string(gid) + " 1"}}) {
    UniqueFd fd(open(path.c_str(), O_WRONLY));
    if (write(fd.get(), text.data(), text.size()) < 0) return kSkip;
  }
  UniqueFd fuse(open("/dev/fuse", O_RDWR));
  const std::string options = "fd=" + std::to_string(fuse.get()) +
                              ",rootmode=40000,user_id=0,group_id=0";
  if (!fuse.valid() || mount("test", directory.c_str(), "fuse", 0, options.c_str()) != 0) return kSkip;
  std::thread server(Serve, fuse.get());
  const std::string path = directory + "/file";
  UniqueFd fd(open(path.c_str(), O_RDONLY));
  server.join();
  if (!fd.valid()) return kSkip;
  // Whoever waits is let go when the server's descriptor is closed: after a while, so that a failure does not leave a process behind.
  std::thread([server_fd = fuse.get()] {
    sleep(5);
    close(server_fd);
  }).detach();
  void* at = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (at == MAP_FAILED) return kSkip;
  FileRequest request;
  request.pid = getpid();
  request.start = reinterpret_cast<uint64_t>(at);
  request.end = request.start + 4096;
  request.id = {.device_major = 0, .device_minor = 1, .inode = 2};
  request.path = path;
  const int64_t start = NowNs(CLOCK_MONOTONIC);
  FileCache files("/proc", 10);
  auto file = files.Get(request);
  printf("%s\n", file->problem.c_str());
  const bool opened = file->elf || OpenInRoot("/proc", getpid(), path).ok() || OpenInRoot("/proc", getpid(), directory + "/other").ok();
  const bool waited = NowNs(CLOCK_MONOTONIC) - start > 4'000'000'000;
  close(fuse.Release());  // to close the file would wait, too
  return opened ? 1 : waited ? 2 : 0;
}

TEST(FileCache, DoesNotWaitForAFileSystemThatDoesNotAnswer) {
  testing::TemporaryDirectory directory;
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    const int code = OpenWhatHangs(directory.path());
    fflush(stdout);
    _exit(code);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kSkip) GTEST_SKIP() << "no FUSE without privilege here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace borescope::symbols
