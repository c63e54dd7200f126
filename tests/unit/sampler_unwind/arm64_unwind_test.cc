// SPDX-License-Identifier: Apache-2.0
// The unwinder with aarch64's registers, on any machine: this program alone is compiled as if for that.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <random>

#include "sampler/unwind/recorded.h"

#ifndef __TARGET_ARCH_arm64
#error "to be compiled with __TARGET_ARCH_arm64"
#endif

namespace borescope::unwind {
namespace {

constexpr uint64_t kStack = 0xffffd0000000, kCode = 0xaaaa00000000, kMask = (1ull << 48) - 1;
constexpr uint8_t kFp = 29, kLink = 30, kSp = 31;

class Code final : public CodeMap {
 public:
  Code() {
    table_.rules.emplace_back();
    table_.rows.push_back(UNWIND_ROW(0, 0));
  }
  uint64_t Add(const unwind_rule& rule) {
    table_.rules.push_back(rule);
    auto index = static_cast<uint32_t>(table_.rules.size() - 1);
    table_.rows.push_back(UNWIND_ROW(64 * index, index));
    table_.page_rows = {0, static_cast<uint32_t>(table_.rows.size())};
    return kCode + 64 * index;
  }
  CodePlace Find(uint64_t pc) override {
    CodePlace place;
    if (pc < kCode || pc >= kCode + 0x10000) return place;
    place.kind = CodePlace::Kind::kFile;
    place.file_offset = pc - kCode;
    place.table = &table_;
    return place;
  }
  bool ReadCode(uint64_t, void* into, size_t n) override {
    std::memset(into, 0, n);
    return true;
  }

 private:
  CompiledTable table_;
};

unwind_rule Frame(int32_t size) {
  unwind_rule rule = {};
  rule.kind = UNWIND_RULE_FRAME;
  rule.cfa_reg = kSp;
  rule.cfa_offset = size;
  rule.fp = UNWIND_FP_AT_CFA;
  rule.fp_offset = static_cast<int16_t>(-size);
  rule.ra_offset = static_cast<int16_t>(-size + 8);
  return rule;
}

TEST(Arm64Unwind, SignedAddressesAndSignalFrames) {
  const uint64_t seed = std::random_device{}();
  std::printf("SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    Code code;
    unwind_rule leaf = {}, end = {}, signal = {};
    leaf.kind = UNWIND_RULE_FRAME;
    leaf.cfa_reg = kSp;
    leaf.ra = UNWIND_RA_IN_REG;
    leaf.ra_offset = kLink;
    end.kind = UNWIND_RULE_END;
    signal.kind = UNWIND_RULE_SIGNAL;
    const int32_t size = 16 + 16 * static_cast<int32_t>(random() % 20), outer_size = 32;
    const uint64_t in_leaf = code.Add(leaf) + 8, in_handler = code.Add(Frame(size)) + 12, in_trampoline = code.Add(signal) + 1, in_main = code.Add(Frame(outer_size)) + 4,
                   in_start = code.Add(end) + 4;
    auto sign = [&](uint64_t address) { return address | random() << 48; };
    std::vector<uint64_t> words(512);
    auto put = [&](uint64_t address, uint64_t value) { words.at((address - kStack) / 8) = value; };
    // The leaf stands on the handler, which interrupted a leaf of main.
    unwind_regs regs = {};
    regs.pc = in_leaf;
    regs.code_mask = kMask;
    regs.r[kSp] = kStack + 64;
    regs.r[kLink] = sign(in_handler);
    regs.r[kFp] = kStack + 64;
    const uint64_t frame = regs.r[kSp] + static_cast<uint64_t>(size);  // of the signal
    put(regs.r[kSp], kStack + 2048);
    put(regs.r[kSp] + 8, sign(in_trampoline));
    const uint64_t interrupted_sp = frame + 128 + 176 + 8 + 34 * 8 + random() % 64 * 8;
    for (uint64_t r = 0; r < 31; ++r) put(frame + 128 + 176 + 8 + 8 * r, random());
    put(frame + 128 + 176 + 8 + 8 * kLink, sign(in_main));
    put(frame + 128 + 176 + 8 + 8 * kSp, interrupted_sp);
    put(frame + 128 + 176 + 8 + 8 * 32, in_leaf);
    put(interrupted_sp, 0);
    put(interrupted_sp + 8, sign(in_start));
    std::vector<uint64_t> pcs;
    EXPECT_EQ(UnwindRecorded(regs, kStack, std::as_bytes(std::span(words)), code, &pcs), LOSS_NONE);
    EXPECT_EQ(pcs, (std::vector<uint64_t>{in_leaf, in_handler, in_trampoline, in_leaf | USER_FRAME_INTERRUPTED, in_main, in_start}));
  }
}

}  // namespace
}  // namespace borescope::unwind
