// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/arm64_code.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <set>

#include "sampler/unwind/machine.h"

namespace borescope::unwind {
namespace {

constexpr uint32_t kFp = 29, kLink = 30, kSp = 31;
constexpr uint64_t kInstruction = 4;
constexpr uint64_t kMaxBytes = 64u << 20;
constexpr size_t kMaxFunction = 1 << 18, kMaxGuess = 1 << 13;  // instructions
constexpr int kMaxMeets = 64;             // of one instruction
constexpr int32_t kFar = 1 << 28;         // frames are smaller
constexpr uint32_t kMoveSigreturn = 0xd2801168, kSupervisorCall = 0xd4000001;
constexpr int32_t kSysClone = 220, kSysClone3 = 435, kSysExit = 93, kSysExitGroup = 94;

int64_t Signed(uint32_t value, int bits) {
  return static_cast<int64_t>(static_cast<uint64_t>(value) << (64 - bits)) >> (64 - bits);
}

// What is known of a function's frame before one of its instructions. Places are told from the CFA, the stack pointer at the call.
struct State {
  enum class Fp : uint8_t { kCallers, kPlace, kUnknown };
  bool sp_known = true;
  bool link = true;        // x30 holds the return address
  bool outermost = false;  // nobody called it
  bool child = false;      // behind clone: a new thread, or who made it
  Fp fp = Fp::kCallers;
  int32_t sp = 0, fp_place = 0;
  int32_t fp_slot = 0, link_slot = 0;  // where the caller's frame pointer and the return address are saved; 0: nowhere
  int32_t x8 = -1;                     // number of a system call
  bool operator==(const State&) const = default;

  bool AsAtEntry() const { return sp_known && sp == 0 && link && fp == Fp::kCallers && !outermost; }

  void Meet(const State& o) {
    if (outermost != o.outermost) {
      *this = {};
      sp_known = link = false;
      fp = Fp::kUnknown;
      return;
    }
    if (sp != o.sp) sp_known = false;
    sp_known = sp_known && o.sp_known;
    link = link && o.link;
    child = child && o.child;
    if (fp != o.fp || fp_place != o.fp_place) fp = Fp::kUnknown;
    if (fp_slot != o.fp_slot) fp_slot = 0;
    if (link_slot != o.link_slot) link_slot = 0;
    if (x8 != o.x8) x8 = -1;
    if (!sp_known) sp = 0;
    if (fp != Fp::kPlace) fp_place = 0;
  }

  void SetSp(bool known, int64_t to) {
    sp_known = known && to >= -kFar && to <= 0;
    sp = sp_known ? static_cast<int32_t>(to) : 0;
    // What it rises above is free.
    if (sp_known && fp_slot < sp) fp_slot = 0;
    if (sp_known && link_slot < sp) link_slot = 0;
  }
  void SetFp(bool known, int64_t to) {
    fp = known && to >= -kFar && to <= 0 ? Fp::kPlace : Fp::kUnknown;
    fp_place = fp == Fp::kPlace ? static_cast<int32_t>(to) : 0;
  }
  void Overwrite(uint32_t reg) {
    if (reg == kFp) SetFp(false, 0);
    if (reg == kLink) link = false;
    if (reg == 8) x8 = -1;
  }
  std::optional<int64_t> Place(uint32_t base, int64_t offset) const {
    if (base == kSp && sp_known) return sp + offset;
    if (base == kFp && fp == Fp::kPlace) return fp_place + offset;
    return std::nullopt;
  }
  void Writeback(uint32_t base, int64_t by) {
    if (base == kSp) SetSp(sp_known, sp + by);
    if (base == kFp) SetFp(fp == Fp::kPlace, fp_place + by);
    if (base == kLink) link = false;
  }
  // A register and `size` bytes of memory; general: not one of vectors.
  void Access(std::optional<int64_t> place, uint32_t reg, int64_t size, bool load, bool general) {
    bool whole = general && size == 8;
    if (load) {
      if (!general) return;
      bool fp_again = reg == kFp && whole && place && fp_slot != 0 && *place == fp_slot;
      bool link_again = reg == kLink && whole && place && link_slot != 0 && *place == link_slot;
      Overwrite(reg);
      if (fp_again) fp = Fp::kCallers;
      if (link_again) link = true;
      return;
    }
    if (!place || *place >= 0 || *place < -kFar) return;  // through a pointer: not into what the compiler keeps for itself
    auto hits = [&](int32_t slot) { return slot != 0 && slot < *place + size && *place < slot + 8; };
    bool saves_fp = whole && reg == kFp && fp == Fp::kCallers, saves_link = whole && reg == kLink && link;
    if (hits(fp_slot) && !(saves_fp && *place == fp_slot)) fp_slot = 0;
    if (hits(link_slot) && !(saves_link && *place == link_slot)) link_slot = 0;
    if (saves_fp && fp_slot == 0) fp_slot = static_cast<int32_t>(*place);
    if (saves_link && link_slot == 0) link_slot = static_cast<int32_t>(*place);
  }

  void LoadOrStore(uint32_t in) {
    const uint32_t reg = in & 31, base = in >> 5 & 31, second = in >> 10 & 31;
    const bool vector = in >> 26 & 1;
    if ((in & 0x3a000000) == 0x28000000) {  // a pair
      const uint32_t mode = in >> 23 & 3, size = in >> 30;
      const bool load = in >> 22 & 1;
      const int64_t bytes = vector ? 4 << size : size == 2 ? 8 : 4;
      const int64_t offset = Signed(in >> 15 & 0x7f, 7) * bytes;
      const auto place = Place(base, mode == 1 ? 0 : offset);
      Access(place, reg, bytes, load, !vector);
      Access(place ? std::optional(*place + bytes) : std::nullopt, second, bytes, load, !vector);
      if (mode == 1 || mode == 3) Writeback(base, offset);
      return;
    }
    if ((in & 0x3a000000) == 0x38000000) {  // one register
      const uint32_t size = in >> 30, kind = in >> 22 & 3, how = in >> 10 & 3;
      const bool load = vector ? kind & 1 : kind != 0;
      const bool prefetch = !vector && size == 3 && kind == 2;
      const int scale = vector && kind >= 2 ? 4 : static_cast<int>(size);
      const int64_t bytes = int64_t{1} << scale;
      if (prefetch) return;
      if (in >> 24 & 1) return Access(Place(base, int64_t{in >> 10 & 0xfff} * bytes), reg, bytes, load, !vector);
      if (in >> 21 & 1) {  // an offset in a register; atomic ones
        if (load || how != 2) Access(std::nullopt, reg, 8, true, !vector);
        if (how != 2 && base == kSp && (in >> 11 & 1)) SetSp(false, 0);
        return;
      }
      const int64_t offset = Signed(in >> 12 & 0x1ff, 9);
      Access(Place(base, how == 1 ? 0 : offset), reg, bytes, load, !vector);
      if (how == 1 || how == 3) Writeback(base, offset);
      return;
    }
    if ((in & 0xbe000000) == 0x0c000000) {  // structures of vectors
      if ((in >> 23 & 1) && base == kSp) SetSp(false, 0);
      return;
    }
    if (vector) return;
    for (uint32_t r : {reg, second, in >> 16 & 31}) Overwrite(r);  // exclusive ones, literals …
  }

  // From here on as after the instruction; branches change nothing.
  void Step(uint32_t in) {
    const uint32_t to = in & 31, from = in >> 5 & 31;
    const bool was_child = child;
    child = false;
    if ((in & 0xfffff01f) == 0xd503201f) {  // hints: nop, bti; a signature comes to the return address, or goes
      child = was_child;
      return;
    }
    if ((in >> 25 & 5) == 4) return LoadOrStore(in);
    if ((in & 0xbf800000) == 0x91000000) {  // add, sub: an immediate
      int64_t by = static_cast<int64_t>(in >> 10 & 0xfff) << ((in >> 22 & 1) ? 12 : 0);
      if (in >> 30 & 1) by = -by;
      const auto place = Place(from, by);
      if (to == kSp) SetSp(place.has_value(), place.value_or(0));
      else if (to == kFp) SetFp(place.has_value(), place.value_or(0));
      else Overwrite(to);
      return;
    }
    if ((in & 0x1c000000) == 0x14000000) {  // branches, system
      if (in == kSupervisorCall) child = x8 == kSysClone || x8 == kSysClone3;
      if ((in & 0xfff00000) == 0xd5300000) Overwrite(to);  // mrs
      return;
    }
    if ((in & 0x7fe0001f) == 0x52800008) {  // mov w8 or x8, #n
      x8 = static_cast<int32_t>(in >> 5 & 0xffff);
      return;
    }
    const bool to_sp = ((in & 0x1f800000) == 0x12000000 && (in >> 29 & 3) != 3) || ((in & 0x1fe00000) == 0x0b200000 && !(in >> 29 & 1)) ||
                       (in & 0x3f800000) == 0x11000000;
    if (to == kSp) {
      if (to_sp) SetSp(false, 0);
      return;
    }
    // Of vectors, but for what moves to a general register.
    if ((in >> 25 & 7) == 7 && (in & 0x5f20fc00) != 0x1e200000 && (in & 0xbfe0ec00) != 0x0e002c00) return;
    Overwrite(to);
  }

  unwind_rule Rule() const {
    constexpr auto kShort = std::numeric_limits<int16_t>::min();
    unwind_rule rule = {}, none = {};
    if (outermost) {
      rule.kind = UNWIND_RULE_END;
      return rule;
    }
    rule.kind = UNWIND_RULE_FRAME;
    if (sp_known) {
      rule.cfa_reg = kSp;
      rule.cfa_offset = -sp;
    } else if (fp == Fp::kPlace) {
      rule.cfa_reg = kFp;
      rule.cfa_offset = -fp_place;
    } else {
      return none;
    }
    if (link_slot != 0) {
      if (link_slot < kShort) return none;
      rule.ra_offset = static_cast<int16_t>(link_slot);
    } else if (link) {
      rule.ra = UNWIND_RA_IN_REG;
      rule.ra_offset = kLink;
    } else {
      return none;
    }
    if (fp == Fp::kCallers) {
      rule.fp = UNWIND_FP_SAME;
    } else if (fp_slot != 0 && fp_slot >= kShort) {
      rule.fp = UNWIND_FP_AT_CFA;
      rule.fp_offset = static_cast<int16_t>(fp_slot);
    } else {
      rule.fp = UNWIND_FP_UNKNOWN;
    }
    return rule;
  }
};

bool IsPadding(uint32_t in) { return in == 0xd503201f || in == 0; }
bool IsReturn(uint32_t in) { return (in & 0xfffffc1f) == 0xd65f0000 || (in & 0xfffffbff) == 0xd65f0bff; }
bool IsJumpThroughRegister(uint32_t in) { return (in & 0xfffffc1f) == 0xd61f0000 || (in & 0xfefff800) == 0xd61f0800; }
bool IsJump(uint32_t in) { return (in & 0xfc000000) == 0x14000000; }
bool IsCall(uint32_t in) { return (in & 0xfc000000) == 0x94000000; }
bool IsCallThroughRegister(uint32_t in) { return (in & 0xfffffc1f) == 0xd63f0000 || (in & 0xfefff800) == 0xd63f0800; }
bool IsTrap(uint32_t in) { return (in & 0xffe0001f) == 0xd4200000 || (in & 0xffe0001f) == 0xd4400000 || (in & 0xffff0000) == 0; }  // brk, hlt, udf

// Where a conditional branch leads, in instructions from itself.
std::optional<int64_t> Branch(uint32_t in) {
  if ((in & 0xff000000) == 0x54000000 || (in & 0x7e000000) == 0x34000000) return Signed(in >> 5 & 0x7ffff, 19);  // b.cond; cbz, cbnz
  if ((in & 0x7e000000) == 0x36000000) return Signed(in >> 5 & 0x3fff, 14);                                      // tbz, tbnz
  return std::nullopt;
}

// Code in memory.
struct Text {
  uint64_t start = 0, offset = 0;  // linked address; in the file
  std::vector<uint32_t> code;
  std::vector<uint16_t> rules;     // of each instruction; kNoRule: not understood
  std::set<size_t> starts;         // of functions, for certain
  uint64_t end() const { return start + code.size() * kInstruction; }
  size_t Index(uint64_t address) const { return static_cast<size_t>((address - start) / kInstruction); }
};

// The walk over one function, [first, end) of a text.
class Walk {
 public:
  Walk(const Text& text, size_t first, size_t end, bool outermost, uint64_t* budget) : text_(text), first_(first), budget_(budget), at_(end - first) {
    *budget_ -= std::min<uint64_t>(*budget_, at_.size() / 16);
    State state;
    state.outermost = outermost;
    Flow(0, state, false);
    while (!queue_.empty() && *budget_ > 0) {
      size_t i = queue_.front();
      queue_.pop_front();
      at_[i].queued = false;
      --*budget_;
      Follow(i);
    }
    if (*budget_ > 0) Judge();
  }

  // Whether a function starts where the walk began: it returns as it has to, and nothing speaks against it.
  bool proven() const { return good_ && at_[0].proof; }
  void Keep(Text* text, Rules* rules) const {
    for (size_t i = 0; good_ && i < at_.size(); ++i) {
      const Instruction& in = at_[i];
      if (in.reached && !in.bad && (in.pure || in.proof)) text->rules[first_ + i] = rules->Index(in.state.Rule());
    }
  }

 private:
  struct Instruction {
    State state;
    bool reached = false, queued = false;
    bool weak = false;              // reached from right behind a call only, which may never come back
    bool pure = false;              // reached whatever called functions do
    bool proof = false, bad = false;  // it leads to an end that agrees with its stack; to one that does not
    uint8_t meets = 0;
  };
  struct Next {
    int64_t to[2] = {-1, -1};
    bool call = false;  // what comes next may never come
  };

  Next After(size_t i) const {
    const uint32_t in = text_.code[first_ + i];
    const auto here = static_cast<int64_t>(i);
    Next next;
    if (IsReturn(in) || IsTrap(in) || IsJumpThroughRegister(in)) return next;
    if (IsJump(in)) {
      next.to[0] = here + Signed(in & 0x3ffffff, 26);
    } else {
      next.to[0] = here + 1;
      if (auto branch = Branch(in)) next.to[1] = here + *branch;
      next.call = IsCall(in) || IsCallThroughRegister(in);
    }
    return next;
  }
  bool Inside(int64_t to) const { return to >= 0 && to < static_cast<int64_t>(at_.size()); }

  void Flow(int64_t to, const State& state, bool weak) {
    if (!Inside(to)) return;
    Instruction& i = at_[static_cast<size_t>(to)];
    if (i.reached && (i.state == state || (weak && !i.weak))) {
      i.weak = i.weak && weak;
      return;
    }
    if (!i.reached || (i.weak && !weak)) {
      i.state = state;
    } else {
      State met = i.state;
      met.Meet(state);
      if (met == i.state || ++i.meets > kMaxMeets) return;
      i.state = met;
    }
    i.weak = weak && (!i.reached || i.weak);
    i.reached = true;
    if (!i.queued) queue_.push_back(static_cast<size_t>(to));
    i.queued = true;
  }

  void Follow(size_t i) {
    const uint32_t in = text_.code[first_ + i];
    State state = at_[i].state;
    const Next next = After(i);
    if (next.to[0] < 0 || (in == kSupervisorCall && (state.x8 == kSysExit || state.x8 == kSysExitGroup))) return;
    if (next.call) {
      state.link = state.child = false;
      state.x8 = -1;
      return Flow(next.to[0], state, true);
    }
    State taken = state;
    if (Branch(in)) {
      taken.child = state.child = false;
      if (at_[i].state.child && (in & 0x7e00001f) == 0x34000000) {  // cbz, cbnz of what clone returned
        State& born = (in >> 24 & 1) ? state : taken;
        born = {};
        born.outermost = true;
      }
    } else {
      state.Step(in);
    }
    Flow(next.to[1], taken, false);
    Flow(next.to[0], state, false);
  }

  // Which instructions' states are right. What comes behind a call may never come: it must lead to an end that agrees with its stack.
  void Judge() {
    for (size_t i = 0; i < at_.size(); ++i) {
      if (!at_[i].reached) continue;
      const uint32_t in = text_.code[first_ + i];
      const State& state = at_[i].state;
      const bool through_link = (in & 0x3e0) == 0x3c0 || (in & 0xfffffbff) == 0xd65f0bff;
      if (IsReturn(in)) (state.outermost || (state.AsAtEntry() && through_link) ? at_[i].proof : at_[i].bad) = true;
      if (in == kSupervisorCall && state.outermost && (state.x8 == kSysExit || state.x8 == kSysExitGroup)) at_[i].proof = true;
    }
    // Along all ways back. Loops need a few rounds; what has not come round by then is not told.
    constexpr int kMaxRounds = 32;
    at_[0].pure = true;
    bool changed = true;
    for (int round = 0; changed && round < kMaxRounds; ++round) {
      changed = false;
      for (size_t n = 0; n < 2 * at_.size(); ++n) {  // forth, and back
        const size_t i = n < at_.size() ? n : 2 * at_.size() - 1 - n;
        Instruction& from = at_[i];
        if (!from.reached) continue;
        const Next next = After(i);
        for (int64_t to : next.to) {
          if (!Inside(to) || !at_[static_cast<size_t>(to)].reached) continue;
          Instruction& other = at_[static_cast<size_t>(to)];
          auto set = [&](bool* flag, bool value) {
            changed |= value && !*flag;
            *flag = *flag || value;
          };
          set(&other.pure, from.pure && !next.call);
          set(&from.proof, other.proof);
          set(&from.bad, other.bad && !next.call);
        }
      }
    }
    good_ = !changed && !(at_[0].bad);
  }

  const Text& text_;
  const size_t first_;
  uint64_t* const budget_;
  std::vector<Instruction> at_;
  std::deque<size_t> queue_;
  bool good_ = false;
};

class Walker {
 public:
  Walker(symbols::ElfFile& elf, symbols::ElfFile* debug, Rules* rules, const CodeOptions& options)
      : elf_(elf), debug_(debug), rules_(rules), options_(options) {}

  std::vector<CodeRow> Run(std::span<const CodeRange> uncovered, CodeStats* stats) {
    ReadText(uncovered);
    for (Text& text : texts_) {
      stats->bytes += text.code.size() * kInstruction;
      FindStarts(&text);
      FindStubs(&text);
    }
    uint64_t budget = std::min(options_.base_instructions + stats->bytes * options_.instructions_per_byte, options_.max_instructions);
    const uint64_t all = budget;
    for (Text& text : texts_) {
      for (size_t start : text.starts) {
        if (WalkFrom(&text, start, true, &budget)) ++stats->functions;
      }
      Guess(&text, &budget, stats);
    }
    stats->instructions = all - budget;
    stats->out_of_budget = budget == 0;
    std::vector<CodeRow> rows;
    for (const Text& text : texts_) AddRows(text, &rows, stats);
    return rows;
  }

 private:
  void ReadText(std::span<const CodeRange> uncovered) {
    uint64_t total = 0, done = 0;
    for (const CodeRange& range : uncovered) {
      for (const auto& s : elf_.segments()) {
        if (!s.executable || range.end <= s.offset || range.start >= s.offset + s.file_size) continue;
        uint64_t start = std::max({range.start, s.offset, done}), end = std::min(range.end, s.offset + s.file_size);
        // Instructions lie at multiples of 4 in memory.
        start += (kInstruction - (s.vaddr + (start - s.offset)) % kInstruction) % kInstruction;
        if (start >= end || end - start < kInstruction || end - start > std::min(options_.max_bytes, kMaxBytes) - total) continue;
        Text text;
        text.start = s.vaddr + (start - s.offset);
        text.offset = start;
        text.code.resize((end - start) / kInstruction);
        if (!elf_.source().Read(start, text.code.data(), text.code.size() * kInstruction)) continue;
        total += end - start;
        done = end;
        text.rules.resize(text.code.size(), kNoRule);
        texts_.push_back(std::move(text));
      }
    }
    std::sort(texts_.begin(), texts_.end(), [](const Text& a, const Text& b) { return a.start < b.start; });
    for (size_t i = 1; i < texts_.size(); ++i) {  // segments of hostile files overlap
      if (texts_[i].start < texts_[i - 1].end()) texts_.resize(i);
    }
  }

  Text* TextAt(uint64_t address) {
    auto it = std::upper_bound(texts_.begin(), texts_.end(), address, [](uint64_t a, const Text& t) { return a < t.start; });
    if (it == texts_.begin() || address >= std::prev(it)->end() || address % kInstruction != 0) return nullptr;
    return &*std::prev(it);
  }
  void AddStart(uint64_t address) {
    if (Text* text = TextAt(address)) text->starts.insert(text->Index(address));
  }

  void FindStarts(Text* text) {
    for (uint64_t start : options_.starts) AddStart(start);
    for (symbols::ElfFile* file : {&elf_, debug_}) {
      if (!file || !options_.use_symbols) continue;
      for (uint64_t start : file->FunctionStarts(text->start, text->end())) AddStart(start);
    }
    AddStart(elf_.entry());
    for (size_t i = 0; i < text->code.size(); ++i) {
      if (IsCall(text->code[i])) AddStart(text->start + i * kInstruction + static_cast<uint64_t>(Signed(text->code[i] & 0x3ffffff, 26)) * kInstruction);
    }
  }

  // Stubs, which nothing calls that is looked at here: each ends in a jump through a register.
  void FindStubs(Text* text) {
    for (const auto& s : elf_.sections()) {
      if (s.name != ".plt" && s.name != ".iplt" && !s.name.starts_with(".plt.")) continue;
      bool begins = true;
      for (uint64_t at = std::max(s.vaddr, text->start); at < std::min(s.vaddr + s.size, text->end()); at += kInstruction) {
        const uint32_t in = text->code[text->Index(at)];
        if (begins && !IsPadding(in)) text->starts.insert(text->Index(at));
        begins = IsJumpThroughRegister(in) || (begins && IsPadding(in));
      }
    }
  }

  // Whether the code at a file's entry is where the kernel starts a program: it clears frame pointer or link, or takes what lies on its stack.
  static bool BeginsAProgram(const Text& text, size_t start) {
    for (size_t i = start; i < std::min(start + 3, text.code.size()); ++i) {
      const uint32_t in = text.code[i];
      if (in == 0xd280001d || in == 0xd280001e || in == 0x910003e0) return true;  // mov x29, #0; mov x30, #0; mov x0, sp
    }
    return false;
  }

  // False: nothing is told of it.
  bool WalkFrom(Text* text, size_t start, bool certain, uint64_t* budget) {
    auto next = text->starts.upper_bound(start);
    size_t end = std::min(next == text->starts.end() ? text->code.size() : *next, start + (certain ? kMaxFunction : kMaxGuess));
    const bool outermost = text->start + start * kInstruction == elf_.entry() && BeginsAProgram(*text, start);
    Walk walk(*text, start, end, outermost, budget);
    if (!certain && !walk.proven()) return false;
    walk.Keep(text, rules_);
    return true;
  }

  // The frame record is made, or the return address signed: parts of functions do not begin like that.
  static bool MakesFrame(uint32_t in) { return (in & 0xffc07fff) == 0xa9807bfd || (in & 0xffffffbf) == 0xd503233f; }

  // Code that nothing leads to: functions called through pointers only, in files without symbols. They must prove right.
  void Guess(Text* text, uint64_t* budget, CodeStats* stats) {
    bool ended = true;  // nothing goes on from before
    for (size_t i = 0; i < text->code.size() && *budget > 0; ++i) {
      const uint32_t in = text->code[i];
      if (text->rules[i] == kNoRule && ended && MakesFrame(in) && !text->starts.contains(i) && WalkFrom(text, i, false, budget)) ++stats->functions;
      ended = (in & 0xffffff3f) == 0xd503241f /* bti */ || IsReturn(in) || IsJump(in) || IsJumpThroughRegister(in) || IsTrap(in) || (ended && IsPadding(in));
    }
  }

  void AddRows(const Text& text, std::vector<CodeRow>* rows, CodeStats* stats) {
    unwind_rule signal = {};
    signal.kind = UNWIND_RULE_SIGNAL;
    for (size_t i = 0; i < text.code.size(); ++i) {
      const uint64_t offset = text.offset + i * kInstruction;
      uint64_t start = offset, end = offset + kInstruction;
      uint16_t rule = text.rules[i];
      if (text.code[i] == kMoveSigreturn && i + 1 < text.code.size() && text.code[i + 1] == kSupervisorCall) {
        // A handler returns to its first byte, and return addresses are looked up one byte before.
        rule = rules_->Index(signal);
        end += kInstruction;
        if (start > 0) --start;
        if (!rows->empty() && rows->back().end > start) rows->back().end = start;
        ++i;
      } else if (rule == kNoRule && IsPadding(text.code[i])) {
        continue;
      }
      if (rule != kNoRule) stats->known_bytes += end - start;
      if (!rows->empty() && rows->back().end == start && rows->back().rule == rule) rows->back().end = end;
      else rows->push_back({start, end, rule});
    }
    std::erase_if(*rows, [](const CodeRow& row) { return row.start >= row.end; });
  }

  symbols::ElfFile& elf_;
  symbols::ElfFile* debug_;
  Rules* rules_;
  const CodeOptions& options_;
  std::vector<Text> texts_;
};

}  // namespace

std::vector<CodeRow> Arm64RulesFromCode(symbols::ElfFile& elf, symbols::ElfFile* debug, std::span<const CodeRange> uncovered, Rules* rules,
                                        const CodeOptions& options, CodeStats* stats) {
  return Walker(elf, debug, rules, options).Run(uncovered, stats);
}

}  // namespace borescope::unwind
