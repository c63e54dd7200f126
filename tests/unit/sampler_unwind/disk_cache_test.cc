// SPDX-License-Identifier: Apache-2.0
#include "sampler/unwind/disk_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "table_samples.h"
#include "temporary_directory.h"

namespace borescope::unwind {
namespace {

TEST(DiskCache, KeepsTablesAndWhatTellsNothing) {
  testing::TemporaryDirectory directory;
  std::mt19937_64 random(Seed());
  const CompiledTable table = RandomTable(random, 30, 300, 20);
  const std::string path = directory.path() + "/a/b/cache";
  {
    auto cache = DiskCache::Open(path);
    ASSERT_TRUE(cache.ok()) << cache.error().message;
    EXPECT_EQ((*cache)->Load("a").status().error().code, ErrorCode::kNotFound);
    ASSERT_TRUE((*cache)->Store("a", Serialize(table)).ok());
    ASSERT_TRUE((*cache)->Store("b", "").ok());
  }
  struct stat st;
  ASSERT_EQ(stat(path.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700u);
  ASSERT_EQ(stat((path + "/a").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  auto cache = DiskCache::Open(path);
  ASSERT_TRUE(cache.ok());
  auto a = (*cache)->Load("a");
  ASSERT_TRUE(a.ok() && a->table);
  EXPECT_EQ(Serialize(*a->table), Serialize(table));
  auto b = (*cache)->Load("b");
  ASSERT_TRUE(b.ok());
  EXPECT_FALSE(b->table);
  EXPECT_EQ(b->problem, "");
}

TEST(DiskCache, ProblemsAreKeptForADay) {
  testing::TemporaryDirectory directory;
  auto cache = DiskCache::Open(directory.path());
  ASSERT_TRUE(cache.ok());
  ASSERT_TRUE((*cache)->StoreProblem("x", "took too long\x1b[31m").ok());
  auto kept = (*cache)->Load("x");
  ASSERT_TRUE(kept.ok());
  EXPECT_FALSE(kept->table);
  EXPECT_EQ(kept->problem.substr(0, 13), "took too long");
  EXPECT_EQ(kept->problem.find('\x1b'), std::string::npos);
  timespec times[2] = {{time(nullptr) - 25 * 3600, 0}, {time(nullptr) - 25 * 3600, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (directory.path() + "/x").c_str(), times, 0), 0);
  EXPECT_EQ((*cache)->Load("x").status().error().code, ErrorCode::kNotFound);
}

TEST(DiskCache, TheKeyIsItsOwnAndStays) {
  testing::TemporaryDirectory directory;
  const std::string path = directory.path() + "/cache", key = path + "/.key";
  const HashKey first = (*DiskCache::Open(path))->key();
  EXPECT_NE(first, HashKey{});
  struct stat st;
  ASSERT_EQ(stat(key.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  EXPECT_EQ((*DiskCache::Open(path))->key(), first);
  EXPECT_NE((*DiskCache::Open(directory.path() + "/other"))->key(), first);
  // One that others could read, or half of one, is no secret.
  ASSERT_EQ(chmod(key.c_str(), 0644), 0);
  const HashKey second = (*DiskCache::Open(path))->key();
  EXPECT_NE(second, first);
  std::filesystem::resize_file(key, 100);
  EXPECT_NE((*DiskCache::Open(path))->key(), second);
  // It is no table that makes room.
  auto cache = DiskCache::Open(path, 10'000);
  const HashKey third = (*cache)->key();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE((*cache)->Store("n" + std::to_string(i), std::string(1000, 'x')).ok());
  EXPECT_EQ((*DiskCache::Open(path))->key(), third);
}

TEST(DiskCache, ATemporaryNameThatStandsThereIsNotFollowed) {
  testing::TemporaryDirectory directory;
  auto cache = DiskCache::Open(directory.path() + "/cache");
  ASSERT_TRUE(cache.ok());
  const std::string victim = directory.path() + "/victim";
  std::ofstream(victim) << "precious";
  ASSERT_EQ(link(victim.c_str(), (directory.path() + "/cache/.new-" + std::to_string(getpid())).c_str()), 0);
  ASSERT_TRUE((*cache)->Store("x", "").ok());
  std::string text;
  std::ifstream(victim) >> text;
  EXPECT_EQ(text, "precious");
}

TEST(DiskCache, DamageIsFoundAndRemoved) {
  testing::TemporaryDirectory directory;
  std::mt19937_64 random(Seed());
  auto cache = DiskCache::Open(directory.path());
  ASSERT_TRUE(cache.ok());
  const std::string text = Serialize(RandomTable(random, 3, 100, 20));
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE((*cache)->Store("x", text).ok());
    std::string path = directory.path() + "/x", bytes;
    {
      std::ifstream in(path, std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    if (i % 2 == 0) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    } else {
      bytes.resize(random() % bytes.size());
    }
    std::ofstream(path, std::ios::binary) << bytes;
    auto loaded = (*cache)->Load("x");
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, ErrorCode::kInvalid);
    EXPECT_NE(loaded.error().message.find("x is damaged"), std::string::npos) << loaded.error().message;
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

TEST(DiskCache, TheLongestUnusedMakeRoom) {
  testing::TemporaryDirectory directory;
  const uint64_t max = 200'000;
  auto cache = DiskCache::Open(directory.path(), max);
  ASSERT_TRUE(cache.ok());
  std::mt19937_64 random(Seed());
  const std::string text = Serialize(RandomTable(random, 10, 400, 20));
  ASSERT_LT(text.size(), max / 5);
  auto age = [&](const std::string& name, int64_t seconds) {
    timespec times[2] = {{time(nullptr) - seconds, 0}, {time(nullptr) - seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, (directory.path() + "/" + name).c_str(), times, 0), 0);
  };
  ASSERT_TRUE((*cache)->Store("used", text).ok());
  ASSERT_TRUE((*cache)->Store("unused", text).ok());
  age("used", 2000);
  age("unused", 1000);
  ASSERT_TRUE((*cache)->Load("used").ok());  // from now on the other is the longest unused
  for (size_t i = 0; i * text.size() < 2 * max; ++i) {
    ASSERT_TRUE((*cache)->Store("n" + std::to_string(i), text).ok());
    age("n" + std::to_string(i), 500);
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) bytes += entry.file_size();
    EXPECT_LE(bytes, max);
  }
  EXPECT_TRUE(std::filesystem::exists(directory.path() + "/used"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/unused"));
}

TEST(DiskCache, NotWhereOthersMayWrite) {
  testing::TemporaryDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 0777), 0);
  auto cache = DiskCache::Open(directory.path());
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.error().code, ErrorCode::kDenied);
  std::filesystem::create_directory_symlink(directory.path(), directory.path() + "/link");
  EXPECT_FALSE(DiskCache::Open(directory.path() + "/link").ok());
}

}  // namespace
}  // namespace borescope::unwind
