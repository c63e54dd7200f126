// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/series.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <set>

#include "common/codec/pprof.h"

namespace borescope::publish {
namespace {

TEST(SeriesLabels, IdentityWinsAndKeysAreMadeValid) {
  auto labels = SeriesLabels({.session_labels = {{"release", "42"}, {"pod", "liar"}, {"tier", "session"}, {"__name__", "x"}},
                              .pod_labels = {{"tier", "web"}, {"app.kubernetes.io/part-of", "shop"}, {"1st", "y"}, {"empty", ""}},
                              .identity = {{"service_name", "checkout"}, {"pod", "checkout-1"}, {"namespace", "shop"}},
                              .container = "app",
                              .language = "cpp",
                              .session = "s1",
                              .profile_name = "process_cpu"});
  EXPECT_EQ(labels["pod"], "checkout-1");
  EXPECT_EQ(labels["tier"], "session");
  EXPECT_EQ(labels["release"], "42");
  EXPECT_EQ(labels["app_kubernetes_io_part_of"], "shop");
  EXPECT_EQ(labels["_1st"], "y");
  EXPECT_EQ(labels["__name__"], "process_cpu");
  EXPECT_EQ(labels["__delta__"], "false");
  EXPECT_EQ(labels["container"], "app");
  EXPECT_EQ(labels["profiling_session"], "s1");
  EXPECT_FALSE(labels.contains("empty"));
}

TEST(SeriesLabels, StaysWithinAReceiversLimits) {
  SeriesSource source;
  source.container = "c";
  source.session = std::string(5000, 'x');
  source.profile_name = "process_cpu";
  for (int i = 0; i < 40; ++i) {
    source.pod_labels["p" + std::to_string(i)] = "v";
    source.session_labels["s" + std::to_string(i)] = "v";
  }
  for (const char* name : {"service_name", "namespace", "pod", "node", "cluster", "workload", "workload_kind", "version"}) source.identity[name] = "v";
  auto labels = SeriesLabels(source);
  EXPECT_LE(labels.size(), 30u);
  EXPECT_TRUE(labels.contains("service_name"));
  EXPECT_EQ(labels["profiling_session"].size(), 2048u);
}

TEST(WindowId, IsAUuidThatDependsOnEveryField) {
  std::string id = WindowId("a/b/c", "container", "cpu", 10, "i", 0);
  EXPECT_EQ(id.size(), 36u);
  EXPECT_EQ(id[14], '8');
  EXPECT_EQ(id, WindowId("a/b/c", "container", "cpu", 10, "i", 0));
  std::set<std::string> ids = {id,
                               WindowId("a/b/d", "container", "cpu", 10, "i", 0),
                               WindowId("a/b/c", "containes", "cpu", 10, "i", 0),
                               WindowId("a/b/c", "container", "wall", 10, "i", 0),
                               WindowId("a/b/c", "container", "cpu", 11, "i", 0),
                               WindowId("a/b/c", "container", "cpu", 10, "j", 0),
                               WindowId("a/b/c", "container", "cpu", 10, "i", 1),
                               WindowId("a/b/cc", "ontainer", "cpu", 10, "i", 0)};
  EXPECT_EQ(ids.size(), 8u);
}

TEST(EncodeParts, SplitsWhatIsTooLargeAndLosesNothing) {
  uint64_t seed = std::getenv("SEED") ? std::strtoull(std::getenv("SEED"), nullptr, 10) : std::random_device{}();
  std::cout << "SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  profile::Profile whole;
  whole.sample_types = {{"samples", "count"}, {"cpu", "nanoseconds"}};
  whole.default_sample_type = "cpu";
  whole.time_ns = 1'000'000'000;
  uint32_t mapping = whole.AddMapping({.start = 1, .limit = 2, .file_offset = 0, .filename = "/app", .build_id = "aa"});
  size_t samples = 33'000;
  for (size_t i = 0; i < samples; ++i) {
    uint32_t function = whole.AddFunction({.name = "f" + std::to_string(i), .system_name = "f", .filename = ""});
    uint32_t location = whole.AddLocation({.mapping = mapping, .address = i + 1, .lines = {{function, 0}}});
    int64_t values[] = {1, static_cast<int64_t>(random() % 1'000'000 + 1)};
    whole.AddSample(std::vector<uint32_t>{location}, values);
  }
  std::vector<EncodedPart> parts = EncodeParts(whole);
  ASSERT_GE(parts.size(), 3u);
  int64_t total = 0;
  size_t count = 0;
  std::set<int64_t> times;
  for (const EncodedPart& part : parts) {
    auto decoded = codec::DecodePprof(part.pprof_gzip);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    total += decoded->Total(1);
    count += decoded->samples().size();
    EXPECT_EQ(decoded->time_ns, part.time_ns);
    EXPECT_EQ(decoded->mappings().at(0).filename, "/app");
    times.insert(part.time_ns);
  }
  EXPECT_EQ(total, whole.Total(1));
  EXPECT_EQ(count, samples);
  EXPECT_EQ(times.size(), parts.size());
  EXPECT_EQ(*times.begin(), whole.time_ns);
}

TEST(EncodeParts, AnEmptyProfileIsOnePart) {
  profile::Profile empty;
  empty.sample_types = {{"samples", "count"}};
  EXPECT_EQ(EncodeParts(empty).size(), 1u);
}

}  // namespace
}  // namespace borescope::publish
