// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/wire.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace borescope::naming {
namespace {

unsigned Seed() {
  static const unsigned seed = std::getenv("SEED") ? static_cast<unsigned>(std::atoi(std::getenv("SEED"))) : std::random_device{}();
  return seed;
}

NameReply Drawn(std::mt19937& random) {
  auto text = [&](size_t most) {
    std::string s(1 + random() % most, 'x');
    for (char& c : s) c = static_cast<char>('!' + random() % 90);
    return s;
  };
  NameReply reply;
  reply.number = random();
  reply.kind = static_cast<NameReply::Kind>(random() % 4);
  if (reply.kind == NameReply::kNames) {
    for (size_t i = random() % 20; i > 0; --i) {
      AddressNames& names = reply.names.emplace_back();
      names.outcome = static_cast<Outcome>(random() % kOutcomes);
      for (size_t k = random() % 5; k > 0; --k) {
        names.lines.push_back({text(kMaxName), text(kMaxSystemName), text(kMaxPath), static_cast<uint32_t>(random()), static_cast<uint32_t>(random())});
      }
    }
  } else if (reply.kind == NameReply::kWant) {
    reply.wanted = {static_cast<Wanted::Kind>(random() % Wanted::kKinds), static_cast<uint8_t>(random()), text(kMaxPath), text(kMaxPath), text(64)};
  } else if (reply.kind == NameReply::kDone) {
    reply.has_debug = random() % 2;
    reply.problem = text(kMaxProblem);
  } else {
    reply.outcome = static_cast<Outcome>(random() % kOutcomes);
    reply.problem = text(kMaxProblem);
  }
  return reply;
}

TEST(Wire, WhatIsSentIsWhatComes) {
  std::mt19937 random(Seed());
  for (int i = 0; i < 500; ++i) {
    const NameReply reply = Drawn(random);
    auto decoded = Decode(Encode(reply));
    ASSERT_TRUE(decoded) << "SEED=" << Seed();
    EXPECT_EQ(*decoded, reply) << "SEED=" << Seed();
  }
}

TEST(Wire, LongTextsAreCut) {
  NameReply reply;
  reply.kind = NameReply::kNames;
  AddressNames& names = reply.names.emplace_back();
  for (size_t i = 0; i < kMaxInlined + 9; ++i) {
    names.lines.push_back({std::string(10'000, 'f') , std::string(10'000, 's'), std::string(10'000, 'p'), static_cast<uint32_t>(i), 0});
  }
  const std::string bytes = Encode(reply);
  EXPECT_LE(bytes.size(), NameReply::kMaxBytes);
  auto decoded = Decode(bytes);
  ASSERT_TRUE(decoded);
  ASSERT_EQ(decoded->names[0].lines.size(), kMaxInlined);
  EXPECT_EQ(decoded->names[0].lines.back().line, kMaxInlined + 8) << "the outermost are kept";
  EXPECT_EQ(decoded->names[0].lines[0].file.size(), kMaxPath);
}

TEST(Wire, WhatIsNoMessageIsRefused) {
  std::mt19937 random(Seed());
  NameReply reply;
  do {
    reply = Drawn(random);
  } while (reply.kind != NameReply::kNames || reply.names.size() < 3);
  const std::string bytes = Encode(reply);
  for (size_t n = 0; n < bytes.size(); n += 1 + random() % 97) EXPECT_FALSE(Decode(std::string_view(bytes).substr(0, n))) << n;
  EXPECT_FALSE(Decode(bytes + "x"));
  std::string kind = bytes, outcome = bytes, count = bytes;
  kind[8] = 17;
  EXPECT_FALSE(Decode(kind));
  outcome[11] = static_cast<char>(kOutcomes);
  EXPECT_FALSE(Decode(outcome));
  count[10] = 2;  // 256 times 2 more than there may be
  EXPECT_FALSE(Decode(count));
}

TEST(Wire, TextsAreMadeSafe) {
  NameReply reply;
  reply.kind = NameReply::kNames;
  reply.names.push_back({Outcome::kLine, {{"a\x1b[31mb", "c\xff", "d\ne", 1, 2}}});
  auto decoded = Decode(Encode(reply));
  ASSERT_TRUE(decoded);
  const NamedLine& line = decoded->names[0].lines[0];
  for (const std::string& text : {line.function, line.system_name, line.file}) {
    EXPECT_EQ(text.find_first_of("\x1b\n\xff"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace borescope::naming
