// SPDX-License-Identifier: Apache-2.0
// table_compare [--truth FILE] FILE...: our unwind table of each ELF file against what readelf says of it, by look-up at each row's first and last program
// counter. One line a file: "file TAB name TAB rows TAB compared TAB differing TAB unsupported TAB overlapped TAB outside TAB table-bytes TAB
// table-rows TAB compile-us", after it "missing TAB text TAB rows" and at most kShown lines "differs TAB text"; "skip TAB name TAB reason" for what is no program
// of x86-64 or aarch64.
//
// Overlapping FDEs: readelf lists all. The table answers by the one that begins last, of equal begins by the first in the section, and
// .eh_frame comes before .debug_frame; the others' rows count as overlapped there. Rows outside the executable segments count as outside.
//
// Programs of Go: our rows come from .gopclntab; their .debug_frame, where it is, tells CFA and return address, nothing of the frame pointer nor of which
// functions are outermost ones, signal trampolines or move to another stack: there those answers are taken as they are.
#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/unwind/compile.h"

using namespace borescope;

namespace {

constexpr int kShown = 5;
constexpr const char* kRegisters[] = {"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"};
constexpr int kRbp = 6, kRsp = 7, kLinkRegister = 30;

bool arm64 = false;  // the file at hand holds code of aarch64

int RegisterNumber(std::string_view name) {
  if (arm64) {
    int number = -1;
    if (name == "sp") return 31;
    if (name.starts_with('x')) std::from_chars(name.data() + 1, name.data() + name.size(), number);
    return number;
  }
  for (int i = 0; i < 16; ++i) {
    if (name == kRegisters[i]) return i;
  }
  return -1;
}

// One column of readelf's: "rsp+8", "c-16", "u", "s", "exp", "vexp", "v+8", "r12"; "" when it is not shown.
struct Column {
  enum class Kind : uint8_t { kAbsent, kUndefined, kSame, kCfa, kRegister, kExpression, kOther } kind = Kind::kAbsent;
  int8_t reg = -1;
  int64_t offset = 0;
};

Column ParseColumn(std::string_view text) {
  Column column;
  if (text == "u") {
    column.kind = Column::Kind::kUndefined;
  } else if (text == "s") {
    column.kind = Column::Kind::kSame;
  } else if (text == "exp") {
    column.kind = Column::Kind::kExpression;
  } else if (size_t at = text.find_first_of("+-"); at != std::string_view::npos && text[0] != 'v') {
    column.kind = Column::Kind::kCfa;
    if (text.substr(0, at) != "c") {
      column.kind = Column::Kind::kRegister;
      column.reg = static_cast<int8_t>(RegisterNumber(text.substr(0, at)));
    }
    std::from_chars(text.data() + at + (text[at] == '+'), text.data() + text.size(), column.offset);
  } else if (text.size() > 1 && text[0] == 'r' && text.find_first_not_of("0123456789", 1) == std::string_view::npos) {
    column.kind = Column::Kind::kRegister;  // "r5 (rdi)": its DWARF number
    std::from_chars(text.data() + 1, text.data() + text.size(), column.reg);
  } else {
    column.kind = Column::Kind::kOther;
  }
  return column;
}

struct TruthRow {
  uint64_t pc;
  Column cfa, fp, sp, ra;
};

// What one expression of readelf's text computes.
struct Expression {
  int reg = -1;
  bool deref = false;
  int64_t offset = 0, add = 0;
  bool operator<(const Expression& o) const {
    return std::tie(reg, deref, offset, add) < std::tie(o.reg, o.deref, o.offset, o.add);
  }
};

// "DW_OP_breg7 (rsp): 8; DW_OP_deref; DW_OP_plus_uconst: 8". Nothing: another form.
std::optional<Expression> ParseExpression(std::string_view text) {
  Expression e;
  int64_t constant = 0;
  bool pending = false;
  while (!text.empty()) {
    size_t end = std::min(text.find("; "), text.size());
    std::string_view op = text.substr(0, end);
    text.remove_prefix(std::min(end + 2, text.size()));
    size_t colon = op.find(": ");
    int64_t operand = 0;
    if (colon != std::string_view::npos) std::from_chars(op.data() + colon + 2, op.data() + op.size(), operand);
    if (op.starts_with("DW_OP_breg") && e.reg < 0) {
      e.reg = RegisterNumber(op.substr(op.find('(') + 1, op.find(')') - op.find('(') - 1));
      if (e.reg < 0) return std::nullopt;
      e.offset = operand;
    } else if (op == "DW_OP_deref" && e.reg >= 0 && !e.deref && !pending) {
      e.deref = true;
    } else if (op.starts_with("DW_OP_plus_uconst") && e.reg >= 0 && !pending) {
      (e.deref ? e.add : e.offset) += operand;
    } else if ((op.starts_with("DW_OP_lit") || op.starts_with("DW_OP_const")) && e.reg >= 0 && !pending) {
      if (op.starts_with("DW_OP_lit")) std::from_chars(op.data() + 9, op.data() + op.size(), operand);
      constant = operand;
      pending = true;
    } else if ((op == "DW_OP_plus" || op == "DW_OP_minus") && pending) {
      (e.deref ? e.add : e.offset) += op == "DW_OP_plus" ? constant : -constant;
      pending = false;
    } else {
      return std::nullopt;
    }
  }
  if (e.reg < 0 || pending) return std::nullopt;
  return e;
}

// The expressions of one FDE with those of its CIE, in readelf's words.
struct Expressions {
  std::set<std::string> cfa, fp, ra;
  bool end = false;  // aarch64: the return address is said to be undefined; in the columns that looks like what is not told
};

struct Fde {
  uint64_t start, end;
  uint32_t first_row, rows;  // 0 rows: the CIE's
  uint64_t offset, cie;
  bool debug_frame;
  uint32_t order;
};

struct Truth {
  std::vector<Fde> fdes;
  std::vector<TruthRow> rows;
  struct Cie {
    TruthRow row{};
    bool signal = false;
  };
  std::map<std::pair<bool, uint64_t>, Cie> cies;
  std::map<std::pair<bool, uint64_t>, Expressions> expressions;  // of CIEs and FDEs
};

template <typename OnLine>
bool Readelf(const std::string& file, const char* what, OnLine on_line) {
  std::string quoted;
  for (char c : file) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE* pipe = popen(("LC_ALL=C readelf -wN " + std::string(what) + " -- '" + quoted + "' 2>/dev/null").c_str(), "r");
  if (!pipe) return false;
  char* line = nullptr;
  size_t capacity = 0;
  for (ssize_t n; (n = getline(&line, &capacity, pipe)) > 0;) on_line(std::string_view(line, static_cast<size_t>(n - (line[n - 1] == '\n'))));
  free(line);
  return pclose(pipe) != -1;
}

uint64_t Hex(std::string_view text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = line.find_first_not_of(' ', at)) != std::string_view::npos;) {
    size_t end = std::min(line.find(' ', at), line.size());
    if (line[at] != '(') words.push_back(line.substr(at, end - at));  // the name of a register after its number
    at = end;
  }
  return words;
}

bool IsHeader(std::string_view line, bool* cie) {
  if (line.size() < 30 || line[8] != ' ') return false;
  bool fde = line.find(" FDE cie=") != std::string_view::npos;
  *cie = !fde && line.find(" CIE") != std::string_view::npos;
  return fde || *cie;
}

Truth ReadTruth(const std::string& file) {
  Truth truth;
  bool debug_frame = false, any_expression = false, in_cie = false;
  int fp_column = -1, sp_column = -1, ra_column = -1;
  Truth::Cie* cie = nullptr;
  Readelf(file, "--debug-dump=frames-interp", [&](std::string_view line) {
    bool is_cie;
    if (line.starts_with("Contents of the ")) {
      debug_frame = line.find("debug_frame") != std::string_view::npos;
    } else if (IsHeader(line, &is_cie)) {
      auto words = Words(line);
      in_cie = is_cie;
      if (is_cie) {
        cie = &truth.cies[{debug_frame, Hex(words[0])}];
        cie->signal = words[4].find('S') != std::string_view::npos;
      } else {
        Fde fde = {0, 0, static_cast<uint32_t>(truth.rows.size()), 0, Hex(words[0]), 0, debug_frame, static_cast<uint32_t>(truth.fdes.size())};
        for (auto word : words) {
          if (word.starts_with("cie=")) fde.cie = Hex(word.substr(4));
          if (word.starts_with("pc=")) {
            fde.start = Hex(word.substr(3));
            fde.end = Hex(word.substr(word.find("..") + 2));
          }
        }
        truth.fdes.push_back(fde);
      }
    } else if (line.starts_with("   LOC")) {
      auto words = Words(line);
      fp_column = sp_column = ra_column = -1;
      for (size_t i = 0; i < words.size(); ++i) {
        if (words[i] == (arm64 ? "x29" : "rbp")) fp_column = static_cast<int>(i);
        if (words[i] == (arm64 ? "sp" : "rsp")) sp_column = static_cast<int>(i);
        if (words[i] == "ra") ra_column = static_cast<int>(i);
      }
    } else if (line.size() > 17 && line[16] == ' ' && line.find_first_not_of("0123456789abcdef") == 16) {
      auto words = Words(line);
      auto column = [&](int number) {
        return number >= 0 && number < static_cast<int>(words.size()) ? ParseColumn(words[static_cast<size_t>(number)]) : Column{};
      };
      TruthRow row{Hex(words[0]), ParseColumn(words[1]), column(fp_column), column(sp_column), column(ra_column)};
      for (const Column* c : {&row.cfa, &row.fp, &row.ra}) any_expression |= c->kind == Column::Kind::kExpression;
      if (in_cie) {
        if (cie) cie->row = row;
      } else if (!truth.fdes.empty()) {
        truth.rows.push_back(row);
        ++truth.fdes.back().rows;
      }
    }
  });
  if (!any_expression && !arm64) return truth;
  Expressions* into = nullptr;
  debug_frame = false;
  Readelf(file, "--debug-dump=frames", [&](std::string_view line) {
    bool is_cie;
    if (line.starts_with("Contents of the ")) {
      debug_frame = line.find("debug_frame") != std::string_view::npos;
    } else if (IsHeader(line, &is_cie)) {
      into = &truth.expressions[{debug_frame, Hex(line.substr(0, 8))}];
    } else if (into && line.find("DW_CFA_def_cfa_expression (") != std::string_view::npos) {
      size_t at = line.find('(');
      into->cfa.emplace(line.substr(at + 1, line.rfind(')') - at - 1));
    } else if (into && line.find("DW_CFA_undefined: r30") != std::string_view::npos) {
      into->end = arm64;
    } else if (into && line.find("DW_CFA_expression: r") != std::string_view::npos) {
      size_t name = line.find('('), at = line.find('(', name + 1);
      std::string_view reg = line.substr(name + 1, line.find(')') - name - 1);
      std::string text(line.substr(at + 1, line.rfind(')') - at - 1));
      if (reg == (arm64 ? "x29" : "rbp")) into->fp.insert(std::move(text));
      else if (reg == (arm64 ? "x30" : "rip")) into->ra.insert(std::move(text));
    }
  });
  return truth;
}

struct Segment {
  uint64_t vaddr, offset, size;
};

// Executable segments, read here and not by our own parser. Nothing: no program of x86-64 or aarch64.
std::optional<std::vector<Segment>> ReadSegments(int fd, std::string* reason) {
  Elf64_Ehdr header;
  if (pread(fd, &header, sizeof(header), 0) != sizeof(header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    *reason = "no ELF file";
    return std::nullopt;
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || (header.e_machine != EM_X86_64 && header.e_machine != EM_AARCH64)) {
    *reason = "of another machine";
    return std::nullopt;
  }
  arm64 = header.e_machine == EM_AARCH64;
  if (header.e_type != ET_EXEC && header.e_type != ET_DYN) {
    *reason = "not linked";
    return std::nullopt;
  }
  std::vector<Segment> segments;
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr p;
    if (pread(fd, &p, sizeof(p), static_cast<off_t>(header.e_phoff + static_cast<uint64_t>(i) * sizeof(p))) != sizeof(p)) break;
    if (p.p_type == PT_LOAD && (p.p_flags & PF_X)) segments.push_back({p.p_vaddr, p.p_offset, p.p_filesz});
  }
  return segments;
}

class Compare {
 public:
  Compare(const unwind::CompiledTable& table, Truth truth, std::vector<Segment> segments, bool go)
      : table_(table), truth_(std::move(truth)), segments_(std::move(segments)), go_(go) {
    by_start_ = truth_.fdes;
    std::sort(by_start_.begin(), by_start_.end(), [](const Fde& a, const Fde& b) {
      if (a.start != b.start) return a.start < b.start;
      return a.order > b.order;
    });
    uint64_t reach[2] = {0, 0};
    for (const Fde& fde : by_start_) {
      for (int section : {0, 1}) {
        if (fde.debug_frame == static_cast<bool>(section)) reach[section] = std::max(reach[section], fde.end);
        reach_[section].push_back(reach[section]);
      }
    }
  }

  void Run() {
    for (const Fde& fde : truth_.fdes) {
      if (fde.start >= fde.end) continue;
      if (fde.rows == 0) {
        auto cie = truth_.cies.find({fde.debug_frame, fde.cie});
        if (cie == truth_.cies.end()) continue;
        TruthRow row = cie->second.row;
        row.pc = fde.start;
        CheckRow(fde, row, fde.end);
        continue;
      }
      for (uint32_t i = 0; i < fde.rows; ++i) {
        const TruthRow& row = truth_.rows[fde.first_row + i];
        uint64_t next = i + 1 < fde.rows ? truth_.rows[fde.first_row + i + 1].pc : fde.end;
        next = std::min(next, fde.end);
        if (row.pc < next) CheckRow(fde, row, next);
      }
    }
  }

  uint64_t rows = 0, compared = 0, differing = 0, unsupported = 0, overlapped = 0, outside = 0;
  std::vector<std::string> shown;

 private:
  // The FDE of a section that answers for a program counter.
  const Fde* Winner(uint64_t pc, bool debug_frame) const {
    auto above = std::upper_bound(by_start_.begin(), by_start_.end(), pc, [](uint64_t p, const Fde& f) { return p < f.start; });
    for (auto it = above; it != by_start_.begin();) {
      --it;
      if (it->debug_frame == debug_frame && pc < it->end && it->start < it->end) return &*it;
      if (reach_[debug_frame][static_cast<size_t>(it - by_start_.begin())] <= pc) return nullptr;
    }
    return nullptr;
  }
  const Fde* Winner(uint64_t pc) const {
    const Fde* fde = Winner(pc, false);
    return fde ? fde : Winner(pc, true);
  }

  std::optional<uint64_t> OffsetOf(uint64_t pc) const {
    for (const Segment& s : segments_) {
      if (pc >= s.vaddr && pc - s.vaddr < s.size) return s.offset + (pc - s.vaddr);
    }
    return std::nullopt;
  }

  void CheckRow(const Fde& fde, const TruthRow& row, uint64_t next) {
    ++rows;
    bool hidden = false, differs = false, no_rule = false, out = false;
    for (uint64_t pc : {row.pc, next - 1}) {
      auto offset = OffsetOf(pc);
      if (!offset) {
        out = true;
        continue;
      }
      const Fde* winner = Winner(pc);
      if (winner && winner->order != fde.order) {
        hidden = true;
        continue;
      }
      ++compared;
      bool misses = false;
      std::string problem = Check(fde, row, table_.Find(*offset), &misses);
      no_rule |= misses;
      if (problem.empty()) continue;
      differs = true;
      if (shown.size() < kShown) {
        char text[64];
        std::snprintf(text, sizeof(text), "pc %llx (FDE %llx): ", static_cast<unsigned long long>(pc), static_cast<unsigned long long>(fde.offset));
        shown.push_back(text + problem);
      }
    }
    overlapped += hidden;
    outside += out;
    differing += differs;
    unsupported += no_rule && !differs;
  }

  // Whether one of the FDE's expressions computes what the rule says.
  bool Has(const Fde& fde, std::set<std::string> Expressions::* which, const Expression& wanted) const {
    for (uint64_t at : {fde.offset, fde.cie}) {
      auto found = truth_.expressions.find({fde.debug_frame, at});
      if (found == truth_.expressions.end()) continue;
      for (const std::string& text : found->second.*which) {
        auto e = ParseExpression(text);
        if (e && !(*e < wanted) && !(wanted < *e)) return true;
      }
    }
    return false;
  }
  bool SaysEnd(const Fde& fde) const {
    auto found = truth_.expressions.find({fde.debug_frame, fde.offset});
    return found != truth_.expressions.end() && found->second.end;
  }
  bool HasPlt(const Fde& fde, const unwind_rule& rule) const {
    std::string text = "DW_OP_breg7 (rsp): " + std::to_string(rule.cfa_offset) + "; DW_OP_breg16 (rip): 0; DW_OP_lit15; DW_OP_and; DW_OP_lit" +
                       std::to_string(rule.cfa_add) + "; DW_OP_ge; DW_OP_lit3; DW_OP_shl; DW_OP_plus";
    auto found = truth_.expressions.find({fde.debug_frame, fde.offset});
    return found != truth_.expressions.end() && found->second.cfa.count(text) > 0;
  }

  // "" or what differs. *misses: the rule says that it cannot tell, and that is so.
  std::string Check(const Fde& fde, const TruthRow& row, const unwind_rule& rule, bool* misses) const {
    using Kind = Column::Kind;
    auto told = [&](const char* what) {
      char text[256];
      std::snprintf(text, sizeof(text), "%s: rule kind %d cfa r%d%+d deref %d add %d fp %d %+d ra %d %+d, readelf cfa %d r%d%+lld fp %d %+lld ra %d %+lld",
                    what, rule.kind, rule.cfa_reg, rule.cfa_offset, rule.cfa_deref, rule.cfa_add, rule.fp, rule.fp_offset, rule.ra, rule.ra_offset,
                    static_cast<int>(row.cfa.kind), row.cfa.reg, static_cast<long long>(row.cfa.offset), static_cast<int>(row.fp.kind),
                    static_cast<long long>(row.fp.offset), static_cast<int>(row.ra.kind), static_cast<long long>(row.ra.offset));
      return std::string(text);
    };
    auto fits = [](int64_t value) { return value == static_cast<int16_t>(value); };
    bool plain_cfa = row.cfa.kind == Kind::kRegister && row.cfa.reg >= 0 && row.cfa.offset == static_cast<int32_t>(row.cfa.offset);
    const int64_t far = arm64 && !rule.cfa_deref ? 8 * rule.cfa_add : 0;  // of what is saved, from the CFA
    bool plain_ra = row.ra.kind == Kind::kCfa && fits(row.ra.offset - far);
    bool of_go = go_ && fde.debug_frame;
    if (of_go && (rule.kind == UNWIND_RULE_END || rule.kind == UNWIND_RULE_SIGNAL || rule.kind == UNWIND_RULE_SWITCH)) return "";
    // Rules hold the CFA for the caller's stack pointer.
    // Of aarch64 Go says "sp is the CFA" in so many words.
    bool plain_sp = (of_go && arm64) || row.sp.kind == Kind::kAbsent || row.sp.kind == Kind::kSame || row.sp.kind == Kind::kUndefined;
    if (!plain_sp && rule.kind != UNWIND_RULE_UNSUPPORTED && rule.kind != UNWIND_RULE_SIGNAL) return told("stack pointer");
    switch (rule.kind) {
      case UNWIND_RULE_UNSUPPORTED:
        if (plain_cfa && plain_ra && plain_sp) return told("unsupported, but plain");
        *misses = true;
        return "";
      case UNWIND_RULE_END: return row.ra.kind == Kind::kUndefined && (!arm64 || SaysEnd(fde)) ? "" : told("not an end");
      case UNWIND_RULE_SIGNAL: {
        auto cie = truth_.cies.find({fde.debug_frame, fde.cie});
        bool kernels = cie != truth_.cies.end() && cie->second.signal && Has(fde, &Expressions::cfa, {kRsp, true, 160, 0}) &&
                       Has(fde, &Expressions::ra, {kRsp, false, 168, 0}) && Has(fde, &Expressions::fp, {kRsp, false, 120, 0});
        return kernels && row.cfa.kind == Kind::kExpression ? "" : told("not the kernel's signal frame");
      }
      case UNWIND_RULE_PLT:
        if (row.cfa.kind != Kind::kExpression || !HasPlt(fde, rule)) return told("CFA");
        break;
      case UNWIND_RULE_FRAME:
        if (row.cfa.kind == Kind::kExpression) {
          if (!Has(fde, &Expressions::cfa, {rule.cfa_reg, rule.cfa_deref != 0, rule.cfa_offset, rule.cfa_add})) return told("CFA");
        } else if (!plain_cfa || rule.cfa_deref || rule.cfa_reg != row.cfa.reg || rule.cfa_offset != row.cfa.offset) {
          return told("CFA");
        }
        break;
      default: return told("no rule");
    }
    if (rule.ra == UNWIND_RA_IN_REG) {
      bool untold = arm64 && rule.ra_offset == kLinkRegister && !plain_ra && row.ra.kind != Kind::kRegister && row.ra.kind != Kind::kExpression;
      if (!untold && (row.ra.kind != Kind::kRegister || row.ra.reg != rule.ra_offset)) return told("return address");
    } else if (row.ra.kind == Kind::kExpression) {
      if (!Has(fde, &Expressions::ra, {rule.cfa_reg, false, rule.cfa_offset + rule.ra_offset, 0})) return told("return address");
    } else if (!plain_ra || rule.ra_offset + far != row.ra.offset) {
      return told("return address");
    }
    if (of_go) return "";
    switch (rule.fp) {
      case UNWIND_FP_SAME:
        // readelf shows u too for what is not yet told of a register that a later row tells
        if (row.fp.kind != Kind::kAbsent && row.fp.kind != Kind::kSame && row.fp.kind != Kind::kUndefined) return told("frame pointer");
        break;
      case UNWIND_FP_AT_CFA:
        if (row.fp.kind == Kind::kExpression) {
          if (!Has(fde, &Expressions::fp, {rule.cfa_reg, false, rule.cfa_offset + rule.fp_offset, 0})) return told("frame pointer");
        } else if (row.fp.kind != Kind::kCfa || row.fp.offset != rule.fp_offset + far) {
          return told("frame pointer");
        }
        break;
      case UNWIND_FP_AT_FP:
        if (row.fp.kind != Kind::kExpression || !Has(fde, &Expressions::fp, {arm64 ? 29 : kRbp, false, rule.fp_offset, 0})) return told("frame pointer");
        break;
      case UNWIND_FP_UNKNOWN:
        if (row.fp.kind == Kind::kUndefined) break;
        if (row.fp.kind == Kind::kAbsent || row.fp.kind == Kind::kSame || (row.fp.kind == Kind::kCfa && fits(row.fp.offset))) {
          return told("frame pointer");
        }
        *misses = true;
        break;
    }
    return "";
  }

  const unwind::CompiledTable& table_;
  Truth truth_;
  std::vector<Segment> segments_;
  bool go_;
  std::vector<Fde> by_start_;
  std::vector<uint64_t> reach_[2];  // the farthest end so far, in the order of by_start_; [1]: of .debug_frame
};

int64_t CpuMicroseconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000 + t.tv_nsec / 1000;
}

void CompareFile(const std::string& file, const std::string& truth) {
  auto skip = [&](const std::string& reason) { std::printf("skip\t%s\t%s\n", file.c_str(), reason.c_str()); };
  UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return skip("cannot be opened");
  std::string reason;
  auto segments = ReadSegments(fd.get(), &reason);
  if (!segments) return skip(reason);
  auto source = symbols::OpenSource(std::move(fd));
  if (!source.ok()) return skip(source.error().ToString());
  auto elf = symbols::ElfFile::Parse(*std::move(source));
  int64_t before = CpuMicroseconds();
  // a file that is not understood has an empty table: what readelf finds in it differs
  unwind::CompiledTable table;
  std::string problem;
  if (elf.ok()) {
    auto compiled = unwind::Compile(**elf, nullptr);
    if (compiled.ok()) {
      table = *std::move(compiled);
    } else if (compiled.error().code != ErrorCode::kNotFound) {
      problem = compiled.error().ToString();
    }
  } else {
    problem = elf.error().ToString();
  }
  int64_t took = CpuMicroseconds() - before;
  if (table.rules.empty()) table.rules.resize(1);
  Compare compare(table, ReadTruth(truth.empty() ? file : truth), *std::move(segments),
                  elf.ok() && (*elf)->language() == symbols::Language::kGo);
  compare.Run();
  auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf("file\t%s\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%lld\n", file.c_str(), number(compare.rows), number(compare.compared),
              number(compare.differing), number(compare.unsupported), number(compare.overlapped), number(compare.outside),
              number(table.rows.size() * 4 + table.rules.size() * sizeof(unwind_rule) + table.page_count() * sizeof(unwind_page) + sizeof(unwind_table)),
              number(table.rows.size()), static_cast<long long>(took));
  for (const auto& missing : table.missing) std::printf("missing\t%s\t%llu\n", missing.what.c_str(), number(missing.rows));
  if (!problem.empty()) std::printf("differs\t%s\n", problem.c_str());
  for (const std::string& text : compare.shown) std::printf("differs\t%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bool other = argc > 2 && std::string_view(argv[1]) == "--truth";
  for (int i = other ? 3 : 1; i < argc; ++i) CompareFile(argv[i], other ? argv[2] : "");
  return 0;
}
