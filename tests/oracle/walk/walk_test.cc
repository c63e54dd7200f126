// SPDX-License-Identifier: Apache-2.0
// The programs' unwinder against the running kernel: needs root and BPF. Truth: a workload that says by its source who calls whom, and nm.
#include <elf.h>
#include <gtest/gtest.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include "bpf/abi/record.h"
#include "sampler/symbols/files.h"
#include "sampler/unwind/tables.h"
#include "tests/oracle/support.h"

namespace borescope::oracle {
namespace {

using Names = std::vector<std::string>;

// The functions of the workload, by `nm`; the process is a PIE.
class Symbols {
 public:
  Symbols() {
    FILE* nm = popen("nm -S " WALK_WORKLOAD, "r");
    char line[512];
    while (nm != nullptr && fgets(line, sizeof(line), nm) != nullptr) {
      std::istringstream in(line);
      uint64_t address = 0, size = 0;
      std::string type, name;
      if (in >> std::hex >> address >> size >> type >> name && (type == "T" || type == "t")) functions_[address] = {size, name};
    }
    if (nm != nullptr) pclose(nm);
  }
  // Where the executable lies in pid, 0: nowhere.
  static std::pair<uint64_t, uint64_t> Range(pid_t pid) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    std::pair<uint64_t, uint64_t> range;
    for (std::string text; std::getline(maps, text);) {
      if (text.find("walk_workload") == std::string::npos) continue;
      uint64_t start = 0, end = 0;
      sscanf(text.c_str(), "%lx-%lx", &start, &end);
      if (range.first == 0) range.first = start;
      range.second = end;
    }
    return range;
  }
  std::string Name(uint64_t linked) const {
    auto it = functions_.upper_bound(linked);
    if (it == functions_.begin()) return "?";
    --it;
    return linked < it->first + it->second.first ? it->second.second : "?";
  }

 private:
  std::map<uint64_t, std::pair<uint64_t, std::string>> functions_;
};

// A started workload.
class Workload {
 public:
  explicit Workload(const std::string& mode, const std::string& n = "0")
      : child_([=] { execl(WALK_WORKLOAD, WALK_WORKLOAD, mode.c_str(), n.c_str(), nullptr); }) {
    child_.Go();
    for (int i = 0; i < 1000 && (range_ = Symbols::Range(child_.pid())).first == 0; ++i) SleepMs(5);
    SleepMs(50);
  }
  pid_t pid() const { return child_.pid(); }
  // Names of the frames, leaf first: of the workload's functions by nm, "*" for each run of frames elsewhere, "!" before one that was interrupted.
  Names Of(const std::vector<uint64_t>& pcs) const {
    static const Symbols symbols;
    Names names;
    for (size_t i = 0; i < pcs.size(); ++i) {
      bool interrupted = i == 0 || (pcs[i] & USER_FRAME_INTERRUPTED);
      uint64_t pc = (pcs[i] & ~USER_FRAME_INTERRUPTED) - (interrupted ? 0 : 1);
      bool ours = pc >= range_.first && pc < range_.second;
      if (i != 0 && interrupted) names.push_back("!");
      if (ours) {
        names.push_back(symbols.Name(pc - range_.first));
      } else if (names.empty() || names.back() != "*") {
        names.push_back("*");
      }
    }
    return names;
  }

 private:
  Child child_;
  std::pair<uint64_t, uint64_t> range_;
};

struct Raw {
  unwind_regs regs;
  uint64_t start;
  std::vector<std::byte> stack;
};

// Keeps samples with what Recorder leaves out, and feeds the tables that are missing.
class Feeder : public Recorder {
 public:
  struct Extra {
    std::optional<engine::MissingFile> missing;
    std::optional<Raw> raw;
  };
  Feeder(engine::Engine& e, bool feed) : files_("/proc", 256) {
    if (!feed) return;
    auto tables = unwind::Tables::Create({.memory = &e.table_memory(), .compiler = WALK_COMPILER});
    if (!tables.ok()) ADD_FAILURE() << tables.error().ToString();
    if (tables.ok()) tables_ = std::move(*tables);
  }
  void OnSample(const engine::Sample& s) override {
    Recorder::OnSample(s);
    Extra x;
    if (s.missing != nullptr) x.missing = *s.missing;
    if (s.raw != nullptr) x.raw = Raw{s.raw->regs, s.raw->start, {s.raw->stack.begin(), s.raw->stack.end()}};
    extras.push_back(std::move(x));
    if (s.missing == nullptr || tables_ == nullptr) return;
    const unwind_file_key& key = s.missing->key;
    symbols::FileId id{key.device >> 20, key.device & 0xfffff, key.inode};
    auto file = key.inode == UNWIND_VDSO_INODE && key.device == 0
                    ? files_.Vdso()
                    : files_.Get({.pid = s.tgid, .relatives = {}, .start = s.missing->start, .end = s.missing->end, .id = id, .path = PathOf(id.inode), .build_id = {}});
    tables_->Want(key, file);
  }
  void Poll() {
    if (tables_) tables_->Poll();
  }
  void Clear() {
    samples.clear();
    extras.clear();
  }
  std::vector<Extra> extras;

 private:
  // A plugin is unmapped again before it can be opened by its mapping.
  static std::string_view PathOf(uint64_t inode) {
    for (const char* path : {WALK_PLUGINS "/walk_plugin_small.so", WALK_PLUGINS "/walk_plugin_large.so"}) {
      struct stat file {};
      if (stat(path, &file) == 0 && file.st_ino == inode) return path;
    }
    return {};
  }

  symbols::FileCache files_;
  std::unique_ptr<unwind::Tables> tables_;
};

struct Session {
  std::unique_ptr<engine::Engine> e;
  engine::JobId job = -1;
  std::unique_ptr<Feeder> feeder;

  explicit Session(pid_t pid, int hz, bool feed = true, engine::Options options = {}) {
    e = OpenEngine(options);
    if (!e) return;
    feeder = std::make_unique<Feeder>(*e, feed);
    auto id = e->AddJob(JobFor(hz, 120'000));
    EXPECT_TRUE(id.ok());
    if (!id.ok()) return;
    job = *id;
    EXPECT_TRUE(e->AddProcess(job, pid).ok());
  }
  ~Session() { feeder.reset(); }
  void DrainUntilEnough(const std::function<bool()>& enough) {
    for (int64_t end = MonoNs() + 30'000'000'000; MonoNs() < end && !enough();) {
      SleepMs(20);
      ASSERT_TRUE(e->Drain(*feeder).ok());
      feeder->Poll();
    }
  }
  // From when no table is missing any more, so many samples.
  void Collect(size_t samples) {
    auto ready = [&] {
      size_t n = feeder->extras.size();
      return n >= 60 && std::all_of(feeder->extras.end() - 60, feeder->extras.end(), [](const auto& x) { return !x.missing; });
    };
    DrainUntilEnough(ready);
    ASSERT_TRUE(ready()) << "tables are still missing after 30 s";
    feeder->Clear();
    DrainUntilEnough([&] { return feeder->samples.size() >= samples; });
    ASSERT_GE(feeder->samples.size(), samples);
  }
};

std::string Text(const Names& names) {
  std::string text;
  for (const auto& n : names) text += (text.empty() ? "" : " ") + n;
  return text;
}

// Every sample of `mode` ends for `end` and its frames are one of `expected`; what else was seen is printed.
void ExpectStacks(const std::string& mode, const std::function<bool(const Names&)>& expected, borescope_loss end = LOSS_NONE, size_t samples = 1000) {
  Workload w(mode);
  Session s(w.pid(), 499);
  ASSERT_GE(s.job, 0);
  s.Collect(samples);
  std::map<std::string, int> others;
  for (const auto& sample : s.feeder->samples) {
    Names names = w.Of(sample.user);
    if (sample.end_reason != end || !expected(names)) others[Text(names) + " [" + std::to_string(sample.end_reason) + "]"]++;
  }
  size_t wrong = 0;
  for (const auto& [text, count] : others) {
    std::cerr << mode << ": " << count << " x " << text << "\n";
    wrong += static_cast<size_t>(count);
  }
  std::cerr << mode << ": " << s.feeder->samples.size() << " samples, " << wrong << " other than expected\n";
  EXPECT_LE(static_cast<double>(wrong), 0.002 * static_cast<double>(s.feeder->samples.size()));
}

// Is `names` the tail of the stack as main was called, or such a tail that starts deeper?
bool IsTailOf(const Names& names, const Names& whole) {
  return names.size() <= whole.size() && names.size() >= 3 && std::equal(names.rbegin(), names.rend(), whole.rbegin());
}

const Names kLevels = {"level4", "level3", "level2", "level1", "main", "*", "_start"};

Names With(Names leaf, const Names& rest) {
  leaf.insert(leaf.end(), rest.begin(), rest.end());
  return leaf;
}

TEST(WalkTest, WithoutFramePointers) {
  ExpectStacks("spin", [](const Names& n) { return IsTailOf(n, With({"leaf_spin"}, kLevels)); });
}

TEST(WalkTest, InterruptedInTheKernel) {
  ExpectStacks("read", [](const Names& n) { return IsTailOf(n, With({"*", "leaf_read"}, kLevels)) || IsTailOf(n, With({"leaf_read"}, kLevels)); });
}

TEST(WalkTest, SignalHandlersOnBothStacks) {
  const Names below = With({"*", "leaf_raise"}, kLevels);
  auto expected = [&](const Names& n) {
    // handler, trampoline, then what the signal interrupted in raise().
    return IsTailOf(n, With({"leaf_spin", "handler", "*", "!"}, below)) || IsTailOf(n, below) || IsTailOf(n, With({"leaf_raise"}, kLevels));
  };
  for (const char* mode : {"signal", "altstack"}) ExpectStacks(mode, expected);
}

TEST(WalkTest, Threads) {
  // The thread's first function is libc's.
  ExpectStacks("thread", [](const Names& n) {
    return IsTailOf(n, {"leaf_spin", "level4", "level3", "level2", "level1", "thread", "*"});
  });
}

TEST(WalkTest, CodeOfWhichNothingIsKnown) {
  // Frame pointers lead through it; below and above tables do. jit() stands between level_jit and the code without a name.
  ExpectStacks("jit", [](const Names& n) {
    Names whole = {"leaf_spin", "*", "jit", "level_jit", "main", "*", "_start"};
    Names inlined = {"leaf_spin", "*", "level_jit", "main", "*", "_start"};
    return IsTailOf(n, whole) || IsTailOf(n, inlined);
  });
}

TEST(WalkTest, AWildFramePointerIsNotFollowed) {
  ExpectStacks("wild", [](const Names& n) { return n == Names{"*"}; }, LOSS_NO_UNWIND_INFO, 300);
}

// What is remembered of mappings is forgotten when they change: the two have different frames at the same addresses.
TEST(WalkTest, ObjectsThatTakeEachOthersPlace) {
  ExpectStacks(
      "plugins",
      [](const Names& n) {
        return n == Names{"leaf_spin", "*", "level_plugins", "main", "*", "_start"} || IsTailOf(n, {"*", "level_plugins", "main", "*", "_start"}) ||
               IsTailOf(n, {"level_plugins", "main", "*", "_start"});
      },
      LOSS_NONE, 2000);
}

TEST(WalkTest, DepthIsBounded) {
  for (uint64_t depth : {uint64_t{470} + Random()() % 30, uint64_t{600} + Random()() % 1000}) {
    Workload w("recurse", std::to_string(depth));
    Session s(w.pid(), 499);
    ASSERT_GE(s.job, 0);
    s.Collect(500);
    size_t whole = 0, deep = 0;
    for (const auto& sample : s.feeder->samples) {
      Names names = w.Of(sample.user);
      if (sample.end_reason == LOSS_NONE && names.back() == "_start") ++whole;
      if (sample.end_reason == LOSS_TOO_DEEP && sample.user.size() == BORESCOPE_MAX_USER_FRAMES) ++deep;
    }
    // Some are met on the way down or up; a slow machine may come upon the time limit.
    std::cerr << "depth " << depth << ": " << whole << " whole, " << deep << " too deep of " << s.feeder->samples.size() << "\n";
    if (depth < 512) {
      EXPECT_GT(whole, s.feeder->samples.size() * 9 / 10);
      EXPECT_EQ(deep, 0u);
    } else {
      EXPECT_GT(deep, s.feeder->samples.size() * 8 / 10);
    }
  }
}

// ---- while tables are missing ----

TEST(WalkTest, AMissingFileIsNamedAndRawSamplesAreBounded) {
  Workload w("spin");
  Session s(w.pid(), 499, /*feed=*/false);
  ASSERT_GE(s.job, 0);
  s.DrainUntilEnough([&] { return s.feeder->samples.size() >= 300; });
  struct stat file {};
  ASSERT_EQ(stat(WALK_WORKLOAD, &file), 0);
  size_t raws = 0, of_workload = 0;
  for (size_t i = 0; i < s.feeder->samples.size(); ++i) {
    const auto& sample = s.feeder->samples[i];
    const auto& extra = s.feeder->extras[i];
    EXPECT_EQ(sample.end_reason, LOSS_TABLES_NOT_READY);
    EXPECT_EQ(sample.user.size(), 1u);  // nothing is guessed
    ASSERT_TRUE(extra.missing.has_value());
    EXPECT_GE(sample.user[0], extra.missing->start);
    EXPECT_LT(sample.user[0], extra.missing->end);
    if (extra.missing->key.inode == file.st_ino) {
      ++of_workload;
      EXPECT_EQ(extra.missing->key.size, static_cast<uint64_t>(file.st_size));
      EXPECT_EQ(extra.missing->key.mtime_sec, file.st_mtim.tv_sec);
      EXPECT_EQ(extra.missing->key.device, major(file.st_dev) << 20 | minor(file.st_dev));
    }
    if (!extra.raw) continue;
    ++raws;
    EXPECT_EQ(extra.raw->regs.pc, sample.user[0]);
    uint64_t sp = extra.raw->regs.r[UNWIND_SP];
    EXPECT_EQ(extra.raw->start, (sp - UNWIND_RED_ZONE) / 8 * 8);
    EXPECT_GE(extra.raw->stack.size(), 1024u);
    EXPECT_LE(extra.raw->stack.size(), BORESCOPE_RAW_BYTES);
  }
  EXPECT_GT(of_workload, s.feeder->samples.size() * 9 / 10);
  EXPECT_GE(raws, 40u);
  EXPECT_LE(raws, 64u);
  std::cerr << raws << " raw samples of " << s.feeder->samples.size() << "\n";
}

TEST(WalkTest, RawSamplesOfANodeAreBounded) {
  std::vector<std::unique_ptr<Workload>> workloads;
  for (int i = 0; i < 6; ++i) workloads.push_back(std::make_unique<Workload>("spin"));
  Session s(workloads[0]->pid(), 999, /*feed=*/false);
  ASSERT_GE(s.job, 0);
  for (size_t i = 1; i < workloads.size(); ++i) EXPECT_TRUE(s.e->AddProcess(s.job, workloads[i]->pid()).ok());
  s.DrainUntilEnough([&] { return s.feeder->samples.size() >= 3000; });
  std::map<int64_t, uint64_t> bytes_in_second;
  size_t raws = 0;
  for (size_t i = 0; i < s.feeder->samples.size(); ++i) {
    if (!s.feeder->extras[i].raw) continue;
    ++raws;
    bytes_in_second[s.feeder->samples[i].time_ns / 1'000'000'000] += s.feeder->extras[i].raw->stack.size();
  }
  uint64_t most = 0;
  for (const auto& [second, bytes] : bytes_in_second) most = std::max(most, bytes);
  std::cerr << raws << " raw samples, " << most << " bytes in the busiest second\n";
  EXPECT_LE(most, 512u << 10);
  EXPECT_GT(raws, 64u);
}

TEST(WalkTest, TestModeCarriesFramesAndTheWholeStack) {
  Workload w("spin");
  engine::Options options;
  options.raw_every = 3;
  Session s(w.pid(), 499, true, options);
  ASSERT_GE(s.job, 0);
  s.Collect(600);
  size_t raws = 0;
  for (size_t i = 0; i < s.feeder->samples.size(); ++i) {
    if (!s.feeder->extras[i].raw) continue;
    const Raw& raw = *s.feeder->extras[i].raw;
    ++raws;
    EXPECT_EQ(raw.regs.pc, s.feeder->samples[i].user[0]);
    EXPECT_EQ(s.feeder->samples[i].end_reason, LOSS_NONE);
    // It holds all return addresses.
    for (size_t frame = 1; frame < s.feeder->samples[i].user.size(); ++frame) {
      bool found = false;
      for (size_t at = 0; at + 8 <= raw.stack.size() && !found; at += 8) found = std::memcmp(&raw.stack[at], &s.feeder->samples[i].user[frame], 8) == 0;
      EXPECT_TRUE(found) << "frame " << frame << " of " << s.feeder->samples[i].user.size() << " in " << raw.stack.size() << " bytes";
    }
  }
  EXPECT_NEAR(static_cast<double>(raws), static_cast<double>(s.feeder->samples.size()) / 3, 12);
}

// ---- probes of others ----

// A uretprobe on a function of the workload, as another agent may have it.
class ReturnProbe {
 public:
  ReturnProbe(pid_t pid, uint64_t file_offset) {
    AllCapabilities all;
    std::ifstream type("/sys/bus/event_source/devices/uprobe/type");
    perf_event_attr attr{};
    attr.size = sizeof(attr);
    if (!(type >> attr.type)) return;
    attr.config = 1;  // retprobe
    attr.uprobe_path = reinterpret_cast<uint64_t>(WALK_WORKLOAD);
    attr.probe_offset = file_offset;
    fd_ = static_cast<int>(syscall(SYS_perf_event_open, &attr, pid, -1, -1, PERF_FLAG_FD_CLOEXEC));
  }
  ~ReturnProbe() {
    if (fd_ >= 0) close(fd_);
  }
  bool there() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

uint64_t FileOffsetOf(const std::string& function) {
  std::istringstream in([&] {
    std::string text;
    FILE* readelf = popen(("nm " WALK_WORKLOAD " | grep -w " + function).c_str(), "r");
    char line[256];
    while (readelf != nullptr && fgets(line, sizeof(line), readelf) != nullptr) text += line;
    if (readelf != nullptr) pclose(readelf);
    return text;
  }());
  uint64_t address = 0;
  in >> std::hex >> address;
  return address;  // the text segment of this PIE lies at its file offset
}

TEST(WalkTest, ReturnProbesOfOthersAreSeenThrough) {
  Workload w("spin");
  ReturnProbe probe(w.pid(), FileOffsetOf("level2"));
  if (!probe.there()) GTEST_SKIP() << "this kernel offers no uprobes";
  Session s(w.pid(), 499);
  ASSERT_GE(s.job, 0);
  s.Collect(500);
  size_t whole = 0, through = 0;
  std::map<std::string, int> others;
  for (const auto& sample : s.feeder->samples) {
    Names names = w.Of(sample.user);
    through += std::count(names.begin(), names.end(), "level2") != 0;
    if (sample.end_reason == LOSS_NONE && IsTailOf(names, With({"leaf_spin"}, kLevels))) {
      ++whole;
    } else {
      others[Text(names) + " [" + std::to_string(sample.end_reason) + "]"]++;
    }
  }
  for (const auto& [text, count] : others) std::cerr << count << " x " << text << "\n";
  std::cerr << whole << " whole of " << s.feeder->samples.size() << "\n";
  EXPECT_GT(through, s.feeder->samples.size() * 9 / 10);
  EXPECT_GT(whole, s.feeder->samples.size() * 98 / 100);
}

// Its registers are not what the tables speak of: where it runs is told, and that it is such a program.
TEST(WalkTest, A32BitProgramIsNamed) {
  std::string path = ::testing::TempDir() + "/spin32." + std::to_string(getpid());
  struct {
    Elf32_Ehdr header = {};
    Elf32_Phdr load = {};
    uint8_t code[2] = {0xeb, 0xfe};  // jmp to itself
  } file;
  constexpr uint32_t kStart = 0x8048000, kCode = offsetof(decltype(file), code);
  std::memcpy(file.header.e_ident, ELFMAG, SELFMAG);
  file.header.e_ident[EI_CLASS] = ELFCLASS32;
  file.header.e_ident[EI_DATA] = ELFDATA2LSB;
  file.header.e_ident[EI_VERSION] = EV_CURRENT;
  file.header.e_type = ET_EXEC;
  file.header.e_machine = EM_386;
  file.header.e_version = EV_CURRENT;
  file.header.e_entry = kStart + kCode;
  file.header.e_phoff = offsetof(decltype(file), load);
  file.header.e_ehsize = sizeof(Elf32_Ehdr);
  file.header.e_phentsize = sizeof(Elf32_Phdr);
  file.header.e_phnum = 1;
  file.load = {PT_LOAD, 0, kStart, kStart, kCode + 2, kCode + 2, PF_R | PF_X, 4096};
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(&file), kCode + 2);
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  Child child([=] {
    execl(path.c_str(), path.c_str(), nullptr);
    _exit(0);  // this kernel runs no such programs
  });
  child.Go();
  SleepMs(200);
  bool runs = std::ifstream("/proc/" + std::to_string(child.pid()) + "/maps").good();
  std::string exe(256, '\0');
  ssize_t n = readlink(("/proc/" + std::to_string(child.pid()) + "/exe").c_str(), exe.data(), exe.size());
  exe.resize(n > 0 ? static_cast<size_t>(n) : 0);
  unlink(path.c_str());
  if (!runs || exe.find("/spin32.") == std::string::npos) GTEST_SKIP() << "this kernel runs no 32-bit programs";
  Session s(child.pid(), 499);
  ASSERT_GE(s.job, 0);
  s.DrainUntilEnough([&] { return s.feeder->samples.size() >= 200; });
  ASSERT_GE(s.feeder->samples.size(), 200u);
  for (const auto& sample : s.feeder->samples) {
    EXPECT_EQ(sample.end_reason, LOSS_PROGRAM_32_BIT);
    EXPECT_EQ(sample.user, std::vector<uint64_t>{kStart + kCode});
  }
}

}  // namespace
}  // namespace borescope::oracle
