// SPDX-License-Identifier: Apache-2.0
//
// A load whose truth is known: runs the drawn paths in slices of 1 to 3 ms and reads its own thread
// clock around each.
//
//   workload [busy|lockstep|short] [--seconds S] [--threads T] [--report FILE] [--trace FILE]
//            [--hz F] [--duty D] [--ms N]
//
// --report FILE: one JSON object a second and at the end, cumulative: monotonic_ns, realtime_ns,
//   pid, seed, threads, entry (functions that threads begin in), process_ns (CPU of the process),
//   total_ns (sum of the threads' clocks), paths: [{path, leaf, kind, callback, share, cpu_ns}].
// --trace FILE: one line a slice: thread id, CLOCK_MONOTONIC from and to, CPU ns, index of the path.

#include "workload.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kShortestSlice = 1'000'000;
constexpr uint64_t kLongestSlice = 3'000'000;

enum class Mode { kBusy, kLockstep, kShort };

struct Options {
  Mode mode = Mode::kBusy;
  double seconds = 0;  // 0: for ever
  int threads = 1;
  double hz = 99;
  double duty = 0.3;
  uint64_t ms = 100;
  FILE* report = nullptr;
  FILE* trace = nullptr;
};

// One thread's part. The counters are read by the first thread while the others run.
struct Worker {
  int number;
  uint64_t random;
  std::vector<std::atomic<uint64_t>> cpu_ns;      // by path
  std::vector<double> rounds_per_ns;              // by path, as measured so far
  std::atomic<uint64_t> total_ns = 0;
  std::vector<char> scratch;
  pthread_t thread;

  Worker() : cpu_ns(kPathCount), rounds_per_ns(kPathCount, 0), scratch(2 * kCopyBytes, 'x') {}
};

Options options;
std::vector<Worker*> workers;
std::atomic<bool> stopped = false;
uint64_t began;
uint64_t next_report;

uint64_t Clock(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

uint64_t Draw(Worker& worker) {
  uint64_t z = worker.random += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

int DrawPath(Worker& worker) {
  int point = static_cast<int>(Draw(worker) % 1000);
  int path = 0;
  while (path < kPathCount - 1 && point >= kPaths[path].share) point -= kPaths[path++].share;
  return path;
}

void Report() {
  uint64_t total = 0;
  for (const Worker* worker : workers) total += worker->total_ns.load();
  FILE* out = options.report;
  fprintf(out,
          "{\"monotonic_ns\": %lu, \"realtime_ns\": %lu, \"pid\": %d, \"seed\": %lu, "
          "\"threads\": %d, \"entry\": [\"main\", \"%s\"], \"process_ns\": %lu, "
          "\"total_ns\": %lu, \"paths\": [",
          Clock(CLOCK_MONOTONIC), Clock(CLOCK_REALTIME), getpid(), kSeed, options.threads,
          kThreadName, Clock(CLOCK_PROCESS_CPUTIME_ID), total);
  for (int i = 0; i < kPathCount; ++i) {
    const Path& path = kPaths[i];
    uint64_t cpu = 0;
    for (const Worker* worker : workers) cpu += worker->cpu_ns[i].load();
    fprintf(out, "%s{\"path\": [", i == 0 ? "" : ", ");
    const char* leaf = "";
    for (const int* step = path.steps; *step >= 0; ++step) {
      leaf = kNames[*step];
      fprintf(out, "%s\"%s\"", step == path.steps ? "" : ", ", leaf);
    }
    fprintf(out, "], \"leaf\": \"%s\", \"kind\": \"%s\", \"callback\": \"%s\", \"share\": %d, "
            "\"cpu_ns\": %lu}", leaf, path.kind, path.callback ? path.callback : "", path.share, cpu);
  }
  fprintf(out, "]}\n");
  fflush(out);
}

// Runs one slice of about `want` ns of CPU.
void RunSlice(Worker& worker, int index, uint64_t want) {
  const Path& path = kPaths[index];
  double& rate = worker.rounds_per_ns[index];
  Slice slice{path.steps, static_cast<uint64_t>(rate * want) + 1, worker.scratch.data()};
  const uint64_t from = options.trace ? Clock(CLOCK_MONOTONIC) : 0;
  const uint64_t cpu_from = Clock(CLOCK_THREAD_CPUTIME_ID);
  Hidden(path.first(slice, 0));
  const uint64_t cpu_to = Clock(CLOCK_THREAD_CPUTIME_ID);
  const uint64_t used = cpu_to - cpu_from;
  if (rate == 0 && used < kShortestSlice / 4) {
    // Not known yet: as many rounds again as took a measurable time.
    while (true) {
      slice.work *= 4;
      const uint64_t start = Clock(CLOCK_THREAD_CPUTIME_ID);
      Hidden(path.first(slice, 0));
      const uint64_t took = Clock(CLOCK_THREAD_CPUTIME_ID) - start;
      if (took < kShortestSlice / 4) continue;
      rate = static_cast<double>(slice.work) / took;
      break;
    }
  } else {
    rate = 0.9 * rate + 0.1 * static_cast<double>(slice.work) / (used + 1);
  }
  const uint64_t cpu_end = Clock(CLOCK_THREAD_CPUTIME_ID);
  worker.cpu_ns[index] += cpu_end - cpu_from;
  worker.total_ns = cpu_end;
  if (options.trace) {
    fprintf(options.trace, "%ld %lu %lu %lu %d\n", syscall(SYS_gettid), from,
            Clock(CLOCK_MONOTONIC), cpu_end - cpu_from, index);
  }
}

bool Over() {
  if (stopped) return true;
  if (options.mode == Mode::kShort) {
    return Clock(CLOCK_PROCESS_CPUTIME_ID) >= options.ms * 1'000'000;
  }
  return options.seconds > 0 && Clock(CLOCK_MONOTONIC) - began >= options.seconds * kSecond;
}

// A period of exactly 1/hz, of which the first part is busy: the rhythm that a profiler with a
// fixed period falls in step with.
void SleepToPeriod(uint64_t period) {
  const uint64_t at = began + static_cast<uint64_t>(period * (kSecond / options.hz));
  const timespec until = {static_cast<time_t>(at / kSecond), static_cast<long>(at % kSecond)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR && !stopped) {
  }
}

}  // namespace

WHOLE void Run(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  for (uint64_t period = 1; !Over(); ++period) {
    uint64_t want = kShortestSlice + Draw(worker) % (kLongestSlice - kShortestSlice);
    if (options.mode == Mode::kLockstep) {
      SleepToPeriod(period);
      want = static_cast<uint64_t>(options.duty * (kSecond / options.hz));
    }
    RunSlice(worker, DrawPath(worker), want);
    if (worker.number == 0 && Clock(CLOCK_MONOTONIC) >= next_report) {
      if (options.report) Report();
      if (options.trace) fflush(options.trace);
      next_report += kSecond;
    }
  }
  worker.total_ns = Clock(CLOCK_THREAD_CPUTIME_ID);
}

namespace {

[[noreturn]] void Refuse(const char* what, const char* found, const char* next) {
  fprintf(stderr, "workload: %s: %s; %s\n", what, found, next);
  exit(2);
}

double Number(const char* flag, const char* text, double least, double most) {
  char* end;
  const double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= least && value <= most)) {
    fprintf(stderr, "workload: %s: %s; give a number from %g to %g\n", flag, text, least, most);
    exit(2);
  }
  return value;
}

FILE* Open(const char* path) {
  if (strcmp(path, "-") == 0) return stdout;
  FILE* file = fopen(path, "we");
  if (file == nullptr) Refuse(path, strerror(errno), "give a file that can be written");
  return file;
}

void Parse(int argc, char** argv) {
  int i = 1;
  if (i < argc && argv[i][0] != '-') {
    const char* mode = argv[i++];
    if (strcmp(mode, "busy") == 0) {
      options.mode = Mode::kBusy;
    } else if (strcmp(mode, "lockstep") == 0) {
      options.mode = Mode::kLockstep;
    } else if (strcmp(mode, "short") == 0) {
      options.mode = Mode::kShort;
    } else {
      Refuse("mode", mode, "give busy, lockstep or short");
    }
  }
  for (; i < argc; i += 2) {
    const char* flag = argv[i];
    const char* value = argv[i + 1];
    if (value == nullptr) Refuse(flag, "has no value", "give one after it");
    if (strcmp(flag, "--seconds") == 0) {
      options.seconds = Number(flag, value, 0, 1e6);
    } else if (strcmp(flag, "--threads") == 0) {
      options.threads = static_cast<int>(Number(flag, value, 1, 64));
    } else if (strcmp(flag, "--hz") == 0) {
      options.hz = Number(flag, value, 1, 10'000);
    } else if (strcmp(flag, "--duty") == 0) {
      options.duty = Number(flag, value, 0.001, 1);
    } else if (strcmp(flag, "--ms") == 0) {
      options.ms = static_cast<uint64_t>(Number(flag, value, 1, 1e9));
    } else if (strcmp(flag, "--report") == 0) {
      options.report = Open(value);
    } else if (strcmp(flag, "--trace") == 0) {
      options.trace = Open(value);
    } else {
      Refuse("flag", flag, "the head of workload.cc lists the flags");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Parse(argc, argv);
  for (const int number : {SIGTERM, SIGINT}) {
    signal(number, [](int) { stopped = true; });
  }
  began = Clock(CLOCK_MONOTONIC);
  next_report = began + kSecond;
  for (int i = 0; i < options.threads; ++i) {
    Worker* worker = new Worker;
    worker->number = i;
    worker->random = kSeed + i;
    workers.push_back(worker);
  }
  for (int i = 1; i < options.threads; ++i) {
    const int error = pthread_create(&workers[i]->thread, nullptr, kThread, workers[i]);
    if (error != 0) Refuse("pthread_create", strerror(error), "give fewer --threads");
  }
  Run(workers[0]);
  for (int i = 1; i < options.threads; ++i) pthread_join(workers[i]->thread, nullptr);
  if (options.report) Report();
  if (options.trace) fflush(options.trace);
  return 0;
}
