// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/sideband.h"

#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

namespace borescope::engine {
namespace {

// Of each CPU; some 800 mappings between two reads. All rings of a user without CAP_IPC_LOCK may hold 516 KiB a CPU.
constexpr size_t kRingBytes = 128 << 10;

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Head of PERF_RECORD_MMAP2, as perf_event_open(2) gives it; then the path, padded, then the time (sample_id).
struct Mmap2Record {
  perf_event_header header;
  uint32_t pid, tid;
  uint64_t start, length, file_offset;
  union {
    struct {
      uint32_t major, minor;
      uint64_t inode, generation;
    } file;
    struct {
      uint8_t size, reserved1;
      uint16_t reserved2;
      uint8_t bytes[20];
    } build_id;
  };
  uint32_t protection, flags;
};

}  // namespace

bool ParseMmapRecord(std::string_view record, Mmap* out) {
  Mmap2Record r;
  if (record.size() < sizeof(r) + 8) return false;
  std::memcpy(&r, record.data(), sizeof(r));
  if (r.header.type != PERF_RECORD_MMAP2 || r.header.size != record.size()) return false;
  std::string_view path = record.substr(sizeof(r), record.size() - sizeof(r) - 8);
  path = path.substr(0, path.find('\0'));
  uint64_t time = 0;
  std::memcpy(&time, record.data() + record.size() - 8, 8);
  *out = {};
  out->time_ns = static_cast<int64_t>(time);
  out->tgid = static_cast<pid_t>(r.pid);
  out->tid = static_cast<pid_t>(r.tid);
  out->start = r.start;
  out->length = r.length;
  out->file_offset = r.file_offset;
  if (r.header.misc & PERF_RECORD_MISC_MMAP_BUILD_ID) {
    if (r.build_id.size > sizeof(r.build_id.bytes)) return false;
    out->build_id = record.substr(offsetof(Mmap2Record, build_id.bytes), r.build_id.size);
  } else {
    out->device_major = r.file.major;
    out->device_minor = r.file.minor;
    out->inode = r.file.inode;
  }
  out->path = path;
  return true;
}

Status Sideband::Open(const std::vector<int>& cpus) {
  perf_event_attr attr{};
  attr.size = sizeof(attr);
  attr.type = PERF_TYPE_SOFTWARE;
  attr.config = PERF_COUNT_SW_DUMMY;
  attr.sample_type = PERF_SAMPLE_TIME;
  attr.sample_id_all = 1;
  attr.mmap = 1;
  attr.mmap2 = 1;
  attr.build_id = 1;
  attr.use_clockid = 1;
  attr.clockid = CLOCK_MONOTONIC;
  attr.watermark = 1;
  attr.wakeup_watermark = UINT32_MAX;  // read on a timer: never wake
  for (int cpu : cpus) {
    std::string what = "perf_event_open (mappings, CPU " + std::to_string(cpu) + ")";
    Ring ring;
    ring.event.Reset(static_cast<int>(syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC)));
    if (!ring.event.valid() && errno == ENODEV) continue;  // went offline just now
    if (!ring.event.valid()) {
      Error error = ErrnoError(what);
      Close();
      return error;
    }
    ring.memory = mmap(nullptr, PageBytes() + kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.event.get(), 0);
    if (ring.memory == MAP_FAILED) {
      Error error = ErrnoError("mmap of the ring of " + what);
      Close();
      return error;
    }
    rings_.push_back(std::move(ring));
  }
  return OkStatus();
}

void Sideband::Close() {
  for (Ring& ring : rings_) munmap(ring.memory, PageBytes() + kRingBytes);
  rings_.clear();
}

size_t Sideband::memory_bytes() const { return rings_.size() * (PageBytes() + kRingBytes); }

uint64_t Sideband::Read(const std::function<void(const Mmap&)>& on_mmap) {
  uint64_t lost = 0;
  for (Ring& ring : rings_) {
    auto* control = static_cast<perf_event_mmap_page*>(ring.memory);
    const char* data = static_cast<const char*>(ring.memory) + PageBytes();
    uint64_t head = std::atomic_ref<__u64>(control->data_head).load(std::memory_order_acquire);
    uint64_t tail = control->data_tail;
    auto copy = [&](uint64_t from, void* to, size_t size) {
      size_t at = from % kRingBytes, first = std::min(size, kRingBytes - at);
      std::memcpy(to, data + at, first);
      std::memcpy(static_cast<char*>(to) + first, data, size - first);
    };
    while (head - tail >= sizeof(perf_event_header)) {
      perf_event_header header;
      copy(tail, &header, sizeof(header));
      if (header.size < sizeof(header) || header.size > head - tail) break;
      record_.resize(header.size);
      copy(tail, record_.data(), header.size);
      tail += header.size;
      std::string_view record(record_.data(), record_.size());
      if (header.type == PERF_RECORD_LOST && record.size() >= 24) {
        uint64_t count = 0;
        std::memcpy(&count, record.data() + 16, 8);
        lost += count;
      } else if (Mmap mapping; ParseMmapRecord(record, &mapping)) {
        on_mmap(mapping);
      }
    }
    std::atomic_ref<__u64>(control->data_tail).store(head, std::memory_order_release);
  }
  return lost;
}

}  // namespace borescope::engine
