// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/go_table.h"

#include <algorithm>
#include <array>

namespace borescope::symbols {
namespace {

constexpr uint32_t kMagic118 = 0xfffffff0, kMagic120 = 0xfffffff1;
constexpr uint64_t kMaxFunctions = 1 << 22;
constexpr size_t kMaxName = 1024;
constexpr int kMaxSteps = 1 << 16;  // of the stack pointer in one function
constexpr uint8_t kFlagTopFrame = 1, kFlagWritesSp = 2;

// Little-endian base-128 numbers from a source, read in small blocks.
class Varints {
 public:
  Varints(const ByteSource& source, uint64_t at, uint64_t end) : source_(source), at_(at), end_(end) {}
  bool Next(uint32_t* value) {
    *value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      uint8_t byte;
      if (at_ >= end_ || !source_.ReadValue(at_++, &byte)) return false;
      *value |= static_cast<uint32_t>(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return true;
    }
    return false;
  }

 private:
  const ByteSource& source_;
  uint64_t at_, end_;
};

}  // namespace

std::unique_ptr<GoTable> GoTable::Parse(const ByteSource& source, uint64_t offset, uint64_t size, uint64_t text) {
  struct Header {
    uint32_t magic;
    uint8_t zero[2], quantum, pointer_size;
    uint64_t functions, files, text, names, units, file_table, pc_table, function_table;
  } h;
  static_assert(sizeof(Header) == 72);
  if (size < sizeof(h) || !source.ReadValue(offset, &h)) return nullptr;
  if ((h.magic != kMagic118 && h.magic != kMagic120) || h.pointer_size != 8 || h.quantum == 0) return nullptr;
  if (h.functions == 0 || h.functions > kMaxFunctions) return nullptr;
  if (h.names >= size || h.pc_table >= size || h.function_table >= size) return nullptr;
  if ((h.functions * 2 + 1) * 4 > size - h.function_table) return nullptr;
  std::unique_ptr<GoTable> table(new GoTable(source));
  table->offset_ = offset;
  table->size_ = size;
  table->knows_text_ = h.text != 0;
  table->text_ = h.text ? h.text : text;
  table->count_ = h.functions;
  table->names_ = h.names;
  table->pctab_ = h.pc_table;
  table->functions_ = h.function_table;
  table->quantum_ = h.quantum;
  table->has_start_line_ = h.magic == kMagic120;
  return table;
}

std::optional<GoTable::Function> GoTable::Search(uint64_t vaddr) const {
  if (vaddr < text_ || vaddr - text_ > UINT32_MAX) return std::nullopt;
  uint32_t pc = static_cast<uint32_t>(vaddr - text_);
  auto entry = [&](uint64_t i, std::array<uint32_t, 3>* e) {  // its start and record, and the next one's start
    return source_.ReadValue(offset_ + functions_ + i * 8, e);
  };
  std::array<uint32_t, 3> e;
  uint64_t low = 0, high = count_;  // the answer is in [low, high)
  while (high - low > 1) {
    uint64_t middle = low + (high - low) / 2;
    if (!entry(middle, &e)) return std::nullopt;
    if (e[0] <= pc) {
      low = middle;
    } else {
      high = middle;
    }
  }
  auto function = Entry(low);
  if (!function || vaddr < function->start || vaddr >= function->end) return std::nullopt;
  return function;
}

std::optional<GoTable::Function> GoTable::Entry(uint64_t index) const {
  std::array<uint32_t, 3> e;
  if (index >= count_ || !source_.ReadValue(offset_ + functions_ + index * 8, &e) || e[0] >= e[2]) return std::nullopt;
  uint64_t record = functions_ + e[1];
  if (record > size_ || size_ - record < 44) return std::nullopt;
  return Function{text_ + e[0], text_ + e[2], offset_ + record};
}

std::optional<GoFunction> GoTable::Read(const Function& function, bool always_name) const {
  GoFunction found;
  found.start = function.start;
  found.end = function.end;
  uint32_t name;
  uint8_t flag;
  if (!source_.ReadValue(function.record + 4, &name) || !source_.ReadValue(function.record + (has_start_line_ ? 41 : 37), &flag)) {
    return std::nullopt;
  }
  found.top_frame = flag & kFlagTopFrame;
  found.writes_sp = flag & kFlagWritesSp;
  if ((always_name || flag != 0) && names_ + name < size_) found.name = source_.ReadString(offset_ + names_ + name, kMaxName);
  return found;
}

std::optional<GoFunction> GoTable::Find(uint64_t vaddr) const {
  auto function = Search(vaddr);
  return function ? Read(*function, true) : std::nullopt;
}

std::optional<GoFunction> GoTable::At(uint64_t index) const {
  auto function = Entry(index);
  return function ? Read(*function, false) : std::nullopt;
}

bool GoTable::StackSteps(uint64_t index, const Step& step) const {
  auto function = Entry(index);
  uint32_t pcsp;
  if (!function || !source_.ReadValue(function->record + 16, &pcsp) || pcsp == 0) return false;
  Varints numbers(source_, offset_ + pctab_ + pcsp, offset_ + size_);
  int64_t value = -1;
  uint64_t pc = function->start;
  for (int i = 0; pc < function->end; ++i) {
    bool first = i == 0;
    uint32_t difference, length;
    if (i == kMaxSteps || !numbers.Next(&difference) || (difference == 0 && !first) || !numbers.Next(&length)) return false;
    value += static_cast<int32_t>((difference >> 1) ^ (0u - (difference & 1)));
    uint64_t end = std::min(pc + static_cast<uint64_t>(length) * quantum_, function->end);
    if ((length == 0 && !first) || value < 0 || value > INT32_MAX - 8) return false;
    if (pc < end && !step(pc, end, static_cast<uint32_t>(value))) return true;
    pc = end;
  }
  return true;
}

}  // namespace borescope::symbols
