// SPDX-License-Identifier: Apache-2.0
#include "cli/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/text/table.h"
#include "common/base/strings.h"

namespace borescope::cli {
namespace {

enum class LossClass { LOST, TRUNCATED };
struct LossRow {
  const char* text;
  LossClass kind;
};
constexpr LossRow kLossRows[] = {
#define BORESCOPE_LOSS(enumerator, name, text, kind) {text, LossClass::kind},
    BORESCOPE_LOSS_TABLE(BORESCOPE_LOSS)
#undef BORESCOPE_LOSS
};

// Never "100 %" of what is not whole, never "0.00 %" of what is there.
std::string Percent(uint64_t part, uint64_t all) {
  if (part == all) return "100 %";
  double share = 100.0 * static_cast<double>(part) / static_cast<double>(all);
  if (share > 0 && share < 0.01) return "<0.01 %";
  return fmt::format("{} %", share >= 99.99 ? "99.99" : fmt::format("{:.2f}", share));
}

std::string NameOf(const stacks::Cut& cut) {
  if (cut.path == "//anon") return "code made at run time";
  return cut.path.empty() ? "no mapping that is known" : cut.path;
}

// Its table may be known by the path of another copy: of several with the build id, the one at its own path.
const unwind::Tables::FileInfo* FindFile(const stacks::Cut& cut, const std::vector<unwind::Tables::FileInfo>& files) {
  const unwind::Tables::FileInfo* found = nullptr;
  for (const auto& file : files) {
    if (file.build_id != cut.build_id || (cut.build_id.empty() && file.path != cut.path)) continue;
    if (file.path == cut.path) return &file;
    if (!found) found = &file;
  }
  return found;
}

}  // namespace

int64_t LostNs(const engine::JobCounters& kernel, const stacks::JobStats& user) {
  int64_t ns = 0;
  for (int i = LOSS_NONE + 1; i < LOSS_MAX; ++i) {
    if (kLossRows[i].kind == LossClass::LOST) ns += kernel.loss[i].ns + user.loss[i].ns;
  }
  return ns;
}

std::string QualityLines(const engine::JobCounters& kernel, const stacks::JobStats& user) {
  std::string lost;
  std::vector<std::pair<uint64_t, const char*>> cut;
  for (int i = LOSS_NONE + 1; i < LOSS_MAX; ++i) {
    if (kLossRows[i].kind == LossClass::LOST) {
      const int64_t ns = kernel.loss[i].ns + user.loss[i].ns;
      if (ns > 0) lost += fmt::format("{}{} {}", lost.empty() ? "" : ", ", FormatSeconds(static_cast<double>(ns) / 1e9), kLossRows[i].text);
    } else if (user.loss[i].count > 0) {
      cut.emplace_back(user.loss[i].count, kLossRows[i].text);
    }
  }
  std::stable_sort(cut.begin(), cut.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string out = fmt::format("Whole stacks: {} of {}.", Percent(user.collected - user.truncated, user.collected), user.collected);
  for (size_t i = 0; i < cut.size(); ++i) out += fmt::format("{}{} {}", i == 0 ? " Cut: " : ", ", Percent(cut[i].first, user.collected), cut[i].second);
  out += cut.empty() ? "\n" : ".\n";
  return out + "Lost: " + (lost.empty() ? "nothing" : lost) + ".";
}

std::string Mend(const stacks::Cut& cut, const unwind::Tables::FileInfo* file) {
  using State = unwind::Tables::State;
  std::string build_id = cut.build_id.empty() ? "" : " (build id " + cut.build_id + ")";
  bool anonymous = cut.path == "//anon" || cut.path.starts_with('[');
  if (cut.path.starts_with('(')) return "";  // of many files
  switch (cut.reason) {
    case LOSS_TABLES_NOT_READY:
      if (file && file->state == State::kFailed) return "its unwind table could not be made: " + file->problem;
      if (file && file->state == State::kPending) return "its unwind table is still being made: sample longer, or again, it is kept on disk";
      if (file && file->state == State::kReady && !file->problem.empty()) return file->problem;
      if (file && file->state == State::kReady && !file->placed) return "the budget of unwind tables is full: raise --unwind-memory";
      if (file) return "the samples came before its unwind table, which is there now: sample longer, or again";
      return "its file could not be read any more when the samples came";
    case LOSS_NO_UNWIND_INFO:
      if (file && file->state == State::kFailed) return "its unwind table could not be made: " + file->problem;
      if (file && file->state == State::kNothing && !file->problem.empty()) return "code without frame pointers, for which there is no unwind table: " + file->problem;
      if (cut.path == "//anon") return "JIT code without frame pointers: let the runtime keep them (Java: -XX:+PreserveFramePointer)";
      if (cut.path.empty() || anonymous) return "code that no file tells of, without frame pointers";
      return "no unwind information: build with -fasynchronous-unwind-tables, or install its debug file" + build_id;
    case LOSS_UNSUPPORTED_RULE:
      if (file && !file->missing.empty()) {
        auto most = std::max_element(file->missing.begin(), file->missing.end(), [](const auto& a, const auto& b) { return a.rows < b.rows; });
        return fmt::format("unwind rule not supported: {} ({} of {} rows); please report it{}", most->what, most->rows, file->rows, build_id);
      }
      return "unwind rule not supported: please report it" + build_id;
    case LOSS_REGISTER_UNKNOWN:
      return "the rule of a caller needs a register that its callee has overwritten: please report it" + build_id;
    case LOSS_STACK_SWITCH:
      return "the code switches stacks by hand (coroutines, Go's system stack): the caller stands on another one";
    case LOSS_BAD_CFA:
    case LOSS_NOT_CODE:
      return "the unwind information does not fit what was on the stack, or the stack was overwritten: please report it" + build_id;
    case LOSS_URETPROBE:
      return "a return probe of another tool on this machine has taken the return address: stop that tool while you sample";
    case LOSS_STACK_UNREADABLE:
      return "that part of the stack was not in memory: give the program more memory";
    case LOSS_TOO_DEEP:
      return "deep recursion: the innermost frames are kept";
    case LOSS_PROGRAM_32_BIT:
      return "32-bit programs are not unwound: their samples show where they run, not who called it";
    case LOSS_TIME_STOP:
      return "the walk took too long: please report it" + build_id;
    default:
      return "";
  }
}

std::string Explain(const std::vector<stacks::Cut>& cuts, const std::vector<unwind::Tables::FileInfo>& files,
                    const unwind::Tables::Stats& tables, uint64_t collected, size_t width, size_t max_rows) {
  std::string out;
  if (cuts.empty()) {
    out = "Every stack reaches its thread's entry.\n";
  } else {
    out = fmt::format("{:>8}  {:>7}  WHERE STACKS ARE CUT, WHY, AND WHAT WOULD MEND IT\n", "SHARE", "SAMPLES");
  }
  const std::string indent(8 + 2 + 7 + 2, ' ');
  for (size_t i = 0; i < std::min(cuts.size(), max_rows); ++i) {
    const stacks::Cut& cut = cuts[i];
    const unwind::Tables::FileInfo* file = FindFile(cut, files);
    std::string head = fmt::format("{:>8}  {:>7}  ", Percent(cut.samples, collected), cut.samples);
    std::string where = Wrap(NameOf(cut), width, indent);
    out += head + where.substr(indent.size());
    std::string why = kLossRows[cut.reason].text;
    if (!cut.function.empty()) why += ", e.g. in " + cut.function;
    out += Wrap(why, width, indent);
    if (std::string mend = Mend(cut, file); !mend.empty()) out += Wrap(mend, width, indent);
  }
  if (cuts.size() > max_rows) out += fmt::format("{}and {} more\n", indent, cuts.size() - max_rows);
  std::string text = fmt::format("Unwind tables: {} files, {} in the kernel; {} compiled in {} of CPU, {} from disk", tables.files,
                                 FormatBytes(tables.placed_bytes), tables.compiled,
                                 FormatSeconds(static_cast<double>(tables.compile_cpu_ns) / 1e9), tables.from_disk);
  for (auto [count, what] : {std::pair{tables.failed, "could not be made"}, std::pair{tables.not_placed, "had no room"}, std::pair{tables.evictions, "evicted"}}) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  }
  return out + Wrap(text + ".", width, "");
}

std::string ExplainNames(const std::vector<naming::Names::FileInfo>& files, const naming::Names::Stats& names, uint64_t late, size_t width, size_t max_rows) {
  using naming::Outcome;
  std::string counts;
  uint64_t all = 0;
  for (size_t i = 0; i < naming::kOutcomes; ++i) {
    all += names.addresses[i];
    if (names.addresses[i] > 0) counts += fmt::format("; {} {}", names.addresses[i], naming::OutcomeText(static_cast<Outcome>(i)));
  }
  if (late > 0) counts += fmt::format("; {} came too late for this profile: sample longer, or again", late);
  std::string out = Wrap(fmt::format("Names: {} addresses in {} of CPU{}.", all, FormatSeconds(static_cast<double>(names.cpu_ns) / 1e9), counts), width, "");
  // Those without name or line, the most addresses first.
  struct Row {
    uint64_t addresses;
    const naming::Names::FileInfo* file;
    Outcome outcome;
  };
  std::vector<Row> rows;
  for (const auto& file : files) {
    for (size_t i = 0; i < naming::kOutcomes; ++i) {
      const auto outcome = static_cast<Outcome>(i);
      if (file.addresses[i] > 0 && outcome != Outcome::kLine && outcome != Outcome::kSymbol) rows.push_back({file.addresses[i], &file, outcome});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.addresses != b.addresses ? a.addresses > b.addresses : a.file->path < b.file->path; });
  for (size_t i = 0; i < std::min(rows.size(), max_rows); ++i) {
    const Row& row = rows[i];
    std::string text = fmt::format("{}: {} of its addresses: {}", row.file->path, row.addresses, naming::OutcomeText(row.outcome));
    if (row.outcome == Outcome::kStripped || row.outcome == Outcome::kGap) {
      text += ": install its debug file" + (row.file->build_id.empty() ? "" : " (build id " + row.file->build_id + ")");
    } else if (!row.file->problem.empty()) {
      text += ": " + row.file->problem;
    }
    out += Wrap(text, width, "  ");
  }
  if (rows.size() > max_rows) out += fmt::format("  and {} more\n", rows.size() - max_rows);
  return out;
}

}  // namespace borescope::cli
