// SPDX-License-Identifier: Apache-2.0
// The frame-pointer walk, the same C as in BPF, over recorded images of a stack.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "bpf/abi/record.h"
#include "bpf/lib/walk.h"

namespace borescope::engine {
namespace {

constexpr uint64_t kStack = 0x7ffc'0000'1000;

// A stack image that grows upwards from kStack, word by word.
struct Image {
  std::vector<uint64_t> words = std::vector<uint64_t>(4096);
  void Frame(uint64_t bp, uint64_t next_bp, uint64_t return_address) {
    words[(bp - kStack) / 8] = next_bp;
    words[(bp - kStack) / 8 + 1] = return_address;
  }
  walk Begin(uint64_t pc, uint64_t sp, uint64_t bp) const {
    walk w{};
    w.reader = {reinterpret_cast<const unsigned char*>(words.data()), kStack, words.size() * 8};
    walk_begin(&w, pc, sp, bp);
    return w;
  }
};

std::vector<uint64_t> Walk(walk w, uint32_t* end, size_t most = BORESCOPE_MAX_USER_FRAMES) {
  std::vector<uint64_t> pcs;
  for (size_t i = 0; i < most; ++i) {
    pcs.push_back(w.pc);
    walk_up(&w);
    if (w.done) break;
  }
  *end = w.end;
  return pcs;
}

TEST(WalkTest, FollowsTheChainToItsEnd) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    Image image;
    uint64_t sp = kStack + random() % 16 * 8;
    std::vector<uint64_t> expected = {random() | 1};
    std::vector<uint64_t> frames;
    for (uint64_t bp = sp + random() % 8 * 8; frames.size() < 1 + random() % 100 && bp < kStack + 30000; bp += 16 + random() % 20 * 8) frames.push_back(bp);
    for (size_t i = 0; i < frames.size(); ++i) {
      bool last = i + 1 == frames.size();
      uint64_t return_address = random() | 1;
      image.Frame(frames[i], last ? 0 : frames[i + 1], return_address);
      expected.push_back(return_address);
    }
    uint32_t end = 99;
    EXPECT_EQ(Walk(image.Begin(expected[0], sp, frames[0]), &end), expected);
    EXPECT_EQ(end, LOSS_NONE);
  }
}

TEST(WalkTest, NoFramePointerIsAnEnd) {
  Image image;
  uint32_t end = 99;
  EXPECT_EQ(Walk(image.Begin(0x1234, kStack, 0), &end), (std::vector<uint64_t>{0x1234}));
  EXPECT_EQ(end, LOSS_NONE);
}

TEST(WalkTest, ReturnAddressZeroIsAnEnd) {
  Image image;
  image.Frame(kStack + 64, kStack + 128, 0);
  uint32_t end = 99;
  EXPECT_EQ(Walk(image.Begin(0x1234, kStack, kStack + 64), &end).size(), 1u);
  EXPECT_EQ(end, LOSS_NONE);
}

TEST(WalkTest, FramePointerMustRiseWithinTheSpan) {
  struct {
    uint64_t bp;
    const char* why;
  } cases[] = {
      {kStack + 56, "below the stack pointer"},
      {kStack + 65, "not aligned"},
      {kStack + 64 + WALK_SPAN, "beyond the span"},
      {kStack + 64 + WALK_SPAN - 8, "second word beyond the span"},
      {~0ull - 7, "wraps around"},
      {0xffff'8880'0000'0000, "kernel address"},
  };
  for (const auto& c : cases) {
    Image image;
    uint32_t end = 99;
    EXPECT_EQ(Walk(image.Begin(0x1234, kStack + 64, c.bp), &end).size(), 1u) << c.why;
    EXPECT_EQ(end, LOSS_BAD_FRAME_POINTER) << c.why;
  }
}

TEST(WalkTest, ALoopIsCut) {
  Image image;
  image.Frame(kStack + 64, kStack + 128, 0x100);
  image.Frame(kStack + 128, kStack + 64, 0x200);
  uint32_t end = 99;
  EXPECT_EQ(Walk(image.Begin(0x1234, kStack, kStack + 64), &end), (std::vector<uint64_t>{0x1234, 0x100, 0x200}));
  EXPECT_EQ(end, LOSS_BAD_FRAME_POINTER);
  image.Frame(kStack + 128, kStack + 128, 0x200);  // onto itself
  EXPECT_EQ(Walk(image.Begin(0x1234, kStack, kStack + 64), &end).size(), 3u);
  EXPECT_EQ(end, LOSS_BAD_FRAME_POINTER);
}

TEST(WalkTest, MemoryThatIsNotThereIsNamed) {
  Image image;
  image.Frame(kStack + 64, kStack + 4096 * 8, 0x100);  // just past the image
  uint32_t end = 99;
  EXPECT_EQ(Walk(image.Begin(0x1234, kStack, kStack + 64), &end), (std::vector<uint64_t>{0x1234, 0x100}));
  EXPECT_EQ(end, LOSS_STACK_UNREADABLE);
  image.Frame(kStack + 64, kStack + 4096 * 8 - 8, 0x100);  // only its first word is there
  EXPECT_EQ(Walk(image.Begin(0x1234, kStack, kStack + 64), &end).size(), 2u);
  EXPECT_EQ(end, LOSS_STACK_UNREADABLE);
}

}  // namespace
}  // namespace borescope::engine
