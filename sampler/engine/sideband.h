// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "sampler/engine/engine.h"

namespace borescope::engine {

// What the kernel tells of executable mappings, on every CPU and of every process: a dummy perf event on each CPU with a ring.
class Sideband {
 public:
  Sideband() = default;
  Sideband(const Sideband&) = delete;
  ~Sideband() { Close(); }

  Status Open(const std::vector<int>& cpus);
  void Close();

  // Hands out what has come since, CPU by CPU: not sorted. The strings of an Mmap are valid during the call.
  // Returns how many records the kernel could not store.
  uint64_t Read(const std::function<void(const Mmap&)>& on_mmap);
  size_t memory_bytes() const;

 private:
  struct Ring {
    UniqueFd event;
    void* memory = nullptr;
  };
  std::vector<Ring> rings_;
  std::vector<char> record_;  // one record, in one piece
};

// One PERF_RECORD_MMAP2 of an event with sample_id_all and PERF_SAMPLE_TIME; false for any other or a malformed one.
bool ParseMmapRecord(std::string_view record, Mmap* out);

}  // namespace borescope::engine
