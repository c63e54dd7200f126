// SPDX-License-Identifier: Apache-2.0
// Small programs compiled here, with the lines that the test itself wrote as the truth. More, against llvm-symbolizer: tests/oracle/names.
#include "sampler/symbols/debug_info.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "common/base/fd.h"
#include "random_profile.h"

namespace borescope::symbols {
namespace {

class DebugInfoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/debug_info_XXXXXX";
    folder_ = mkdtemp(pattern.data());
    std::mt19937_64 random(testing::Seed());
    outer_ = static_cast<uint32_t>(10 + random() % 1000);
    inner_ = static_cast<uint32_t>(10 + random() % 1000);
  }
  void TearDown() override { Run("rm -rf " + folder_); }

  static void Run(const std::string& command) { ASSERT_EQ(system(command.c_str()), 0) << command; }

  // folder/program: outer() at a drawn line inlines space::inner() of another file, of which the only statement is at another.
  void Build(const std::string& flags) {
    std::string source = "volatile int sink;\nint main() { return 0; }\n#line " + std::to_string(inner_) +
                         " \"inner.h\"\nnamespace space { static inline void inner() { sink = sink + 1; } }\n#line " + std::to_string(outer_) +
                         " \"outer.cc\"\nextern \"C\" void outer() {\n  space::inner();\n}\n#line 1 \"hidden.cc\"\n"
                         "static __attribute__((noinline)) int hidden(int x) { return x + sink; }\nextern \"C\" int calls_hidden() { return hidden(sink) * 3; }\n";
    FILE* file = fopen((folder_ + "/a.cc").c_str(), "w");
    fwrite(source.data(), 1, source.size(), file);
    fclose(file);
    Run("cd " + folder_ + " && g++ -O2 " + flags + " -c a.cc && g++ a.o -o program");
  }
  std::unique_ptr<ElfFile> OpenFile(const std::string& name) {
    auto source = OpenSource(UniqueFd(open((folder_ + "/" + name).c_str(), O_RDONLY | O_CLOEXEC)));
    EXPECT_TRUE(source.ok());
    auto elf = ElfFile::Parse(*std::move(source));
    EXPECT_TRUE(elf.ok());
    return elf.ok() ? *std::move(elf) : nullptr;
  }
  uint64_t AddressOf(const std::string& function) {
    FILE* pipe = popen(("nm " + folder_ + "/program | grep ' [tT] " + function + "$'").c_str(), "r");
    unsigned long address = 0;
    EXPECT_EQ(fscanf(pipe, "%lx", &address), 1);
    pclose(pipe);
    return address;
  }
  void ExpectOuter(const std::vector<SourceFrame>& frames) {
    ASSERT_EQ(frames.size(), 2u);
    EXPECT_EQ(frames[0].function, "space::inner");  // it has no linkage name: nobody links to it
    EXPECT_TRUE(frames[0].file.ends_with("/inner.h")) << frames[0].file;
    EXPECT_EQ(frames[0].line, inner_);
    EXPECT_EQ(frames[0].start_line, inner_);
    EXPECT_EQ(frames[1].function, "outer");
    EXPECT_TRUE(frames[1].file.ends_with("/outer.cc")) << frames[1].file;
    EXPECT_EQ(frames[1].line, outer_ + 1);
    EXPECT_EQ(frames[1].start_line, outer_);
  }

  std::string folder_;
  uint32_t outer_ = 0, inner_ = 0;
};

TEST_F(DebugInfoTest, InlinedFunctionAndItsCaller) {
  for (const char* flags : {"-gdwarf-4", "-gdwarf-5"}) {
    Build(flags);
    auto elf = OpenFile("program");
    auto information = DebugInfo::Open({elf.get(), nullptr, nullptr, nullptr});
    ASSERT_TRUE(information.ok()) << information.error().message;
    auto frames = (*information)->Find(AddressOf("outer"));
    ASSERT_TRUE(frames.ok());
    ExpectOuter(*frames);
    auto none = (*information)->Find(1);
    ASSERT_TRUE(none.ok());
    EXPECT_TRUE(none->empty());
    EXPECT_EQ((*information)->problem(), "");
  }
}

TEST_F(DebugInfoTest, SplitIsFoundOrMissing) {
  Build("-gdwarf-5 -gsplit-dwarf");
  auto elf = OpenFile("program");
  for (bool there : {true, false}) {
    std::string asked;
    auto information = DebugInfo::Open({elf.get(), nullptr, nullptr, [&](std::string_view name, std::string_view, uint64_t) {
                                          asked = name;
                                          return there ? std::shared_ptr<ElfFile>(OpenFile("a.dwo")) : nullptr;
                                        }});
    ASSERT_TRUE(information.ok());
    auto frames = (*information)->Find(AddressOf("outer"));
    ASSERT_TRUE(frames.ok());
    EXPECT_EQ(asked, "a.dwo");
    if (there) {
      ExpectOuter(*frames);
      EXPECT_EQ((*information)->problem(), "");
    } else {  // the line is known, the functions are not
      ASSERT_EQ(frames->size(), 1u);
      EXPECT_EQ(frames->at(0).function, "");
      EXPECT_EQ(frames->at(0).line, inner_);
      EXPECT_NE((*information)->problem().find("a.dwo"), std::string::npos);
    }
  }
}

TEST_F(DebugInfoTest, NothingToRead) {
  Build("-g0");
  auto elf = OpenFile("program");
  auto information = DebugInfo::Open({elf.get(), nullptr, nullptr, nullptr});
  ASSERT_FALSE(information.ok());
  EXPECT_EQ(information.error().code, ErrorCode::kNotFound);
}

TEST_F(DebugInfoTest, WorkAndMemoryAreBounded) {
  Build("-g");
  auto elf = OpenFile("program");
  auto little = DebugInfo::Open({elf.get(), nullptr, nullptr, nullptr}, {.memory_bytes = 64 << 20, .steps = 30});
  ASSERT_TRUE(little.ok());
  auto frames = (*little)->Find(AddressOf("outer"));
  ASSERT_FALSE(frames.ok());
  EXPECT_EQ(frames.error().code, ErrorCode::kExhausted);
  Run("cd " + folder_ + " && objcopy --compress-debug-sections=zlib program");
  elf = OpenFile("program");
  auto packed = DebugInfo::Open({elf.get(), nullptr, nullptr, nullptr}, {.memory_bytes = 64});
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, ErrorCode::kExhausted);
}

// A stripped program whose local functions stand in .gnu_debugdata, as some distributions make them.
TEST_F(DebugInfoTest, MiniSymbolTable) {
  Build("-g");
  uint64_t hidden = AddressOf("_ZL6hiddeni");
  Run("cd " + folder_ + " && objcopy -S -R .comment -K _ZL6hiddeni program mini && xz -k mini && objcopy --strip-all --add-section .gnu_debugdata=mini.xz program stripped");
  auto elf = OpenFile("stripped");
  EXPECT_EQ(elf->FindSection(".symtab"), nullptr);
  auto symbol = elf->FindSymbol(hidden);
  ASSERT_TRUE(symbol.has_value());
  EXPECT_EQ(symbol->name, "_ZL6hiddeni");
  EXPECT_EQ(symbol->start, hidden);
  EXPECT_FALSE(elf->FindSymbol(symbol->end).has_value() && elf->FindSymbol(symbol->end)->name == symbol->name);
  EXPECT_EQ(elf->FunctionStarts(hidden, hidden + 1), std::vector<uint64_t>{hidden});
}

}  // namespace
}  // namespace borescope::symbols
