// SPDX-License-Identifier: Apache-2.0
#include "store/db/database.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "random_profile.h"
#include "temporary_directory.h"

namespace borescope::store {
namespace {

Window MakeWindow(const std::string& pod, int64_t start_ns, std::string pprof, const std::string& id = "") {
  return {{{{"__name__", "process_cpu"}, {"pod", pod}}, {{"cpu", "nanoseconds"}, {"samples", "count"}}, {"cpu", ""}}, id, start_ns, start_ns + 10, std::move(pprof)};
}

std::string Noise(std::mt19937_64& random, size_t bytes) {
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

class DatabaseTest : public ::testing::Test {
 protected:
  void SetUp() override { Reopen(); }
  void Reopen() {
    database_.reset();
    auto opened = Database::Open(directory_.path());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    database_ = *std::move(opened);
  }
  int64_t Put(const std::vector<Window>& windows) {
    auto stored = database_->Insert(windows);
    EXPECT_TRUE(stored.ok()) << stored.error().message;
    return stored.ok() ? *stored : -1;
  }
  std::vector<std::string> Read(int64_t series, int64_t from = 0, int64_t until = INT64_MAX) {
    std::vector<std::string> all;
    Status status = database_->ForEachWindow(series, from, until, [&](std::string_view pprof) {
      all.emplace_back(pprof);
      return OkStatus();
    });
    EXPECT_TRUE(status.ok());
    return all;
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<Database> database_;
  std::mt19937_64 random_{testing::Seed()};
};

TEST_F(DatabaseTest, KeepsSeriesAndWindowsOverARestart) {
  std::string noise = Noise(random_, 100'000);
  EXPECT_EQ(Put({MakeWindow("a", 100, "one", "x"), MakeWindow("a", 90, noise, "y"), MakeWindow("b", 100, "two", "x"), MakeWindow("b", 5, "")}), 3);
  Reopen();
  EXPECT_EQ(Put({MakeWindow("a", 100, "one", "x")}), 0);
  auto series = database_->ListSeries();
  ASSERT_TRUE(series.ok());
  ASSERT_EQ(series->size(), 2u);
  Window wanted = MakeWindow("a", 0, "");
  EXPECT_EQ((*series)[0].key.labels, wanted.series.labels);
  EXPECT_EQ((*series)[0].key.sample_types, wanted.series.sample_types);
  EXPECT_EQ((*series)[0].key.period_type, wanted.series.period_type);
  EXPECT_EQ(Read((*series)[0].id), (std::vector<std::string>{noise, "one"}));
  EXPECT_EQ(Read((*series)[0].id, 100), (std::vector<std::string>{"one"}));
  EXPECT_EQ(Read((*series)[1].id), (std::vector<std::string>{""}));
  EXPECT_EQ(*database_->SeriesRange((*series)[0].id), (std::pair<int64_t, int64_t>(90, 100)));
}

TEST_F(DatabaseTest, EvictsByAgeAndBySizeAndGivesSpaceBack) {
  for (int i = 0; i < 100; ++i) Put({MakeWindow("pod-" + std::to_string(i / 10), i, Noise(random_, 50'000))});
  SessionKey key{"shop", "checkout-1", "uid-1"};
  ASSERT_TRUE(database_->PutSession(key, "{}", 5).ok());
  auto evicted = database_->Evict(20, INT64_MAX);
  ASSERT_TRUE(evicted.ok()) << evicted.error().message;
  EXPECT_EQ(evicted->by_age, 20);
  EXPECT_EQ(evicted->by_bytes, 0);
  EXPECT_EQ(database_->ListSeries()->size(), 8u);
  EXPECT_FALSE(database_->GetSession(key)->has_value());
  auto file_bytes = [&] { return std::filesystem::file_size(directory_.path() + "/store.db"); };
  evicted = database_->Evict(0, 1'000'000);
  ASSERT_TRUE(evicted.ok());
  EXPECT_GT(evicted->by_bytes, 50);
  auto usage = database_->GetUsage();
  EXPECT_LE(usage->bytes, 1'000'000);
  EXPECT_GT(usage->bytes, 800'000);  // no more than was needed
  EXPECT_EQ(usage->newest_ns, 99);
  EXPECT_EQ(usage->oldest_ns, 20 + evicted->by_bytes);
  Reopen();  // the write-ahead log goes into the file
  EXPECT_LT(file_bytes(), 2'000'000u);
}

TEST_F(DatabaseTest, ReadersAndWritersAtTheSameTime) {
  Put({MakeWindow("a", 0, "x")});
  int64_t series = (*database_->ListSeries())[0].id;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) Put({MakeWindow("a", 1, "x", std::to_string(t) + "-" + std::to_string(i))});
    });
    threads.emplace_back([&] {
      for (int i = 0; i < 30; ++i) EXPECT_GE(Read(series).size(), 1u);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Read(series).size(), 91u);
}

TEST_F(DatabaseTest, RefusesADatabaseOfAnotherKind) {
  database_.reset();
  {
    auto connection = Connection::Open(directory_.path() + "/store.db", false);
    ASSERT_TRUE(connection.ok());
    ASSERT_TRUE(connection->Execute("PRAGMA user_version = 99").ok());
  }
  auto newer = Database::Open(directory_.path());
  ASSERT_FALSE(newer.ok());
  EXPECT_EQ(newer.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(newer.error().message.find("version 99"), std::string::npos);
  std::filesystem::remove_all(directory_.path() + "/store.db-wal");
  std::ofstream(directory_.path() + "/store.db", std::ios::trunc) << std::string(10'000, 'x');
  EXPECT_FALSE(Database::Open(directory_.path()).ok());
  EXPECT_FALSE(Database::Open("/proc/nowhere").ok());
}

}  // namespace
}  // namespace borescope::store
