// SPDX-License-Identifier: Apache-2.0
#include "common/codec/wire.h"

#include <gtest/gtest.h>

namespace borescope::codec {
namespace {

TEST(WireTest, RefusesWhatIsCutOrMistyped) {
  std::string bytes;
  WireWriter w(&bytes);
  w.Varint(1, 300);
  w.Entry(2, "abc");
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    WireReader in(std::string_view(bytes).substr(0, cut));
    size_t fields = 0;
    while (in.Next()) ++fields;
    bool at_a_boundary = cut == 0 || cut == 3 || cut == bytes.size();
    EXPECT_EQ(in.ok(), at_a_boundary) << cut;
  }
  WireReader in(bytes);
  ASSERT_TRUE(in.Next());
  EXPECT_EQ(in.Bytes(), "");
  EXPECT_FALSE(in.ok());
  EXPECT_FALSE(in.Next());
}

TEST(WireTest, RefusesGroupsFieldZeroAndEndlessNumbers) {
  for (std::string bad : {std::string("\x0b\x0c"), std::string("\x00\x01", 2), std::string(11, '\xff'), "\x08" + std::string(10, '\xff')}) {
    WireReader in(bad);
    EXPECT_FALSE(in.Next());
    EXPECT_FALSE(in.ok());
  }
}

}  // namespace
}  // namespace borescope::codec
