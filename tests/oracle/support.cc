// SPDX-License-Identifier: Apache-2.0
#include "support.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "common/base/clock.h"

namespace borescope::oracle {
namespace {

// Where the engine may look (v2 on hybrid and pure machines, memory on v1), and where the kernel counts CPU time.
std::vector<std::string> Hierarchies() {
  std::vector<std::string> found;
  for (const char* path : {"/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpuacct"}) {
    if (access((std::string(path) + "/cgroup.procs").c_str(), F_OK) == 0) found.push_back(path);
  }
  if (found.empty()) found.push_back("/sys/fs/cgroup");
  return found;
}

std::string Hex(int digits) {
  std::string s;
  for (int i = 0; i < digits; ++i) s += "0123456789abcdef"[Random()() % 16];
  return s;
}

void Write(const std::string& path, const std::string& text) {
  int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0) << path;
  ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size())) << path << ": " << strerror(errno);
  close(fd);
}

std::pair<uint64_t, uint64_t> StealAndTotal() {
  std::ifstream in("/proc/stat");
  std::string cpu;
  uint64_t value = 0, total = 0, steal = 0;
  in >> cpu;
  for (int i = 0; i < 8 && in >> value; ++i) {
    total += value;
    if (i == 7) steal = value;
  }
  return {steal, total};
}

struct Capabilities {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  Capabilities() { syscall(SYS_capget, &header, data); }
  bool Set() { return syscall(SYS_capset, &header, data) == 0; }
};

// Of both words of a capability set: the six, but for one.
void FillSix(uint32_t (&words)[2], int removed) {
  for (int cap : {CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE, CAP_DAC_READ_SEARCH, CAP_SYSLOG}) {
    if (cap != removed) words[cap / 32] |= 1u << cap % 32;
  }
}

void LowerToSix() {
  Capabilities c;
  uint32_t six[2] = {};
  FillSix(six, -1);
  for (int i = 0; i < 2; ++i) c.data[i].effective = six[i] & c.data[i].permitted;
  if (!c.Set()) ADD_FAILURE() << "capset: " << strerror(errno);
}

class SixCapabilities : public ::testing::Environment {
  void SetUp() override { LowerToSix(); }
};
const auto* const kSixCapabilities = ::testing::AddGlobalTestEnvironment(new SixCapabilities);

}  // namespace

AllCapabilities::AllCapabilities() {
  Capabilities c;
  for (auto& d : c.data) d.effective = d.permitted;
  if (!c.Set()) ADD_FAILURE() << "capset: " << strerror(errno);
}

AllCapabilities::~AllCapabilities() { LowerToSix(); }

bool KeepSixBut(int removed) {
  Capabilities c;
  uint32_t six[2] = {};
  FillSix(six, removed);
  for (int i = 0; i < 2; ++i) c.data[i].effective = c.data[i].permitted = six[i];
  return c.Set();
}

uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* given = getenv("SEED");
    uint64_t s = given != nullptr ? strtoull(given, nullptr, 0) : std::random_device{}();
    std::cerr << "SEED=" << s << "\n";
    return s;
  }();
  return seed;
}

std::mt19937_64& Random() {
  static std::mt19937_64 random(Seed());
  return random;
}

Child::Child(const std::function<void()>& body) {
  pid_ = fork();
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  raise(SIGSTOP);
  body();
  _exit(0);
}

void Child::Go() {
  waitpid(pid_, nullptr, WUNTRACED);
  kill(pid_, SIGCONT);
}

void Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

void Child::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  Wait();
}

int Child::Wait() {
  int status = 0;
  if (pid_ > 0) waitpid(pid_, &status, 0);
  pid_ = -1;
  return WEXITSTATUS(status);
}

void Spin(int64_t cpu_ns) {
  int64_t until = NowNs(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;
  while (NowNs(CLOCK_THREAD_CPUTIME_ID) < until) {
    for (int i = 0; i < 1000; ++i) asm volatile("" ::: "memory");
  }
}

void SpinForever() {
  for (;;) asm volatile("" ::: "memory");
}

void SleepMs(int64_t ms) {
  timespec t{ms / 1000, ms % 1000 * 1'000'000};
  nanosleep(&t, nullptr);
}

Pod::Pod() {
  std::string h = Hex(32);
  uid_ = h.substr(0, 8) + "-" + h.substr(8, 4) + "-" + h.substr(12, 4) + "-" + h.substr(16, 4) + "-" + h.substr(20);
  AllCapabilities all;
  std::string parent = "/borescope-test-" + Hex(8);
  for (const auto& root : Hierarchies()) {
    std::filesystem::create_directory(root + parent);
    made_.push_back(root + parent);
  }
  path_ = parent + "/pod" + uid_;
  for (const auto& root : Hierarchies()) {
    std::filesystem::create_directory(root + path_);
    made_.push_back(root + path_);
  }
}

Pod::~Pod() {
  AllCapabilities all;
  for (auto it = made_.rbegin(); it != made_.rend(); ++it) {
    for (int i = 0; i < 100 && rmdir(it->c_str()) != 0 && errno == EBUSY; ++i) SleepMs(10);
  }
}

std::string Pod::AddContainer() {
  std::string name = Hex(64);
  MakeBelow("", name);
  return name;
}

void Pod::MakeBelow(const std::string& container, const std::string& child) {
  AllCapabilities all;
  for (const auto& root : Hierarchies()) {
    made_.push_back(root + path_ + (container.empty() ? "" : "/" + container) + "/" + child);
    std::filesystem::create_directory(made_.back());
  }
}

void Pod::RemoveContainer(const std::string& container) {
  AllCapabilities all;
  for (const auto& root : Hierarchies()) {
    std::string path = root + path_ + "/" + container;
    for (int i = 0; i < 100 && rmdir(path.c_str()) != 0 && errno == EBUSY; ++i) SleepMs(10);
  }
}

void Pod::Join(const std::string& container, pid_t pid) {
  AllCapabilities all;
  for (const auto& root : Hierarchies()) Write(root + path_ + "/" + container + "/cgroup.procs", std::to_string(pid));
}

int64_t Pod::CpuNs(const std::string& container) const {
  for (const auto& root : Hierarchies()) {
    if (std::ifstream in(root + path_ + "/" + container + "/cpuacct.usage"); in) {
      int64_t ns = 0;
      in >> ns;
      return ns;
    }
    if (std::ifstream in(root + path_ + "/" + container + "/cpu.stat"); in && root == "/sys/fs/cgroup") {
      std::string key;
      int64_t us = 0;
      in >> key >> us;
      return us * 1000;
    }
  }
  ADD_FAILURE() << "no CPU accounting of cgroups here";
  return 0;
}

std::set<uint64_t> Pod::CgroupIds(const std::string& container) const {
  std::set<uint64_t> ids;
  for (const auto& root : Hierarchies()) {
    struct stat s {};
    if (stat((root + path_ + "/" + container).c_str(), &s) == 0) ids.insert(s.st_ino);
  }
  return ids;
}

void LeaveCgroups(pid_t pid) {
  AllCapabilities all;
  for (const auto& root : Hierarchies()) Write(root + "/cgroup.procs", std::to_string(pid));
}

StealMeter::StealMeter() : start_(StealAndTotal()) {}

double StealMeter::share() const {
  auto now = StealAndTotal();
  return now.second == start_.second ? 0 : static_cast<double>(now.first - start_.first) / static_cast<double>(now.second - start_.second);
}

void Recorder::Order(int64_t time_ns) {
  if (time_ns < last_time_ns) ++order_errors;
  last_time_ns = std::max(last_time_ns, time_ns);
}

void Recorder::OnSample(const engine::Sample& s) {
  Order(s.time_ns);
  samples.push_back({s.time_ns, s.tgid, s.tid, s.space, s.cgroup_id, s.weight_ns, s.job_mask,
                     {s.kernel_pcs.begin(), s.kernel_pcs.end()}, {s.user_pcs.begin(), s.user_pcs.end()}, s.end_reason, s.in_kernel, std::string(s.comm)});
}
void Recorder::OnMmap(const engine::Mmap& m) {
  Order(m.time_ns);
  mmaps.push_back({m, std::string(m.build_id), std::string(m.path)});
}
void Recorder::OnFork(const engine::Fork& f) {
  Order(f.time_ns);
  forks.push_back(f);
}
void Recorder::OnExec(const engine::Exec& e) {
  Order(e.time_ns);
  execs.push_back(e);
}
void Recorder::OnExit(const engine::Exit& e) {
  Order(e.time_ns);
  exits.push_back(e);
}
void Recorder::OnFound(const engine::Found& f) {
  Order(f.time_ns);
  found.push_back(f);
}
void Recorder::OnCgroup(const engine::Cgroup& c) {
  Order(c.time_ns);
  cgroups.push_back({c, std::string(c.name), std::string(c.pod_uid)});
}

void DrainFor(engine::Engine& e, Recorder& r, int64_t ms) {
  for (int64_t end = MonoNs() + ms * 1'000'000; MonoNs() < end;) {
    SleepMs(std::min<int64_t>(50, (end - MonoNs()) / 1'000'000 + 1));
    ASSERT_TRUE(e.Drain(r).ok());
  }
}

void DrainUntil(engine::Engine& e, Recorder& r, const std::function<bool()>& enough) {
  for (int64_t end = MonoNs() + 30'000'000'000; MonoNs() < end && !enough();) DrainFor(e, r, 50);
}

int64_t BootNs() { return NowNs(CLOCK_BOOTTIME); }
int64_t MonoNs() { return NowNs(CLOCK_MONOTONIC); }

std::unique_ptr<engine::Engine> OpenEngine(engine::Options options) {
  auto e = engine::Engine::Open(options);
  if (!e.ok()) {
    ADD_FAILURE() << e.error().ToString();
    return nullptr;
  }
  return std::move(*e);
}

engine::Job JobFor(int frequency_hz, int64_t duration_ms) {
  int64_t now = BootNs();
  return {.frequency_hz = frequency_hz, .kernel_stacks = true, .start_boot_ns = now, .deadline_boot_ns = now + duration_ms * 1'000'000};
}

}  // namespace borescope::oracle
