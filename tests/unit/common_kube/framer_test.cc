// SPDX-License-Identifier: Apache-2.0
#include "common/kube/framer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <string>
#include <vector>

namespace borescope::kube {
namespace {

struct Fed {
  Status status;
  std::vector<std::string> objects;
};

Fed FeedIn(std::string_view bytes, size_t piece, size_t max = 1 << 20) {
  WatchFramer framer(max);
  Fed fed;
  for (size_t i = 0; i < bytes.size() && fed.status.ok(); i += piece) {
    fed.status = framer.Feed(bytes.substr(i, piece), [&](std::string_view o) { return fed.objects.emplace_back(o), true; });
  }
  return fed;
}

TEST(WatchFramer, CutsObjectsHoweverTheyArrive) {
  const std::vector<std::string> objects = {R"({"a":"}{\"\\"})", R"({})", R"({"b":[{"c":{}},"]"]})", "{\"d\":\"\xc3\xbc\\u007d\"}"};
  for (std::string separator : {"\n", "\r\n", "", " \n\t"}) {
    std::string stream;
    for (auto& o : objects) stream += o + separator;
    for (size_t piece = 1; piece <= stream.size(); ++piece) {
      Fed fed = FeedIn(stream, piece);
      ASSERT_TRUE(fed.status.ok());
      EXPECT_EQ(fed.objects, objects) << piece;
    }
  }
}

TEST(WatchFramer, KeepsAHalfObjectBack) {
  WatchFramer framer;
  int n = 0;
  auto count = [&](std::string_view) { return ++n, true; };
  ASSERT_TRUE(framer.Feed("{\"a\":", count).ok());
  EXPECT_FALSE(framer.at_boundary());
  EXPECT_EQ(n, 0);
  ASSERT_TRUE(framer.Feed("1}", count).ok());
  EXPECT_TRUE(framer.at_boundary());
  EXPECT_EQ(n, 1);
}

TEST(WatchFramer, RefusesOtherThings) {
  for (std::string_view bad : {"[]", "x", "{}x", "\"{}\"", "1"}) EXPECT_EQ(FeedIn(bad, 1).status.error().code, ErrorCode::kInvalid) << bad;
}

TEST(WatchFramer, BoundsAnObjectNotTheStream) {
  std::string object = "{\"a\":\"" + std::string(80, 'x') + "\"}";
  for (size_t piece : {1u, 7u, 1000u}) {
    Fed fed = FeedIn(object + object + object, piece, object.size());
    EXPECT_TRUE(fed.status.ok());
    EXPECT_EQ(fed.objects.size(), 3u);
    EXPECT_EQ(FeedIn(object, piece, object.size() - 1).status.error().code, ErrorCode::kExhausted);
  }
}

TEST(WatchFramer, IsLinear) {
  // CPU time, the least of three: others may be busy.
  auto cost = [](size_t size) {
    std::string object = "{\"a\":\"" + std::string(size, 'x') + "\"}";
    clock_t least = std::numeric_limits<clock_t>::max();
    for (int i = 0; i < 3; ++i) {
      clock_t begin = clock();
      EXPECT_EQ(FeedIn(object, 100, 16 << 20).objects.size(), 1u);
      least = std::min(least, clock() - begin);
    }
    return static_cast<double>(least);
  };
  double small = cost(1 << 19), large = cost(8 << 20);
  EXPECT_LT(large, 3 * 16 * small) << "16 times the bytes may not cost much more than 16 times the time";
}

}  // namespace
}  // namespace borescope::kube
