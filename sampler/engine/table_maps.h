// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>

#include "sampler/unwind/table_memory.h"

namespace borescope::engine {

// Unwind tables in the maps `chunks` and `files`. A chunk exists from AddChunk to RemoveChunk; the kernel waits for an RCU grace period in
// both (some 10 ms).
class TableMaps final : public unwind::TableMemory {
 public:
  // changed: the programs' tables_changed.
  TableMaps(int chunks_fd, int files_fd, __u64* changed) : chunks_fd_(chunks_fd), files_fd_(files_fd), changed_(changed) {}
  TableMaps(const TableMaps&) = delete;
  ~TableMaps() override;

  Result<std::span<std::byte>> AddChunk(uint32_t chunk) override;
  void RemoveChunk(uint32_t chunk) override;
  Status PutFile(const unwind_file_key& key, unwind_ref table) override;
  void RemoveFile(const unwind_file_key& key) override;
  uint64_t UsedNs(const unwind_file_key& key) const override;

  // Of the chunks; all of it is mapped into this process. Any thread.
  size_t memory_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }

 private:
  void NoteChange() { std::atomic_ref<__u64>(*changed_).fetch_add(1); }

  const int chunks_fd_, files_fd_;
  __u64* const changed_;
  std::map<uint32_t, std::byte*> chunks_;
  std::atomic<size_t> memory_bytes_ = 0;
};

}  // namespace borescope::engine
