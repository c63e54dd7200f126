// SPDX-License-Identifier: Apache-2.0
// The aggregator with the events that the kernel would send, about this very process.
#include "sampler/stacks/aggregator.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bpf/abi/record.h"
#include "common/base/fd.h"
#include "local_names.h"
#include "sampler/symbols/proc_maps.h"

namespace borescope::stacks {
namespace {

constexpr pid_t kGone = 0x3fffffff;  // no process has this number

// Code of ours with names; never called.
extern "C" __attribute__((noinline, used)) int borescope_test_inner(int x) {
  for (int i = 0; i < x; ++i) asm volatile("nop; nop; nop; nop; nop; nop; nop; nop");
  return x + 1;
}
extern "C" __attribute__((noinline, used)) int borescope_test_outer(int x) {
  for (int i = 0; i < x; ++i) asm volatile("nop; nop; nop; nop; nop; nop; nop; nop");
  return x + 2;
}
const auto kInner = reinterpret_cast<uint64_t>(&borescope_test_inner), kOuter = reinterpret_cast<uint64_t>(&borescope_test_outer);

// Our own mapping at an address.
symbols::MapsLine MapOf(uint64_t address) {
  for (auto& m : symbols::ParseMaps(*ReadFile("/proc/self/maps"), 1000)) {
    if (address >= m.start && address < m.end) return m;
  }
  return {};
}

// Tables that are there when the test says so: of our own program, inner is called by outer, and nobody calls outer.
class FakeTables final : public unwind::Tables {
 public:
  FakeTables() {
    symbols::MapsLine map = MapOf(kInner);
    auto offset = [&](uint64_t address) { return address - map.start + map.offset; };
    table_ = std::make_shared<unwind::CompiledTable>();
    unwind_rule frame = {}, end = {};
    frame.kind = UNWIND_RULE_FRAME;
    frame.cfa_reg = UNWIND_SP;
    frame.cfa_offset = 16;
    frame.ra_offset = -8;
    end.kind = UNWIND_RULE_END;
    table_->rules = {unwind_rule(), frame, end};
    std::vector<std::pair<uint64_t, uint32_t>> rows{{offset(kInner), 1}, {offset(kInner) + 8, 0}, {offset(kOuter), 2}, {offset(kOuter) + 8, 0}};
    std::sort(rows.begin(), rows.end());
    uint64_t first = rows.front().first >> UNWIND_PAGE_BITS, last = rows.back().first >> UNWIND_PAGE_BITS;
    table_->first_page = static_cast<uint32_t>(first);
    uint32_t in_force = 0;
    for (uint64_t page = first; page <= last; ++page) {
      table_->page_rows.push_back(static_cast<uint32_t>(table_->rows.size()));
      table_->rows.push_back(UNWIND_ROW(0, in_force));
      for (auto [at, rule] : rows) {
        if (at >> UNWIND_PAGE_BITS != page) continue;
        in_force = rule;
        if ((at & 0xffff) == 0) table_->rows.pop_back();
        table_->rows.push_back(UNWIND_ROW(at & 0xffff, rule));
      }
    }
    table_->page_rows.push_back(static_cast<uint32_t>(table_->rows.size()));
  }
  State Want(const unwind_file_key& key, const std::shared_ptr<symbols::MappedFile>& file, uint64_t) override {
    wanted.emplace_back(key, file->path);
    built.push_back(file->version.mtime_sec);
    return State::kPending;
  }
  std::shared_ptr<const unwind::CompiledTable> Get(const std::shared_ptr<symbols::MappedFile>&, State* state) override {
    *state = this->state;
    return this->state == State::kReady ? table_ : nullptr;
  }
  size_t Poll() override { return 0; }
  int wake_fd() const override { return -1; }
  void Release() override { ++released; }
  Stats stats() const override { return {}; }
  std::vector<FileInfo> files() const override { return {}; }

  State state = State::kPending;
  std::vector<std::pair<unwind_file_key, std::string>> wanted;
  std::vector<int64_t> built;  // of which version
  int released = 0;

 private:
  std::shared_ptr<unwind::CompiledTable> table_;
};

class AggregatorTest : public ::testing::Test {
 protected:
  void Start(size_t max_stacks = 1000, bool split = false) {
    Options options;
    options.max_stacks = max_stacks;
    options.tables = &tables_;
    options.names = &source_;
    options.on_sample = [this](const NamedSample& s) {
      names_.clear();
      for (const auto& f : *s.frames) names_.push_back(f.name);
      reason_ = s.end_reason;
      jobs_ = s.raw->job_mask;
      ++reported_;
    };
    aggregator_ = Aggregator::Create(options);
    JobOptions job;
    job.start_mono_ns = 1000;
    job.window_ns = 100;
    job.frequency_hz = 100;
    job.split_by_process = split;
    aggregator_->StartJob(3, job);
  }
  engine::Sample Make(int64_t time, const std::vector<uint64_t>& user, const std::vector<uint64_t>& kernel = {}) {
    engine::Sample s;
    s.time_ns = time;
    s.tgid = s.tid = getpid();
    s.space = 1;
    s.cgroup_id = 7;
    s.weight_ns = 10;
    s.job_mask = 1 << 3;
    kept_.push_back(std::make_unique<std::vector<uint64_t>>(user));
    s.user_pcs = *kept_.back();
    kept_.push_back(std::make_unique<std::vector<uint64_t>>(kernel));
    s.kernel_pcs = *kept_.back();
    s.comm = "thread";
    return s;
  }

  // A sample in borescope_test_inner that came before the table.
  engine::Sample MakeRaw(int64_t time, size_t stack_bytes = 256) {
    auto sample = Make(time, {kInner + 1});
    sample.end_reason = LOSS_TABLES_NOT_READY;
    stack_.assign(std::max<size_t>(stack_bytes / 8, 3), 0);
    raw_.regs = {};
    raw_.regs.pc = kInner + 1;
    raw_.regs.r[UNWIND_SP] = raw_.start = 0x7ffc00000000;
    stack_[1] = kOuter + 5;
    raw_.stack = std::as_bytes(std::span(stack_).first(stack_bytes / 8));
    sample.raw = &raw_;
    return sample;
  }

  void OnSample(const engine::Sample& sample) {
    aggregator_->OnSample(sample);
    aggregator_->Poll(sample.time_ns);
  }

  FakeTables tables_;
  LocalNames source_;
  std::vector<uint64_t> stack_;
  engine::RawStack raw_ = {};
  uint64_t jobs_ = 0;
  int reported_ = 0;
  std::vector<std::unique_ptr<std::vector<uint64_t>>> kept_;  // what samples point to
  std::unique_ptr<Aggregator> aggregator_;
  std::vector<std::string> names_;
  borescope_loss reason_ = LOSS_NONE;
};

TEST_F(AggregatorTest, NamesLeavesAndCallers) {
  Start();
  // A return address may be the first byte behind its function; what a signal interrupted, and the trampoline below it, are at their pc.
  OnSample(Make(1010, {kInner, kOuter + 1, kInner + 1}));
  EXPECT_EQ(names_, (std::vector<std::string>{"borescope_test_inner", "borescope_test_outer", "borescope_test_inner"}));
  OnSample(Make(1010, {kInner, kOuter}));
  EXPECT_EQ(names_[0], "borescope_test_inner");
  EXPECT_NE(names_[1], "borescope_test_outer");
  OnSample(Make(1010, {kInner, kOuter, kInner | USER_FRAME_INTERRUPTED, kOuter}));
  ASSERT_EQ(names_.size(), 4u);
  EXPECT_EQ(names_[1], "borescope_test_outer");
  EXPECT_EQ(names_[2], "borescope_test_inner");
  EXPECT_NE(names_[3], "borescope_test_outer");
  JobStats stats = aggregator_->stats(3);
  EXPECT_EQ(stats.collected, 3u);
  EXPECT_EQ(stats.unsymbolized, 0u);
  EXPECT_EQ(stats.truncated, 0u);
  // The same pc, of a thread in a system call: its instruction may be its function's last.
  auto in_syscall = Make(1010, {kInner, kOuter});
  in_syscall.after_syscall = true;
  OnSample(in_syscall);
  EXPECT_NE(names_[0], "borescope_test_inner");
}

// Names come when they come: samples are told in order, as soon as those before them are named, or when they have waited long enough.
TEST_F(AggregatorTest, SamplesAreToldInOrderWhenTheirNamesAreThere) {
  Start();
  OnSample(Make(1010, {kOuter}));  // known from here on
  ASSERT_EQ(reported_, 1);
  source_.hold = true;
  OnSample(Make(1020, {kInner}));
  OnSample(Make(1030, {kOuter}));
  EXPECT_EQ(reported_, 1);
  EXPECT_TRUE(aggregator_->AwaitsNames(3, 1100, false));
  EXPECT_FALSE(aggregator_->AwaitsNames(3, 1099, false)) << "that window is not over";
  source_.hold = false;
  aggregator_->Poll(1040);
  EXPECT_EQ(reported_, 3);
  EXPECT_EQ(names_[0], "borescope_test_outer") << "the last one";
  EXPECT_FALSE(aggregator_->AwaitsNames(3, 1100, false));
  source_.hold = true;
  OnSample(Make(1050, {kInner + 1}));
  aggregator_->Poll(1049 + Aggregator::kNameWaitNs);
  EXPECT_EQ(reported_, 3);
  aggregator_->Poll(1050 + Aggregator::kNameWaitNs);
  EXPECT_EQ(reported_, 4);
  EXPECT_TRUE(names_[0].find("+0x") != std::string::npos) << names_[0];
  EXPECT_EQ(aggregator_->stats(3).unsymbolized, 0u) << "that is not known yet";
  source_.hold = false;
  aggregator_->Poll(1060 + Aggregator::kNameWaitNs);
  EXPECT_EQ(aggregator_->stats(3).unsymbolized, 0u);
  EXPECT_EQ(aggregator_->late_names(), 0u) << "the window is still open";
}

TEST_F(AggregatorTest, AWindowIsHandedOutWithTheNamesThatAreThere) {
  Start();
  source_.hold = true;
  OnSample(Make(1010, {kInner}));
  auto closed = aggregator_->CloseWindows(3, 1100, false);
  ASSERT_EQ(closed.size(), 1u);
  const profile::Profile& before = closed[0].profile;
  ASSERT_EQ(before.locations().size(), 1u);
  EXPECT_TRUE(before.locations()[0].lines.empty());
  // What is left can be named later: file, place in it, build id.
  const profile::Mapping& mapping = before.mappings()[before.locations()[0].mapping];
  EXPECT_EQ(mapping.filename, MapOf(kInner).path);
  EXPECT_EQ(before.locations()[0].address - mapping.start + mapping.file_offset, kInner - MapOf(kInner).start + MapOf(kInner).offset);
  EXPECT_FALSE(mapping.build_id.empty());
  EXPECT_FALSE(mapping.has_functions);
  EXPECT_EQ(aggregator_->late_names(), 1u);
  EXPECT_EQ(aggregator_->stats(3).unsymbolized, 1u);
  source_.hold = false;
  OnSample(Make(1110, {kInner}));
  EXPECT_EQ(aggregator_->stats(3).unsymbolized, 1u);
  closed = aggregator_->CloseWindows(3, 1200, false);
  ASSERT_EQ(closed.size(), 1u);
  const profile::Profile& after = closed[0].profile;
  EXPECT_EQ(after.functions()[after.locations()[0].lines.at(0).function].name, "borescope_test_inner");
}

TEST_F(AggregatorTest, InlinedFunctionsAreLinesOfOneLocation) {
  Start();
  source_.hold = true;
  OnSample(Make(1010, {kInner, kOuter + 1}));
  ASSERT_EQ(source_.answers.size(), 2u);
  naming::Names::Answer lines = source_.answers[0];
  source_.answers[0].last = false;  // the symbol first
  lines.names = {naming::Outcome::kLine, {{"tiny", "tiny", "/src/tiny.h", 12, 10}, {"borescope_test_inner", "borescope_test_inner", "/src/inner.cc", 34, 30}}};
  source_.hold = false;
  aggregator_->Poll(1011);
  EXPECT_EQ(reported_, 0) << "lines may come";
  EXPECT_TRUE(aggregator_->AwaitsNames(3, 1100, false));
  source_.answers.push_back(lines);
  aggregator_->Poll(1012);
  EXPECT_EQ(names_, (std::vector<std::string>{"tiny", "borescope_test_inner", "borescope_test_outer"}));
  auto closed = aggregator_->CloseWindows(3, 1100, false);
  ASSERT_EQ(closed.size(), 1u);
  const profile::Profile& p = closed[0].profile;
  ASSERT_EQ(p.samples()[0].locations.size(), 2u);
  const profile::Location& leaf = p.locations()[p.samples()[0].locations[0]];
  ASSERT_EQ(leaf.lines.size(), 2u);
  EXPECT_EQ(p.functions()[leaf.lines[0].function], (profile::Function{"tiny", "tiny", "/src/tiny.h", 10}));
  EXPECT_EQ(leaf.lines[0].line, 12);
  EXPECT_EQ(leaf.lines[1].line, 34);
  EXPECT_TRUE(p.mappings()[leaf.mapping].has_filenames);
  EXPECT_TRUE(p.mappings()[leaf.mapping].has_line_numbers);
}

// The answers of a file are for all processes that map it, and each address is asked for once.
TEST_F(AggregatorTest, AnAddressIsAskedForOnce) {
  Start();
  OnSample(Make(1010, {kInner}));
  OnSample(Make(1010, {kInner, kOuter + 1}));
  aggregator_->OnFork({1020, getpid(), kGone, 1, 7});
  auto s = Make(1030, {kInner});
  s.tgid = kGone;
  OnSample(s);
  EXPECT_EQ(source_.asked.size(), 2u);
}

TEST_F(AggregatorTest, FilesAreAskedForBeforeTheirFirstSample) {
  Start();
  aggregator_->OnFound({1000, getpid(), 1, 7, "me"});
  symbols::MapsLine map = MapOf(kInner);
  struct stat st;
  ASSERT_EQ(stat(map.path.c_str(), &st), 0);
  auto it = std::find_if(tables_.wanted.begin(), tables_.wanted.end(), [&](const auto& w) { return w.second == map.path; });
  ASSERT_NE(it, tables_.wanted.end());
  struct statfs fs;
  ASSERT_EQ(statfs(map.path.c_str(), &fs), 0);
  // The kernel maps the file of an overlay's layer, whose numbers only a sample tells.
  EXPECT_EQ(it->first.inode, fs.f_type == OVERLAYFS_SUPER_MAGIC ? 0 : st.st_ino);
  EXPECT_EQ(it->first.size, static_cast<uint64_t>(st.st_size));
  EXPECT_EQ(it->first.mtime_sec, st.st_mtim.tv_sec);
  EXPECT_EQ(it->first.device, major(st.st_dev) << 20 | minor(st.st_dev));
  it = std::find_if(tables_.wanted.begin(), tables_.wanted.end(), [&](const auto& w) { return w.second == "[vdso]"; });
  ASSERT_NE(it, tables_.wanted.end());
  EXPECT_EQ(it->first.inode, static_cast<uint64_t>(UNWIND_VDSO_INODE));
  EXPECT_EQ(it->first.size, 0u);

  // The kernel knows it by another name (an overlay's layer): the very file, under that name.
  tables_.wanted.clear();
  engine::MissingFile missing = {};
  missing.key.inode = 4711;
  missing.key.size = static_cast<uint64_t>(st.st_size);
  missing.key.mtime_sec = st.st_mtim.tv_sec;
  missing.start = map.start;
  missing.end = map.end;
  missing.file_offset = map.offset;
  auto s = Make(1010, {kInner});
  s.end_reason = LOSS_TABLES_NOT_READY;
  s.missing = &missing;
  OnSample(s);
  ASSERT_EQ(tables_.wanted.size(), 1u);
  EXPECT_EQ(tables_.wanted[0].first.inode, 4711u);
  EXPECT_EQ(tables_.wanted[0].second, map.path);
  EXPECT_EQ(names_.back(), "[truncated: tables not ready]");  // no registers came with it: nothing to wait for

  // Another version of it is another file.
  missing.key.size += 1;
  OnSample(s);
  missing.key.size -= 1;
  missing.key.mtime_sec -= 1;
  OnSample(s);
  EXPECT_EQ(tables_.wanted.size(), 1u);
}

// cp v1 app; app; cp v2 app; app: the second run's names and table are the second file's.
TEST_F(AggregatorTest, AFileWrittenAnewInPlaceIsAnotherFile) {
  Start();
  std::string folder = ::testing::TempDir() + "/anew." + std::to_string(getpid()), path = folder + "/app.so";
  std::string source = "mkdir -p " + folder + " && cd " + folder + " && for v in one two; do echo \"int $v(int x) { return x * 3 + 1; }\" > $v.c && " +
                       "cc -shared -fPIC -O1 -Wl,--build-id=none -o $v.so $v.c; done && touch -d 2001-01-01 one.so && cp -p one.so app.so";
  ASSERT_EQ(system(source.c_str()), 0);
  auto address_of = [&](const char* name) {  // from the file's begin: where nm says that it is, in a library mapped as it is linked
    FILE* pipe = popen(("nm " + folder + "/" + name + ".so | grep ' T " + name + "$'").c_str(), "r");
    unsigned long at = 0;
    EXPECT_EQ(fscanf(pipe, "%lx", &at), 1);
    pclose(pipe);
    return at;
  };
  void* code = nullptr;
  size_t bytes = 0;
  auto run = [&](uint64_t space, pid_t tgid) {  // what the kernel tells of a process that maps it
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat st;
    ASSERT_EQ(fstat(fd.get(), &st), 0);
    bytes = static_cast<size_t>(st.st_size);
    code = mmap(nullptr, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd.get(), 0);
    ASSERT_NE(code, MAP_FAILED);
    aggregator_->OnExec({1000, tgid, space, 0, 7, "app"});
    engine::Mmap event;
    event.time_ns = 1001;
    event.tgid = event.tid = tgid;
    event.start = reinterpret_cast<uint64_t>(code);
    event.length = (bytes + 4095) & ~4095ull;
    event.device_major = major(st.st_dev);
    event.device_minor = minor(st.st_dev);
    event.inode = st.st_ino;
    event.path = path;
    aggregator_->OnMmap(event);
    auto s = Make(1010, {reinterpret_cast<uint64_t>(code) + address_of(space == 1 ? "one" : "two")});
    s.tgid = tgid;
    s.space = space;
    OnSample(s);
    struct statfs fs;
    ASSERT_EQ(fstatfs(fd.get(), &fs), 0);
    ASSERT_FALSE(tables_.wanted.empty());
    EXPECT_EQ(tables_.wanted.back().second, path);
    EXPECT_EQ(tables_.wanted.back().first.inode, fs.f_type == OVERLAYFS_SUPER_MAGIC ? 0 : st.st_ino);
    EXPECT_EQ(tables_.wanted.back().first.mtime_sec, st.st_mtim.tv_sec);
  };
  run(1, getpid());
  EXPECT_EQ(names_[0], "one");
  ASSERT_EQ(system(("cat " + folder + "/two.so > " + path).c_str()), 0);
  // The kernel misses the table of what is mapped now: that is not the file which was opened. It is opened anew.
  struct stat st;
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  engine::MissingFile missing = {};
  missing.key.inode = st.st_ino;
  missing.key.device = major(st.st_dev) << 20 | minor(st.st_dev);
  missing.key.size = static_cast<uint64_t>(st.st_size);
  missing.key.mtime_sec = st.st_mtim.tv_sec;
  missing.start = reinterpret_cast<uint64_t>(code);
  missing.end = missing.start + ((bytes + 4095) & ~4095ull);
  tables_.wanted.clear();
  auto s = Make(1020, {missing.start});
  s.end_reason = LOSS_TABLES_NOT_READY;
  s.missing = &missing;
  OnSample(s);
  ASSERT_EQ(tables_.wanted.size(), 1u);
  EXPECT_EQ(tables_.wanted[0].first.mtime_sec, st.st_mtim.tv_sec);
  EXPECT_EQ(tables_.built.back(), st.st_mtim.tv_sec);
  munmap(code, bytes);
  run(2, getpid());
  EXPECT_EQ(names_[0], "two");
  munmap(code, bytes);
  ASSERT_EQ(system(("rm -r " + folder).c_str()), 0);
}

// Memory in which a runtime makes code is no ELF file: the kernel is told that it tells nothing, and goes by frame pointers.
TEST_F(AggregatorTest, MappedMemoryTellsNothing) {
  Start();
  UniqueFd fd(memfd_create("doublemapper", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(fd.get(), 1 << 20), 0);
  void* code = mmap(nullptr, 8192, PROT_READ | PROT_EXEC, MAP_SHARED, fd.get(), 4096);
  ASSERT_NE(code, MAP_FAILED);
  struct stat st;
  ASSERT_EQ(fstat(fd.get(), &st), 0);
  aggregator_->OnFound({1000, getpid(), 1, 7, "me"});
  engine::MissingFile missing = {};
  missing.key.inode = st.st_ino;
  missing.key.device = major(st.st_dev) << 20 | minor(st.st_dev);
  missing.key.size = static_cast<uint64_t>(st.st_size);
  missing.key.mtime_sec = st.st_mtim.tv_sec;
  missing.start = reinterpret_cast<uint64_t>(code);
  missing.end = missing.start + 8192;
  missing.file_offset = 4096;
  tables_.wanted.clear();
  auto s = Make(1010, {missing.start + 8});
  s.end_reason = LOSS_TABLES_NOT_READY;
  s.missing = &missing;
  OnSample(s);
  if (access("/proc/self/map_files", X_OK) != 0 || geteuid() != 0) GTEST_SKIP() << "may not look at mappings";
  ASSERT_EQ(tables_.wanted.size(), 1u);
  EXPECT_EQ(std::memcmp(&tables_.wanted[0].first, &missing.key, sizeof(missing.key)), 0);
  EXPECT_EQ(tables_.wanted[0].second, "/memfd:doublemapper");
  munmap(code, 8192);
}

TEST_F(AggregatorTest, SamplesWaitForTheirTables) {
  Start();
  OnSample(MakeRaw(1010));
  EXPECT_EQ(aggregator_->held(3), 1u);
  EXPECT_EQ(aggregator_->stats(3).collected, 0u);
  aggregator_->Poll(1020);
  EXPECT_EQ(aggregator_->held(3), 1u);
  // What was mapped since is no matter of this sample's.
  engine::Mmap other;
  other.time_ns = 1015;
  other.tgid = getpid();
  other.start = kInner & ~0xfffull;
  other.length = 0x1000;
  other.path = "//anon";
  aggregator_->OnMmap(other);
  tables_.state = unwind::Tables::State::kReady;
  aggregator_->Poll(1030);
  EXPECT_EQ(names_, (std::vector<std::string>{"borescope_test_inner", "borescope_test_outer"}));
  EXPECT_EQ(reason_, LOSS_NONE);
  EXPECT_EQ(jobs_, 1u << 3);
  EXPECT_EQ(aggregator_->held(3), 0u);
  EXPECT_EQ(aggregator_->stats(3).collected, 1u);
  EXPECT_EQ(aggregator_->stats(3).sampled_ns, 10);
  EXPECT_EQ(aggregator_->stats(3).truncated, 0u);
  EXPECT_EQ(aggregator_->CloseWindows(3, 1100, false)[0].profile.Total(0), 1);
}

TEST_F(AggregatorTest, ATableThatIsThereAlreadyIsUsedAtOnce) {
  Start();
  tables_.state = unwind::Tables::State::kReady;
  OnSample(MakeRaw(1010));
  EXPECT_EQ(names_, (std::vector<std::string>{"borescope_test_inner", "borescope_test_outer"}));
  // A recorded piece that is too short: with tables the kernel would have gone on.
  OnSample(MakeRaw(1011, 8));
  EXPECT_EQ(names_, (std::vector<std::string>{"borescope_test_inner", "[truncated: tables not ready]"}));
  // Frames from the kernel are used as they are, whatever else the sample carries.
  auto s = MakeRaw(1012);
  s.end_reason = LOSS_NONE;
  OnSample(s);
  EXPECT_EQ(names_, (std::vector<std::string>{"borescope_test_inner"}));
}

TEST_F(AggregatorTest, NoSampleWaitsForEver) {
  Start();
  // Five seconds.
  OnSample(MakeRaw(1010));
  aggregator_->Poll(1010 + Aggregator::kHoldNs);
  EXPECT_EQ(reported_, 0);
  aggregator_->Poll(1011 + Aggregator::kHoldNs);
  EXPECT_EQ(reported_, 1);
  EXPECT_EQ(names_, (std::vector<std::string>{"borescope_test_inner", "[truncated: tables not ready]"}));
  EXPECT_EQ(aggregator_->stats(3).loss[LOSS_TABLES_NOT_READY].count, 1u);
  // The window's end, for the job whose window it is.
  JobOptions options;
  options.start_mono_ns = 1000;
  options.window_ns = 10'000;
  aggregator_->StartJob(4, options);
  auto s = MakeRaw(1110);
  s.job_mask = 1 << 3 | 1 << 4;
  OnSample(s);
  auto closed = aggregator_->CloseWindows(3, 1200, false);
  EXPECT_EQ(jobs_, 1u << 3);
  EXPECT_EQ(aggregator_->held(3), 0u);
  EXPECT_EQ(aggregator_->held(4), 1u);
  EXPECT_EQ(closed.back().start_mono_ns, 1100);
  EXPECT_EQ(closed.back().profile.Total(0), 1);
  tables_.state = unwind::Tables::State::kReady;
  aggregator_->Poll(1300);
  EXPECT_EQ(reason_, LOSS_NONE);
  EXPECT_EQ(aggregator_->stats(4).truncated, 0u);
  EXPECT_EQ(aggregator_->stats(4).collected, 1u);
  EXPECT_EQ(aggregator_->stats(3).truncated, 2u);
  // Room.
  tables_.state = unwind::Tables::State::kPending;
  constexpr size_t kBytes = 64 << 10;
  size_t most = Aggregator::kMaxHeldBytes / kBytes;
  for (size_t i = 0; i < most + 8; ++i) OnSample(MakeRaw(1301, kBytes));
  EXPECT_LE(aggregator_->held(3), most);
  EXPECT_GE(aggregator_->held(3), most - 8);
  EXPECT_EQ(aggregator_->held(3) + aggregator_->stats(3).loss[LOSS_TABLES_NOT_READY].count, most + 8 + 2);
  // Containers and jobs that nobody wants any more.
  aggregator_->Exclude(3, 7);
  EXPECT_EQ(aggregator_->held(3), 0u);
  s.time_ns = 1302;
  OnSample(s);
  EXPECT_EQ(aggregator_->held(4), 1u);
  aggregator_->StopJob(4);
  EXPECT_EQ(aggregator_->held(4), 0u);
  EXPECT_EQ(tables_.released, 0);
  aggregator_->StopJob(3);
  EXPECT_EQ(tables_.released, 1);
}

TEST_F(AggregatorTest, CutsSayWhereAndWhy) {
  Start();
  auto cut = [&](borescope_loss reason, std::vector<uint64_t> pcs) {
    auto s = Make(1010, pcs);
    s.end_reason = reason;
    OnSample(s);
  };
  for (int i = 0; i < 3; ++i) cut(LOSS_UNSUPPORTED_RULE, {kInner, kOuter + 1});
  cut(LOSS_UNSUPPORTED_RULE, {kInner});
  cut(LOSS_NO_UNWIND_INFO, {kInner, 0x1000});
  cut(LOSS_NONE, {kInner});
  auto cuts = aggregator_->cuts(3);
  ASSERT_EQ(cuts.size(), 2u);
  EXPECT_EQ(cuts[0].path, MapOf(kInner).path);
  EXPECT_EQ(cuts[0].function, "borescope_test_outer");
  EXPECT_EQ(cuts[0].reason, LOSS_UNSUPPORTED_RULE);
  EXPECT_EQ(cuts[0].samples, 4u);
  EXPECT_EQ(cuts[0].ns, 40);
  EXPECT_FALSE(cuts[0].build_id.empty());
  EXPECT_EQ(cuts[1].path, "");
  EXPECT_EQ(cuts[1].reason, LOSS_NO_UNWIND_INFO);
  aggregator_->Exclude(3, 7);  // the container was not chosen
  EXPECT_TRUE(aggregator_->cuts(3).empty());
}

// More places than are kept apart: what goes beyond is named, and room comes back when a job has ended.
TEST_F(AggregatorTest, CutsInTooManyPlacesAreNamed) {
  Start(1 << 16);
  JobOptions options;
  options.start_mono_ns = 1000;
  options.window_ns = 1000;
  aggregator_->StartJob(4, options);
  engine::Mmap event;
  event.time_ns = 1000;
  event.tgid = event.tid = getpid();
  event.length = 0x1000;
  std::string path;
  auto cut_in = [&](int number, borescope_loss reason, uint64_t jobs) {
    event.start = 0x10000000 + 0x1000ull * static_cast<uint64_t>(number);
    path = "/gone/" + std::to_string(number);
    event.path = path;
    event.inode = static_cast<uint64_t>(1 + number);
    aggregator_->OnMmap(event);
    auto s = Make(1010, {event.start + 8});
    s.end_reason = reason;
    s.job_mask = jobs;
    OnSample(s);
  };
  aggregator_->OnFound({1000, getpid(), 1, 7, "me"});
  cut_in(0, LOSS_BAD_CFA, 1 << 4);
  for (int i = 1; i < 4100; ++i) cut_in(i, LOSS_NO_UNWIND_INFO, 1 << 3);
  cut_in(4100, LOSS_BAD_CFA, 1 << 3);
  auto cuts = aggregator_->cuts(3);
  ASSERT_EQ(cuts.size(), 4097u);
  EXPECT_EQ(cuts[0].path, "(places beyond the first 4096)");
  EXPECT_EQ(cuts[0].reason, LOSS_NO_UNWIND_INFO);
  EXPECT_EQ(cuts[0].samples, 4u);
  EXPECT_EQ(std::count_if(cuts.begin(), cuts.end(), [](const Cut& c) { return c.reason == LOSS_BAD_CFA && c.path == "(places beyond the first 4096)"; }), 1);
  aggregator_->StopJob(3);
  cut_in(4200, LOSS_BAD_CFA, 1 << 4);
  cuts = aggregator_->cuts(4);
  ASSERT_EQ(cuts.size(), 2u);
  EXPECT_EQ(cuts[0].path, "/gone/0");
  EXPECT_EQ(cuts[1].path, "/gone/4200");
}

TEST_F(AggregatorTest, AJobBegunAnewKeepsWhatIsKnownOfProcesses) {
  Start();
  aggregator_->OnFork({1000, getpid(), kGone, 1, 7});
  OnSample(Make(1010, {kInner}));
  OnSample(MakeRaw(1011));
  JobOptions again;
  again.start_mono_ns = 1020;
  again.window_ns = 100;
  aggregator_->StartJob(3, again);
  EXPECT_EQ(aggregator_->stats(3).collected, 0u);
  EXPECT_EQ(aggregator_->held(3), 0u);
  EXPECT_EQ(tables_.released, 0);
  auto s = Make(1030, {kInner});
  s.tgid = kGone;
  OnSample(s);
  EXPECT_EQ(names_[0], "borescope_test_inner");
}

TEST_F(AggregatorTest, WindowsAreAlignedAndSumUp) {
  Start();
  std::vector<uint64_t> kernel{0xffffffff81000500, 0xffffffff81000600};
  for (int64_t t : {1000, 1099, 1100, 1250}) OnSample(Make(t, {}, kernel));
  auto other = Make(1050, {}, kernel);
  other.cgroup_id = 8;
  OnSample(other);
  aggregator_->Exclude(3, 9);
  other.cgroup_id = 9;
  OnSample(other);
  other.cgroup_id = 8;
  other.job_mask = 1 << 4;  // nobody's
  OnSample(other);

  auto open = aggregator_->OpenWindows(3, 1260);  // nothing is closed by looking
  ASSERT_EQ(open.size(), 4u);
  EXPECT_EQ(open[0].profile.Total(0), 2);
  EXPECT_EQ(open[3].end_mono_ns, 1260);
  auto closed = aggregator_->CloseWindows(3, 1199, false);
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_EQ(closed[0].start_mono_ns, 1000);
  EXPECT_EQ(closed[0].end_mono_ns, 1100);
  EXPECT_EQ(closed[0].cgroup_id, 7u);
  EXPECT_EQ(closed[0].profile.Total(0), 2);
  EXPECT_EQ(closed[0].profile.Total(1), 20);
  EXPECT_EQ(closed[0].profile.squares, 200);  // 10² + 10²
  EXPECT_EQ(closed[0].profile.samples().size(), 1u);
  EXPECT_EQ(closed[0].profile.period, 10'000'000);
  EXPECT_EQ(closed[0].profile.default_sample_type, "cpu");
  EXPECT_EQ(closed[1].cgroup_id, 8u);
  OnSample(Make(1001, {}, kernel));  // late: its window is closed, it goes into the oldest open one
  closed = aggregator_->CloseWindows(3, 1270, true);
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_EQ(closed[0].start_mono_ns, 1100);
  EXPECT_EQ(closed[0].profile.Total(0), 2);
  EXPECT_EQ(closed[1].end_mono_ns, 1270);
  EXPECT_EQ(closed[1].profile.duration_ns, 70);
  EXPECT_EQ(aggregator_->stats(3).collected, 6u);
  for (const auto& location : closed[0].profile.locations()) EXPECT_LT(location.address, uint64_t{1} << 40);  // not where the kernel lies
}

TEST_F(AggregatorTest, SplitsByProcess) {
  Start(1000, true);
  OnSample(Make(1001, {}, {0xffffffff81000500}));
  auto other = Make(1002, {}, {0xffffffff81000500});
  other.tgid = kGone;
  other.comm = "gone";
  OnSample(other);
  auto closed = aggregator_->CloseWindows(3, 2000, false);
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_EQ(closed[0].tgid, getpid());
  EXPECT_EQ(closed[1].tgid, kGone);
  EXPECT_EQ(closed[1].comm, "gone");
}

// A mapping of our own program, told of a process that has ended before we hear of it.
TEST_F(AggregatorTest, AProcessIsNamedAfterItsDeath) {
  Start();
  auto pc = kOuter;
  symbols::MapsLine m = MapOf(pc);
  engine::Mmap mmap;
  mmap.start = m.start + 0x10000000;
  mmap.length = m.end - m.start;
  mmap.file_offset = m.offset;
  mmap.device_major = m.device_major;
  mmap.device_minor = m.device_minor;
  mmap.inode = m.inode;
  mmap.path = m.path;
  mmap.tgid = mmap.tid = kGone;
  mmap.time_ns = 1001;
  aggregator_->OnFork({1000, getpid(), kGone, 1, 0});
  aggregator_->OnExec({1000, kGone, 2, 1, 0, "short"});
  aggregator_->OnMmap(mmap);
  aggregator_->OnExit({1002, kGone, kGone, 2, 0, true});
  auto s = Make(1002, {pc + 0x10000000 + 1});
  s.tgid = kGone;
  s.space = 2;
  s.cgroup_id = 0;
  OnSample(s);
  ASSERT_FALSE(names_.empty());
  EXPECT_EQ(names_[0], "borescope_test_outer");
  auto closed = aggregator_->CloseWindows(3, 2000, false);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].comm, "short");
  EXPECT_EQ(closed[0].language, "cpp");
  ASSERT_FALSE(closed[0].profile.mappings().empty());
  EXPECT_EQ(closed[0].profile.mappings()[0].filename, mmap.path);
}

TEST_F(AggregatorTest, ForkSharesAndExecReplaces) {
  Start();
  auto pc = kOuter + 1;
  aggregator_->OnFound({1000, getpid(), 1, 7, "me"});
  aggregator_->OnFork({1001, getpid(), kGone, 1, 7});
  auto s = Make(1002, {pc});
  s.tgid = kGone;
  OnSample(s);
  ASSERT_FALSE(names_.empty());
  EXPECT_EQ(names_[0], "borescope_test_outer");
  aggregator_->OnExec({1003, kGone, 2, 1, 7, "other"});
  s = Make(1004, {pc});
  s.tgid = kGone;
  s.space = 2;
  OnSample(s);
  EXPECT_TRUE(names_[0].starts_with("[unknown]+0x")) << names_[0];
  EXPECT_EQ(aggregator_->stats(3).unsymbolized, 1u);
}

// What is mapped over something gives its addresses another meaning.
TEST_F(AggregatorTest, ANewMappingReplacesTheOld) {
  Start();
  auto pc = kOuter + 1;
  OnSample(Make(1001, {pc}));
  EXPECT_EQ(names_[0], "borescope_test_outer");
  engine::Mmap mmap;
  mmap.time_ns = 1002;
  mmap.tgid = getpid();
  mmap.start = pc & ~0xfffull;
  mmap.length = 0x1000;
  mmap.path = "//anon";
  aggregator_->OnMmap(mmap);
  OnSample(Make(1003, {pc}));
  EXPECT_TRUE(names_[0].starts_with("[anonymous]+0x")) << names_[0];
}

TEST_F(AggregatorTest, AFullTableIsALossAndMakesRoomLater) {
  Start(8);
  for (uint64_t i = 0; i < 20; ++i) OnSample(Make(1001, {}, {0xffffffff81000500 + i}));
  JobStats stats = aggregator_->stats(3);
  EXPECT_EQ(stats.collected, 8u);
  EXPECT_EQ(stats.loss[LOSS_STACK_TABLE_FULL].count, 12u);
  EXPECT_EQ(stats.loss[LOSS_STACK_TABLE_FULL].ns, 120);
  auto closed = aggregator_->CloseWindows(3, 1100, false);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].profile.Total(0), 8);
  for (uint64_t i = 0; i < 8; ++i) OnSample(Make(5'000'000'000, {}, {0xffffffff81100500 + i}));
  EXPECT_EQ(aggregator_->stats(3).collected, 16u);
  EXPECT_EQ(aggregator_->CloseWindows(3, 6'000'000'000, true)[0].profile.samples().size(), 8u);
}

TEST_F(AggregatorTest, FramesBeyondTheLimitAreALoss) {
  Start(1 << 17);
  constexpr uint64_t kEach = 1024;
  std::vector<uint64_t> kernel(kEach);
  uint64_t at = 0xffffffff81000500;
  for (int i = 0; i < 300; ++i) {
    for (uint64_t& pc : kernel) pc = at += 16;
    OnSample(Make(1001, {}, kernel));
  }
  auto stats = aggregator_->stats(3);
  EXPECT_GE(stats.collected, 256u);
  EXPECT_LE(stats.collected, 257u);
  EXPECT_EQ(stats.loss[LOSS_STACK_TABLE_FULL].count, 300 - stats.collected);
  auto unknown = Make(1002, {0x1000});  // a new leaf has no room either
  OnSample(unknown);
  EXPECT_EQ(aggregator_->stats(3).loss[LOSS_STACK_TABLE_FULL].count, 301 - stats.collected);
  aggregator_->CloseWindows(3, 1100, false);
  unknown.time_ns = 5'000'000'000;
  OnSample(unknown);
  EXPECT_EQ(aggregator_->stats(3).collected, stats.collected + 1);
}

TEST_F(AggregatorTest, ACutHasAFrameAtTheRoot) {
  Start();
  auto s = Make(1001, {}, {0xffffffff81000500});
  s.end_reason = LOSS_NO_USER_REGS;
  OnSample(s);
  EXPECT_EQ(names_.back(), "[truncated: user registers not available]");
  EXPECT_EQ(aggregator_->stats(3).loss[LOSS_NO_USER_REGS].count, 1u);
  EXPECT_EQ(aggregator_->stats(3).truncated, 1u);
  auto profile = aggregator_->CloseWindows(3, 2000, false)[0].profile;
  ASSERT_EQ(profile.samples().size(), 1u);
  const auto& root = profile.locations()[profile.samples()[0].locations.back()];
  EXPECT_EQ(root.mapping, profile::kNone);
  EXPECT_EQ(profile.functions()[root.lines[0].function].name, "[truncated: user registers not available]");
}

TEST_F(AggregatorTest, PerfMapsNameCodeMadeAtRunTime) {
  std::string path = "/tmp/perf-" + std::to_string(symbols::ParseInnermostPid(*ReadFile("/proc/self/status"))) + ".map";
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  memcpy(page, "\x55\x48\x89\xe5\x90\x90\x90\xc3", 8);
  auto base = reinterpret_cast<uint64_t>(page);
  auto line = [&](uint64_t at, const char* name) {
    char text[128];
    snprintf(text, sizeof(text), "%lx 40 %s\n", at, name);
    std::ofstream(path, std::ios::app) << text;
  };
  line(base, "jit_first");
  Start();
  OnSample(Make(1001, {base + 5}));
  EXPECT_EQ(names_[0], "jit_first");
  OnSample(Make(1002, {base + 0x85}));
  EXPECT_TRUE(names_[0].starts_with("[anonymous]+0x")) << names_[0];
  line(base + 0x80, "jit_second");
  OnSample(Make(2'000'001'002, {base + 0x86}));
  EXPECT_EQ(names_[0], "jit_second");
  OnSample(Make(2'000'001'003, {base + 0x85}));  // what had no name is looked up again
  EXPECT_EQ(names_[0], "jit_second");
  unlink(path.c_str());
  munmap(page, 4096);
}

// A tenant may write what he likes into his perf map: a line without end is not read again, and forks share what was read.
TEST_F(AggregatorTest, PerfMapsAreBounded) {
  std::string path = "/tmp/perf-" + std::to_string(symbols::ParseInnermostPid(*ReadFile("/proc/self/status"))) + ".map";
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto base = reinterpret_cast<uint64_t>(page);
  char line[128];
  {
    std::ofstream file(path);
    file << std::string(1 << 20, 'x');  // four parts without a line
    snprintf(line, sizeof(line), "\n%lx 40 jit_first\n", base);
    file << line;
    for (int i = 0; i < 100000; ++i) {
      snprintf(line, sizeof(line), "%x 10 some_name_that_takes_room\n", 0x1000 + 16 * i);
      file << line;
    }
  }
  Start();
  OnSample(Make(1001, {base + 5}));
  EXPECT_EQ(names_[0], "jit_first");
  size_t before = aggregator_->memory_bytes();
  EXPECT_GT(before, 4'000'000u);
  for (pid_t child = kGone; child < kGone + 20; ++child) {
    aggregator_->OnFork({1002, getpid(), child, 1, 7});
    engine::Mmap mmap;  // its space is its own from here on
    mmap.time_ns = 1003;
    mmap.tgid = child;
    mmap.start = base + (1ull << 40);
    mmap.length = 0x1000;
    mmap.path = "//anon";
    aggregator_->OnMmap(mmap);
    auto s = Make(1004, {base + 6});
    s.tgid = child;
    OnSample(s);
    EXPECT_EQ(names_[0], "jit_first");
  }
  EXPECT_LT(aggregator_->memory_bytes(), before + 1'000'000);
  unlink(path.c_str());
  munmap(page, 4096);
}

TEST_F(AggregatorTest, IdleGivesItsMemoryBack) {
  Start();
  size_t empty = aggregator_->memory_bytes();
  for (uint64_t i = 0; i < 500; ++i) OnSample(Make(1001, {}, {0xffffffff81000500 + i}));
  EXPECT_GT(aggregator_->memory_bytes(), empty + 10000);
  aggregator_->StopJob(3);
  EXPECT_LE(aggregator_->memory_bytes(), empty + 100);
  OnSample(Make(1001, {}, {0xffffffff81000500}));
  EXPECT_EQ(aggregator_->stats(3).collected, 0u);
}

}  // namespace
}  // namespace borescope::stacks
