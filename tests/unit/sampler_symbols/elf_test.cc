// SPDX-License-Identifier: Apache-2.0
// Files of this machine, with nm, readelf and c++filt as the truth from outside.
#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/strings.h"
#include "random_profile.h"
#include "sampler/symbols/demangle.h"
#include "sampler/symbols/eh_frame.h"
#include "sampler/symbols/elf_file.h"
#include "sampler/symbols/files.h"
#include "sampler/symbols/go_table.h"

namespace borescope::symbols {
namespace {

std::vector<std::string> Lines(const std::string& command) {
  std::vector<std::string> lines;
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  char* line = nullptr;
  size_t size = 0;
  ssize_t n;
  while ((n = getline(&line, &size, pipe)) > 0) lines.emplace_back(line, line[n - 1] == '\n' ? n - 1 : n);
  free(line);
  pclose(pipe);
  return lines;
}

std::unique_ptr<ElfFile> Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return nullptr;
  auto source = OpenSource(std::move(fd));
  EXPECT_TRUE(source.ok());
  auto elf = ElfFile::Parse(*std::move(source));
  EXPECT_TRUE(elf.ok()) << path << ": " << elf.error().message;
  return elf.ok() ? *std::move(elf) : nullptr;
}

std::string Library(const char* name) { return std::string("/usr/lib/x86_64-linux-gnu/") + name; }

struct Known {
  uint64_t start, size;
  std::string name;
};

std::vector<Known> NmFunctions(const std::string& flags, const std::string& path) {
  std::vector<Known> known;
  for (const std::string& line : Lines("nm -S --defined-only " + flags + " " + path)) {
    unsigned long start, size;
    char type, name[4096];
    if (line.size() < 34 || line[16] != ' ' || line[33] != ' ') continue;  // without a size
    if (sscanf(line.c_str(), "%16lx %16lx %c %4095s", &start, &size, &type, name) == 4 && strchr("tTwWi", type) && size > 0) {
      known.push_back({start, size, std::string(name, strcspn(name, "@"))});
    }
  }
  return known;
}

// Any address of a function must give one of the names that nm has for a function that covers it.
void CompareWithNm(ElfFile& elf, const std::vector<Known>& known, int picks) {
  ASSERT_FALSE(known.empty());
  std::mt19937_64 random(testing::Seed());
  for (int i = 0; i < picks; ++i) {
    const Known& k = known[random() % known.size()];
    uint64_t address = k.start + random() % k.size;
    auto found = elf.FindSymbol(address);
    ASSERT_TRUE(found) << k.name << " at " << std::hex << address;
    bool right = false;
    for (const Known& other : known) right |= other.name == found->name && address >= other.start && address < other.start + other.size;
    EXPECT_TRUE(right) << found->name << " for " << k.name << " at " << std::hex << address;
  }
}

TEST(ElfFile, NamesEqualNmForStrippedLibraries) {
  for (const char* name : {"libc.so.6", "libstdc++.so.6", "libssl.so.3"}) {
    auto elf = Open(Library(name));
    if (!elf) continue;
    CompareWithNm(*elf, NmFunctions("-D", Library(name)), 200);
  }
}

TEST(ElfFile, NamesEqualNmForThisProgram) {
  auto elf = Open("/proc/self/exe");
  ASSERT_TRUE(elf);
  CompareWithNm(*elf, NmFunctions("", "/proc/" + std::to_string(getpid()) + "/exe"), 200);
  EXPECT_EQ(elf->language(), Language::kCpp);
}

TEST(ElfFile, BuildIdEqualsReadelf) {
  for (const std::string& path : {Library("libc.so.6"), std::string("/usr/bin/readelf"), std::string("/bin/bash")}) {
    auto elf = Open(path);
    if (!elf) continue;
    auto lines = Lines("readelf -n " + path + " | sed -n 's/.*Build ID: //p'");
    ASSERT_FALSE(lines.empty()) << path;
    EXPECT_EQ(HexEncode(elf->build_id()), lines[0]);
  }
}

TEST(ElfFile, MainOfAStrippedProgramIsKnown) {
  std::string stripped = ::testing::TempDir() + "/stripped." + std::to_string(getpid());
  auto lines = Lines("nm /proc/" + std::to_string(getpid()) + "/exe | grep -i ' t main$'");
  ASSERT_EQ(lines.size(), 1u);
  uint64_t main = std::stoull(lines[0], nullptr, 16);
  ASSERT_EQ(system(("strip -o " + stripped + " /proc/" + std::to_string(getpid()) + "/exe").c_str()), 0);
  auto elf = Open(stripped);
  unlink(stripped.c_str());
  ASSERT_TRUE(elf);
  auto found = elf->FindSymbol(main + 3);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "main");
}

TEST(ElfFile, PrefersTheNamePeopleKnow) {
  auto elf = Open(Library("libc.so.6"));
  ASSERT_TRUE(elf);
  std::map<std::string, uint64_t> by_name;
  for (const Known& k : NmFunctions("-D", Library("libc.so.6"))) by_name[k.name] = k.start;
  for (const char* name : {"write", "read", "malloc", "fork"}) {
    auto found = elf->FindSymbol(by_name[name]);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->name, name);
  }
}

TEST(ElfFile, VdsoHasItsFunctions) {
  FileCache files("/proc", 10);
  auto vdso = files.Vdso();
  ASSERT_TRUE(vdso->elf) << vdso->problem;
  bool found = false;
  for (uint64_t address = 0; address < 0x3000; address += 16) {
    auto symbol = vdso->elf->FindSymbol(address);
    found |= symbol && symbol->name.find("clock_gettime") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

// With and without the search table the answers are the same.
TEST(EhFrame, IndexEqualsHeader) {
  std::string path = Library("libc.so.6");
  auto with = Open(path);
  auto bytes = ReadFile(path);
  ASSERT_TRUE(bytes.ok());
  for (size_t i = 0; i < 20; ++i) {  // turn PT_GNU_EH_FRAME into PT_NULL
    uint64_t at = 64 + i * 56;
    uint32_t type;
    memcpy(&type, bytes->data() + at, 4);
    if (type == 0x6474e550) memset(bytes->data() + at, 0, 4);
  }
  auto without = ElfFile::Parse(MemorySource(*bytes));
  ASSERT_TRUE(without.ok());
  ASSERT_FALSE((*without)->eh_frame_hdr());
  std::mt19937_64 random(testing::Seed());
  auto known = NmFunctions("-D", path);
  for (int i = 0; i < 500; ++i) {
    const Known& k = known[random() % known.size()];
    uint64_t pc = k.start + random() % k.size;
    auto a = with->eh_frame()->Find(pc), b = (*without)->eh_frame()->Find(pc);
    ASSERT_EQ(a.has_value(), b.has_value());
    if (!a) continue;
    EXPECT_EQ(a->start, b->start);
    EXPECT_EQ(a->end, b->end);
  }
}

TEST(GoTable, NamesAStrippedProgramAsNmDoesTheWholeOne) {
  std::string directory = ::testing::TempDir() + "/go." + std::to_string(getpid());
  std::string source = directory + "/m.go";
  ASSERT_EQ(system(("mkdir -p " + directory).c_str()), 0);
  FILE* f = fopen(source.c_str(), "w");
  fputs("package main\nimport \"fmt\"\nfunc main() { fmt.Println(len(fmt.Sprint(1))) }\n", f);
  fclose(f);
  std::string build = "cd " + directory + " && go build -o whole m.go && go build -ldflags='-s -w' -o stripped m.go";
  bool built = system((build + " 2>/dev/null").c_str()) == 0;
  auto whole = built ? Open(directory + "/whole") : nullptr, stripped = built ? Open(directory + "/stripped") : nullptr;
  auto known = built ? NmFunctions("", directory + "/whole") : std::vector<Known>();
  auto names = built ? Lines("nm " + directory + "/whole | grep -i ' t runtime.text$'") : std::vector<std::string>();
  ASSERT_EQ(system(("rm -rf " + directory).c_str()), 0);
  if (!built) GTEST_SKIP() << "no Go here";
  ASSERT_TRUE(whole && stripped);
  EXPECT_EQ(stripped->language(), Language::kGo);
  ASSERT_TRUE(stripped->go_table());
  std::mt19937_64 random(testing::Seed());
  int same = 0;
  for (int i = 0; i < 300; ++i) {
    const Known& k = known[random() % known.size()];
    auto a = whole->FindSymbol(k.start), b = stripped->FindSymbol(k.start);
    ASSERT_TRUE(a) << k.name << " at " << std::hex << k.start << " size " << k.size;
    bool equal = b && (a->name == b->name || a->name == b->name + ".abi0");
    same += equal;
  }
  EXPECT_GE(same, 290);  // labels of the linker have no entry in Go's table
  for (const Known& k : known) {
    auto go = whole->go_table()->Find(k.start);
    if (k.name == "runtime.goexit.abi0" || k.name == "runtime.mstart.abi0") {
      EXPECT_TRUE(go && go->top_frame) << k.name;
    }
    if (k.name == "main.main") {
      EXPECT_FALSE(go && go->top_frame);
    }
  }
}

// A Go program that says it has 4000 sections of relocations, each over the same 96 MiB: where its code begins is looked for in a part of
// them only. A relocation in that part is found.
TEST(GoTable, ManyRelocationsAreLookedThroughInPart) {
  constexpr uint64_t kText = 0x401000, kTable = 0x500000, kRelocations = 1 << 22, kSections = 4000;
  for (bool found : {false, true}) {
    struct {
      Elf64_Ehdr header = {};
      Elf64_Phdr load = {};
      char names[32] = "\0.text\0.gopclntab\0.shstrtab";
      struct {
        uint32_t magic = 0xfffffff1;
        uint8_t zero[2] = {}, quantum = 1, pointer_size = 8;
        uint64_t functions = 1, files = 0, text = 0, names = 72, units = 0, file_table = 0, pc_table = 80, function_table = 80;
        uint32_t table[30] = {0, 0, 0, 32, 16};
      } go;
      Elf64_Rela relocation = {};
    } file;
    std::memcpy(file.header.e_ident, ELFMAG, SELFMAG);
    file.header.e_ident[EI_CLASS] = ELFCLASS64;
    file.header.e_ident[EI_DATA] = ELFDATA2LSB;
    file.header.e_machine = EM_X86_64;
    file.header.e_phoff = offsetof(decltype(file), load);
    file.header.e_phentsize = sizeof(Elf64_Phdr);
    file.header.e_phnum = 1;
    file.header.e_shentsize = sizeof(Elf64_Shdr);
    file.header.e_shoff = 4096;
    file.header.e_shnum = kSections;
    file.header.e_shstrndx = 3;
    file.load = {PT_LOAD, PF_R | PF_X, 0, kText, kText, 4096, 4096, 4096};
    if (found) file.relocation = {kTable + 24, R_X86_64_RELATIVE, kText + 0x20};
    std::vector<Elf64_Shdr> sections(kSections);
    sections[1] = {1, SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, kText, 0, 4096, 0, 0, 16, 0};
    sections[2] = {7, SHT_PROGBITS, SHF_ALLOC, kTable, offsetof(decltype(file), go), sizeof(file.go), 0, 0, 16, 0};
    sections[3] = {18, SHT_STRTAB, 0, 0, offsetof(decltype(file), names), sizeof(file.names), 0, 0, 1, 0};
    for (size_t i = 4; i < kSections; ++i) {
      sections[i] = {0, SHT_RELA, SHF_ALLOC, 0, offsetof(decltype(file), relocation), kRelocations * sizeof(Elf64_Rela), 0, 0, 8, sizeof(Elf64_Rela)};
    }
    std::string path = ::testing::TempDir() + "/relocations." + std::to_string(getpid());
    UniqueFd fd(open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
    unlink(path.c_str());
    ASSERT_EQ(pwrite(fd.get(), &file, sizeof(file), 0), static_cast<ssize_t>(sizeof(file)));
    auto bytes = static_cast<ssize_t>(sections.size() * sizeof(sections[0]));
    ASSERT_EQ(pwrite(fd.get(), sections.data(), static_cast<size_t>(bytes), 4096), bytes);
    ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(sizeof(file) + kRelocations * sizeof(Elf64_Rela))), 0);
    auto elf = ElfFile::Parse(*OpenSource(std::move(fd)));
    ASSERT_TRUE(elf.ok());
    int64_t start = NowNs(CLOCK_THREAD_CPUTIME_ID);
    const GoTable* table = (*elf)->go_table();
    EXPECT_LT(NowNs(CLOCK_THREAD_CPUTIME_ID) - start, 1'000'000'000);
    ASSERT_EQ(table != nullptr, found);
    if (found) {
      EXPECT_EQ(table->At(0)->start, kText + 0x20);
    }
  }
}

TEST(Demangle, EqualsCppFilt) {
  std::mt19937_64 random(testing::Seed());
  auto known = NmFunctions("-D", Library("libstdc++.so.6"));
  std::vector<std::string> picks;
  std::string command = "c++filt -p";
  for (int i = 0; i < 200; ++i) {
    const Known& k = known[random() % known.size()];
    if (!k.name.starts_with("_Z")) continue;
    picks.push_back(k.name);
    command += " " + k.name;
  }
  auto expected = Lines(command);
  ASSERT_EQ(expected.size(), picks.size());
  auto plain = [](std::string s) {  // the two print abi tags, spaces and defaults of the standard library differently
    std::erase(s, ' ');
    return s;
  };
  int same = 0;
  for (size_t i = 0; i < picks.size(); ++i) same += plain(SanitizeName(expected[i])) == plain(DisplayName(picks[i]));
  printf("%d of %zu names as c++filt writes them\n", same, picks.size());
  EXPECT_GE(same, static_cast<int>(picks.size() * 8 / 10));
}

TEST(Demangle, Names) {
  EXPECT_EQ(DisplayName("_ZN3foo3barEi"), "foo::bar");
  EXPECT_EQ(DisplayName("_ZN3foo3barEi.cold"), "foo::bar");
  EXPECT_EQ(DisplayName("_ZNK3Box4sizeEv"), "Box::size");
  EXPECT_EQ(DisplayName("main"), "main");
  EXPECT_EQ(DisplayName("main.(*Server).handle"), "main.(*Server).handle");
  EXPECT_EQ(DisplayName("_ZN4core3ptr13drop_in_place17h0123456789abcdefE"), "core::ptr::drop_in_place");
  EXPECT_EQ(DisplayName("_ZN50_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$Clone$GT$5clone17h0123456789abcdefE"),
            "<alloc::vec::Vec<T> as Clone>::clone");
  EXPECT_EQ(DisplayName("_ZN102_$LT$core..iter..adapters..map..Map$LT$I$C$F$GT$$u20$as$u20$core..iter..traits..iterator..Iterator$GT$8try_fold17h029aa65dff32c60bE"),
            "<core::iter::adapters::map::Map<I,F> as core::iter::traits::iterator::Iterator>::try_fold");
  EXPECT_EQ(DisplayName("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
  EXPECT_EQ(DisplayName("_Zgarbage"), "_Zgarbage");
  // Types that LLVM does not read.
  EXPECT_EQ(DisplayName("_ZN3CLI6detail16checked_multiplyIiEENSt9enable_ifIXsrSt11is_integralIT_E5valueEbE4typeERS4_S4_"), "CLI::detail::checked_multiply<int>");
  EXPECT_EQ(DisplayName("_ZSteqIcEN9__gnu_cxx11__enable_ifIXsrSt9__is_charIT_E7__valueEbE6__typeERKNSt7__cxx1112basic_stringIS3_St11char_traitsIS3_ESaIS3_EEESE_"),
            "std::operator==<char>");
  EXPECT_EQ(DisplayName("_ZZ5run_0jENK3$_3clISt4pairIjjEKS2_EEDaRT_RT0_"), "run_0(unsigned int)::$_3::operator()<std::pair<unsigned int, unsigned int>, std::pair<unsigned int, unsigned int> const>");
  EXPECT_EQ(DisplayName("_ZZ5run_0jENK3$_3clIiEEDaRT_.cold"), "run_0(unsigned int)::$_3::operator()<int>");
  EXPECT_EQ(DisplayName(std::string("a\x01z\xff")), SanitizeName("a\x01z\xff"));
  EXPECT_LE(DisplayName("_Z" + std::string(100000, 'N')).size(), 256u);
}

TEST(FileCache, DoesNotUseAReplacedFile) {
  std::string path = ::testing::TempDir() + "/replaced." + std::to_string(getpid());
  ASSERT_EQ(system(("cp /bin/true " + path).c_str()), 0);
  auto lines = Lines("stat -c '%Hd %Ld %i' " + path);
  FileRequest request;
  ASSERT_EQ(sscanf(lines.at(0).c_str(), "%u %u %lu", &request.id.device_major, &request.id.device_minor, &request.id.inode), 3);
  request.pid = getpid();
  request.path = path;
  FileCache files("/proc", 10);
  EXPECT_TRUE(files.Get(request)->elf);
  FileCache others("/proc", 10);
  ASSERT_EQ(system(("cp /bin/false " + path + ".new && mv " + path + ".new " + path).c_str()), 0);
  auto file = others.Get(request);
  EXPECT_FALSE(file->elf);
  EXPECT_EQ(file->problem, "another file has its name now");
  EXPECT_TRUE(files.Get(request)->elf);  // the open one stays
  unlink(path.c_str());
}

// Of a mapping the kernel may tell the build id only, and anybody can make another file that bears it.
TEST(FileCache, SameBuildIdIsNotTheSameFile) {
  FileCache files("/proc", 10);
  std::vector<std::shared_ptr<MappedFile>> got;
  std::string build_id;
  for (const char* name : {"a", "b"}) {
    const std::string path = ::testing::TempDir() + "/same_build_id." + name + std::to_string(getpid());
    ASSERT_EQ(system(("cp /bin/true " + path + " && echo " + name + " >> " + path).c_str()), 0);
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    void* at = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    ASSERT_NE(at, MAP_FAILED);
    if (build_id.empty()) build_id = (*ElfFile::Parse(*OpenSource(std::move(fd))))->build_id();
    FileRequest request;
    request.pid = getpid();
    request.start = reinterpret_cast<uint64_t>(at);
    request.end = request.start + 4096;
    request.path = path;
    request.build_id = build_id;
    got.push_back(files.Get(request));
    ASSERT_TRUE(got.back()->elf) << got.back()->problem;
    EXPECT_EQ(got.back()->path, path);
    EXPECT_EQ(files.Get(request), got.back());
    unlink(path.c_str());
    EXPECT_EQ(files.Get(request)->elf != nullptr, true) << "its name is gone, the mapping is not";
    munmap(at, 4096);
  }
  EXPECT_NE(got[0], got[1]);
}

TEST(FileSystems, WhatMayBlockIsKnownByItsMount) {
  const std::string text =
      "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
      "36 22 0:31 / /home\\040of\\040- rw,nosuid - fuse.sshfs a:b rw\n"
      "361 22 0:32 / /mnt rw master:2 shared:4 - nfs4 host:/x rw\n"
      "5 22 0:33 / /o rw - overlay overlay rw\n"
      "7 22 0:34 / /cut rw\n";
  EXPECT_EQ(FindFileSystem(text, 22), "ext4");
  EXPECT_EQ(FindFileSystem(text, 36), "fuse.sshfs");
  EXPECT_EQ(FindFileSystem(text, 361), "nfs4");
  EXPECT_EQ(FindFileSystem(text, 5), "overlay");
  EXPECT_EQ(FindFileSystem(text, 7), "");
  EXPECT_EQ(FindFileSystem(text, 3), "");
  for (const char* type : {"fuse", "fuseblk", "fuse.sshfs", "nfs", "nfs4", "9p", "cifs", "smb3", "ceph"}) EXPECT_TRUE(MayBlock(type)) << type;
  for (const char* type : {"ext4", "xfs", "btrfs", "overlay", "tmpfs", "fusectl", ""}) EXPECT_FALSE(MayBlock(type)) << type;
}

TEST(FileCache, AFileWrittenAnewInPlaceIsAnotherFile) {
  std::string path = ::testing::TempDir() + "/anew." + std::to_string(getpid());
  ASSERT_EQ(system(("cp /bin/true " + path).c_str()), 0);
  auto lines = Lines("stat -c '%Hd %Ld %i' " + path);
  FileRequest request;
  ASSERT_EQ(sscanf(lines.at(0).c_str(), "%u %u %lu", &request.id.device_major, &request.id.device_minor, &request.id.inode), 3);
  request.pid = getpid();
  request.path = path;
  FileCache files("/proc", 10);
  auto first = files.Get(request);
  ASSERT_TRUE(first->elf);
  EXPECT_EQ(files.Get(request), first);
  FileRequest of_first = request;
  of_first.version = first->version;
  EXPECT_EQ(files.Get(of_first), first);
  ASSERT_EQ(system(("cat /bin/false > " + path).c_str()), 0);  // the same inode, and the same size as true has
  auto of_old = files.Get(of_first);
  bool same_second = of_old->elf != nullptr;  // its version is that of the old one, then
  EXPECT_NE(of_old, first);
  auto second = files.Get(request);
  ASSERT_TRUE(second->elf);
  EXPECT_NE(second, first);
  EXPECT_EQ(second->build_id, Open("/bin/false")->build_id());
  EXPECT_FALSE(second->SameFile(*first));
  EXPECT_EQ(files.Get(request), second);
  if (!same_second) {
    EXPECT_EQ(of_old->problem, "the file has been written anew since");
    EXPECT_FALSE(of_old->opened);
  }
  unlink(path.c_str());
}

// Memory in which a runtime makes code.
TEST(FileCache, WhatIsNoElfFileIsOpenedOnce) {
  UniqueFd fd(memfd_create("code", MFD_CLOEXEC));
  std::string bytes(8192, '\xc3');
  ASSERT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  void* code = mmap(nullptr, bytes.size(), PROT_READ | PROT_EXEC, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(code, MAP_FAILED);
  struct stat st;
  ASSERT_EQ(fstat(fd.get(), &st), 0);
  FileRequest request;
  request.pid = getpid();
  request.start = reinterpret_cast<uint64_t>(code);
  request.end = request.start + bytes.size();
  request.id = {major(st.st_dev), minor(st.st_dev), st.st_ino};
  request.path = "/memfd:code (deleted)";
  FileCache files("/proc", 10);
  auto first = files.Get(request);
  if (first->problem.find("Operation not permitted") != std::string::npos) GTEST_SKIP() << first->problem;
  EXPECT_TRUE(first->opened);
  EXPECT_FALSE(first->elf);
  EXPECT_EQ(first->problem, "not an ELF file");
  EXPECT_EQ(first->opened_id, request.id);
  EXPECT_EQ(first->version.bytes, bytes.size());
  EXPECT_EQ(files.Get(request), first);
  ASSERT_EQ(write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  auto grown = files.Get(request);
  EXPECT_NE(grown, first);
  EXPECT_EQ(grown->version.bytes, 2 * bytes.size());
  munmap(code, bytes.size());
  EXPECT_EQ(files.Get(request), grown);  // nothing to look at any more: what is known of it stays
}

TEST(FileCache, OpensNoFifo) {
  std::string path = ::testing::TempDir() + "/fifo." + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  auto fd = OpenInRoot("/proc", getpid(), path);
  unlink(path.c_str());
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.error().message, "not a regular file");
}

TEST(FileCache, IsBounded) {
  FileCache files("/proc", 3);
  std::vector<std::shared_ptr<MappedFile>> held;
  for (const char* name : {"/bin/true", "/bin/false", "/bin/cat", "/bin/ls", "/bin/cp"}) {
    auto lines = Lines(std::string("stat -L -c '%Hd %Ld %i' ") + name);
    FileRequest request;
    ASSERT_EQ(sscanf(lines.at(0).c_str(), "%u %u %lu", &request.id.device_major, &request.id.device_minor, &request.id.inode), 3);
    request.pid = getpid();
    request.path = name;
    held.push_back(files.Get(request));
  }
  EXPECT_EQ(files.size(), 3u);
  EXPECT_EQ(files.refused(), 2u);
  EXPECT_FALSE(held[4]->elf);
}

}  // namespace
}  // namespace borescope::symbols
