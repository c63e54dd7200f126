// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bpf/abi/unwind.h"
#include "common/base/result.h"

namespace borescope::unwind {

// Where the programs look for unwind tables: the engine's maps, or plain memory in tests.
class TableMemory {
 public:
  virtual ~TableMemory() = default;
  // UNWIND_CHUNK_BYTES, zeroed; once this returns the programs see what is written there. kExhausted, kDenied: as the kernel says.
  virtual Result<std::span<std::byte>> AddChunk(uint32_t chunk) = 0;
  virtual void RemoveChunk(uint32_t chunk) = 0;
  virtual Status PutFile(const unwind_file_key& key, unwind_ref table) = 0;
  // What it named must stay in place for kGrace longer: a program may be reading.
  virtual void RemoveFile(const unwind_file_key& key) = 0;
  virtual uint64_t UsedNs(const unwind_file_key& key) const = 0;  // CLOCK_MONOTONIC; 0: never

  static constexpr int64_t kGraceNs = 100'000'000;
};

}  // namespace borescope::unwind
