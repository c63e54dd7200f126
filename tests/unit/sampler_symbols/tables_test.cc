// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "random_profile.h"
#include "sampler/symbols/kallsyms.h"
#include "sampler/symbols/perf_map.h"
#include "sampler/symbols/proc_maps.h"

namespace borescope::symbols {
namespace {

TEST(Kallsyms, FindsFunctionsAndModules) {
  auto k = Kallsyms::Parse(
      "ffffffff81000000 T _stext\nffffffff81000000 T _text\nffffffff81000100 t do_read\nffffffff81000100 T __do_read\n"
      "ffffffff81000180 d data\nffffffff81000200 T vfs_write\nffffffff81000400 T _etext\n"
      "ffffffffc0000000 t nft_do_chain\t[nf_tables]\nffffffffc0002000 t bpf_prog_6deef7357e7b4530_x\t[bpf]\n");
  ASSERT_TRUE(k.ok()) << k.error().message;
  EXPECT_EQ(k->Find(0xffffffff81000110)->name, "do_read");
  EXPECT_EQ(k->Find(0xffffffff810001ff)->name, "do_read");
  EXPECT_EQ(k->Find(0xffffffff81000200)->name, "vfs_write");
  EXPECT_FALSE(k->Find(0xffffffff81000400 + 5 * 4096));  // behind _etext
  EXPECT_FALSE(k->Find(0x1000));
  EXPECT_EQ(k->Find(0xffffffffc0000010)->module, "nf_tables");
  EXPECT_EQ(k->Find(0xffffffffc0002010)->module, "bpf");
  EXPECT_EQ(k->text_start(), 0xffffffff81000000u);
}

TEST(Kallsyms, ZeroAddressesAreNamedAsTheReason) {
  auto k = Kallsyms::Parse("0000000000000000 T _stext\n0000000000000000 t a\n");
  ASSERT_FALSE(k.ok());
  EXPECT_EQ(k.error().code, ErrorCode::kDenied);
  EXPECT_NE(k.error().message.find("CAP_SYSLOG"), std::string::npos);
}

// Read as far as needed, in whatever order it is asked, /proc/kallsyms gives what the whole of it gives.
TEST(Kallsyms, LoadEqualsParse) {
  auto text = ReadFile("/proc/kallsyms");
  ASSERT_TRUE(text.ok());
  auto whole = Kallsyms::Parse(*text), lazy = Kallsyms::Load("/proc");
  ASSERT_EQ(whole.ok(), lazy.ok());
  if (!whole.ok()) GTEST_SKIP() << whole.error().message;
  EXPECT_EQ(whole->text_start(), lazy->text_start());
  EXPECT_LT(lazy->memory_bytes(), whole->memory_bytes() / 4) << "all of it was read";
  std::mt19937_64 random(testing::Seed());
  std::vector<uint64_t> addresses;
  for (uint64_t range : {1u << 16, 1u << 20, 1u << 23, 1u << 26, 1u << 30}) {
    for (int i = 0; i < 300; ++i) addresses.push_back(lazy->text_start() + random() % range);
  }
  for (uint64_t address : addresses) {
    auto x = whole->Find(address), y = lazy->Find(address);
    ASSERT_EQ(x.has_value(), y.has_value()) << std::hex << address;
    if (!x) continue;
    EXPECT_EQ(x->name, y->name) << std::hex << address;
    EXPECT_EQ(x->start, y->start);
    EXPECT_EQ(x->module, y->module);
  }
}

TEST(PerfMap, NewerCodeReplacesWhatItOverlaps) {
  PerfMap map;
  std::string text = "1000 100 a\n1100 100 b c\n1080 40 new\nbad line\n0x2000 10 prefixed\n3000 10 unfinished";
  EXPECT_EQ(map.Add(text), text.size() - std::string("3000 10 unfinished").size());
  EXPECT_FALSE(map.Find(0x1010));  // a's code was thrown away with its middle
  EXPECT_EQ(map.Find(0x1090)->name, "new");
  EXPECT_EQ(map.Find(0x1150)->name, "b c");
  EXPECT_EQ(map.Find(0x2005)->name, "prefixed");
  EXPECT_FALSE(map.Find(0x3000));
  map.Add("1100 10 over\n");
  EXPECT_EQ(map.Find(0x1105)->name, "over");
  EXPECT_FALSE(map.Find(0x1150));
}

// Against a table of single bytes: random adds in random portions.
TEST(PerfMap, EqualsAByteTable) {
  std::mt19937_64 random(testing::Seed());
  for (int round = 0; round < 50; ++round) {
    PerfMap map;
    struct Live {
      uint64_t start, end;
      std::string name;
    };
    std::vector<Live> live;
    for (int i = 0; i < 60; ++i) {
      uint64_t start = 1 + random() % 200, size = 1 + random() % 20;
      std::string name = "f" + std::to_string(i);
      char line[64];
      snprintf(line, sizeof(line), "%lx %lx %s\n", start, size, name.c_str());
      map.Add(line);
      std::erase_if(live, [&](const Live& l) { return l.start < start + size && start < l.end; });
      live.push_back({start, start + size, name});
      if (random() % 3 != 0) continue;
      for (uint64_t at = 0; at < 230; ++at) {
        std::string expected;
        for (const Live& l : live) {
          if (at >= l.start && at < l.end) expected = l.name;
        }
        auto found = map.Find(at);
        ASSERT_EQ(found ? std::string(found->name) : "", expected) << "at " << at;
      }
    }
  }
}

TEST(PerfMap, IsBounded) {
  PerfMap map;
  std::string text;
  for (size_t i = 0; i < PerfMap::kMaxEntries + 100; ++i) {
    char line[64];
    snprintf(line, sizeof(line), "%zx 10 f\n", 16 + i * 16);
    text += line;
  }
  map.Add(text);
  EXPECT_EQ(map.size(), PerfMap::kMaxEntries);
  EXPECT_EQ(map.dropped(), 100u);
}

TEST(ProcMaps, Lines) {
  auto m = ParseMapsLine("7f0000001000-7f0000003000 r-xp 00001000 fe:01 1234                       /usr/lib/a b\\012c.so (deleted)");
  ASSERT_TRUE(m);
  EXPECT_EQ(m->start, 0x7f0000001000u);
  EXPECT_EQ(m->end, 0x7f0000003000u);
  EXPECT_EQ(m->offset, 0x1000u);
  EXPECT_EQ(m->device_major, 0xfeu);
  EXPECT_EQ(m->inode, 1234u);
  EXPECT_TRUE(m->executable);
  EXPECT_TRUE(m->deleted);
  EXPECT_EQ(m->path, "/usr/lib/a b\nc.so");
  EXPECT_EQ(ParseMapsLine("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]")->path, "[vsyscall]");
  EXPECT_EQ(ParseMapsLine("55e0-56e0 r-xp 00000000 00:00 0 ")->path, "");
  for (const char* bad : {"", "x", "2-1 r-xp 0 0:0 0 /a", "1-2 r-xp", "1-2 r-xp 0 00:zz 0 /a"}) EXPECT_FALSE(ParseMapsLine(bad)) << bad;
}

TEST(ProcMaps, OurOwn) {
  auto text = ReadFile("/proc/self/maps");
  ASSERT_TRUE(text.ok());
  auto maps = ParseMaps(*text, 1000);
  auto here = reinterpret_cast<uint64_t>(&ParseMaps);
  bool found = false;
  for (const auto& m : maps) found |= here >= m.start && here < m.end;
  EXPECT_TRUE(found);
  EXPECT_EQ(ParseMaps(*text, 2).size(), 2u);
}

TEST(ProcMaps, InnermostPid) {
  EXPECT_EQ(ParseInnermostPid("Name:\tx\nNSpid:\t4711\t12\t1\nVmPeak:\t1\n"), 1);
  EXPECT_EQ(ParseInnermostPid("Name:\tx\nNSpid:\t4711\n"), 4711);
  EXPECT_EQ(ParseInnermostPid("Name:\tx\n"), 0);
}

}  // namespace
}  // namespace borescope::symbols
