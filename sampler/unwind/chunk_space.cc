// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/chunk_space.h"

#include <algorithm>
#include <cstring>

namespace borescope::unwind {
namespace {

// Ref 0 is none: the first bytes of chunk 0 are never given away.
constexpr uint32_t kReserved = 8;

constexpr uint32_t Round8(uint64_t bytes) { return static_cast<uint32_t>((bytes + 7) & ~uint64_t{7}); }

uint32_t RowsOf(const CompiledTable& table, size_t page) { return table.page_rows[page + 1] - table.page_rows[page]; }

uint64_t HeaderBytes(const CompiledTable& table) { return sizeof(unwind_table) + table.page_count() * sizeof(unwind_page); }

}  // namespace

ChunkSpace::~ChunkSpace() { Clear(); }

uint64_t ChunkSpace::BytesOf(const CompiledTable& table) {
  uint64_t bytes = Round8(HeaderBytes(table)) + Round8(table.rules.size() * sizeof(unwind_rule));
  for (size_t page = 0; page < table.page_count(); ++page) bytes += Round8(uint64_t{RowsOf(table, page)} * sizeof(uint32_t));
  return bytes;
}

uint64_t ChunkSpace::room_bytes() const {
  return free_bytes_ + (limit_ - std::min(limit_, chunks_.size())) * uint64_t{UNWIND_CHUNK_BYTES};
}

Result<ChunkSpace::Placement> ChunkSpace::Place(const CompiledTable& table) {
  if (HeaderBytes(table) > UNWIND_CHUNK_BYTES || table.rules.size() > UNWIND_MAX_RULES) {
    return Error{ErrorCode::kUnsupported, "the file's code is spread over " + std::to_string(table.page_count()) +
                                              " pages of 64 KiB, more than a table in the kernel can have"};
  }
  const uint64_t all = BytesOf(table);
  if (all > max_chunks_ * uint64_t{UNWIND_CHUNK_BYTES}) {
    return Error{ErrorCode::kUnsupported, "its table of " + std::to_string(all) + " bytes is larger than the whole budget for unwind tables"};
  }
  if (all > room_bytes()) return Error{ErrorCode::kExhausted, "the budget for unwind tables is used up"};

  Placement placement;
  auto take = [&](unwind_ref ref, uint64_t bytes) {
    if (ref != 0) placement.pieces.push_back({ref, Round8(bytes)});
    return ref != 0;
  };
  auto fail = [&]() -> Error {
    Free(placement);
    return refused_;
  };

  std::vector<unwind_page> pages(table.page_count());
  uint64_t left = all - Round8(HeaderBytes(table)) - Round8(table.rules.size() * sizeof(unwind_rule));  // rows not yet placed
  for (size_t page = 0; page < pages.size();) {
    if (RowsOf(table, page) == 0) {
      ++page;
      continue;
    }
    const uint32_t first = Round8(uint64_t{RowsOf(table, page)} * sizeof(uint32_t));
    // All that is left in one piece, if there is a place for it; else as many pages as the largest place holds.
    uint64_t most = std::min<uint64_t>(left, UNWIND_CHUNK_BYTES);
    auto extent = free_.lower_bound({static_cast<uint32_t>(most), 0});
    if (extent == free_.end() && !free_.empty() && std::prev(free_.end())->first >= first) extent = std::prev(free_.end());
    if (extent == free_.end()) {
      if (!AddChunk().ok()) return fail();
      continue;
    }
    uint64_t bytes = 0;
    size_t end = page;
    while (end < pages.size()) {
      uint32_t next = Round8(uint64_t{RowsOf(table, end)} * sizeof(uint32_t));
      if (bytes + next > std::min<uint64_t>(most, extent->first)) break;
      bytes += next;
      ++end;
    }
    const auto size = static_cast<uint32_t>(bytes);
    unwind_ref ref = TakeFrom(*extent, size);
    take(ref, size);
    left -= bytes;
    for (; page < end; ++page) {
      const uint32_t count = RowsOf(table, page);
      if (count == 0) continue;
      std::memcpy(At(ref), &table.rows[table.page_rows[page]], count * sizeof(uint32_t));
      pages[page] = {ref, count};
      ref += Round8(uint64_t{count} * sizeof(uint32_t)) >> 3;
    }
  }

  unwind_table header{};
  header.first_page = table.first_page;
  header.page_count = static_cast<uint32_t>(pages.size());
  header.rule_count = static_cast<uint32_t>(table.rules.size());
  header.rules = Allocate(Round8(table.rules.size() * sizeof(unwind_rule)));
  if (!take(header.rules, table.rules.size() * sizeof(unwind_rule))) return fail();
  std::memcpy(At(header.rules), table.rules.data(), table.rules.size() * sizeof(unwind_rule));
  placement.table = Allocate(Round8(HeaderBytes(table)));
  if (!take(placement.table, HeaderBytes(table))) return fail();
  std::memcpy(At(placement.table), &header, sizeof(header));
  if (!pages.empty()) std::memcpy(At(placement.table) + sizeof(header), pages.data(), pages.size() * sizeof(unwind_page));
  placement.bytes = all;
  return placement;
}

void ChunkSpace::Free(const Placement& placement) {
  for (const Piece& piece : placement.pieces) AddFree(UNWIND_REF_CHUNK(piece.ref), UNWIND_REF_OFFSET(piece.ref), piece.bytes);
}

void ChunkSpace::Clear() {
  for (const auto& [number, chunk] : chunks_) memory_->RemoveChunk(number);
  chunks_.clear();
  limit_ = max_chunks_;
  free_.clear();
  free_bytes_ = 0;
}

unwind_ref ChunkSpace::Allocate(uint32_t bytes) {
  auto extent = free_.lower_bound({bytes, 0});
  if (extent == free_.end()) {
    if (!AddChunk().ok()) return 0;
    extent = free_.lower_bound({bytes, 0});
    if (extent == free_.end()) return 0;  // a whole chunk, and it is chunk 0
  }
  return TakeFrom(*extent, bytes);
}

Status ChunkSpace::AddChunk() {
  if (chunks_.size() >= limit_) {
    refused_ = {ErrorCode::kExhausted, "the budget for unwind tables is used up"};
    return refused_;
  }
  uint32_t number = 0;
  for (auto it = chunks_.begin(); it != chunks_.end() && it->first == number; ++it) ++number;
  if (number >= UNWIND_MAX_CHUNKS) {
    refused_ = {ErrorCode::kExhausted, "all " + std::to_string(UNWIND_MAX_CHUNKS) + " chunks of unwind tables are in use"};
    return refused_;
  }
  Result<std::span<std::byte>> bytes = memory_->AddChunk(number);
  if (!bytes.ok()) {
    // The kernel gives no more than this: what is there must do, until some of it has become free.
    if (!chunks_.empty()) limit_ = chunks_.size();
    refused_ = {ErrorCode::kExhausted, bytes.error().message};
    return refused_;
  }
  chunks_[number].bytes = *bytes;
  const uint32_t start = number == 0 ? kReserved : 0;
  chunks_[number].free[start] = UNWIND_CHUNK_BYTES - start;
  free_.insert({UNWIND_CHUNK_BYTES - start, UNWIND_REF(number, start)});
  free_bytes_ += UNWIND_CHUNK_BYTES - start;
  return OkStatus();
}

unwind_ref ChunkSpace::TakeFrom(const std::pair<uint32_t, unwind_ref>& extent, uint32_t bytes) {
  const auto [size, ref] = extent;
  const uint32_t chunk = UNWIND_REF_CHUNK(ref), offset = UNWIND_REF_OFFSET(ref);
  RemoveFree(chunk, offset, size);
  if (size > bytes) {
    chunks_.at(chunk).free[offset + bytes] = size - bytes;
    free_.insert({size - bytes, UNWIND_REF(chunk, offset + bytes)});
    free_bytes_ += size - bytes;
  }
  return ref;
}

void ChunkSpace::RemoveFree(uint32_t chunk, uint32_t offset, uint32_t bytes) {
  chunks_.at(chunk).free.erase(offset);
  free_.erase({bytes, UNWIND_REF(chunk, offset)});
  free_bytes_ -= bytes;
}

void ChunkSpace::AddFree(uint32_t number, uint32_t offset, uint32_t bytes) {
  Chunk& chunk = chunks_.at(number);
  if (auto after = chunk.free.find(offset + bytes); after != chunk.free.end()) {
    const uint32_t more = after->second;
    RemoveFree(number, offset + bytes, more);
    bytes += more;
  }
  if (auto before = chunk.free.lower_bound(offset); before != chunk.free.begin()) {
    --before;
    const auto [start, size] = *before;
    if (start + size == offset) {
      RemoveFree(number, start, size);
      offset = start;
      bytes += size;
    }
  }
  if (bytes + (number == 0 ? kReserved : 0) == UNWIND_CHUNK_BYTES) {
    memory_->RemoveChunk(number);
    chunks_.erase(number);
    limit_ = max_chunks_;
    return;
  }
  chunk.free[offset] = bytes;
  free_.insert({bytes, UNWIND_REF(number, offset)});
  free_bytes_ += bytes;
}

}  // namespace borescope::unwind
