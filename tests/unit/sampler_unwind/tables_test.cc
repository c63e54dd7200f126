// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/tables.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "table_samples.h"
#include "temporary_directory.h"

namespace borescope::unwind {
namespace {

using State = Tables::State;

class TablesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tables> Make(Tables::Options options = {}) {
    options.memory = &memory_;
    options.compiler = TEST_COMPILER;
    auto tables = Tables::Create(std::move(options));
    EXPECT_TRUE(tables.ok()) << tables.error().message;
    return *std::move(tables);
  }
  std::shared_ptr<symbols::MappedFile> File(const Order& order, const std::string& build_id) {
    return WriteAndOpen(directory_.path() + "/f" + std::to_string(next_++), ElfText(order, build_id));
  }
  // As the agent drains: at each wake-up, and ten times a second.
  static bool PollUntil(Tables& tables, const std::function<bool()>& done, int64_t limit_ns = 20'000'000'000) {
    const int64_t end = NowNs(CLOCK_MONOTONIC) + limit_ns;
    while (!done()) {
      if (NowNs(CLOCK_MONOTONIC) > end) return false;
      pollfd wake{tables.wake_fd(), POLLIN, 0};
      poll(&wake, 1, 20);
      tables.Poll();
    }
    return true;
  }
  bool Missing(const unwind_file_key& key) { return memory_.Use(key, 0) == nullptr; }

  testing::TemporaryDirectory directory_;
  Memory memory_;
  int next_ = 0;
};

TEST_F(TablesTest, WantedFileIsCompiledAndPlaced) {
  auto tables = Make();
  const Order order = MakeOrder("table", Seed(), 50, 400);
  auto file = File(order, "build-id-1");
  EXPECT_EQ(tables->Want(Key(1), file), State::kPending);
  size_t ready = 0;
  ASSERT_TRUE(PollUntil(*tables, [&] {
    ready += tables->Poll();
    return tables->Want(Key(1), file) == State::kReady && !Missing(Key(1));
  }));
  EXPECT_EQ(Differences(memory_, memory_.files.at(Key(1)).table, TableOf(order)), 0);
  State state;
  auto table = tables->Get(file, &state);
  ASSERT_TRUE(table);
  EXPECT_EQ(state, State::kReady);
  EXPECT_EQ(table->rows, TableOf(order).rows);
  const auto files = tables->files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].path, file->path);
  EXPECT_EQ(files[0].build_id, "6275696c642d69642d31");
  EXPECT_TRUE(files[0].placed);
  EXPECT_EQ(files[0].rows, table->rows.size());
  EXPECT_EQ(files[0].sources, "test");
  const Tables::Stats stats = tables->stats();
  EXPECT_EQ(stats.compiled, 1u);
  EXPECT_EQ(stats.placed_bytes, files[0].bytes);
  EXPECT_EQ(stats.chunk_bytes, size_t{UNWIND_CHUNK_BYTES});
  EXPECT_GT(stats.compile_cpu_ns, 0);
}

TEST_F(TablesTest, SameBuildIdIsCompiledAndPlacedOnce) {
  auto tables = Make();
  const Order order = MakeOrder("table", Seed());
  std::vector<std::shared_ptr<symbols::MappedFile>> copies;
  for (uint64_t i = 0; i < 10; ++i) {
    copies.push_back(File(order, "the same in every image"));
    tables->Want(Key(i), copies.back());
  }
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 10; }));
  copies.push_back(File(order, "the same in every image"));
  tables->Want(Key(10), copies.back());
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 11; }));
  for (uint64_t i = 0; i <= 10; ++i) EXPECT_EQ(memory_.files.at(Key(i)).table, memory_.files.at(Key(0)).table);
  EXPECT_EQ(tables->stats().compiled, 1u);
  EXPECT_EQ(tables->stats().placed_files, 1u);
  EXPECT_EQ(tables->stats().files, 1u);
}

// Somebody's copy of a library of all, but for one byte: build id, size and headers are the same.
TEST_F(TablesTest, SameBuildIdWithOtherBytesIsAnotherFile) {
  Tables::Options options;
  options.cache_directory = directory_.path() + "/cache";
  const Order order = MakeOrder("table", Seed()), forged = MakeOrder("table", Seed() ^ 1), mute = MakeOrder("nothing", Seed());
  for (int run = 0; run < 2; ++run) {  // the second from disk
    auto tables = Make(options);
    auto bad = File(forged, "libc"), worse = File(mute, "libc"), good = File(order, "libc");
    tables->Want(Key(1), bad);
    tables->Want(Key(2), worse);
    ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 2; }));
    tables->Want(Key(3), good);
    ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 3; }));
    EXPECT_EQ(Differences(memory_, memory_.files.at(Key(3)).table, TableOf(order)), 0);
    EXPECT_EQ(Differences(memory_, memory_.files.at(Key(1)).table, TableOf(forged)), 0);
    EXPECT_EQ(memory_.files.at(Key(2)).table, 0u);
    EXPECT_EQ(tables->stats().from_disk, run == 0 ? 0u : 3u);
  }
}

TEST_F(TablesTest, SameBuildIdWithAnotherLayoutIsAnotherFile) {
  auto tables = Make();
  auto file = File(MakeOrder("table", Seed()), "patched");
  auto patched = WriteAndOpen(directory_.path() + "/patched", "" + ElfText(MakeOrder("table", Seed() + 1), "patched").insert(4 + 60 + 56 * 2 + 28, 4096, '\0'));
  ASSERT_EQ(patched->build_id, file->build_id);
  tables->Want(Key(1), file);
  tables->Want(Key(2), patched);
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 2; }));
  EXPECT_NE(memory_.files.at(Key(1)).table, memory_.files.at(Key(2)).table);
}

TEST_F(TablesTest, WithoutBuildIdContentTells) {
  auto tables = Make();
  const Order order = MakeOrder("table", Seed()), other = MakeOrder("table", Seed() + 1);
  std::vector<std::shared_ptr<symbols::MappedFile>> files;
  for (uint64_t i = 0; i < 5; ++i) {
    files.push_back(File(order, ""));
    tables->Want(Key(i), files.back());
  }
  files.push_back(File(other, ""));
  tables->Want(Key(5), files.back());
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 6; }));
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(memory_.files.at(Key(i)).table, memory_.files.at(Key(0)).table);
  EXPECT_EQ(Differences(memory_, memory_.files.at(Key(5)).table, TableOf(other)), 0);
  EXPECT_EQ(tables->stats().compiled, 2u);
  EXPECT_EQ(tables->stats().files, 2u);
  State state;
  for (const auto& file : files) EXPECT_TRUE(tables->Get(file, &state));
}

TEST_F(TablesTest, WhatGoesWrongIsNamedAndTheNextFileWorks) {
  Tables::Options options;
  options.compile_limit_ns = 200'000'000;
  auto tables = Make(options);
  std::map<std::string, std::shared_ptr<symbols::MappedFile>> files;
  uint64_t inode = 1;
  for (const char* what : {"crash", "exit", "loop", "error", "lie", "nothing", "table"}) {
    files[what] = File(MakeOrder(what, Seed()), what);
    tables->Want(Key(inode++), files[what]);
  }
  auto no_elf = WriteAndOpen(directory_.path() + "/text", "no ELF file");
  tables->Want(Key(inode++), no_elf);
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == files.size() + 1; }));
  std::map<std::string, Tables::FileInfo> infos;
  for (const auto& info : tables->files()) infos[info.path] = info;
  for (const auto& [what, file] : files) {
    const Tables::FileInfo& info = infos.at(file->path);
    if (what == "table") {
      EXPECT_EQ(info.state, State::kReady);
      EXPECT_TRUE(info.placed);
    } else if (what == "nothing") {
      EXPECT_EQ(info.state, State::kNothing);
    } else {
      EXPECT_EQ(info.state, State::kFailed) << what;
      printf("%s: %s\n", what.c_str(), info.problem.c_str());
    }
  }
  EXPECT_NE(infos.at(files["exit"]->path).problem.find("exit code 3"), std::string::npos);
  EXPECT_NE(infos.at(files["loop"]->path).problem.find("longer than"), std::string::npos);
  EXPECT_NE(infos.at(files["error"]->path).problem.find("error"), std::string::npos);
  EXPECT_EQ(infos.at(no_elf->path).problem, "not an ELF file");
  EXPECT_EQ(infos.at(no_elf->path).state, State::kNothing);
  EXPECT_EQ(memory_.files.at(Key(8)).table, 0u);
  EXPECT_EQ(tables->stats().failed, 5u);
  // The programs are told that there is nothing to wait for.
  EXPECT_EQ(memory_.files.at(Key(1)).table, 0u);
  // And nothing is tried again and again.
  const uint64_t compiled = tables->stats().compiled;
  for (const auto& [what, file] : files) tables->Want(Key(100 + inode++), file);
  for (int i = 0; i < 10; ++i) {
    tables->Poll();
    usleep(10'000);
  }
  EXPECT_EQ(tables->stats().compiled, compiled);
}

// Of a file in a container's overlay it is not known how the kernel knows it, until a sample tells: it takes no place before.
TEST_F(TablesTest, WithoutAKeyAFileIsCompiledOnly) {
  auto tables = Make();
  auto file = File(MakeOrder("table", Seed()), "in an overlay");
  unwind_file_key none = {};
  tables->Want(none, file);
  ASSERT_TRUE(PollUntil(*tables, [&] { return tables->Want(none, file) == State::kReady; }));
  EXPECT_TRUE(memory_.files.empty());
  EXPECT_EQ(tables->stats().placed_files, 0u);
  EXPECT_EQ(tables->Want(Key(1), file), State::kReady) << "known at once";
  ASSERT_TRUE(PollUntil(*tables, [&] { return !Missing(Key(1)); }));
  EXPECT_EQ(tables->stats().compiled, 1u);
}

TEST_F(TablesTest, WhatCouldNotBeOpenedForOneProcessMayBeForAnother) {
  auto tables = Make();
  auto gone = std::make_shared<symbols::MappedFile>();
  gone->path = "/app/server";
  gone->problem = "the process and its file are gone";
  EXPECT_EQ(tables->Want(Key(1), gone), State::kFailed);
  EXPECT_EQ(tables->Want(Key(1), gone), State::kFailed);
  auto file = File(MakeOrder("table", Seed()), "server");
  tables->Want(Key(1), file);
  ASSERT_TRUE(PollUntil(*tables, [&] { return !Missing(Key(1)); }));
  EXPECT_EQ(tables->Want(Key(1), file), State::kReady);
}

TEST_F(TablesTest, DiskCacheServesTheNextRun) {
  Tables::Options options;
  options.cache_directory = directory_.path() + "/cache";
  const Order order = MakeOrder("table", Seed(), 30, 300);
  auto file = File(order, "cached"), nothing = File(MakeOrder("nothing"), "nothing"), nameless = File(order, "");
  auto run = [&] {
    auto tables = Make(options);
    tables->Want(Key(1), file);
    tables->Want(Key(2), nothing);
    tables->Want(Key(3), nameless);
    EXPECT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 3; }));
    EXPECT_EQ(Differences(memory_, memory_.files.at(Key(1)).table, TableOf(order)), 0);
    EXPECT_EQ(memory_.files.at(Key(2)).table, 0u);
    return tables->stats();
  };
  Tables::Stats cold = run();
  EXPECT_EQ(cold.compiled, 3u);
  EXPECT_EQ(cold.from_disk, 0u);
  EXPECT_TRUE(memory_.files.empty());
  Tables::Stats warm = run();
  EXPECT_EQ(warm.compiled, 0u);
  EXPECT_EQ(warm.from_disk, 3u);
  for (const auto& entry : std::filesystem::directory_iterator(options.cache_directory)) {
    if (entry.path().filename() != ".key") std::ofstream(entry.path()) << "rubbish";
  }
  Tables::Stats damaged = run();
  EXPECT_EQ(damaged.compiled, 3u);
  EXPECT_EQ(damaged.damaged, 3u);
}

TEST_F(TablesTest, SeparateDebugFileIsHandedOver) {
  Tables::Options options;
  options.debug_directory = directory_.path() + "/debug";
  std::filesystem::create_directories(options.debug_directory + "/.build-id/61");
  std::ofstream(options.debug_directory + "/.build-id/61/626364.debug", std::ios::binary) << ElfText(MakeOrder("table"), "abcd");
  std::filesystem::create_directories(options.debug_directory + "/.build-id/62");
  std::ofstream(options.debug_directory + "/.build-id/62/626364.debug", std::ios::binary) << ElfText(MakeOrder("table"), "another");
  auto tables = Make(options);
  auto with = File(MakeOrder("table"), "abcd"), without = File(MakeOrder("table"), "bbcd");
  tables->Want(Key(1), with);
  tables->Want(Key(2), without);
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 2; }));
  for (const auto& info : tables->files()) EXPECT_EQ(info.sources, info.path == with->path ? "test+debug" : "test");
}

// A file of the program's choice is not opened beside it or anywhere else in our own file system.
TEST_F(TablesTest, NamesInFilesLeadNowhere) {
  Tables::Options options;
  options.debug_directory = directory_.path() + "/debug";
  const std::string folder = options.debug_directory + "/.build-id/61";
  std::filesystem::create_directories(folder);
  // In place of debug files: a FIFO that would block, a device, a link out of the directory.
  ASSERT_EQ(mkfifo((folder + "/31.debug").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", folder + "/32.debug");
  std::ofstream(directory_.path() + "/outside", std::ios::binary) << ElfText(MakeOrder("table"), "a3");
  std::filesystem::create_symlink(directory_.path() + "/outside", folder + "/33.debug");
  // And one within it, as some distributions have them.
  std::ofstream(options.debug_directory + "/inside", std::ios::binary) << ElfText(MakeOrder("table"), "a4xx");
  std::filesystem::create_symlink("../../inside", folder + "/34.debug");
  std::filesystem::create_symlink("../../inside", folder + "/347878.debug");
  auto tables = Make(options);
  std::vector<std::shared_ptr<symbols::MappedFile>> files;
  for (const char* id : {"a1", "a2", "a3", "a4xx"}) {
    files.push_back(File(MakeOrder("table", Seed() + files.size()), id));
    tables->Want(Key(files.size()), files.back());
  }
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == files.size(); }));
  for (const auto& info : tables->files()) EXPECT_EQ(info.sources, info.build_id == "61347878" ? "test+debug" : "test") << info.build_id;
}

TEST_F(TablesTest, OwnersTakeTurns) {
  Tables::Options options;
  options.compile_limit_ns = 300'000'000;
  auto tables = Make(options);
  // One wants fifty that take all their time, and then another comes.
  std::vector<std::shared_ptr<symbols::MappedFile>> files;
  for (uint64_t i = 0; i < 50; ++i) {
    files.push_back(File(MakeOrder("loop", Seed() + i), ""));
    tables->Want(Key(1000 + i), files.back(), 1);
  }
  ASSERT_TRUE(PollUntil(*tables, [&] { return tables->stats().failed >= 1; }));
  for (uint64_t i = 0; i < 5; ++i) {
    files.push_back(File(MakeOrder("table", Seed() + i), ""));
    tables->Want(Key(i), files.back(), 2);
  }
  ASSERT_TRUE(PollUntil(*tables, [&] { return tables->stats().placed_files == 5; }));
  EXPECT_LE(tables->stats().failed, 3u) << "the first, the one under way, and perhaps one at the start";
}

TEST_F(TablesTest, WhatTookTooLongIsRemembered) {
  Tables::Options options;
  options.compile_limit_ns = 200'000'000;
  options.cache_directory = directory_.path() + "/cache";
  auto file = File(MakeOrder("loop", Seed()), "slow");
  for (int run = 0; run < 2; ++run) {
    auto tables = Make(options);
    tables->Want(Key(1), file);
    ASSERT_TRUE(PollUntil(*tables, [&] { return tables->stats().failed == 1; }));
    EXPECT_EQ(tables->stats().from_disk, run == 0 ? 0u : 1u);
    EXPECT_NE(tables->files()[0].problem.find("longer than"), std::string::npos) << tables->files()[0].problem;
    EXPECT_EQ(memory_.files.at(Key(1)).table, 0u);
  }
}

TEST_F(TablesTest, OneTableDoesNotTakeTheRoomOfAll) {
  Tables::Options options;
  options.budget_bytes = 4 * UNWIND_CHUNK_BYTES;
  auto tables = Make(options);
  auto huge = File(MakeOrder("table", Seed(), 200, 4500), "huge"), other = File(MakeOrder("table", Seed()), "other");
  tables->Want(Key(1), huge);
  tables->Want(Key(2), other);
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 1 && tables->Want(Key(1), huge) == State::kReady; }));
  for (const auto& info : tables->files()) {
    EXPECT_EQ(info.placed, info.path == other->path);
    if (!info.placed) {
      EXPECT_NE(info.problem.find("larger than a quarter"), std::string::npos) << info.problem;
    }
  }
  State state;
  EXPECT_TRUE(tables->Get(huge, &state)) << "in user space it is there";
}

TEST_F(TablesTest, EndsThoughAFileIsUnderWay) {
  auto tables = Make();
  tables->Want(Key(1), File(MakeOrder("loop"), "slow"));
  usleep(100'000);
  const int64_t start = NowNs(CLOCK_MONOTONIC);
  tables.reset();
  EXPECT_LT(NowNs(CLOCK_MONOTONIC) - start, 3'000'000'000);
}

TEST_F(TablesTest, NothingOfAFileUnderWayStaysAfterRelease) {
  Tables::Options options;
  options.compile_limit_ns = 500'000'000;
  auto tables = Make(options);
  auto slow = File(MakeOrder("loop"), "slow");
  tables->Want(Key(1), slow);
  tables->Want(Key(2), File(MakeOrder("table", Seed()), "behind it"));
  usleep(100'000);
  tables->Release();
  EXPECT_EQ(tables->stats().files, 0u);
  std::weak_ptr<symbols::MappedFile> held = slow;
  slow.reset();
  ASSERT_TRUE(PollUntil(*tables, [&] { return held.expired(); }));
  EXPECT_EQ(tables->stats().files, 0u);
}

TEST_F(TablesTest, ReleaseGivesAllBack) {
  auto tables = Make();
  auto file = File(MakeOrder("table", Seed()), "released"), slow = File(MakeOrder("loop"), "slow");
  tables->Want(Key(1), file);
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 1; }));
  tables->Want(Key(2), slow);
  tables->Want(Key(3), File(MakeOrder("table", Seed() + 1), "behind it"));
  tables->Release();
  EXPECT_TRUE(memory_.chunks.empty());
  EXPECT_TRUE(memory_.files.empty());
  EXPECT_EQ(tables->stats().chunk_bytes, 0u);
  // The next session finds what was compiled.
  tables->Want(Key(1), file);
  tables->Poll();
  EXPECT_FALSE(Missing(Key(1)));
  EXPECT_EQ(tables->stats().compiled, 1u);
  EXPECT_EQ(memory_.wrong, 0);
}

TEST_F(TablesTest, UserSpaceKeepsWithinItsBudgetAndGetsItAgain) {
  Tables::Options options;
  options.user_budget_bytes = 200'000;
  options.cache_directory = directory_.path() + "/cache";
  auto tables = Make(options);
  std::vector<std::shared_ptr<symbols::MappedFile>> files;
  for (uint64_t i = 0; i < 40; ++i) {
    files.push_back(File(MakeOrder("table", Seed() + i, 10, 600), "file" + std::to_string(i)));
    tables->Want(Key(i), files.back());
  }
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 40; }));
  EXPECT_LE(tables->stats().user_bytes, 4 * options.user_budget_bytes);
  ASSERT_TRUE(PollUntil(*tables, [&] { return tables->stats().user_bytes <= options.user_budget_bytes; }));
  EXPECT_GT(tables->stats().user_bytes, 0u);
  for (uint64_t i = 0; i < 40; i += 7) {
    State state = State::kFailed;
    std::shared_ptr<const CompiledTable> table;
    ASSERT_TRUE(PollUntil(*tables, [&] { return (table = tables->Get(files[i], &state)) != nullptr; }));
    EXPECT_EQ(table->rows, TableOf(MakeOrder("table", Seed() + i, 10, 600)).rows);
  }
  EXPECT_EQ(tables->stats().compiled, 40u) << "what was dropped is read from disk";
}

// Whether what the programs ask for is there; what they miss is wanted by the sampler, as a sample would.
struct Load {
  Tables& tables;
  Memory& memory;
  std::vector<std::shared_ptr<symbols::MappedFile>>& files;
  int asked = 0, found = 0;
  void Use(uint64_t i) {
    ++asked;
    if (memory.Use(Key(i), 0)) {
      ++found;
    } else {
      tables.Want(Key(i), files[i]);
    }
  }
};

TEST_F(TablesTest, TheBusiestKeepTheirsUnderASmallBudget) {
  Tables::Options options;
  options.budget_bytes = UNWIND_CHUNK_BYTES;
  options.cache_directory = directory_.path() + "/cache";
  auto tables = Make(options);
  std::mt19937_64 random(Seed());
  std::vector<std::shared_ptr<symbols::MappedFile>> files;
  // 400 of about 16 KiB each: a third finds room.
  for (uint64_t i = 0; i < 400; ++i) {
    files.push_back(File(MakeOrder("table", Seed() + i, 5, 800), "executable" + std::to_string(i)));
    tables->Want(Key(i), files.back());
  }
  ASSERT_TRUE(PollUntil(*tables, [&] { return tables->stats().compiled + tables->stats().from_disk >= 400; }, 60'000'000'000));
  // 60 are busy, 340 run now and then. The busy ones come last: all room is taken by others.
  Load load{*tables, memory_, files};
  auto run = [&](int64_t ns) {
    load.asked = load.found = 0;
    const int64_t end = NowNs(CLOCK_MONOTONIC) + ns;
    while (NowNs(CLOCK_MONOTONIC) < end) {
      for (int i = 0; i < 20; ++i) load.Use(random() % 100 < 85 ? 340 + random() % 60 : random() % 340);
      usleep(10'000);
      tables->Poll();
    }
    return load.asked == 0 ? 0 : static_cast<double>(load.found) / load.asked;
  };
  auto busy = [&] {
    int found = 0;
    for (uint64_t i = 340; i < 400; ++i) found += memory_.files.contains(Key(i));
    return found;
  };
  const int64_t start = NowNs(CLOCK_MONOTONIC);
  const double first = run(100'000'000);
  while (busy() < 60 && NowNs(CLOCK_MONOTONIC) - start < 20'000'000'000) run(100'000'000);
  const double seconds = static_cast<double>(NowNs(CLOCK_MONOTONIC) - start) / 1e9;
  const uint64_t evictions = tables->stats().evictions;
  const double share = run(500'000'000);
  printf("found at first %.3f, after %.1f s %.3f of %d; %llu evictions, then %llu; %llu placed, %llu not\n", first, seconds, share, load.asked,
         static_cast<unsigned long long>(evictions), static_cast<unsigned long long>(tables->stats().evictions - evictions),
         static_cast<unsigned long long>(tables->stats().placed_files), static_cast<unsigned long long>(tables->stats().not_placed));
  EXPECT_GE(share, 0.8);
  EXPECT_GE(busy(), 57) << "but for those that wait for their turn just now";
  EXPECT_GT(evictions, 0u);
  EXPECT_EQ(memory_.most_chunks, 1u);
  EXPECT_GT(tables->stats().not_placed, 0u);
  EXPECT_EQ(memory_.wrong, 0);
}

TEST_F(TablesTest, EquallyUsedFilesDoNotDriveOutOneAnother) {
  Tables::Options options;
  options.budget_bytes = UNWIND_CHUNK_BYTES;
  options.cache_directory = directory_.path() + "/cache";
  auto tables = Make(options);
  std::mt19937_64 random(Seed());
  std::vector<std::shared_ptr<symbols::MappedFile>> files;
  for (uint64_t i = 0; i < 120; ++i) {
    files.push_back(File(MakeOrder("table", Seed() + i, 10, 800), "executable" + std::to_string(i)));
    tables->Want(Key(i), files.back());
  }
  ASSERT_TRUE(PollUntil(*tables, [&] { return tables->stats().compiled >= 120; }, 60'000'000'000));
  Load load{*tables, memory_, files};
  const int64_t end = NowNs(CLOCK_MONOTONIC) + 1'000'000'000;
  while (NowNs(CLOCK_MONOTONIC) < end) {
    for (int i = 0; i < 60; ++i) load.Use(random() % 120);
    usleep(10'000);
    tables->Poll();
  }
  const double share = static_cast<double>(load.found) / load.asked, room = static_cast<double>(tables->stats().placed_files) / 120;
  printf("%.3f found, %.3f have room, %llu evictions\n", share, room, static_cast<unsigned long long>(tables->stats().evictions));
  EXPECT_GT(share, room * 0.8);
  EXPECT_LT(tables->stats().evictions, 120u);
}

TEST_F(TablesTest, AnIdleFileMakesRoomForAUsedOne) {
  Tables::Options options;
  options.budget_bytes = UNWIND_CHUNK_BYTES;
  auto tables = Make(options);
  // Two of which only one has room.
  auto idle = File(MakeOrder("table", Seed(), 100, 4500), "idle"), used = File(MakeOrder("table", Seed() + 1, 100, 4500), "used");
  tables->Want(Key(1), idle);
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 1; }));
  const unwind_ref place = memory_.files.at(Key(1)).table;
  const int64_t start = NowNs(CLOCK_MONOTONIC);
  ASSERT_TRUE(PollUntil(*tables, [&] { return tables->Want(Key(2), used) == State::kReady && !Missing(Key(2)); }));
  EXPECT_GE(NowNs(CLOCK_MONOTONIC) - start, TableMemory::kGraceNs) << "a program may still be reading what lay at " << place;
  EXPECT_TRUE(Missing(Key(1)));
  EXPECT_EQ(tables->stats().evictions, 1u);
  EXPECT_EQ(Differences(memory_, memory_.files.at(Key(2)).table, TableOf(MakeOrder("table", Seed() + 1, 100, 4500))), 0);
}

TEST_F(TablesTest, MoreFilesThanTheProgramsCanKnow) {
  auto tables = Make();
  auto file = File(MakeOrder("table", Seed()), "one of very many inodes");
  tables->Want(Key(1), file);
  ASSERT_TRUE(PollUntil(*tables, [&] { return memory_.files.size() == 1; }));
  for (uint64_t i = 2; i < UNWIND_MAX_FILES + 3000; ++i) {
    tables->Want(Key(i), file);
    memory_.Use(Key(1), 0);
  }
  EXPECT_LE(memory_.files.size(), size_t{UNWIND_MAX_FILES});
  EXPECT_FALSE(Missing(Key(1))) << "in use";
  EXPECT_FALSE(Missing(Key(UNWIND_MAX_FILES + 2999))) << "the newest";
}

TEST_F(TablesTest, WithoutTheProgramsThereIsUserSpace) {
  auto made = Tables::Create({.compiler = TEST_COMPILER});
  ASSERT_TRUE(made.ok());
  auto file = File(MakeOrder("table", Seed()), "user space only");
  State state;
  std::shared_ptr<const CompiledTable> table;
  ASSERT_TRUE(PollUntil(**made, [&] { return (table = (*made)->Get(file, &state)) != nullptr; }));
  EXPECT_EQ(table->rows, TableOf(MakeOrder("table", Seed())).rows);
  EXPECT_EQ((*made)->Want(Key(1), file), State::kReady);
  EXPECT_EQ((*made)->stats().chunk_bytes, 0u);
}

TEST_F(TablesTest, WithoutCompilerThereAreNoTables) {
  auto made = Tables::Create({.compiler = "/nowhere/borescope-unwind-tables"});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kNotFound);
  EXPECT_NE(made.error().message.find("/nowhere/borescope-unwind-tables"), std::string::npos);
}

}  // namespace
}  // namespace borescope::unwind
