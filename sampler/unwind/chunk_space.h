// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "bpf/abi/unwind.h"
#include "common/base/result.h"
#include "sampler/unwind/compiled_table.h"
#include "sampler/unwind/table_memory.h"

namespace borescope::unwind {

// Where tables lie in the programs' memory: in pieces of exact size (multiples of 8 bytes), in as few chunks as hold them. A chunk
// with nothing in it goes back at once.
class ChunkSpace {
 public:
  struct Piece {
    unwind_ref ref;
    uint32_t bytes;
  };
  struct Placement {
    unwind_ref table = 0;
    std::vector<Piece> pieces;
    uint64_t bytes = 0;
  };

  ChunkSpace(TableMemory* memory, size_t budget_bytes) : memory_(memory), max_chunks_(budget_bytes / UNWIND_CHUNK_BYTES), limit_(max_chunks_) {}
  ~ChunkSpace();
  ChunkSpace(const ChunkSpace&) = delete;
  ChunkSpace& operator=(const ChunkSpace&) = delete;

  // Writes a table. kExhausted: there is no room for it now, nothing was written; kUnsupported: no space can hold it.
  Result<Placement> Place(const CompiledTable& table);
  // Nobody reads it any more: TableMemory::kGraceNs after the last file that named it was removed.
  void Free(const Placement& placement);
  // All that is placed, at once: no program runs.
  void Clear();

  // What Place takes for a table.
  static uint64_t BytesOf(const CompiledTable& table);
  size_t chunk_bytes() const { return chunks_.size() * UNWIND_CHUNK_BYTES; }
  uint64_t free_bytes() const { return free_bytes_; }  // in the chunks that are there
  // Free, and what may still be added.
  uint64_t room_bytes() const;

 private:
  struct Chunk {
    std::span<std::byte> bytes;
    std::map<uint32_t, uint32_t> free;  // offset: bytes
  };

  // The smallest free extent that holds so much, else a new chunk. 0: none.
  unwind_ref Allocate(uint32_t bytes);
  Status AddChunk();
  void AddFree(uint32_t chunk, uint32_t offset, uint32_t bytes);
  void RemoveFree(uint32_t chunk, uint32_t offset, uint32_t bytes);
  unwind_ref TakeFrom(const std::pair<uint32_t, unwind_ref>& extent, uint32_t bytes);
  std::byte* At(unwind_ref ref) { return chunks_.at(UNWIND_REF_CHUNK(ref)).bytes.data() + UNWIND_REF_OFFSET(ref); }

  TableMemory* const memory_;
  const size_t max_chunks_;
  size_t limit_;  // smaller when the kernel refused one
  std::map<uint32_t, Chunk> chunks_;
  std::set<std::pair<uint32_t, unwind_ref>> free_;  // bytes and place of each free extent
  uint64_t free_bytes_ = 0;
  Error refused_{ErrorCode::kExhausted, ""};  // why the last chunk could not be added
};

}  // namespace borescope::unwind
