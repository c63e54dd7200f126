// SPDX-License-Identifier: Apache-2.0
// Records as the programs write them, whole and torn.
#include "sampler/engine/sample_record.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace borescope::engine {
namespace {

struct Built {
  std::vector<uint64_t> words;
  std::string_view view() const { return {reinterpret_cast<const char*>(words.data()), words.size() * 8}; }
  template <typename T>
  void Add(const T& t) {
    size_t at = words.size();
    words.resize(at + sizeof(t) / 8);
    std::memcpy(&words[at], &t, sizeof(t));
  }
};

Built Build(uint8_t flags, const std::vector<uint64_t>& kernel, const std::vector<uint64_t>& user, const std::vector<uint64_t>& stack) {
  Built b;
  borescope_sample head{};
  head.flags = flags;
  head.kernel_frames = static_cast<uint16_t>(kernel.size());
  head.user_frames = static_cast<uint16_t>(user.size());
  head.end_reason = LOSS_TABLES_NOT_READY;
  b.Add(head);
  b.words.insert(b.words.end(), kernel.begin(), kernel.end());
  b.words.insert(b.words.end(), user.begin(), user.end());
  if (flags & SAMPLE_MISSING_FILE) {
    borescope_missing_file m{};
    m.key.inode = 77;
    m.start = 0x1000, m.end = 0x3000, m.offset = 0x5000;
    b.Add(m);
  }
  if (flags & SAMPLE_RAW) {
    borescope_raw raw{};
    raw.regs.pc = 0x1234;
    raw.regs.r[UNWIND_SP] = 0x7f00;
    raw.start = 0x7e80;
    raw.bytes = stack.size() * 8;
    b.Add(raw);
    b.words.insert(b.words.end(), stack.begin(), stack.end());
  }
  return b;
}

TEST(SampleRecordTest, PartsComeInOrder) {
  std::vector<uint64_t> kernel = {1, 2}, user = {3, 4, 5 | USER_FRAME_INTERRUPTED}, stack = {6, 7, 8, 9};
  for (int flags : {0, int{SAMPLE_MISSING_FILE}, int{SAMPLE_RAW}, SAMPLE_MISSING_FILE | SAMPLE_RAW}) {
    Built b = Build(static_cast<uint8_t>(flags), kernel, user, stack);
    SampleRecord r;
    ASSERT_TRUE(ParseSample(b.view(), &r)) << flags;
    EXPECT_EQ(std::vector<uint64_t>(r.kernel.begin(), r.kernel.end()), kernel);
    EXPECT_EQ(std::vector<uint64_t>(r.user.begin(), r.user.end()), user);
    ASSERT_EQ(r.missing.has_value(), (flags & SAMPLE_MISSING_FILE) != 0);
    ASSERT_EQ(r.raw.has_value(), (flags & SAMPLE_RAW) != 0);
    if (r.missing) {
      EXPECT_EQ(r.missing->key.inode, 77u);
      EXPECT_EQ(r.missing->file_offset, 0x5000u);
    }
    if (r.raw) {
      EXPECT_EQ(r.raw->regs.pc, 0x1234u);
      EXPECT_EQ(r.raw->start, 0x7e80u);
      ASSERT_EQ(r.raw->stack.size(), 32u);
      EXPECT_EQ(std::memcmp(r.raw->stack.data(), stack.data(), 32), 0);
    }
  }
}

TEST(SampleRecordTest, TornRecordsAreRefused) {
  Built whole = Build(SAMPLE_MISSING_FILE | SAMPLE_RAW, {1, 2}, {3, 4, 5}, {6, 7});
  SampleRecord r;
  for (size_t size = 0; size < whole.view().size(); size += 4) EXPECT_FALSE(ParseSample(whole.view().substr(0, size), &r)) << size;
  EXPECT_FALSE(ParseSample(whole.view().substr(4), &r));  // not aligned
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 20'000; ++round) {  // what is accepted lies within the record
    Built b = whole;
    for (uint64_t n = random() % 4 + 1; n > 0; --n) b.words[random() % b.words.size()] = random() >> random() % 64;
    if (!ParseSample(b.view(), &r)) continue;
    uint64_t sum = 0;
    for (uint64_t pc : r.kernel) sum += pc;
    for (uint64_t pc : r.user) sum += pc;
    if (r.raw) {
      for (std::byte byte : r.raw->stack) sum += static_cast<uint64_t>(byte);
      EXPECT_LE(r.raw->stack.data() + r.raw->stack.size(), reinterpret_cast<const std::byte*>(b.words.data() + b.words.size()));
    }
    volatile uint64_t sink = sum;
    (void)sink;
  }
}

}  // namespace
}  // namespace borescope::engine
