// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/compiler_process.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <functional>

#include "common/base/strings.h"
#include "sampler/confined/child.h"
#include "table_samples.h"
#include "temporary_directory.h"
#include "sanitized.h"

namespace borescope::unwind {
namespace {

using testing::kSanitized;

class CompilerTest : public ::testing::Test {
 protected:
  CompilerProcess::File Write(const Order& order) {
    auto file = WriteAndOpen(directory_.path() + "/f" + std::to_string(files_.size()), ElfText(order, "0123456789abcdef"));
    files_.push_back(file);
    return {file->elf->source().fd(), file->elf->source().size()};
  }
  CompilerProcess Make(CompilerProcess::Limits limits = {}) { return CompilerProcess(program_, stop_.get(), limits); }
  Result<std::string> Compile(CompilerProcess& compiler, const CompilerProcess::File& file) {
    Result<std::string> content = compiler.Identify(file, {}, key_);
    return content.ok() ? compiler.Compile() : content;
  }
  static HashKey RandomKey() {
    static std::mt19937_64 random(Seed());
    HashKey key;
    for (uint8_t& byte : key) byte = static_cast<uint8_t>(random());
    return key;
  }
  // By the table it gives, and that it can still give one.
  void ExpectWorks(CompilerProcess& compiler) {
    const Order order = MakeOrder("table", Seed() + files_.size());
    Result<std::string> bytes = Compile(compiler, Write(order));
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    Result<CompiledTable> table = Parse(*bytes);
    ASSERT_TRUE(table.ok()) << table.error().message;
    EXPECT_EQ(table->rows, TableOf(order).rows);
  }

  testing::TemporaryDirectory directory_;
  UniqueFd stop_{eventfd(0, EFD_CLOEXEC)};
  confined::Program program_ = *OpenCompiler(TEST_COMPILER);
  HashKey key_ = RandomKey();
  std::vector<std::shared_ptr<symbols::MappedFile>> files_;
};

TEST_F(CompilerTest, OneProcessForAllFiles) {
  CompilerProcess compiler = Make();
  EXPECT_EQ(compiler.pid(), 0);
  ExpectWorks(compiler);
  const pid_t pid = compiler.pid();
  EXPECT_GT(pid, 0);
  for (int i = 0; i < 20; ++i) ExpectWorks(compiler);
  EXPECT_EQ(compiler.pid(), pid);
  Result<std::string> nothing = Compile(compiler, Write(MakeOrder("nothing")));
  EXPECT_EQ(nothing.status().error().code, ErrorCode::kNotFound);
  Result<std::string> error = Compile(compiler, Write(MakeOrder("error")));
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.error().code, ErrorCode::kInvalid);
  EXPECT_EQ(error.error().message.find('\x1b'), std::string::npos) << "what the child says is shown to people";
  EXPECT_EQ(compiler.pid(), pid);
  compiler.Stop();
  EXPECT_EQ(kill(pid, 0), -1);
  ExpectWorks(compiler);
}

TEST_F(CompilerTest, IsConfined) {
  CompilerProcess compiler = Make();
  ExpectWorks(compiler);
  const std::string proc = "/proc/" + std::to_string(compiler.pid());
  Result<std::string> status = ReadFile(proc + "/status");
  ASSERT_TRUE(status.ok());
  auto find = [](const std::string& text, const std::string& name) {
    for (std::string_view line : Split(text, '\n')) {
      if (line.starts_with(name + ":")) return std::string(Trim(line.substr(name.size() + 1)));
    }
    return std::string("?");
  };
  auto field = [&](const std::string& name) { return find(*status, name); };
  const std::string ours = find(*ReadFile("/proc/self/status"), "CapBnd");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"}) EXPECT_EQ(field(set), "0000000000000000") << set;
  const bool may_drop = prctl(PR_CAPBSET_READ, CAP_SETPCAP, 0, 0, 0) == 1 && geteuid() == 0;
  EXPECT_EQ(field("CapBnd"), may_drop ? "0000000000000000" : ours);
  EXPECT_EQ(field("NoNewPrivs"), "1");
  EXPECT_EQ(field("Seccomp"), "2");
  EXPECT_EQ(field("Threads"), "1");
  // Nothing of the sampler's environment, and not what other users of the same id may look into.
  if (geteuid() == 0) {
    Result<std::string> environment = ReadFile(proc + "/environ");
    ASSERT_TRUE(environment.ok());
    EXPECT_EQ(*environment, "");
    Result<std::string> limits = ReadFile(proc + "/limits");
    ASSERT_TRUE(limits.ok());
    EXPECT_NE(limits->find("Max core file size        0                    0"), std::string::npos) << *limits;
    EXPECT_NE(limits->find("Max processes             0                    0"), std::string::npos) << *limits;
  }
}

TEST_F(CompilerTest, DiesOverAFileAndLivesForTheNext) {
  CompilerProcess compiler = Make();
  ExpectWorks(compiler);
  for (const char* what : {"crash", "exit"}) {
    Result<std::string> bytes = Compile(compiler, Write(MakeOrder(what)));
    ASSERT_FALSE(bytes.ok()) << what;
    EXPECT_EQ(bytes.error().code, ErrorCode::kUnavailable) << bytes.error().message;
    const std::string why = std::string(what) == "exit" ? "exit code 3" : kSanitized ? "ended" : "signal 11";
    EXPECT_NE(bytes.error().message.find(why), std::string::npos) << bytes.error().message;
    ExpectWorks(compiler);
  }
}

TEST_F(CompilerTest, TakesTooLong) {
  CompilerProcess compiler = Make({.cpu_ns = 200'000'000});
  ExpectWorks(compiler);
  const int64_t start = NowNs(CLOCK_MONOTONIC);
  Result<std::string> bytes = Compile(compiler, Write(MakeOrder("loop")));
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().code, ErrorCode::kExhausted) << bytes.error().message;
  EXPECT_LT(NowNs(CLOCK_MONOTONIC) - start, 20'000'000'000);
  EXPECT_GT(compiler.cpu_ns(), 200'000'000);
  ExpectWorks(compiler);
}

TEST_F(CompilerTest, WantsTooMuch) {
  CompilerProcess compiler = Make();
  if (kSanitized) return;  // has its own limits
  Result<std::string> memory = Compile(compiler, Write(MakeOrder("memory")));
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(memory.error().message.find("more memory than"), std::string::npos) << memory.error().message;
  Result<std::string> huge = Compile(compiler, Write(MakeOrder("huge")));
  ASSERT_FALSE(huge.ok());
  EXPECT_NE(huge.error().message.find("too large"), std::string::npos) << huge.error().message;
  ExpectWorks(compiler);
}

TEST_F(CompilerTest, IsGivenUp) {
  CompilerProcess compiler = Make();
  uint64_t one = 1;
  ASSERT_EQ(write(stop_.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  Result<std::string> bytes = Compile(compiler, Write(MakeOrder("loop")));
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().code, ErrorCode::kGone);
  EXPECT_EQ(compiler.pid(), 0);
}

TEST_F(CompilerTest, CannotStart) {
  Result<confined::Program> missing = OpenCompiler("/nowhere/borescope-unwind-tables");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("/nowhere/borescope-unwind-tables"), std::string::npos);
  confined::Program other = *OpenCompiler("/bin/true");
  CompilerProcess process(other, stop_.get(), {});
  Result<std::string> bytes = Compile(process, Write(MakeOrder("table")));
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().code, ErrorCode::kInternal) << bytes.error().message;
}

TEST_F(CompilerTest, WhatIsStartedIsWhatTheVersionWasTakenOf) {
  const std::string path = directory_.path() + "/compiler";
  std::filesystem::copy_file(TEST_COMPILER, path);
  confined::Program program = *OpenCompiler(path);
  EXPECT_EQ(program.version, program_.version);
  std::filesystem::remove(path);
  std::filesystem::copy_file("/bin/true", path);  // an update
  CompilerProcess process(program, stop_.get(), {});
  ExpectWorks(process);
  EXPECT_NE(OpenCompiler(path)->version, program.version);
}

TEST_F(CompilerTest, ANewProcessAfterSoManyFiles) {
  CompilerProcess compiler = Make();
  ExpectWorks(compiler);
  const pid_t first = compiler.pid();
  for (int i = 1; i < CompilerProcess::kMaxFiles; ++i) ExpectWorks(compiler);
  EXPECT_EQ(compiler.pid(), first);
  ExpectWorks(compiler);
  EXPECT_NE(compiler.pid(), first);
  EXPECT_EQ(kill(first, 0), -1);
}

// A process that a file has taken over says what it likes of that file; but not of the next.
TEST_F(CompilerTest, NoAnswerCountsForAnotherFile) {
  for (uint64_t number : {2, 3, 4}) {  // that of the table asked for, of the next file's hash, and of its table
    CompilerProcess compiler = Make();
    Result<std::string> forged = Compile(compiler, Write(MakeOrder("forged", number)));
    EXPECT_EQ(forged.status().error().code, number == 2 ? ErrorCode::kNotFound : ErrorCode::kUnavailable);
    const pid_t pid = compiler.pid();
    EXPECT_EQ(pid == 0, number != 2);
    Result<std::string> next = Compile(compiler, Write(MakeOrder("table", Seed())));
    EXPECT_EQ(next.ok(), number != 2);
    if (!next.ok()) {
      EXPECT_EQ(next.error().code, ErrorCode::kUnavailable) << next.error().message;
    }
    ExpectWorks(compiler);
    EXPECT_NE(compiler.pid(), pid);
  }
}

// Between the hash and the table, the file's owner writes to it.
TEST_F(CompilerTest, WhatWasHashedIsWhatIsCompiled) {
  CompilerProcess compiler = Make();
  const CompilerProcess::File file = Write(MakeOrder("table", Seed()));
  Result<std::string> content = compiler.Identify(file, {}, key_);
  ASSERT_TRUE(content.ok()) << content.error().message;
  EXPECT_EQ(*compiler.Identify(file, {}, key_), *content);
  std::fstream(files_.back()->path, std::ios::in | std::ios::out | std::ios::binary).seekp(-8, std::ios::end).write("\x01", 1);
  Result<std::string> bytes = compiler.Compile();
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(bytes.error().message.find("changed"), std::string::npos) << bytes.error().message;
  EXPECT_NE(*compiler.Identify(file, {}, key_), *content);
  EXPECT_TRUE(compiler.Compile().ok());
  EXPECT_FALSE(compiler.Compile().ok()) << "that file is done";
  const HashKey other = RandomKey();
  EXPECT_NE(*compiler.Identify(file, {}, other), *compiler.Identify(file, {}, key_)) << "the key counts";
}

TEST_F(CompilerTest, HugeFilesAreNotRead) {
  CompilerProcess compiler = Make({.cpu_ns = 5'000'000'000});
  std::string text = ElfText(MakeOrder("table", Seed()), "");
  // 7 EiB with nothing in them: as they are, and all of it to be loaded.
  const std::string path = directory_.path() + "/huge";
  const uint64_t size = uint64_t{7} << 60;
  for (bool loaded : {false, true}) {
    Elf64_Phdr load;
    std::memcpy(&load, &text[sizeof(Elf64_Ehdr)], sizeof(load));
    if (loaded) load.p_filesz = load.p_memsz = size;
    std::memcpy(&text[sizeof(Elf64_Ehdr)], &load, sizeof(load));
    WriteAndOpen(path, text);
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    uint64_t bytes = size;
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) bytes = uint64_t{1} << 40;  // more than this file system can do
    ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
    const int64_t start = NowNs(CLOCK_MONOTONIC);
    Result<std::string> content = compiler.Identify({fd.get(), bytes}, {}, key_);
    EXPECT_EQ(content.ok(), !loaded);
    if (loaded) {
      EXPECT_NE(content.status().error().message.find("more than 512 MiB"), std::string::npos) << content.status().error().message;
    }
    EXPECT_LT(NowNs(CLOCK_MONOTONIC) - start, 5'000'000'000);
  }
}

}  // namespace
}  // namespace borescope::unwind
