// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/chunk_space.h"

#include <gtest/gtest.h>

#include "table_samples.h"

namespace borescope::unwind {
namespace {

TEST(ChunkSpace, WhatIsPlacedIsFoundWhateverCameAndWentBefore) {
  std::mt19937_64 random(Seed());
  Memory memory;
  const size_t budget = (2 + random() % 2) * UNWIND_CHUNK_BYTES;
  ChunkSpace space(&memory, budget);
  struct Placed {
    CompiledTable table;
    ChunkSpace::Placement at;
  };
  std::vector<Placed> placed;
  int refused = 0;
  for (int step = 0; step < 300; ++step) {
    if (placed.empty() || random() % 5 < 3) {
      // Sizes from some hundred bytes to more than a chunk.
      CompiledTable table = RandomTable(random, static_cast<uint32_t>(1 + random() % (random() % 4 == 0 ? 300 : 40)), static_cast<uint32_t>(1 + random() % 2000),
                                        static_cast<uint32_t>(2 + random() % 200));
      const uint64_t room = space.room_bytes();
      const size_t chunks = memory.chunks.size();
      Result<ChunkSpace::Placement> at = space.Place(table);
      if (at.ok()) {
        placed.push_back({std::move(table), *std::move(at)});
      } else {
        ++refused;
        EXPECT_EQ(space.room_bytes(), room) << "what was refused took room";
        EXPECT_EQ(memory.chunks.size(), chunks);
        // So much is never lost to pieces that are too small.
        if (at.error().code == ErrorCode::kExhausted) {
          EXPECT_LT(room, ChunkSpace::BytesOf(table) + budget / 2);
        }
      }
    } else {
      const size_t i = random() % placed.size();
      EXPECT_EQ(Differences(memory, placed[i].at.table, placed[i].table), 0);
      space.Free(placed[i].at);
      placed.erase(placed.begin() + static_cast<ptrdiff_t>(i));
    }
    ASSERT_LE(memory.chunks.size() * UNWIND_CHUNK_BYTES, budget);
    // Nothing overlaps, and what is not free is what was asked for.
    std::map<uint64_t, uint64_t> pieces;
    uint64_t used = 0;
    for (const Placed& p : placed) {
      uint64_t bytes = 0;
      for (const ChunkSpace::Piece& piece : p.at.pieces) {
        const uint64_t start = uint64_t{UNWIND_REF_CHUNK(piece.ref)} * UNWIND_CHUNK_BYTES + UNWIND_REF_OFFSET(piece.ref);
        ASSERT_TRUE(pieces.emplace(start, start + piece.bytes).second);
        ASSERT_LE(UNWIND_REF_OFFSET(piece.ref) + piece.bytes, UNWIND_CHUNK_BYTES);
        bytes += piece.bytes;
      }
      ASSERT_EQ(bytes, ChunkSpace::BytesOf(p.table));
      used += bytes;
    }
    uint64_t end = 0;
    for (const auto& [start, stop] : pieces) {
      ASSERT_GE(start, end);
      end = stop;
    }
    const uint64_t reserved = memory.chunks.contains(0) ? 8 : 0;
    ASSERT_EQ(space.free_bytes() + used + reserved, space.chunk_bytes());
  }
  EXPECT_GT(refused, 0) << "the budget was never reached";
  for (const Placed& p : placed) EXPECT_EQ(Differences(memory, p.at.table, p.table), 0);
  for (const Placed& p : placed) space.Free(p.at);
  EXPECT_TRUE(memory.chunks.empty());
  EXPECT_EQ(space.free_bytes(), 0u);
  EXPECT_EQ(memory.wrong, 0);
}

TEST(ChunkSpace, TakesExactlyWhatIsNeeded) {
  std::mt19937_64 random(Seed());
  Memory memory;
  ChunkSpace space(&memory, 8 * UNWIND_CHUNK_BYTES);
  CompiledTable table = RandomTable(random, 40, 500, 30);
  Result<ChunkSpace::Placement> at = space.Place(table);
  ASSERT_TRUE(at.ok());
  uint64_t rows = 0;
  for (size_t page = 0; page < table.page_count(); ++page) rows += (table.page_rows[page + 1] - table.page_rows[page] + 1) / 2 * 8;
  EXPECT_EQ(at->bytes, rows + 30 * sizeof(unwind_rule) + 16 + 40 * 8);
  EXPECT_EQ(memory.chunks.size(), 1u);
}

TEST(ChunkSpace, LivesWithWhatTheKernelGives) {
  std::mt19937_64 random(Seed());
  Memory memory;
  memory.max_chunks = 2;
  ChunkSpace space(&memory, 64 * UNWIND_CHUNK_BYTES);
  std::vector<ChunkSpace::Placement> placed;
  CompiledTable table = RandomTable(random, 20, 1000, 30);
  Error refused;
  for (int i = 0; i < 1000; ++i) {
    Result<ChunkSpace::Placement> at = space.Place(table);
    if (!at.ok()) {
      refused = at.error();
      break;
    }
    placed.push_back(*std::move(at));
  }
  EXPECT_EQ(refused.code, ErrorCode::kExhausted);
  EXPECT_EQ(refused.message, "the test gives no more chunks");
  EXPECT_LT(space.room_bytes(), 2 * UNWIND_CHUNK_BYTES);
  for (const auto& at : placed) space.Free(at);
  EXPECT_TRUE(memory.chunks.empty());
  EXPECT_TRUE(space.Place(table).ok());
}

TEST(ChunkSpace, SaysWhatCanNeverBePlaced) {
  Memory memory;
  ChunkSpace space(&memory, UNWIND_CHUNK_BYTES);
  CompiledTable wide;
  wide.rules.resize(2);
  wide.page_rows.assign(262144, 0);
  EXPECT_EQ(space.Place(wide).status().error().code, ErrorCode::kUnsupported);
  CompiledTable long_one;
  long_one.rules.resize(2);
  long_one.page_rows = {0};
  while (long_one.rows.size() * sizeof(uint32_t) < UNWIND_CHUNK_BYTES) {
    long_one.rows.resize(long_one.rows.size() + 65536);
    long_one.page_rows.push_back(static_cast<uint32_t>(long_one.rows.size()));
  }
  EXPECT_EQ(space.Place(long_one).status().error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(memory.chunks.empty());
}

}  // namespace
}  // namespace borescope::unwind
