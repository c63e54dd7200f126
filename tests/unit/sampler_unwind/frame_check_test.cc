// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/strings.h"
#include "sampler/unwind/frame_check.h"

namespace borescope::unwind {
namespace {

// Code at an address, as a process's memory.
class Bytes : public MemoryReader {
 public:
  Bytes(uint64_t start, std::vector<uint8_t> code) : start_(start), code_(std::move(code)) {}
  bool Read(uint64_t address, void* into, size_t n) const override {
    if (address < start_ || address - start_ > code_.size() || n > code_.size() - (address - start_)) return false;
    memcpy(into, code_.data() + (address - start_), n);
    return true;
  }

 private:
  uint64_t start_;
  std::vector<uint8_t> code_;
};

// What objdump disassembles as a call must be taken for one; of other instructions few may (their bytes can end like a call).
TEST(EndsInCall, EqualsObjdump) {
  FILE* pipe = popen("objdump -d --insn-width=16 -j .text /usr/lib/x86_64-linux-gnu/libstdc++.so.6 2>/dev/null", "r");
  char* line = nullptr;
  size_t size = 0;
  std::vector<uint8_t> code;  // the last bytes before the next instruction
  int calls = 0, missed = 0, others = 0, taken = 0;
  while (getline(&line, &size, pipe) > 0) {
    unsigned long address;
    int at = 0;
    if (sscanf(line, " %lx:%n", &address, &at) != 1 || at == 0) {
      code.clear();
      continue;
    }
    auto columns = Split(line, '\t');
    if (columns.size() < 2) continue;
    for (auto byte : Split(Trim(columns[1]), ' ')) {
      if (auto value = ParseUint(byte, 16)) code.push_back(static_cast<uint8_t>(*value));
    }
    if (code.size() > 64) code.erase(code.begin(), code.end() - 16);
    if (columns.size() < 3) continue;
    std::string_view text = Trim(columns[2]);
    std::span<const uint8_t> last(code.data() + (code.size() > 8 ? code.size() - 8 : 0), std::min<size_t>(8, code.size()));
    bool call = text.starts_with("call") || text.find(" call ") != std::string_view::npos;
    ++(call ? calls : others);
    if (call) {
      missed += !EndsInCall(last);
    } else {
      taken += EndsInCall(last);
    }
  }
  free(line);
  pclose(pipe);
  if (calls == 0) GTEST_SKIP() << "no objdump or library here";
  printf("%d calls, %d missed; %d others, %d taken\n", calls, missed, others, taken);
  EXPECT_EQ(missed, 0);
  EXPECT_LT(taken, others / 100);
}

Place At(const Bytes& bytes, uint64_t pc, uint64_t start) {
  Place place;
  place.memory = &bytes;
  place.pc = pc;
  place.function_start = start;
  return place;
}

// Code of a JIT: no table, only its bytes and where the function starts.
TEST(FrameCheck, PrologueOfCodeWithoutTables) {
  using Kind = LeafRule::Kind;
  Bytes code(0x1000, {0x55, 0x48, 0x89, 0xe5, 0x90, 0xe8, 1, 2, 3, 4, 0x5d, 0xc3, 0x90, 0x90, 0x90, 0x90});
  EXPECT_EQ(CheckLeaf(At(code, 0x1000, 0x1000)).kind, Kind::kStack);
  EXPECT_EQ(CheckLeaf(At(code, 0x1001, 0x1000)).kind, Kind::kStack);
  EXPECT_EQ(CheckLeaf(At(code, 0x1001, 0x1000)).delta, 8u);
  EXPECT_EQ(CheckLeaf(At(code, 0x1004, 0x1000)).kind, Kind::kChain);
  EXPECT_EQ(CheckLeaf(At(code, 0x100b, 0x1000)).kind, Kind::kStack);  // ret
  EXPECT_EQ(CheckLeaf(At(code, 0x1004, 0)).kind, Kind::kNone);
  CallerRule caller = CheckCaller(At(code, 0x100a, 0x1000));
  EXPECT_TRUE(caller.follows_call && caller.frame_pointer);
  EXPECT_FALSE(CheckCaller(At(code, 0x1009, 0x1000)).follows_call);
  EXPECT_FALSE(CheckCaller(At(code, 0x9000, 0x1000)).readable);

  Bytes bare(0x1000, std::vector<uint8_t>(64, 0x90));
  EXPECT_EQ(CheckLeaf(At(bare, 0x1004, 0x1000)).kind, Kind::kNone);
  EXPECT_EQ(CheckLeaf(At(code, 0x9004, 0x9000)).kind, Kind::kUnreadable);
}

}  // namespace
}  // namespace borescope::unwind
