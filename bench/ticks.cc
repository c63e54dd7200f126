// SPDX-License-Identifier: Apache-2.0
//
// bench-ticks --owner PID|--empty HERTZ --target PID --seconds S: prints as JSON how long the kernel was in the handler of cpu-clock events that PID has
// opened (or that this program opens, with an empty BPF program), for ticks that hit the target and for the others: in bins of 100 ns.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "ticks.skel.h"

namespace {

constexpr int kBinNs = 100, kBins = 1500;

struct CpuTimes {  // as in ticks.bpf.c
  uint64_t entered_ns, sum_ns[2], count[2], max_ns[2], bins[2][kBins];
};

int Fail(const char* what) {
  fprintf(stderr, "bench-ticks: %s: %s\n", what, strerror(errno));
  return 2;
}

// The address of a kernel function; 0: not there, or hidden from us.
uint64_t KernelAddress(const char* name) {
  FILE* file = fopen("/proc/kallsyms", "re");
  if (file == nullptr) return 0;
  char symbol[512];
  unsigned long address = 0;
  while (fscanf(file, "%lx %*c %511s%*[^\n]", &address, symbol) == 2) {
    if (strcmp(symbol, name) == 0) break;
    address = 0;
  }
  fclose(file);
  return address;
}

void Print(const char* name, const std::vector<CpuTimes>& cpus, int which) {
  std::vector<uint64_t> bins(kBins);
  uint64_t sum = 0, count = 0, max = 0;
  for (const CpuTimes& cpu : cpus) {
    sum += cpu.sum_ns[which];
    count += cpu.count[which];
    max = std::max(max, cpu.max_ns[which]);
    for (size_t i = 0; i < kBins; ++i) bins[i] += cpu.bins[which][i];
  }
  printf("\"%s\": {\"count\": %lu, \"sum_ns\": %lu, \"max_ns\": %lu, \"bins\": {", name, count, sum, max);
  const char* comma = "";
  for (int i = 0; i < kBins; ++i) {
    if (bins[static_cast<size_t>(i)] == 0) continue;
    printf("%s\"%d\": %lu", comma, i * kBinNs, bins[static_cast<size_t>(i)]);
    comma = ", ";
  }
  printf("}}");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How long the kernel is in the handler of cpu-clock events.");
  int owner = 0, target = 0, empty_hertz = 0;
  double seconds = 5;
  app.add_option("--owner", owner, "Process whose events to time");
  app.add_option("--empty", empty_hertz, "Time events of our own with an empty BPF program, at this rate");
  app.add_option("--target", target, "Process that is sampled: its ticks are told apart")->required();
  app.add_option("--seconds", seconds, "How long");
  CLI11_PARSE(app, argc, argv);

  ticks_bpf* skeleton = ticks_bpf__open();
  if (skeleton == nullptr) return Fail("open");
  skeleton->rodata->owner = empty_hertz > 0 ? ::getpid() : owner;
  skeleton->rodata->target = target;
  skeleton->rodata->handler = KernelAddress("perf_swevent_hrtimer");
  if (skeleton->rodata->handler == 0) return Fail("find perf_swevent_hrtimer in /proc/kallsyms");
  bpf_program__set_autoattach(skeleton->progs.empty, false);
  if (ticks_bpf__load(skeleton) != 0) return Fail("load");
  if (ticks_bpf__attach(skeleton) != 0) return Fail("attach");
  const int cpus = libbpf_num_possible_cpus();
  if (cpus <= 0) return Fail("number of CPUs");
  for (int cpu = 0; empty_hertz > 0 && cpu < cpus; ++cpu) {
    perf_event_attr attr{};
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.sample_period = 1'000'000'000 / static_cast<uint64_t>(empty_hertz);
    auto fd = static_cast<int>(::syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC));
    if (fd < 0) continue;  // a CPU that is not there
    if (bpf_program__attach_perf_event(skeleton->progs.empty, fd) == nullptr) return Fail("attach the empty program");
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));

  std::vector<CpuTimes> times(static_cast<size_t>(cpus));
  uint32_t zero = 0;
  if (bpf_map__lookup_elem(skeleton->maps.times, &zero, sizeof zero, times.data(), times.size() * sizeof(CpuTimes), 0) != 0) return Fail("read the map");
  printf("{");
  Print("target", times, 1);
  printf(", ");
  Print("other", times, 0);
  printf("}\n");
  ticks_bpf__destroy(skeleton);
  return 0;
}
