// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "sampler/unwind/recorded.h"

using namespace borescope;

namespace {

constexpr uint64_t kPart = 256;  // mappings are given in such pieces, so that small numbers lead into them

struct Mapping {
  uint8_t kind, start, parts, offset;
};

// Takes what is left as zeros when the input ends.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  template <typename T>
  T Take() {
    T value = {};
    size_t n = std::min(sizeof(T), size_);
    std::memcpy(&value, data_, n);
    data_ += n;
    size_ -= n;
    return value;
  }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const uint8_t* data_;
  size_t size_;
};

class Code final : public unwind::CodeMap {
 public:
  Code(unwind::CompiledTable table, std::vector<Mapping> mappings, const uint8_t* bytes, size_t size)
      : table_(std::move(table)), mappings_(std::move(mappings)), bytes_(bytes), size_(size) {}
  unwind::CodePlace Find(uint64_t pc) override {
    unwind::CodePlace place;
    for (const Mapping& m : mappings_) {
      uint64_t start = m.start * kPart;
      if (pc < start || pc - start >= m.parts * kPart) continue;
      place.kind = static_cast<unwind::CodePlace::Kind>(m.kind % 4);
      place.file_offset = pc - start + m.offset * kPart;
      place.pending = m.kind & 4;
      if (!place.pending && !(m.kind & 8)) place.table = &table_;
      if (place.kind != unwind::CodePlace::Kind::kFile) place.table = nullptr;
      break;
    }
    return place;
  }
  bool ReadCode(uint64_t address, void* into, size_t n) override {
    if (size_ < n) return false;
    std::memcpy(into, bytes_ + address % (size_ - n + 1), n);
    return true;
  }

 private:
  unwind::CompiledTable table_;
  std::vector<Mapping> mappings_;
  const uint8_t* bytes_;
  size_t size_;
};

}  // namespace

// The input: how many rules, rows and mappings there are; the stack's address; registers; then those, and the rest is the stack (and the
// code as well). Seeds are made by tests/fuzz/unwind_seeds.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  size_t rules = input.Take<uint8_t>() % 32, rows = input.Take<uint8_t>() % 64, maps = input.Take<uint8_t>() % 8;
  auto frames = input.Take<uint8_t>();
  auto stack_start = input.Take<uint64_t>();
  auto regs = input.Take<unwind_regs>();

  unwind::CompiledTable table;
  table.rules.emplace_back();
  for (size_t i = 0; i < rules; ++i) {
    auto rule = input.Take<unwind_rule>();
    rule.kind %= UNWIND_RULE_SWITCH + 1;
    rule.cfa_reg %= UNWIND_REGISTERS;
    rule.cfa_deref %= 2;
    rule.fp %= UNWIND_FP_UNKNOWN + 1;
    rule.ra %= UNWIND_RA_IN_REG + 1;
    if (rule.ra == UNWIND_RA_IN_REG) rule.ra_offset &= UNWIND_REGISTERS - 1;
    rule.pad = 0;
    table.rules.push_back(rule);
  }
  for (size_t i = 0; i < rows; ++i) {
    auto row = input.Take<uint32_t>();
    table.rows.push_back(UNWIND_ROW(UNWIND_ROW_OFFSET(row), UNWIND_ROW_RULE(row) % table.rules.size()));
  }
  std::sort(table.rows.begin(), table.rows.end());
  auto same = [](uint32_t a, uint32_t b) { return UNWIND_ROW_OFFSET(a) == UNWIND_ROW_OFFSET(b); };
  table.rows.erase(std::unique(table.rows.begin(), table.rows.end(), same), table.rows.end());
  if (!table.rows.empty()) table.rows[0] &= 0xffff;  // a page's first row stands at its begin
  table.page_rows = {0, static_cast<uint32_t>(table.rows.size())};
  auto parsed = unwind::Parse(unwind::Serialize(table));
  if (!parsed.ok()) return 0;
  std::vector<Mapping> mappings(maps);
  for (Mapping& m : mappings) m = input.Take<Mapping>();

  // Of its own size, so that a byte too far is seen.
  auto stack = std::make_unique<std::byte[]>(input.size());
  if (input.size() > 0) std::memcpy(stack.get(), input.data(), input.size());
  Code code(*std::move(parsed), std::move(mappings), input.data(), input.size());
  std::vector<uint64_t> pcs, again;
  size_t most = 1 + frames % unwind::kMaxFrames;
  borescope_loss end = unwind::UnwindRecorded(regs, stack_start, {stack.get(), input.size()}, code, &pcs, most);
  if (pcs.size() > most || end >= LOSS_MAX) std::abort();
  if (!pcs.empty() && pcs[0] != regs.pc) std::abort();
  if (unwind::UnwindRecorded(regs, stack_start, {stack.get(), input.size()}, code, &again, most) != end || again != pcs) std::abort();
  return 0;
}
