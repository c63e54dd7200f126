// SPDX-License-Identifier: Apache-2.0
#include "sampler/engine/sideband.h"

#include <gtest/gtest.h>
#include <linux/perf_event.h>

#include <cstring>
#include <string>

namespace borescope::engine {
namespace {

template <typename T>
void Append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A PERF_RECORD_MMAP2 as perf_event_open(2) describes it.
std::string Record(bool build_id, std::string path, uint8_t build_id_size = 20) {
  std::string body;
  Append<uint32_t>(body, 11);
  Append<uint32_t>(body, 12);
  Append<uint64_t>(body, 0x5555'0000'1000);
  Append<uint64_t>(body, 0x3000);
  Append<uint64_t>(body, 0x1000);
  if (build_id) {
    Append<uint8_t>(body, build_id_size);
    body.append(3, '\0');
    body.append("abcdefghijklmnopqrst");
  } else {
    Append<uint32_t>(body, 8);
    Append<uint32_t>(body, 1);
    Append<uint64_t>(body, 4711);
    Append<uint64_t>(body, 1);
  }
  Append<uint32_t>(body, 5);
  Append<uint32_t>(body, 2);
  path.append(8 - path.size() % 8, '\0');
  body += path;
  Append<uint64_t>(body, 123456789);
  std::string record;
  perf_event_header header{PERF_RECORD_MMAP2, static_cast<uint16_t>(build_id ? PERF_RECORD_MISC_MMAP_BUILD_ID : 0), static_cast<uint16_t>(sizeof(header) + body.size())};
  Append(record, header);
  return record + body;
}

TEST(SidebandTest, MappingWithBuildId) {
  std::string record = Record(true, "/usr/bin/true");
  Mmap m;
  ASSERT_TRUE(ParseMmapRecord(record, &m));
  EXPECT_EQ(m.tgid, 11);
  EXPECT_EQ(m.tid, 12);
  EXPECT_EQ(m.time_ns, 123456789);
  EXPECT_EQ(m.start, 0x5555'0000'1000u);
  EXPECT_EQ(m.length, 0x3000u);
  EXPECT_EQ(m.file_offset, 0x1000u);
  EXPECT_EQ(m.build_id, "abcdefghijklmnopqrst");
  EXPECT_EQ(m.inode, 0u);
  EXPECT_EQ(m.path, "/usr/bin/true");
}

TEST(SidebandTest, MappingWithInode) {
  std::string record = Record(false, "/a");
  Mmap m;
  ASSERT_TRUE(ParseMmapRecord(record, &m));
  EXPECT_TRUE(m.build_id.empty());
  EXPECT_EQ(m.device_major, 8u);
  EXPECT_EQ(m.device_minor, 1u);
  EXPECT_EQ(m.inode, 4711u);
  EXPECT_EQ(m.path, "/a");
}

TEST(SidebandTest, MalformedRecordsAreRefused) {
  Mmap m;
  EXPECT_FALSE(ParseMmapRecord(Record(true, "/usr/bin/true", 21), &m));  // build id longer than its field
  std::string record = Record(true, "/usr/bin/true");
  for (size_t size = 0; size < record.size(); ++size) EXPECT_FALSE(ParseMmapRecord(record.substr(0, size), &m));
  record[0] = PERF_RECORD_COMM;
  EXPECT_FALSE(ParseMmapRecord(record, &m));
}

}  // namespace
}  // namespace borescope::engine
