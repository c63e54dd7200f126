// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/table_maps.h"

#include <bpf/bpf.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "common/base/fd.h"

namespace borescope::engine {

TableMaps::~TableMaps() {
  for (const auto& [chunk, memory] : chunks_) munmap(memory, UNWIND_CHUNK_BYTES);
}

Result<std::span<std::byte>> TableMaps::AddChunk(uint32_t chunk) {
  std::string what = "unwind tables, chunk " + std::to_string(chunk);
  if (chunk >= UNWIND_MAX_CHUNKS || chunks_.contains(chunk)) return Error{ErrorCode::kInvalid, what + " is out of range, or there already"};
  LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = BPF_F_MMAPABLE);
  UniqueFd map(bpf_map_create(BPF_MAP_TYPE_ARRAY, "unwind_chunk", sizeof(uint32_t), UNWIND_CHUNK_BYTES, 1, &options));
  if (!map.valid()) return ErrnoError("creating a BPF map of 2 MiB (" + what + ")");
  void* memory = mmap(nullptr, UNWIND_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, map.get(), 0);
  if (memory == MAP_FAILED) return ErrnoError("mapping a BPF map (" + what + ")");
  int fd = map.get();
  if (bpf_map_update_elem(chunks_fd_, &chunk, &fd, BPF_ANY) != 0) {
    Error error = ErrnoError("giving a BPF map to the programs (" + what + ")");
    munmap(memory, UNWIND_CHUNK_BYTES);
    return error;
  }
  auto* bytes = static_cast<std::byte*>(memory);
  chunks_[chunk] = bytes;
  memory_bytes_ += UNWIND_CHUNK_BYTES;
  return std::span(bytes, UNWIND_CHUNK_BYTES);
}

void TableMaps::RemoveChunk(uint32_t chunk) {
  auto it = chunks_.find(chunk);
  if (it == chunks_.end()) return;
  bpf_map_delete_elem(chunks_fd_, &chunk);
  munmap(it->second, UNWIND_CHUNK_BYTES);
  chunks_.erase(it);
  memory_bytes_ -= UNWIND_CHUNK_BYTES;
}

Status TableMaps::PutFile(const unwind_file_key& key, unwind_ref table) {
  unwind_file file{.table = table, .pad = 0, .used_ns = UsedNs(key)};
  if (bpf_map_update_elem(files_fd_, &key, &file, BPF_ANY) == 0) {
    NoteChange();
    return OkStatus();
  }
  if (errno == E2BIG) {
    return Error{ErrorCode::kExhausted, "the programs' map of files is full (" + std::to_string(UNWIND_MAX_FILES) + "): files longest unused must leave first"};
  }
  return ErrnoError("telling the programs of an unwind table");
}

void TableMaps::RemoveFile(const unwind_file_key& key) {
  bpf_map_delete_elem(files_fd_, &key);
  NoteChange();
}

uint64_t TableMaps::UsedNs(const unwind_file_key& key) const {
  unwind_file file;
  return bpf_map_lookup_elem(files_fd_, &key, &file) == 0 ? file.used_ns : 0;
}

}  // namespace borescope::engine
