// SPDX-License-Identifier: Apache-2.0
#include "sampler/symbols/eh_frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "sampler/symbols/dwarf_cursor.h"
#include "sampler/symbols/elf_file.h"

namespace borescope::symbols {
namespace {

constexpr uint64_t kRbp = 6, kRsp = 7, kReturnAddress = 16;  // DWARF numbers of x86-64
constexpr uint32_t kMaxRecord = 1 << 16;                     // bytes of one CIE or FDE; real ones have tens
constexpr size_t kMaxIndex = 1 << 20;
constexpr size_t kMaxRemembered = 16;

struct Record {
  std::vector<uint8_t> bytes;  // after the length field
  uint64_t vaddr = 0;          // of bytes[0]
  DwarfCursor cursor() const { return DwarfCursor(bytes.data(), bytes.size(), vaddr); }
};

// False: no such record, or the terminator.
bool ReadRecord(const ElfFile& elf, uint64_t vaddr, Record* record) {
  uint32_t length;
  if (!elf.Read(vaddr, &length, 4) || length < 4 || length > kMaxRecord) return false;  // 0xffffffff: the 64-bit form, which nobody writes
  record->bytes.resize(length);
  record->vaddr = vaddr + 4;
  return elf.Read(vaddr + 4, record->bytes.data(), length);
}

struct Cie {
  uint64_t code_align = 1;
  int64_t data_align = 1;
  uint8_t encoding = 0;  // of pointers in its FDEs
  bool augmented = false, signal_frame = false;
  std::vector<uint8_t> program;
};

bool ReadCie(const ElfFile& elf, uint64_t vaddr, Cie* cie) {
  Record record;
  if (!ReadRecord(elf, vaddr, &record)) return false;
  DwarfCursor c = record.cursor();
  if (c.Take<uint32_t>() != 0) return false;
  uint8_t version = c.Take<uint8_t>();
  if (version != 1 && version != 3) return false;
  std::string augmentation;
  while (char ch = c.Take<char>()) augmentation += ch;
  cie->code_align = c.Uleb();
  cie->data_align = c.Sleb();
  uint64_t return_address = version == 1 ? c.Take<uint8_t>() : c.Uleb();
  if (!c.ok() || return_address != kReturnAddress) return false;
  if (!augmentation.empty() && augmentation[0] != 'z') return false;
  if (!augmentation.empty()) {
    cie->augmented = true;
    DwarfCursor data = c.Block(c.Uleb());
    for (char letter : augmentation.substr(1)) {
      if (letter == 'R') {
        cie->encoding = data.Take<uint8_t>();
      } else if (letter == 'L') {
        data.Take<uint8_t>();
      } else if (letter == 'P') {
        uint8_t encoding = data.Take<uint8_t>();
        data.Pointer(encoding & 0x0f);  // only its size matters
      } else if (letter == 'S') {
        cie->signal_frame = true;
      } else {
        break;
      }
    }
    if (!data.ok()) return false;
  }
  if (!c.ok()) return false;
  cie->program.assign(record.bytes.end() - static_cast<ptrdiff_t>(c.left()), record.bytes.end());
  return true;
}

struct State {
  enum class Saved : uint8_t { kSame, kOffset, kAtRbp, kUndefined, kOther };
  enum class Expression : uint8_t { kNone, kBelowRbp, kOther };
  uint64_t cfa_register = kRsp;
  int64_t cfa_offset = 0;
  Expression cfa_expression = Expression::kNone;
  Saved rbp = Saved::kSame, ra = Saved::kSame;
  int64_t rbp_offset = 0, ra_offset = 0;

  bool FramePointer() const {
    return cfa_expression == Expression::kNone && cfa_register == kRbp && cfa_offset == 16 && rbp == Saved::kOffset &&
           rbp_offset == -16 && ra == Saved::kOffset && ra_offset == -8;
  }
  // GCC pushes a copy of the return address before the frame pointer when it realigns the stack: [rbp], [rbp + 8] are as usual
  bool Realigned() const { return cfa_expression == Expression::kBelowRbp && rbp == Saved::kAtRbp; }
};

// Runs call frame instructions. Before each row from `location` on is complete, row(begin, end, state) is called.
class Program {
 public:
  Program(const Cie& cie, State initial) : cie_(cie), initial_(initial), state_(initial) {}

  template <typename OnRow>
  bool Run(DwarfCursor c, uint64_t location, uint64_t end, OnRow row) {
    while (!c.done()) {
      uint8_t op = c.Take<uint8_t>();
      uint64_t operand = op & 0x3f;
      switch (op & 0xc0) {
        case 0x40: Advance(operand, &location, row); continue;
        case 0x80: Save(operand, static_cast<int64_t>(c.Uleb())); continue;
        case 0xc0: Restore(operand); continue;
      }
      switch (op) {
        case 0x00: break;  // nop
        case 0x01: {       // set_loc
          uint64_t to = c.Pointer(cie_.encoding);
          if (to > location) Advance((to - location) / std::max<uint64_t>(1, cie_.code_align), &location, row);
          break;
        }
        case 0x02: Advance(c.Take<uint8_t>(), &location, row); break;
        case 0x03: Advance(c.Take<uint16_t>(), &location, row); break;
        case 0x04: Advance(c.Take<uint32_t>(), &location, row); break;
        case 0x05: { uint64_t reg = c.Uleb(); Save(reg, static_cast<int64_t>(c.Uleb())); break; }
        case 0x06: Restore(c.Uleb()); break;
        case 0x07: Set(c.Uleb(), State::Saved::kUndefined, 0); break;
        case 0x08: Set(c.Uleb(), State::Saved::kSame, 0); break;
        case 0x09: { uint64_t reg = c.Uleb(); c.Uleb(); Set(reg, State::Saved::kOther, 0); break; }
        case 0x0a:
          if (remembered_.size() >= kMaxRemembered) return false;
          remembered_.push_back(state_);
          break;
        case 0x0b:
          if (remembered_.empty()) return false;
          state_ = remembered_.back();
          remembered_.pop_back();
          break;
        case 0x0c: { uint64_t reg = c.Uleb(); DefineCfa(reg, static_cast<int64_t>(c.Uleb())); break; }
        case 0x0d: DefineCfa(c.Uleb(), state_.cfa_offset); break;
        case 0x0e: DefineCfa(state_.cfa_register, static_cast<int64_t>(c.Uleb())); break;
        case 0x0f: {  // def_cfa_expression
          DwarfCursor e = c.Block(c.Uleb());
          bool below = e.Take<uint8_t>() == 0x76 && e.Sleb() < 0 && e.Take<uint8_t>() == 0x06 && e.ok() && e.done();
          state_.cfa_expression = below ? State::Expression::kBelowRbp : State::Expression::kOther;
          break;
        }
        case 0x10: {  // expression
          uint64_t reg = c.Uleb();
          DwarfCursor e = c.Block(c.Uleb());
          bool at_rbp = e.Take<uint8_t>() == 0x76 && e.Sleb() == 0 && e.ok() && e.done();
          Set(reg, at_rbp ? State::Saved::kAtRbp : State::Saved::kOther, 0);
          break;
        }
        case 0x11: { uint64_t reg = c.Uleb(); Save(reg, c.Sleb()); break; }
        case 0x12: { uint64_t reg = c.Uleb(); DefineCfa(reg, Scale(c.Sleb())); break; }
        case 0x13: DefineCfa(state_.cfa_register, Scale(c.Sleb())); break;
        case 0x14: { uint64_t reg = c.Uleb(); c.Uleb(); Set(reg, State::Saved::kOther, 0); break; }
        case 0x15: { uint64_t reg = c.Uleb(); c.Sleb(); Set(reg, State::Saved::kOther, 0); break; }
        case 0x16: { uint64_t reg = c.Uleb(); c.Block(c.Uleb()); Set(reg, State::Saved::kOther, 0); break; }
        case 0x2e: c.Uleb(); break;  // GNU_args_size
        default: return false;
      }
    }
    if (!c.ok()) return false;
    if (location < end) row(location, end, state_);
    return true;
  }
  const State& state() const { return state_; }

 private:
  template <typename OnRow>
  void Advance(uint64_t units, uint64_t* location, OnRow row) {
    uint64_t to = *location + units * cie_.code_align;
    if (to > *location) {
      row(*location, to, state_);
      *location = to;
    }
  }
  int64_t Scale(int64_t factored) const {
    return static_cast<int64_t>(static_cast<uint64_t>(factored) * static_cast<uint64_t>(cie_.data_align));
  }
  void Save(uint64_t reg, int64_t factored) { Set(reg, State::Saved::kOffset, Scale(factored)); }
  void Set(uint64_t reg, State::Saved saved, int64_t offset) {
    if (reg == kRbp) {
      state_.rbp = saved;
      state_.rbp_offset = offset;
    } else if (reg == kReturnAddress) {
      state_.ra = saved;
      state_.ra_offset = offset;
    }
  }
  void Restore(uint64_t reg) {
    if (reg == kRbp) Set(reg, initial_.rbp, initial_.rbp_offset);
    if (reg == kReturnAddress) Set(reg, initial_.ra, initial_.ra_offset);
  }
  void DefineCfa(uint64_t reg, int64_t offset) {
    state_.cfa_register = reg;
    state_.cfa_offset = offset;
    state_.cfa_expression = State::Expression::kNone;
  }

  const Cie& cie_;
  State initial_, state_;
  std::vector<State> remembered_;
};

// Head of an FDE: its CIE and range; the cursor stands at its program.
bool ReadFdeHead(const ElfFile& elf, const Record& record, DwarfCursor* c, Cie* cie, uint64_t* start, uint64_t* end) {
  uint64_t here = c->vaddr();
  uint32_t distance = c->Take<uint32_t>();
  if (distance == 0 || distance > here || !ReadCie(elf, here - distance, cie)) return false;
  *start = c->Pointer(cie->encoding);
  *end = *start + c->Pointer(cie->encoding & 0x0f);
  if (cie->augmented) c->Block(c->Uleb());
  (void)record;
  return c->ok() && *end > *start;
}

}  // namespace

std::unique_ptr<EhFrame> EhFrame::Create(const ElfFile& elf) {
  std::unique_ptr<EhFrame> frames(new EhFrame(elf));
  if (elf.eh_frame_hdr() && frames->UseHeader(*elf.eh_frame_hdr())) return frames;
  const ElfFile::Section* section = elf.FindSection(".eh_frame");
  if (!section) return nullptr;
  frames->BuildIndex(section->vaddr, section->size);
  return frames->index_.empty() ? nullptr : std::move(frames);
}

bool EhFrame::UseHeader(uint64_t header) {
  std::array<uint8_t, 32> bytes{};
  if (!elf_.Read(header, bytes.data(), 16) || bytes[0] != 1) return false;
  DwarfCursor c(bytes.data(), bytes.size(), header);
  c.Take<uint8_t>();
  uint8_t frame_encoding = c.Take<uint8_t>(), count_encoding = c.Take<uint8_t>(), table_encoding = c.Take<uint8_t>();
  constexpr uint8_t kDataRelativeInt32 = 0x3b;  // what linkers write
  if (frame_encoding == 0xff || count_encoding == 0xff || table_encoding != kDataRelativeInt32) return false;
  c.Pointer(frame_encoding, header);
  count_ = c.Pointer(count_encoding, header);
  if (!c.ok() || count_ == 0 || count_ > kMaxIndex * 4) return false;
  header_ = header;
  table_ = c.vaddr();
  return true;
}

void EhFrame::BuildIndex(uint64_t vaddr, uint64_t size) {
  uint64_t end = vaddr + std::min<uint64_t>(size, 64 << 20);
  while (vaddr < end && index_.size() < kMaxIndex) {
    Record record;
    if (!ReadRecord(elf_, vaddr, &record)) break;
    DwarfCursor c = record.cursor();
    Cie cie;
    uint64_t from, to;
    uint32_t id;
    std::memcpy(&id, record.bytes.data(), 4);
    if (id != 0 && ReadFdeHead(elf_, record, &c, &cie, &from, &to)) index_.push_back({from, vaddr});
    vaddr += 4 + record.bytes.size();
  }
  std::sort(index_.begin(), index_.end(), [](const Fde& a, const Fde& b) { return a.start < b.start; });
}

std::optional<uint64_t> EhFrame::FindFde(uint64_t vaddr) const {
  if (!index_.empty()) {
    auto it = std::upper_bound(index_.begin(), index_.end(), vaddr, [](uint64_t a, const Fde& f) { return a < f.start; });
    if (it == index_.begin()) return std::nullopt;
    return (it - 1)->vaddr;
  }
  struct Pair {
    int32_t start, fde;
  } pair;
  int64_t target = static_cast<int64_t>(vaddr - header_);
  uint64_t low = 0, high = count_;
  while (low < high) {  // the first entry that starts behind vaddr
    uint64_t middle = low + (high - low) / 2;
    if (!elf_.Read(table_ + middle * sizeof(pair), &pair, sizeof(pair))) return std::nullopt;
    if (pair.start <= target) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0 || !elf_.Read(table_ + (low - 1) * sizeof(pair), &pair, sizeof(pair))) return std::nullopt;
  return header_ + static_cast<uint64_t>(static_cast<int64_t>(pair.fde));
}

std::optional<Row> EhFrame::Find(uint64_t vaddr) const {
  auto fde = FindFde(vaddr);
  Record record;
  if (!fde || !ReadRecord(elf_, *fde, &record)) return std::nullopt;
  DwarfCursor c = record.cursor();
  Cie cie;
  Row row;
  if (!ReadFdeHead(elf_, record, &c, &cie, &row.start, &row.end)) return std::nullopt;
  if (vaddr < row.start || vaddr >= row.end) return std::nullopt;
  row.signal_frame = cie.signal_frame;

  Program initial(cie, State{});
  if (!initial.Run(DwarfCursor(cie.program.data(), cie.program.size(), 0), 0, 0, [](uint64_t, uint64_t, const State&) {})) return std::nullopt;
  State at;
  Program program(cie, initial.state());
  bool found = false;
  bool whole = program.Run(c, row.start, row.end, [&](uint64_t begin, uint64_t end, const State& state) {
    row.has_frame_pointer |= state.FramePointer() || state.Realigned();
    if (!found && vaddr >= begin && vaddr < end) {
      at = state;
      found = true;
    }
  });
  if (!whole || !found) return std::nullopt;

  row.cfa_offset = at.cfa_offset;
  if (at.FramePointer()) {
    row.cfa = Row::Cfa::kFramePointer;
  } else if (at.Realigned()) {
    row.cfa = Row::Cfa::kRealigned;
  } else if (at.cfa_expression == State::Expression::kNone && at.cfa_register == kRsp) {
    row.cfa = Row::Cfa::kStackPointer;
  }
  row.rbp = at.rbp == State::Saved::kSame                                                                           ? Row::Rbp::kSame
            : at.rbp == State::Saved::kAtRbp || (at.rbp == State::Saved::kOffset && at.rbp_offset == -16) ? Row::Rbp::kSaved
                                                                                                                    : Row::Rbp::kOther;
  row.return_address = at.ra == State::Saved::kOffset && at.ra_offset == -8;
  row.outermost = at.ra == State::Saved::kUndefined;
  return row;
}

}  // namespace borescope::symbols
