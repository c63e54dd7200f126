// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/namer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "target_file.h"

namespace borescope::naming {
namespace {

using Source = std::unique_ptr<symbols::ByteSource>;
Source SourceOf(const std::string& path) {
  auto source = symbols::OpenSource(OpenRead(path));
  EXPECT_TRUE(source.ok()) << path;
  return source.ok() ? *std::move(source) : nullptr;
}

constexpr const char* kCheckout = "_ZN4shop8CheckoutEi";

std::unique_ptr<Namer> OpenNamer(const std::string& path, Namer::Opener opener = [](const Wanted&) { return Source(); }) {
  auto namer = Namer::Open(SourceOf(path), std::move(opener));
  EXPECT_TRUE(namer.ok()) << path;
  return namer.ok() ? *std::move(namer) : nullptr;
}

TEST(Namer, Symbols) {
  auto [start, end] = RangeOf(kCheckout);
  auto namer = OpenNamer(TEST_TARGET);
  for (uint64_t at : {start, (start + end) / 2, end - 1}) {
    AddressNames names = namer->Find(at, false);
    EXPECT_EQ(names.outcome, Outcome::kSymbol);
    ASSERT_EQ(names.lines.size(), 1u);
    EXPECT_EQ(names.lines[0].function, "shop::Checkout");
    EXPECT_EQ(names.lines[0].system_name, kCheckout);
  }
  EXPECT_TRUE(namer->has_debug());
  EXPECT_EQ(namer->Find(0x10, false).outcome, Outcome::kGap);
  EXPECT_TRUE(namer->Find(0x10, false).lines.empty());
}

// Each line of the target that is marked is the place of some instruction; those of the inlined function have both functions.
TEST(Namer, InlinedFunctionsAndLines) {
  std::map<std::string, uint32_t> marked;
  std::ifstream source(TARGET_SOURCE);
  uint32_t number = 0;
  for (std::string line; std::getline(source, line);) {
    ++number;
    for (const char* mark : {"// DISCOUNT", "// CHECKOUT"}) {
      if (line.ends_with(mark)) marked[mark] = number;
    }
  }
  ASSERT_EQ(marked.size(), 2u);
  auto [start, end] = RangeOf(kCheckout);
  for (const char* file : {"", ".stripped"}) {
    auto namer = OpenNamer(std::string(TEST_TARGET) + file, [](const Wanted& w) {
      return w.kind == Wanted::kBuildId && w.attempt == 0 ? SourceOf(std::string(TEST_TARGET) + ".debug") : Source();
    });
    bool inlined = false;
    for (uint64_t at = start; at < end; ++at) {
      AddressNames names = namer->Find(at, true);
      ASSERT_EQ(names.outcome, Outcome::kLine) << namer->problem();
      EXPECT_EQ(names.lines.back().function, "shop::Checkout");
      EXPECT_TRUE(names.lines.back().file.ends_with("target.cc")) << names.lines.back().file;
      if (names.lines.size() < 2) continue;
      EXPECT_EQ(names.lines[0].function, "shop::Discount");
      inlined = inlined || (names.lines[0].line == marked["// DISCOUNT"] && names.lines[1].line == marked["// CHECKOUT"]);
    }
    EXPECT_TRUE(inlined) << file;
  }
}

TEST(Namer, AStrippedFileSaysSo) {
  auto [start, end] = RangeOf(kCheckout);
  std::vector<Wanted> wanted;
  auto namer = OpenNamer(std::string(TEST_TARGET) + ".stripped", [&](const Wanted& w) {
    wanted.push_back(w);
    return Source();
  });
  EXPECT_FALSE(namer->has_debug());
  EXPECT_TRUE(namer->Find(start, true).lines.empty());
  // It has .dynsym, in which this function is not.
  EXPECT_EQ(namer->Find(start, true).outcome, Outcome::kGap);
  ASSERT_EQ(wanted.size(), 2u);
  EXPECT_EQ(wanted[0].kind, Wanted::kBuildId);
  EXPECT_EQ(wanted[0].build_id, Map(TEST_TARGET)->build_id);
  EXPECT_EQ(wanted[1].kind, Wanted::kDebugLink);
  EXPECT_EQ(wanted[1].name, "sampler_naming_target.debug");
}

TEST(Namer, ADebugFileGivesTheNames) {
  auto [start, end] = RangeOf(kCheckout);
  for (Wanted::Kind kind : {Wanted::kBuildId, Wanted::kDebugLink}) {
    // The wrong file stands there first.
    auto namer = OpenNamer(std::string(TEST_TARGET) + ".stripped", [&](const Wanted& w) {
      if (w.kind != kind || w.attempt > 1) return Source();
      return SourceOf(w.attempt == 0 ? "/proc/self/exe" : std::string(TEST_TARGET) + ".debug");
    });
    AddressNames names = namer->Find(start + 4, false);
    ASSERT_EQ(names.lines.size(), 1u);
    EXPECT_EQ(names.lines[0].function, "shop::Checkout");
    EXPECT_TRUE(namer->has_debug());
  }
}

TEST(Namer, WithoutBuildIdTheChecksumTells) {
  auto [start, end] = RangeOf(kCheckout);
  auto file = std::string(TEST_TARGET) + ".anonymous";
  ASSERT_EQ(Map(file)->build_id, "");
  auto namer = OpenNamer(file, [&](const Wanted& w) {
    if (w.kind != Wanted::kDebugLink || w.attempt > 1) return Source();
    return SourceOf(w.attempt == 0 ? TEST_TARGET : std::string(TEST_TARGET) + ".debug");
  });
  ASSERT_EQ(namer->Find(start, false).lines.size(), 1u);
  auto other = OpenNamer(file, [&](const Wanted& w) { return w.attempt == 0 ? SourceOf(TEST_TARGET) : Source(); });
  EXPECT_TRUE(other->Find(start, false).lines.empty()) << "another file than the link is of";
}

TEST(Namer, WhatIsNoElfFileIsRefused) {
  auto namer = Namer::Open(SourceOf(TARGET_SOURCE), [](const Wanted&) { return Source(); });
  ASSERT_FALSE(namer.ok());
  EXPECT_EQ(namer.error().code, ErrorCode::kInvalid);
}

}  // namespace
}  // namespace borescope::naming
