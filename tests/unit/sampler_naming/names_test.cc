// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/names.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "common/base/clock.h"
#include "sampler/naming/names_process.h"
#include "target_file.h"
#include "temporary_directory.h"
#include "sanitized.h"

namespace borescope::naming {
namespace {

using testing::kSanitized;
constexpr int64_t kSecond = 1'000'000'000;

// Files of TEST_TARGET with an order for the test's child at the end.
class Orders {
 public:
  std::shared_ptr<symbols::MappedFile> Make(const std::string& order) {
    const std::string path = directory_.path() + "/" + std::to_string(++count_);
    std::filesystem::copy_file(TEST_TARGET, path);
    std::string last = order;
    last.resize(16, '\0');
    std::ofstream(path, std::ios::app | std::ios::binary) << last;
    return Map(path);
  }

 private:
  testing::TemporaryDirectory directory_;
  int count_ = 0;
};

class NamesProcessTest : public ::testing::Test {
 protected:
  NamesProcess::Named Name(NamesProcess& process, const std::string& order, bool lines = false) {
    kept_.push_back(orders_.Make(order));
    NamesProcess::Batch batch;
    batch.file = kept_.size();
    batch.fd = kept_.back()->elf->source().fd();
    batch.lines = lines;
    batch.addresses = addresses_;
    return process.Name(batch, [](const Wanted&) { return UniqueFd(); });
  }
  void ExpectWorks(NamesProcess& process) {
    NamesProcess::Named named = Name(process, "name");
    ASSERT_EQ(named.outcome, Outcome::kLine) << named.problem;
    ASSERT_EQ(named.names.size(), 3u);
    EXPECT_EQ(named.names[2].lines[0].function, "f30");
  }

  Orders orders_;
  std::vector<uint64_t> addresses_{10, 20, 30};
  std::vector<std::shared_ptr<symbols::MappedFile>> kept_;
  UniqueFd stop_{eventfd(0, EFD_CLOEXEC)};
  confined::Program program_ = *confined::OpenProgram(TEST_CHILD, "", "");
  NamesProcess process_{program_, stop_.get(), nullptr, 150'000'000, 60 * kSecond};
};

TEST_F(NamesProcessTest, DiesOverAFileAndLivesForTheNext) {
  ExpectWorks(process_);
  const pid_t pid = process_.pid();
  ExpectWorks(process_);
  EXPECT_EQ(process_.pid(), pid) << "one process for all files";
  for (const char* order : {"crash", "exit"}) {
    NamesProcess::Named named = Name(process_, order);
    EXPECT_EQ(named.outcome, Outcome::kCrashed);
    EXPECT_NE(named.problem.find(order == std::string("exit") ? "exit code 3" : kSanitized ? "ended" : "signal 11"), std::string::npos) << named.problem;
    ExpectWorks(process_);
  }
}

TEST_F(NamesProcessTest, NoAnswerIsBelievedThatCannotBe) {
  for (const char* order : {"garbage", "forged", "more", "less"}) {
    NamesProcess::Named named = Name(process_, order);
    EXPECT_EQ(named.outcome, Outcome::kCrashed) << order;
    EXPECT_FALSE(named.problem.empty()) << order;
    EXPECT_EQ(process_.pid(), 0) << order;
    ExpectWorks(process_);
  }
  NamesProcess::Named named = Name(process_, "unreadable");
  EXPECT_EQ(named.outcome, Outcome::kUnreadable);
  EXPECT_EQ(named.problem.find('\x1b'), std::string::npos) << "what the child says is shown to people";
}

TEST_F(NamesProcessTest, TakesTooLong) {
  NamesProcess::Named named = Name(process_, "loop");
  EXPECT_EQ(named.outcome, Outcome::kSlow) << named.problem;
  EXPECT_GT(process_.cpu_ns(), 150'000'000);
  ExpectWorks(process_);
}

TEST_F(NamesProcessTest, ANewProcessAfterSoManyFiles) {
  ExpectWorks(process_);
  const pid_t pid = process_.pid();
  for (int i = 1; i < NamesProcess::kMaxFiles; ++i) ExpectWorks(process_);
  EXPECT_EQ(process_.pid(), pid);
  ExpectWorks(process_);
  EXPECT_NE(process_.pid(), pid);
}

TEST_F(NamesProcessTest, ABudgetIsKept) {
  // 20 ms at once, then a quarter of a CPU; it is looked at each 100 ms.
  confined::CpuBudget budget(20'000'000, 0.25);
  NamesProcess process(program_, stop_.get(), &budget, 200'000'000, 60 * kSecond);
  const int64_t start = NowNs(CLOCK_MONOTONIC);
  NamesProcess::Named named = Name(process, "loop");
  const int64_t took = NowNs(CLOCK_MONOTONIC) - start;
  EXPECT_EQ(named.outcome, Outcome::kSlow) << named.problem;
  EXPECT_GT(took, 400'000'000) << "200 ms of CPU, of which the last piece need not be waited for";
}

TEST_F(NamesProcessTest, IsGivenUp) {
  uint64_t one = 1;
  ASSERT_EQ(write(stop_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  EXPECT_TRUE(Name(process_, "loop").gave_up);
  EXPECT_EQ(process_.pid(), 0);
}

class NamesTest : public ::testing::Test {
 protected:
  void Start(const std::string& program, int64_t cpu_limit_ns = 150'000'000) {
    Names::Options options;
    options.program = program;
    options.cpu_limit_ns = cpu_limit_ns;
    auto names = Names::Create(std::move(options));
    ASSERT_TRUE(names.ok()) << names.error().message;
    names_ = *std::move(names);
  }
  void Ask(const std::shared_ptr<symbols::MappedFile>& file, uint64_t vaddr) {
    names_->Ask(file, vaddr, [&] { return Names::Origin{owner_, {getpid()}}; });
  }
  // Until each address that was asked has its last answer; answers by file and address.
  void Wait(size_t last) {
    const int64_t end = NowNs(CLOCK_MONOTONIC) + 60 * kSecond;
    while (last_ < last && NowNs(CLOCK_MONOTONIC) < end) {
      pollfd wake{names_->wake_fd(), POLLIN, 0};
      poll(&wake, 1, 100);
      for (Names::Answer& answer : names_->Take()) {
        last_ += answer.last;
        answers_[{answer.file->path, answer.vaddr}].push_back(std::move(answer));
      }
    }
    EXPECT_EQ(last_, last);
  }
  std::string Problem(const std::shared_ptr<symbols::MappedFile>& file) {
    for (const auto& info : names_->files()) {
      if (info.path == file->path) return info.problem;
    }
    return "";
  }
  const std::vector<Names::Answer>& Of(const std::shared_ptr<symbols::MappedFile>& file, uint64_t vaddr) { return answers_[{file->path, vaddr}]; }

  Orders orders_;
  uint64_t owner_ = 1;
  std::unique_ptr<Names> names_;
  std::map<std::pair<std::string, uint64_t>, std::vector<Names::Answer>> answers_;
  size_t last_ = 0;
};

TEST_F(NamesTest, TheSymbolFirstThenTheLines) {
  Start(TEST_CHILD);
  auto file = orders_.Make("lines");
  for (uint64_t at = 0; at < 600; ++at) Ask(file, at);
  EXPECT_EQ(names_->stats().waiting, 600u);
  Wait(600);
  for (uint64_t at : {0, 255, 256, 599}) {
    const auto& answers = Of(file, at);
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_FALSE(answers[0].last);
    EXPECT_EQ(answers[0].names.lines[0].function, "f" + std::to_string(at));
    EXPECT_EQ(answers[0].names.lines[0].line, 0u);
    EXPECT_TRUE(answers[1].last);
    EXPECT_EQ(answers[1].names.lines[0].line, 7u);
  }
  EXPECT_EQ(names_->stats().waiting, 0u);
  EXPECT_EQ(names_->stats().addresses[static_cast<size_t>(Outcome::kLine)], 600u);
  EXPECT_GT(names_->stats().cpu_ns, 0);
  EXPECT_GT(names_->stats().peak_bytes, 0u);
}

TEST_F(NamesTest, AFileThatKillsTheChildCostsItsOwnNamesOnly) {
  Start(TEST_CHILD);
  auto bad = orders_.Make("crash"), good = orders_.Make("name");
  Ask(bad, 1);
  Ask(good, 2);
  Wait(2);
  EXPECT_EQ(Of(bad, 1)[0].names.outcome, Outcome::kCrashed);
  EXPECT_EQ(Of(good, 2)[0].names.lines[0].function, "f2");
  const int64_t cpu_before = names_->stats().cpu_ns;
  for (uint64_t at = 3; at < 100; ++at) Ask(bad, at);  // not tried again just now
  Wait(2 + 97);
  EXPECT_EQ(Of(bad, 99)[0].names.outcome, Outcome::kCrashed);
  EXPECT_LT(names_->stats().cpu_ns - cpu_before, 100'000'000);
  EXPECT_NE(Problem(bad), "");
}

TEST_F(NamesTest, LinesThatTakeTooLongLeaveTheSymbols) {
  Start(TEST_CHILD);
  auto slow = orders_.Make("lines loop"), good = orders_.Make("name");
  Ask(slow, 1);
  // While that is under way, symbols of others are there at once.
  const int64_t start = NowNs(CLOCK_MONOTONIC);
  Wait(0);
  Ask(good, 2);
  Wait(2);
  EXPECT_LT(NowNs(CLOCK_MONOTONIC) - start, 20 * kSecond);
  const auto& answers = Of(slow, 1);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].names.lines[0].function, "f1");
  EXPECT_TRUE(answers[1].last);
  EXPECT_TRUE(answers[1].names.lines.empty());
  EXPECT_EQ(answers[1].names.outcome, Outcome::kLinesFailed);
}

TEST_F(NamesTest, ReleaseForgets) {
  Start(TEST_CHILD);
  auto file = orders_.Make("work");
  for (uint64_t at = 0; at < 5000; ++at) Ask(file, at);
  names_->Release();
  EXPECT_EQ(names_->stats().waiting, 0u);
  Ask(file, 7);
  Wait(1);
  EXPECT_EQ(Of(file, 7).back().names.lines[0].function, "f7");
}

TEST_F(NamesTest, CannotStart) {
  Names::Options options;
  options.program = "/nowhere/borescope-names";
  auto names = Names::Create(options);
  ASSERT_FALSE(names.ok());
  EXPECT_EQ(names.error().code, ErrorCode::kNotFound);
  Start("/bin/true");
  auto file = orders_.Make("name");
  Ask(file, 1);
  Wait(1);
  EXPECT_EQ(Of(file, 1)[0].names.outcome, Outcome::kNoChild);
}

TEST_F(NamesTest, TheRealChildFindsDebugFiles) {
  Start(NAMES_PROGRAM, 10 * kSecond);
  auto [start, end] = RangeOf("_ZN4shop8CheckoutEi");
  auto whole = Map(TEST_TARGET), stripped = Map(std::string(TEST_TARGET) + ".stripped");
  auto vdso = symbols::FileCache("/proc", 1).Vdso();
  ASSERT_TRUE(vdso->elf);
  const std::vector<uint64_t> starts = vdso->elf->FunctionStarts(0, UINT64_MAX);
  ASSERT_FALSE(starts.empty());
  Ask(whole, start + 4);
  Ask(stripped, start + 4);
  Ask(vdso, starts[0]);
  Wait(3);
  for (const auto& file : {whole, stripped}) {
    const auto& answers = Of(file, start + 4);
    ASSERT_FALSE(answers.empty()) << file->path;
    ASSERT_FALSE(answers[0].names.lines.empty()) << file->path << ": " << OutcomeText(answers[0].names.outcome) << ": " << Problem(file);
    EXPECT_EQ(answers[0].names.lines.back().function, "shop::Checkout") << file->path;
  }
  EXPECT_EQ(Of(vdso, starts[0])[0].names.lines.at(0).system_name, vdso->elf->FindSymbol(starts[0])->name);
}

}  // namespace
}  // namespace borescope::naming
