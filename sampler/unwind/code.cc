// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/code.h"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "sampler/unwind/arm64_code.h"
#include "sampler/unwind/x86_frame.h"
#include "sampler/unwind/x86_instruction.h"

namespace borescope::unwind {
namespace {

using x86::Frame;
using x86::Instruction;
using x86::Op;

constexpr size_t kMaxFunctions = 1 << 20;
constexpr uint64_t kMaxFunctionInstructions = 1 << 20;  // looked at, in one walk
constexpr uint64_t kMaxGuessInstructions = 1 << 14;     // where it is not known that a function starts
constexpr uint8_t kMaxWalks = 8;                         // of one function: more is known of others
constexpr size_t kMaxGaps = 4096;                       // of one function
constexpr uint64_t kMaxPadding = 64;                    // between functions
constexpr uint64_t kAlignment = 16;                     // of functions, mostly
constexpr uint8_t kEqual = 4, kNotEqual = 5;            // conditions of branches
constexpr int32_t kSysExit = 60, kSysExitGroup = 231;

// Functions of libraries that do not come back.
bool NeverReturns(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "_Exit", "_Unwind_Resume", "_ZSt10unexpectedv", "_ZSt9terminatev", "__assert", "__assert_fail", "__assert_perror_fail", "__chk_fail",
      "__cxa_bad_cast", "__cxa_bad_typeid", "__cxa_call_terminate", "__cxa_call_unexpected", "__cxa_pure_virtual", "__cxa_rethrow", "__cxa_throw",
      "__cxa_throw_bad_array_new_length", "__fortify_fail", "__libc_start_main", "__longjmp_chk", "__stack_chk_fail", "_exit", "_longjmp", "abort",
      "err", "errx", "exit", "longjmp", "pthread_exit", "quick_exit", "siglongjmp", "thrd_exit", "verr", "verrx"};
  if (std::binary_search(std::begin(kNames), std::end(kNames), name)) return true;
  if (!name.starts_with("_ZSt")) return false;
  return name.find("__throw_") != std::string_view::npos;
}

// Functions whose name says that they may end the program, or throw.
bool MayNotReturn(std::string_view name) {
  static constexpr std::string_view kParts[] = {"abort", "assert", "crash", "die", "err", "exit", "fail", "fatal", "longjmp", "panic", "raise",
                                                "terminate", "throw", "unreachable", "unwind", "usage"};
  return std::any_of(std::begin(kParts), std::end(kParts), [&](auto part) { return name.find(part) != std::string_view::npos; });
}

// Code in memory, by linked address.
struct Text {
  uint64_t start = 0, offset = 0;  // offset: in the file
  std::vector<uint8_t> bytes;
  uint64_t end() const { return start + bytes.size(); }
};

struct Function {
  bool certain = false;   // a function starts here; else it is a guess, and must prove right
  bool walked = false, queued = false;
  bool returns = true;
  bool wants_proof = false;  // parts of it hang on whether functions that it calls return
  bool unproven = true;      // no end of it was seen at which it returns
  bool switches = false;     // it jumps to where is not known
  uint8_t walks = 0;
};

// Part of a function's code with one rule.
struct Piece {
  uint64_t start;
  uint32_t size;
  uint16_t rule;
};

struct Edge {
  uint64_t to;
  uint16_t rule;   // in force on the way
  // Behind a call: it is not known whether it comes back; it is thought to, by its name. Behind an instruction that traps.
  enum class Call : uint8_t { kNone, kUnproven, kAssumed, kTrap } call;
};

struct Block {
  explicit Block(Frame frame) : in(std::move(frame)) {}
  Frame in;
  uint64_t end = 0;
  bool walked = false, queued = false, guess = false;
  bool leaves = false;   // returns, or calls another function last, with the stack as it was at the begin
  bool bad = false;      // returns with another stack, or runs into what is no code
  bool reached = false;  // if all called functions return
  bool pure = false;     // whatever called functions do
  bool proof = false;    // it leads to an end that agrees with its stack
  bool unknown_exit = false;
  std::vector<Edge> edges;
  std::vector<uint64_t> calls;
};

class Walker {
 public:
  Walker(symbols::ElfFile& elf, symbols::ElfFile* debug, Rules* rules, const CodeOptions& options)
      : elf_(elf), debug_(debug), rules_(rules), options_(options) {}

  void Run(std::span<const CodeRange> uncovered);
  std::vector<CodeRow> Take();
  CodeStats stats;
  bool out_of_budget() const { return budget_ == 0; }

 private:
  using Blocks = std::map<uint64_t, Block>;
  // One walk over one function.
  struct Walk {
    uint64_t start = 0;
    Function* function = nullptr;
    Blocks blocks;
    std::deque<uint64_t> queue;
    uint64_t instructions = 0, limit = 0;
    std::set<uint64_t> callees;
    bool guessing = false;
    uint64_t bound = 0;  // guesses: where the next function starts
    std::vector<uint64_t> guesses;  // blocks that are to prove right
    std::optional<Frame> switch_frame;  // before the jumps whose targets are not known
    bool switches_differ = false, gave_up = false;
  };

  void ReadText(std::span<const CodeRange> uncovered);
  void ReadImports();
  void FindStarts();
  void FindEntry();
  void FindPlt();
  void FindTrampolines();
  void WalkQueue();
  std::vector<CodeRange> Taken() const;
  void GuessInGaps();
  void WalkAddresses();

  void Tell(uint64_t start, uint64_t size, const unwind_rule& rule);
  void CutSpecial();

  const Text* TextAt(uint64_t address) const;
  std::span<const uint8_t> Code(uint64_t address) const;
  std::optional<uint64_t> StubSlot(uint64_t address);
  std::optional<uint64_t> ReadStub(uint64_t address) const;
  bool CalledNeverReturns(uint64_t target, Edge::Call* call);
  Function* AddFunction(uint64_t start, bool certain);
  void Queue(uint64_t start);
  uint64_t NextStart(uint64_t address) const;
  uint64_t SkipPadding(uint64_t at, uint64_t end) const;
  uint64_t SkipFlow(uint64_t at, uint64_t end) const;

  void WalkFunction(uint64_t start);
  bool AsksWhereItIs(uint64_t next, const Instruction& in) const;
  void WalkBlocks(Walk& w);
  void WalkBlock(Walk& w, uint64_t start, Block& block);
  void FollowJump(Walk& w, Block& block, uint64_t target, Frame frame, bool linear);
  void Flow(Walk& w, Block& block, uint64_t target, Frame frame, Edge::Call call = Edge::Call::kNone);
  void Judge(Walk& w, const std::vector<uint64_t>& part);
  void FillGaps(Walk& w);
  void Keep(Walk& w, const Block& block, uint64_t start);
  bool Told(const Block& block) const { return !block.bad && (block.pure || block.proof); }
  uint16_t RuleIndex(const Frame& frame) { return rules_->Index(frame.Rule()); }

  symbols::ElfFile& elf_;
  symbols::ElfFile* debug_;
  Rules* rules_;
  const CodeOptions& options_;
  std::vector<Text> texts_;
  uint64_t budget_ = 0;
  bool fixed_ = false;         // it runs where it is linked: constants may be addresses
  bool has_symbols_ = false;   // of all functions
  bool bounds_known_ = false;  // no more functions are found
  enum class Import : uint8_t { kReturns, kMayNot, kNever };
  std::map<uint64_t, Import> imports_;  // by address in the GOT
  std::map<uint64_t, std::optional<uint64_t>> stubs_;  // by address: the slot of the GOT it jumps through
  std::map<uint64_t, Function> functions_;
  std::map<uint64_t, std::set<uint64_t>> callers_;
  std::map<uint64_t, std::vector<Piece>> pieces_;  // by function
  std::vector<CodeRow> special_;                   // what is known without a walk
  std::map<uint64_t, std::vector<CodeRange>> looked_at_;  // by function: linked addresses; reached for certain, if not understood
  std::set<uint64_t> addresses_;  // of code, taken by code that is told of; where functions may start
  std::set<uint64_t> tried_;
  std::deque<uint64_t> queue_;
};

void Walker::ReadText(std::span<const CodeRange> uncovered) {
  uint64_t total = 0;
  for (const CodeRange& range : uncovered) {
    for (const auto& s : elf_.segments()) {
      if (!s.executable || range.end <= s.offset || range.start >= s.offset + s.file_size) continue;
      uint64_t start = std::max(range.start, s.offset), end = std::min(range.end, s.offset + s.file_size);
      if (start >= end || end - start > options_.max_bytes - total) continue;
      Text text{s.vaddr + (start - s.offset), start, std::vector<uint8_t>(end - start)};
      if (!elf_.source().Read(start, text.bytes.data(), text.bytes.size())) continue;
      total += text.bytes.size();
      texts_.push_back(std::move(text));
    }
  }
  std::sort(texts_.begin(), texts_.end(), [](const Text& a, const Text& b) { return a.start < b.start; });
  // Segments of hostile files overlap: each address is code once.
  size_t kept = 0;
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (texts_[i].end() < texts_[i].start || (kept > 0 && texts_[kept - 1].end() > texts_[i].start)) continue;
    if (kept != i) texts_[kept] = std::move(texts_[i]);
    ++kept;
  }
  texts_.resize(kept);
  stats.bytes = total;
  budget_ = std::min(options_.base_instructions + total * options_.instructions_per_byte, options_.max_instructions);
}

const Text* Walker::TextAt(uint64_t address) const {
  auto it = std::upper_bound(texts_.begin(), texts_.end(), address, [](uint64_t a, const Text& t) { return a < t.start; });
  if (it == texts_.begin()) return nullptr;
  --it;
  return address < it->end() ? &*it : nullptr;
}

std::span<const uint8_t> Walker::Code(uint64_t address) const {
  const Text* text = TextAt(address);
  if (!text) return {};
  return std::span<const uint8_t>(text->bytes).subspan(address - text->start);
}

// Known without a walk.
void Walker::Tell(uint64_t start, uint64_t size, const unwind_rule& rule) {
  const Text* text = TextAt(start);
  if (!text) return;
  uint64_t offset = text->offset + (start - text->start);
  special_.push_back({offset, offset + size, rules_->Index(rule)});
  stats.known_bytes += size;
}

// Nobody walks over what is known already.
void Walker::CutSpecial() {
  std::sort(special_.begin(), special_.end(), [](const CodeRow& a, const CodeRow& b) { return a.start < b.start; });
  std::vector<Text> rest;
  for (Text& text : texts_) {
    uint64_t at = text.offset, end = text.offset + text.bytes.size();
    auto keep = [&](uint64_t from, uint64_t to) {
      if (from >= to) return;
      auto first = text.bytes.begin() + static_cast<ptrdiff_t>(from - text.offset);
      rest.push_back({text.start + (from - text.offset), from, std::vector<uint8_t>(first, first + static_cast<ptrdiff_t>(to - from))});
    };
    auto it = std::partition_point(special_.begin(), special_.end(), [&](const CodeRow& r) { return r.end <= at; });
    for (; it != special_.end() && it->start < end; ++it) {
      keep(at, it->start);
      at = std::max(at, it->end);
    }
    keep(at, end);
  }
  texts_ = std::move(rest);
}

// Which slots of the GOT hold functions of other files, and which of these do not return.
void Walker::ReadImports() {
  constexpr size_t kMaxImports = 1 << 18;
  for (const auto& s : elf_.sections()) {
    if (s.type != SHT_RELA || s.entry_size != sizeof(Elf64_Rela) || s.link >= elf_.sections().size()) continue;
    const auto& symbols = elf_.sections()[s.link];
    if (symbols.type != SHT_DYNSYM || symbols.entry_size != sizeof(Elf64_Sym) || symbols.link >= elf_.sections().size()) continue;
    const auto& strings = elf_.sections()[symbols.link];
    uint64_t count = s.size / sizeof(Elf64_Rela);
    std::vector<Elf64_Rela> part(1024);
    for (uint64_t i = 0; i < count && imports_.size() < kMaxImports; i += part.size()) {
      size_t n = std::min<uint64_t>(part.size(), count - i);
      if (!elf_.source().Read(s.offset + i * sizeof(Elf64_Rela), part.data(), n * sizeof(Elf64_Rela))) break;
      for (size_t k = 0; k < n; ++k) {
        uint64_t type = ELF64_R_TYPE(part[k].r_info), index = ELF64_R_SYM(part[k].r_info);
        if ((type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) || index >= symbols.size / sizeof(Elf64_Sym)) continue;
        Elf64_Sym symbol;
        if (!elf_.source().ReadValue(symbols.offset + index * sizeof(symbol), &symbol) || symbol.st_name >= strings.size) continue;
        std::string name = elf_.source().ReadString(strings.offset + symbol.st_name, 128);
        imports_.emplace(part[k].r_offset, NeverReturns(name) ? Import::kNever : MayNotReturn(name) ? Import::kMayNot : Import::kReturns);
      }
    }
  }
}

// The GOT slot that a stub of the PLT jumps through.
std::optional<uint64_t> Walker::StubSlot(uint64_t address) {
  auto [known, is_new] = stubs_.try_emplace(address);
  if (is_new && stubs_.size() <= kMaxFunctions) known->second = ReadStub(address);
  return known->second;
}

std::optional<uint64_t> Walker::ReadStub(uint64_t address) const {
  std::array<uint8_t, 16> code{};
  if (!elf_.Read(address, code.data(), code.size())) return std::nullopt;
  size_t at = 0;
  for (int i = 0; i < 2; ++i) {
    Instruction in = x86::Decode(std::span<const uint8_t>(code).subspan(at));
    at += in.length;
    if (in.op == Op::kJumpIndirect && in.rip_relative) return address + at + static_cast<uint64_t>(in.displacement);
    if (in.op != Op::kNop || at >= code.size()) break;
  }
  return std::nullopt;
}

Function* Walker::AddFunction(uint64_t start, bool certain) {
  auto it = functions_.find(start);
  if (it == functions_.end()) {
    if (functions_.size() >= kMaxFunctions || !TextAt(start)) return nullptr;
    it = functions_.emplace(start, Function{}).first;
  } else if (it->second.certain || !certain) {
    return &it->second;
  }
  it->second.certain = certain;
  Queue(start);
  return &it->second;
}

void Walker::Queue(uint64_t start) {
  Function& f = functions_.at(start);
  if (f.queued) return;
  f.queued = true;
  queue_.push_back(start);
}

uint64_t Walker::NextStart(uint64_t address) const {
  for (auto it = functions_.upper_bound(address); it != functions_.end(); ++it) {
    if (it->second.certain) return it->first;
  }
  return UINT64_MAX;
}

void Walker::FindStarts() {
  for (const auto& s : elf_.segments()) fixed_ |= s.offset == 0 && s.vaddr != 0;
  for (uint64_t start : options_.starts) AddFunction(start, true);
  has_symbols_ = !options_.starts.empty();
  if (options_.use_symbols) {
    has_symbols_ = bounds_known_ = has_symbols_ || elf_.FindSection(".symtab") || (debug_ && debug_->FindSection(".symtab"));
    for (symbols::ElfFile* file : {&elf_, debug_}) {
      if (!file) continue;
      for (const Text& text : texts_) {
        for (uint64_t start : file->FunctionStarts(text.start, text.end())) AddFunction(start, true);
      }
    }
  }
  AddFunction(elf_.entry(), true);
  AddFunction(elf_.main_address(), true);
}

// Whether the code at a file's entry is where the kernel starts a program; in libraries some function may stand there. A program's first
// instruction clears the frame pointer, or takes what lies on its stack (the dynamic loader's).
bool BeginsAProgram(std::span<const uint8_t> code) {
  static constexpr uint8_t kStackToFirstArgument[] = {0x48, 0x89, 0xe7};  // mov rdi, rsp
  if (code.size() > 3 && std::equal(std::begin(kStackToFirstArgument), std::end(kStackToFirstArgument), code.begin())) return true;
  for (int i = 0; i < 2; ++i) {
    Instruction in = x86::Decode(code);
    if (in.op == Op::kMoveImmediate && in.reg == x86::kRbp && in.immediate == 0) return true;
    if (in.op != Op::kNop || in.length >= code.size()) return false;
    code = code.subspan(in.length);
  }
  return false;
}

// A program's entry between functions of which all is told: nothing else can be there.
void Walker::FindEntry() {
  constexpr uint64_t kMostBytes = 128;
  const Text* text = TextAt(elf_.entry());
  if (!text || text->end() - elf_.entry() > kMostBytes || !BeginsAProgram(Code(elf_.entry()))) return;
  unwind_rule rule = {};
  rule.kind = UNWIND_RULE_END;
  Tell(elf_.entry(), text->end() - elf_.entry(), rule);
}

// Registers are saved, or the stack pointer is lowered: parts of functions seldom begin like that.
bool MakesFrame(std::span<const uint8_t> code) {
  Instruction in = x86::Decode(code);
  if (in.op == Op::kNop && in.length < code.size()) in = x86::Decode(code.subspan(in.length));
  return (in.op == Op::kPush && in.reg != x86::kNoRegister) || (in.op == Op::kAdd && in.reg == x86::kRsp && in.immediate < 0);
}

// Stubs: their second half is reached through the GOT, from where no walk comes.
void Walker::FindPlt() {
  constexpr uint64_t kEntry = 16;
  auto stack_rule = [](uint8_t kind, int32_t offset, int16_t more_from) {
    unwind_rule rule = {};
    rule.kind = kind;
    rule.cfa_reg = 7;
    rule.cfa_offset = offset;
    rule.cfa_add = more_from;
    rule.ra_offset = -8;
    return rule;
  };
  for (const Text& text : texts_) {
    // The first entry: push GOT+8(%rip); jmp *GOT+16(%rip)
    for (uint64_t at = (text.start + kEntry - 1) & ~(kEntry - 1); at + 2 * kEntry <= text.end(); at += kEntry) {
      std::span<const uint8_t> code = Code(at);
      if (code[0] != 0xff || code[1] != 0x35) continue;
      Instruction push = x86::Decode(code), jump = x86::Decode(code.subspan(push.length));
      if (jump.op != Op::kJumpIndirect) jump = x86::Decode(code.subspan(push.length + (code[push.length] == 0xf2 ? 1 : 0)));
      if (jump.op != Op::kJumpIndirect || !jump.rip_relative || jump.displacement != push.displacement + 8 - jump.length) continue;
      // Entries: [endbr64] [jmp *GOT(%rip)] push $n; jmp to the first entry
      uint64_t entry = at + kEntry, last_jump = 0;
      for (; entry + kEntry <= text.end(); entry += kEntry) {
        std::span<const uint8_t> e = Code(entry);
        uint64_t within = 0, found = 0;
        for (int i = 0; i < 4 && within < kEntry && found == 0; ++i) {
          Instruction in = x86::Decode(e.subspan(within));
          if (in.length == 0) break;
          if (in.op == Op::kJump && entry + within + in.length + static_cast<uint64_t>(in.displacement) == at) found = within;
          within += in.length;
        }
        if (found == 0 || (last_jump != 0 && found != last_jump)) break;
        last_jump = found;
      }
      if (last_jump == 0) continue;
      Tell(at, 6, stack_rule(UNWIND_RULE_FRAME, 16, 0));
      Tell(at + 6, 10, stack_rule(UNWIND_RULE_FRAME, 24, 0));
      Tell(at + kEntry, entry - (at + kEntry), stack_rule(UNWIND_RULE_PLT, 8, static_cast<int16_t>(last_jump)));
      at = entry - kEntry;
    }
  }
  CutSpecial();
  // Stubs that only jump (.plt.sec, .plt.got, .iplt): as at the begin of a function.
  for (const auto& s : elf_.sections()) {
    if (!s.name.starts_with(".plt.") && s.name != ".iplt" && s.name != ".plt") continue;
    const Text* text = nullptr;
    for (const Text& t : texts_) {
      if (t.start < s.vaddr + s.size && t.end() > s.vaddr) text = &t;  // it has no tables, or is cut from nothing else
    }
    if (!text) continue;
    for (uint64_t at = std::max((s.vaddr + 7) & ~uint64_t{7}, (text->start + 7) & ~uint64_t{7}); at < std::min(s.vaddr + s.size, text->end());) {
      uint64_t end = at;
      for (int i = 0; i < 2; ++i) {
        Instruction in = x86::Decode(Code(end));
        end += in.length;
        if (in.op == Op::kJumpIndirect && in.rip_relative) {
          Tell(at, end - at, stack_rule(UNWIND_RULE_FRAME, 8, 0));
          at = ((end + 7) & ~uint64_t{7}) - 8;
          break;
        }
        if (in.op != Op::kNop) break;
      }
      at += 8;
    }
  }
}

// mov $15, %eax or %rax; syscall: where signal handlers return to.
void Walker::FindTrampolines() {
  static constexpr uint8_t kLong[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05}, kShort[] = {0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05};
  unwind_rule rule = {};
  rule.kind = UNWIND_RULE_SIGNAL;
  auto find = [&](const Text& text, std::span<const uint8_t> pattern) {
    auto from = text.bytes.begin();
    for (;;) {
      auto it = std::search(from, text.bytes.end(), pattern.begin(), pattern.end());
      if (it == text.bytes.end()) return;
      from = it + 1;
      uint64_t at = text.start + static_cast<uint64_t>(it - text.bytes.begin());
      // Not within a function that sets more up (rt_sigreturn as a wrapper): behind padding, or where a function starts.
      bool begins = functions_.count(at) != 0 || (at % 16 == 0) || (it != text.bytes.begin() && (it[-1] == 0x90 || it[-1] == 0xcc));
      if (!begins) continue;
      // Return addresses are looked up one byte before.
      bool before = it != text.bytes.begin() && it[-1] != 0xc3 && it[-1] != 0xc2;
      Tell(at - (before ? 1 : 0), pattern.size() + (before ? 1 : 0), rule);
      functions_.erase(at);
    }
  };
  for (const Text& text : texts_) {
    find(text, kLong);
    find(text, kShort);
  }
  CutSpecial();
}

uint64_t Walker::SkipPadding(uint64_t at, uint64_t end) const {
  while (at < end) {
    std::span<const uint8_t> code = Code(at);
    if (code.empty()) return end;  // the code ends here
    if (code[0] == 0xcc || code[0] == 0) {
      ++at;
      continue;
    }
    Instruction in = x86::Decode(code);
    if (in.op != Op::kNop || code[0] == 0xf3) break;  // endbr64 is where something starts
    at += in.length;
  }
  return std::min(at, end);
}

// Behind the next instruction that nothing comes after.
uint64_t Walker::SkipFlow(uint64_t at, uint64_t end) const {
  while (at < end) {
    Instruction in = x86::Decode(Code(at));
    at += std::max<uint64_t>(in.length, 1);
    if (in.op == Op::kReturn || in.op == Op::kJump || in.op == Op::kJumpIndirect || in.op == Op::kStop || in.op == Op::kTrap) break;
  }
  return std::min(at, end);
}

bool Walker::CalledNeverReturns(uint64_t target, Edge::Call* call) {
  auto it = functions_.find(target);
  if (it != functions_.end() && it->second.walked) {
    if (!it->second.returns) return true;
    *call = it->second.unproven ? Edge::Call::kUnproven : Edge::Call::kNone;
    return false;
  }
  *call = Edge::Call::kUnproven;
  if (auto slot = StubSlot(target)) {
    auto import = imports_.find(*slot);
    if (import != imports_.end() && import->second == Import::kNever) return true;
    if (import != imports_.end() && import->second == Import::kReturns) *call = Edge::Call::kAssumed;
  }
  return false;
}

// The way goes on at target: within the function.
void Walker::Flow(Walk& w, Block& block, uint64_t target, Frame frame, Edge::Call call) {
  frame.DropConstants();
  uint16_t rule = RuleIndex(frame);
  block.edges.push_back({target, rule, call});
  auto next = w.blocks.upper_bound(target);
  auto it = next == w.blocks.begin() ? w.blocks.end() : std::prev(next);
  if (it != w.blocks.end() && it->first == target) {
    Block& b = it->second;
    if (w.guessing && !b.guess) return;  // judged by the edge
    if (b.in.Meet(frame) && !b.queued) {
      b.queued = true;
      w.queue.push_back(target);
    }
    return;
  }
  // A jump into a block that was walked cuts it in two.
  if (it != w.blocks.end() && it->second.walked && target < it->second.end && !it->second.queued && !(w.guessing && !it->second.guess)) {
    it->second.queued = true;
    w.queue.push_back(it->first);
  }
  Block b(std::move(frame));
  b.queued = true;
  b.guess = w.guessing;
  if (b.guess) w.guesses.push_back(target);
  w.blocks.emplace(target, std::move(b));
  w.queue.push_back(target);
}

// A jump, or (linear) code running on into another function.
void Walker::FollowJump(Walk& w, Block& block, uint64_t target, Frame frame, bool linear) {
  bool at_entry = frame.AsAtEntry();
  auto it = functions_.find(target);
  if (it != functions_.end() && it->second.certain && target != w.start) {
    if (!at_entry) {
      block.bad = !frame.outermost();
      return;
    }
    w.callees.insert(target);
    if (linear && !w.function->certain) block.unknown_exit = true;
    else if (!it->second.walked || it->second.returns) block.leaves = true;
    return;
  }
  if (!TextAt(target)) {
    if (linear) {
      block.bad = true;
    } else if (at_entry) {
      Edge::Call call;
      bool never = CalledNeverReturns(target, &call);
      if (!never) (w.function->certain ? block.leaves : block.unknown_exit) = true;
    } else {
      (StubSlot(target) ? block.bad : block.unknown_exit) = true;
    }
    return;
  }
  Flow(w, block, target, std::move(frame));
}

void Walker::WalkBlock(Walk& w, uint64_t start, Block& block) {
  block.edges.clear();
  block.calls.clear();
  block.leaves = block.bad = block.unknown_exit = false;
  block.walked = true;
  Frame frame = block.in;
  uint64_t at = start;
  auto following = w.blocks.upper_bound(start);
  uint64_t next_block = following == w.blocks.end() ? UINT64_MAX : following->first;
  uint64_t next_start = NextStart(start);
  for (;;) {
    block.end = at;
    if (at != start) {
      if (at >= next_start) {
        if (at == next_start) FollowJump(w, block, at, std::move(frame), true);
        else block.bad = true;
        return;
      }
      if (at == next_block) return Flow(w, block, at, std::move(frame));
      while (at > next_block) {  // an instruction within another: a jump over a prefix
        following = w.blocks.upper_bound(next_block);
        next_block = following == w.blocks.end() ? UINT64_MAX : following->first;
        if (at == next_block) return Flow(w, block, at, std::move(frame));
      }
    }
    std::span<const uint8_t> code = Code(at);
    Instruction in = x86::Decode(code);
    if (in.length == 0 || ++w.instructions > w.limit || budget_ == 0) {
      block.bad = true;
      if (w.instructions > w.limit || budget_ == 0) w.gave_up = true;
      return;
    }
    --budget_;
    ++stats.instructions;
    uint64_t next = at + in.length, target = next + static_cast<uint64_t>(in.displacement);
    block.end = next;
    switch (in.op) {
      case Op::kReturn:
        if (frame.AsAtEntry()) block.leaves = true;
        else if (!frame.outermost()) block.bad = true;
        return;
      case Op::kStop: return;
      case Op::kTrap:
        // Compilers put it where they know that it is not reached, others where it ends the program if it is.
        if (w.guessing || !w.function->certain || frame.outermost() || SkipPadding(next, next + 1) != next) return;
        return Flow(w, block, next, std::move(frame), Edge::Call::kTrap);
      case Op::kJump: return FollowJump(w, block, target, std::move(frame), false);
      case Op::kJumpIndirect: {
        if (in.rip_relative) {
          auto import = imports_.find(target);
          if (import != imports_.end()) {
            if (!frame.AsAtEntry() || !w.function->certain) block.unknown_exit = true;
            else block.leaves = import->second != Import::kNever;
            return;
          }
        }
        if (frame.outermost()) return;
        frame.DropConstants();
        if (w.function->certain && !w.guessing && frame.AsAtEntry()) {  // most likely a call that is the last
          block.leaves = true;
        } else {
          block.unknown_exit = true;
        }
        if (w.guessing) {  // through a table of this function once more, with the same stack
          block.leaves = has_symbols_ && at >= w.start && at < w.bound && RuleIndex(frame) == RuleIndex(*w.switch_frame);
          return;
        }
        if (!w.switch_frame) w.switch_frame = frame;
        else if (w.switch_frame->Rule().cfa_offset != frame.Rule().cfa_offset || RuleIndex(*w.switch_frame) != RuleIndex(frame)) w.switches_differ = true;
        else w.switch_frame->Meet(frame);
        return;
      }
      case Op::kBranch: {
        Frame taken = frame;
        if (in.condition == kEqual || in.condition == kNotEqual) {
          taken.Compared(in.condition == kEqual);
          frame.Compared(in.condition == kNotEqual);
        }
        taken.Step(in);  // loop writes rcx
        frame.Step(in);
        FollowJump(w, block, target, std::move(taken), false);
        FollowJump(w, block, next, std::move(frame), true);
        return;
      }
      case Op::kCall:
      case Op::kCallIndirect: {
        bool never = false;
        auto call = Edge::Call::kUnproven;
        if (in.op == Op::kCall) {
          if (AsksWhereItIs(next, in)) {
            Instruction push;
            push.op = Op::kPushImmediate;
            push.immediate = INT64_MAX;
            frame.Step(push);
            break;
          }
          block.calls.push_back(target);
          if (TextAt(target)) w.callees.insert(target);
          never = CalledNeverReturns(target, &call);
        } else if (in.rip_relative) {
          auto import = imports_.find(target);
          never = import != imports_.end() && import->second == Import::kNever;
          if (import != imports_.end() && import->second == Import::kReturns) call = Edge::Call::kAssumed;
        }
        // A call that is the last of its function does not come back.
        uint64_t behind = SkipPadding(next, std::min(next_start, next + kMaxPadding));
        if (never || behind >= next_start) return;
        // In a file without symbols it may also be the last when the next function would start there.
        if (!has_symbols_ && call == Edge::Call::kAssumed && behind % kAlignment == 0) call = Edge::Call::kUnproven;
        if (frame.outermost() && call == Edge::Call::kUnproven) return;  // nor may what ends the program
        if (behind != next && (w.guessing || !w.function->certain)) return;  // nor, as it seems, one with padding behind it
        frame.AfterCall();
        if (call != Edge::Call::kNone) return Flow(w, block, next, std::move(frame), call);
        break;
      }
      case Op::kSyscall: {
        const x86::Value& number = frame.Of(x86::kRax);
        bool exits = number.kind == x86::Value::Kind::kConstant && (number.offset == kSysExit || number.offset == kSysExitGroup);
        if (exits) return;
        frame.Step(in);
        break;
      }
      default: frame.Step(in);
    }
    at = next;
  }
}

// A call of the next instruction, which takes the return address from the stack.
bool Walker::AsksWhereItIs(uint64_t next, const Instruction& in) const {
  return in.op == Op::kCall && in.displacement == 0 && x86::Decode(Code(next)).op == Op::kPop;
}

void Walker::WalkBlocks(Walk& w) {
  while (!w.queue.empty() && !w.gave_up) {
    uint64_t start = w.queue.front();
    w.queue.pop_front();
    auto it = w.blocks.find(start);
    if (it == w.blocks.end()) continue;
    it->second.queued = false;
    WalkBlock(w, start, it->second);
  }
}

// Which of the blocks are right: marks pure, proof, and bad back along the edges. `part` holds all that their edges lead to, or (guesses)
// what is judged already.
void Walker::Judge(Walk& w, const std::vector<uint64_t>& part) {
  std::deque<uint64_t> work;
  if (!w.guessing && w.function->certain) {
    w.blocks.at(w.start).pure = w.blocks.at(w.start).reached = true;
    work.push_back(w.start);
    while (!work.empty()) {
      Block& b = w.blocks.at(work.front());
      work.pop_front();
      for (const Edge& e : b.edges) {
        Block& to = w.blocks.at(e.to);
        if (e.call == Edge::Call::kTrap) continue;
        bool pure = b.pure && e.call != Edge::Call::kUnproven;
        if (to.reached && (to.pure || !pure)) continue;
        to.reached = true;
        to.pure |= pure;
        work.push_back(e.to);
      }
    }
  }
  struct Back {
    Block* block;
    uint64_t start;
    bool certain;  // not behind a call
  };
  std::map<uint64_t, std::vector<Back>> back;  // who leads there
  std::deque<uint64_t> bad, proof;
  for (uint64_t start : part) {
    Block& b = w.blocks.at(start);
    b.proof = b.leaves;
    for (const Edge& e : b.edges) {
      Block& to = w.blocks.at(e.to);
      uint16_t rule = RuleIndex(to.in);
      bool same = e.rule == rule && rule != kNoRule;
      if (w.guessing && !to.guess) {
        if (Told(to)) (same ? b.proof : b.bad) = true;
        continue;
      }
      back[e.to].push_back({&b, start, e.call == Edge::Call::kNone});
      if (to.pure && !to.bad && same) b.proof = true;
    }
    if (b.bad) bad.push_back(start);
    if (b.proof) proof.push_back(start);
  }
  while (!bad.empty()) {
    uint64_t at = bad.front();
    bad.pop_front();
    for (const Back& from : back[at]) {
      // What comes behind a call may never come: it says nothing against what stands before.
      if (from.block->bad || !from.certain) continue;
      from.block->bad = true;
      bad.push_back(from.start);
    }
  }
  while (!proof.empty()) {
    uint64_t at = proof.front();
    proof.pop_front();
    if (w.blocks.at(at).bad) continue;
    for (const Back& from : back[at]) {
      if (from.block->proof) continue;
      from.block->proof = true;
      proof.push_back(from.start);
    }
  }
}

// Blocks that only a jump through a table leads to: code of the function that was not reached is taken for that, and must prove right.
void Walker::FillGaps(Walk& w) {
  if (!w.switch_frame || w.switches_differ || w.gave_up || RuleIndex(*w.switch_frame) == kNoRule) return;
  const Text* text = TextAt(w.start);
  uint64_t bound = std::min(NextStart(w.start), text->end());
  w.guessing = true;
  w.bound = bound;
  uint64_t cursor = w.start;
  auto it = w.blocks.find(w.start);
  for (size_t tries = 0; cursor < bound && tries < kMaxGaps && budget_ > 0;) {
    while (it != w.blocks.end() && it->first <= cursor) {
      cursor = std::max(cursor, it->second.end);
      ++it;
    }
    uint64_t gap_end = std::min(bound, it == w.blocks.end() ? bound : it->first);
    uint64_t seed = SkipPadding(cursor, gap_end);
    if (seed >= gap_end || w.blocks.count(seed) != 0) {
      cursor = std::max(gap_end, cursor + 1);
      continue;
    }
    ++tries;
    Block b(*w.switch_frame);
    b.queued = b.guess = true;
    w.blocks.emplace(seed, std::move(b));
    w.guesses.assign(1, seed);
    w.queue.assign(1, seed);
    w.limit = w.instructions + kMaxGuessInstructions;
    WalkBlocks(w);
    bool right = false;
    if (!w.gave_up) {
      Judge(w, w.guesses);
      right = Told(w.blocks.at(seed));
    }
    w.gave_up = false;
    w.queue.clear();
    std::erase_if(w.guesses, [&](uint64_t start) {
      if (right && Told(w.blocks.at(start))) return false;
      w.blocks.erase(start);
      return true;
    });
    for (uint64_t start : w.guesses) {
      Block& block = w.blocks.at(start);
      block.guess = false;
      std::erase_if(block.edges, [&](const Edge& e) { return w.blocks.count(e.to) == 0; });
    }
    cursor = right ? w.blocks.at(seed).end : SkipFlow(seed, gap_end);
    it = w.blocks.upper_bound(cursor);
    if (it != w.blocks.begin()) --it;
  }
  w.guessing = false;
}

void Walker::Keep(Walk& w, const Block& block, uint64_t start) {
  std::vector<Piece>& pieces = pieces_[w.start];
  Frame frame = block.in;
  uint64_t at = start;
  while (at < block.end) {
    Instruction in = x86::Decode(Code(at));
    if (in.length == 0) break;
    uint16_t rule = RuleIndex(frame);
    uint32_t size = static_cast<uint32_t>(std::min<uint64_t>(in.length, block.end - at));
    uint64_t taken = in.op == Op::kLea && in.rip_relative ? at + in.length + static_cast<uint64_t>(in.displacement)
                     : in.op == Op::kMoveImmediate && fixed_ ? static_cast<uint64_t>(in.immediate)
                                                          : 0;
    if (!has_symbols_ && taken != 0 && taken % kAlignment == 0 && addresses_.size() < kMaxFunctions && TextAt(taken)) addresses_.insert(taken);
    if (!pieces.empty() && pieces.back().rule == rule && pieces.back().start + pieces.back().size == at) pieces.back().size += size;
    else pieces.push_back({at, size, rule});
    if (AsksWhereItIs(at + in.length, in)) {
      in.op = Op::kPushImmediate;
      in.immediate = INT64_MAX;
      frame.Step(in);
    } else if (in.op == Op::kCall || in.op == Op::kCallIndirect) {
      frame.AfterCall();
    } else {
      frame.Step(in);
    }
    at += in.length;
  }
}

void Walker::WalkFunction(uint64_t start) {
  Function& f = functions_.at(start);
  f.queued = false;
  bool first = !f.walked, returned = f.returns, was_unproven = f.unproven;
  f.unproven = true;
  if (f.walks++ >= kMaxWalks) return;
  Walk w;
  w.start = start;
  w.function = &f;
  w.limit = f.certain ? kMaxFunctionInstructions : kMaxGuessInstructions;
  bool outermost = start == elf_.entry() && BeginsAProgram(Code(start));
  Block b(Frame::AtEntry(outermost));
  b.queued = true;
  w.blocks.emplace(start, std::move(b));
  w.queue.push_back(start);
  WalkBlocks(w);
  pieces_.erase(start);
  looked_at_.erase(start);
  f.walked = true;
  f.wants_proof = false;
  if (w.gave_up) {
    f.returns = true;
    return;
  }
  std::vector<uint64_t> all;
  for (auto& [at, block] : w.blocks) all.push_back(at);
  Judge(w, all);
  bool returns = false;
  for (auto& [at, block] : w.blocks) {
    if (block.leaves && (block.reached || !f.certain)) f.unproven = false;
    if (block.leaves || block.unknown_exit || (block.bad && block.pure)) returns = true;
    if (!Told(block)) f.wants_proof = true;
  }
  if (!f.certain && !Told(w.blocks.at(start))) {
    f.unproven = true;
    return;
  }
  f.certain = true;
  f.returns = returns;
  f.switches = w.switch_frame.has_value();
  if (bounds_known_) FillGaps(w);
  std::set<uint64_t> calls;
  for (auto& [at, block] : w.blocks) {
    if (!Told(block)) {
      if (block.pure) looked_at_[start].push_back({at, block.end});
      continue;
    }
    for (const Edge& e : block.edges) {
      auto to = w.blocks.find(e.to);  // not there: a guess that did not prove right
      if (to != w.blocks.end() && e.call == Edge::Call::kNone && !Told(to->second)) looked_at_[start].push_back({e.to, to->second.end});
    }
    Keep(w, block, at);
    for (uint64_t target : block.calls) calls.insert(target);
  }
  for (uint64_t callee : w.callees) callers_[callee].insert(start);
  for (uint64_t target : calls) AddFunction(target, true);
  // Who calls it hangs on whether it returns.
  if (first || returned != f.returns || was_unproven != f.unproven) {
    auto callers = callers_.find(start);
    if (callers == callers_.end()) return;
    for (uint64_t caller : callers->second) {
      auto it = functions_.find(caller);
      if (it != functions_.end() && it->second.walked && (!f.returns || it->second.wants_proof || returned != f.returns)) Queue(caller);
    }
  }
}

void Walker::WalkQueue() {
  while (!queue_.empty()) {
    if (budget_ == 0) return;
    uint64_t start = queue_.front();
    queue_.pop_front();
    auto it = functions_.find(start);
    if (it == functions_.end()) continue;
    WalkFunction(start);
  }
}

// Linked addresses that have rules, or were reached for certain; in order.
std::vector<CodeRange> Walker::Taken() const {
  std::vector<CodeRange> taken;
  for (auto& [start, pieces] : pieces_) {
    for (const Piece& p : pieces) taken.push_back({p.start, p.start + p.size});
  }
  for (auto& [start, ranges] : looked_at_) taken.insert(taken.end(), ranges.begin(), ranges.end());
  std::sort(taken.begin(), taken.end(), [](const CodeRange& a, const CodeRange& b) { return a.start < b.start; });
  return taken;
}

// Functions whose address is taken, as of thread functions that never return: no walk leads to them, and no end proves them.
void Walker::WalkAddresses() {
  for (bool more = true; more && budget_ > 0;) {
    more = false;
    std::vector<CodeRange> taken = Taken();
    std::set<uint64_t> addresses = std::move(addresses_);
    addresses_.clear();
    for (uint64_t address : addresses) {
      auto it = std::upper_bound(taken.begin(), taken.end(), address, [](uint64_t a, const CodeRange& r) { return a < r.start; });
      bool known = it != taken.begin() && address < std::prev(it)->end;
      if (known || functions_.count(address) != 0 || !MakesFrame(Code(address))) continue;
      AddFunction(address, true);
      more = true;
    }
    WalkQueue();
  }
}

// Code that nothing leads to: functions called through pointers only, in files without symbols.
void Walker::GuessInGaps() {
  std::vector<CodeRange> taken = Taken();
  auto next = taken.begin();
  for (const Text& text : texts_) {
    uint64_t at = text.start;
    while (at < text.end() && budget_ > 0) {
      while (next != taken.end() && next->start <= at) {
        at = std::max(at, next->end);
        ++next;
      }
      uint64_t gap_end = next == taken.end() ? text.end() : std::min(text.end(), next->start);
      uint64_t seed = SkipPadding(at, gap_end);
      if (seed >= gap_end) {
        if (gap_end >= text.end()) break;
        at = gap_end;
        continue;
      }
      if (tried_.insert(seed).second && !functions_.count(seed)) {
        AddFunction(seed, false);
        WalkQueue();
        auto mine = pieces_.find(seed);
        if (mine != pieces_.end()) {
          uint64_t end = seed;
          for (const Piece& p : mine->second) {
            if (p.start <= end) end = std::max<uint64_t>(end, p.start + p.size);
          }
          at = std::max(end, seed + 1);
          continue;
        }
        functions_.erase(seed);
      }
      at = SkipFlow(seed, gap_end);
    }
  }
}

void Walker::Run(std::span<const CodeRange> uncovered) {
  ReadText(uncovered);
  if (texts_.empty()) return;
  ReadImports();
  FindEntry();
  FindPlt();
  CutSpecial();
  FindStarts();
  FindTrampolines();
  WalkQueue();
  GuessInGaps();
  WalkAddresses();
  if (bounds_known_) return;
  bounds_known_ = true;
  for (auto& [start, f] : functions_) {
    if (f.certain && f.switches) Queue(start);
  }
  WalkQueue();
  GuessInGaps();
  WalkAddresses();
}

std::vector<CodeRow> Walker::Take() {
  // Where functions share code they must agree.
  struct Event {
    uint64_t at;
    uint16_t rule;
    int16_t change;
  };
  std::vector<Event> events;
  auto add = [&](const Piece& p) {
    events.push_back({p.start, p.rule, 1});
    events.push_back({p.start + p.size, p.rule, -1});
  };
  for (auto& [start, pieces] : pieces_) {
    ++stats.functions;
    for (const Piece& p : pieces) add(p);
    pieces.clear();
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.at < b.at; });
  std::vector<CodeRow> rows = std::move(special_);
  std::map<uint16_t, int> active;
  auto text = texts_.begin();
  for (size_t i = 0; i < events.size(); ++i) {
    const Event& e = events[i];
    if ((active[e.rule] += e.change) == 0) active.erase(e.rule);
    if (i + 1 == events.size() || active.empty() || events[i + 1].at == e.at) continue;
    uint16_t rule = active.size() == 1 ? active.begin()->first : kNoRule;
    uint64_t start = e.at, end = events[i + 1].at;
    while (text != texts_.end() && text->end() <= start) ++text;
    if (text == texts_.end()) break;
    if (start < text->start) continue;
    end = std::min(end, text->end());
    if (rule != kNoRule) stats.known_bytes += end - start;
    uint64_t offset = text->offset + (start - text->start);
    if (!rows.empty() && rows.back().end == offset && rows.back().rule == rule) rows.back().end += end - start;
    else rows.push_back({offset, offset + (end - start), rule});
  }
  auto by_start = [](const CodeRow& a, const CodeRow& b) { return a.start < b.start; };
  std::stable_sort(rows.begin(), rows.end(), by_start);
  // A trampoline may lie in what was walked: of two rows the later holds, of equal begins the trampoline's.
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].start > rows[i - 1].start) rows[i - 1].end = std::min(rows[i - 1].end, rows[i].start);
    else rows[i].start = std::min(rows[i - 1].end, rows[i].end);
  }
  std::erase_if(rows, [](const CodeRow& row) { return row.start >= row.end; });
  // What was not understood, but for padding, is told too: it is not to be taken for what stands before it.
  std::vector<CodeRow> unknown;
  for (const Text& t : texts_) {
    uint64_t at = t.offset, end = t.offset + t.bytes.size();
    auto add_gap = [&](uint64_t to) {
      uint64_t start = t.start + (at - t.offset), gap_end = t.start + (to - t.offset);
      if (at < to && SkipPadding(start, gap_end) < gap_end) unknown.push_back({at, to, kNoRule});
    };
    auto it = std::lower_bound(rows.begin(), rows.end(), CodeRow{at, 0, 0}, by_start);
    if (it != rows.begin()) at = std::max(at, std::prev(it)->end);  // of the range before: a trampoline's rule begins early
    for (; it != rows.end() && it->start < end; ++it) {
      add_gap(it->start);
      at = it->end;
    }
    add_gap(end);
  }
  rows.insert(rows.end(), unknown.begin(), unknown.end());
  std::sort(rows.begin(), rows.end(), by_start);
  return rows;
}

}  // namespace

std::vector<CodeRow> RulesFromCode(symbols::ElfFile& elf, symbols::ElfFile* debug, std::span<const CodeRange> uncovered, Rules* rules,
                                   const CodeOptions& options, CodeStats* stats) {
  if (elf.machine() == symbols::Machine::kArm64) {
    CodeStats unused;
    return Arm64RulesFromCode(elf, debug, uncovered, rules, options, stats ? stats : &unused);
  }
  Walker walker(elf, debug, rules, options);
  walker.Run(uncovered);
  auto rows = walker.Take();
  walker.stats.out_of_budget = walker.out_of_budget();
  if (stats) *stats = walker.stats;
  return rows;
}

}  // namespace borescope::unwind
