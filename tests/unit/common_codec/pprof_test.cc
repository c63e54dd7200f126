// SPDX-License-Identifier: Apache-2.0
// The truth here is protobuf's own generated code: it reads what we write and writes what we read.
#include "common/codec/pprof.h"

#include <gtest/gtest.h>
#include <perftools/profile.pb.h>

#include <functional>

#include "common/gzip/gzip.h"
#include "random_profile.h"

namespace borescope::codec {
namespace {

namespace pb = ::google::perftools::profiles;
using profile::Profile;

void ExpectEqual(const Profile& a, const Profile& b) {
  EXPECT_EQ(a.sample_types, b.sample_types);
  EXPECT_EQ(a.period_type, b.period_type);
  EXPECT_EQ(a.period, b.period);
  EXPECT_EQ(a.time_ns, b.time_ns);
  EXPECT_EQ(a.duration_ns, b.duration_ns);
  EXPECT_EQ(a.default_sample_type, b.default_sample_type);
  EXPECT_EQ(a.comments, b.comments);
  EXPECT_EQ(a.squares, b.squares);
  EXPECT_EQ(a.mappings(), b.mappings());
  EXPECT_EQ(a.functions(), b.functions());
  EXPECT_EQ(a.locations(), b.locations());
  ASSERT_EQ(a.samples().size(), b.samples().size());
  for (size_t i = 0; i < a.samples().size(); ++i) {
    EXPECT_EQ(a.samples()[i].locations, b.samples()[i].locations);
    EXPECT_EQ(a.samples()[i].values, b.samples()[i].values);
    EXPECT_EQ(a.samples()[i].labels, b.samples()[i].labels);
  }
}

TEST(PprofTest, RoundTripsPlainAndGzip) {
  std::mt19937_64 random(testing::Seed());
  Profile p = testing::RandomProfile(random, 500);
  auto plain = DecodePprof(EncodePprof(p));
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  ExpectEqual(p, *plain);
  auto gzip = DecodePprof(EncodePprofGzip(p));
  ASSERT_TRUE(gzip.ok()) << gzip.error().message;
  ExpectEqual(p, *gzip);
}

TEST(PprofTest, ProtobufReadsWhatWeWrite) {
  std::mt19937_64 random(testing::Seed());
  Profile p = testing::RandomProfile(random, 300);
  pb::Profile out;
  ASSERT_TRUE(out.ParseFromString(EncodePprof(p)));
  auto text = [&](int64_t i) { return out.string_table(static_cast<int>(i)); };
  EXPECT_EQ(text(0), "");
  ASSERT_EQ(out.sample_type_size(), 2);
  EXPECT_EQ(text(out.sample_type(1).type()), "cpu");
  EXPECT_EQ(text(out.sample_type(1).unit()), "nanoseconds");
  EXPECT_EQ(text(out.default_sample_type()), "cpu");
  EXPECT_EQ(text(out.comment(0)), "by a test");
  EXPECT_EQ(out.period(), p.period);
  int64_t total = 0;
  for (const auto& sample : out.sample()) total += sample.value(1);
  EXPECT_EQ(total, p.Total(1));
  ASSERT_EQ(static_cast<size_t>(out.mapping_size()), p.mappings().size());
  EXPECT_EQ(text(out.mapping(0).build_id()), p.mappings()[0].build_id);
  EXPECT_EQ(text(out.mapping(2).filename()), "[kernel.kallsyms]");
  EXPECT_EQ(out.mapping(2).memory_limit(), UINT64_MAX);
  for (size_t i = 0; i < p.locations().size(); ++i) {
    const auto& location = out.location(static_cast<int>(i));
    EXPECT_EQ(location.id(), i + 1);
    EXPECT_EQ(location.mapping_id(), p.locations()[i].mapping + 1);
    EXPECT_EQ(location.address(), p.locations()[i].address);
    ASSERT_EQ(static_cast<size_t>(location.line_size()), p.locations()[i].lines.size());
    for (int l = 0; l < location.line_size(); ++l) {
      const auto& function = out.function(static_cast<int>(location.line(l).function_id()) - 1);
      EXPECT_EQ(text(function.name()), p.functions()[p.locations()[i].lines[static_cast<size_t>(l)].function].name);
    }
    if (location.line_size() > 1) {
      EXPECT_TRUE(out.mapping(static_cast<int>(location.mapping_id()) - 1).has_inline_frames());
    }
  }
}

// The effective sample size survives encoding and merging: the squares add up, and what is not known of a part is not known of the whole.
TEST(PprofTest, EffectiveSamplesAreACommentThatMerges) {
  std::mt19937_64 random(testing::Seed());
  Profile p = testing::RandomProfile(random, 100), unknown = p;
  p.squares = 1.5e20 + static_cast<double>(random() % 1000) / 7;
  pb::Profile out;
  ASSERT_TRUE(out.ParseFromString(EncodePprof(p)));
  ASSERT_EQ(out.comment_size(), static_cast<int>(p.comments.size()) + 1);
  EXPECT_TRUE(out.string_table(static_cast<int>(out.comment(out.comment_size() - 1))).starts_with("effective samples "));
  auto again = DecodePprof(EncodePprof(p));
  ASSERT_TRUE(again.ok());
  ExpectEqual(p, *again);
  Profile merged;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(MergePprof(EncodePprof(p), &merged).ok());
  EXPECT_DOUBLE_EQ(merged.squares, 3 * p.squares);
  EXPECT_EQ(merged.comments, p.comments);
  ASSERT_TRUE(MergePprof(EncodePprof(unknown), &merged).ok());
  EXPECT_EQ(merged.squares, 0);
}

// A small valid message with ids that are not positions, a numeric label and unpacked numbers.
pb::Profile Small() {
  pb::Profile p;
  for (const char* s : {"", "cpu", "nanoseconds", "main", "app", "thread", "t1"}) p.add_string_table(s);
  auto* type = p.add_sample_type();
  type->set_type(1);
  type->set_unit(2);
  auto* mapping = p.add_mapping();
  mapping->set_id(77);
  mapping->set_filename(4);
  auto* function = p.add_function();
  function->set_id(1ull << 60);
  function->set_name(3);
  auto* location = p.add_location();
  location->set_id(9);
  location->set_mapping_id(77);
  location->add_line()->set_function_id(1ull << 60);
  auto* sample = p.add_sample();
  sample->add_location_id(9);
  sample->add_value(5);
  auto* label = sample->add_label();
  label->set_key(5);
  label->set_str(6);
  auto* number = sample->add_label();
  number->set_key(5);
  number->set_num(12);
  return p;
}

TEST(PprofTest, WeReadWhatProtobufWrites) {
  auto p = DecodePprof(Small().SerializeAsString());
  ASSERT_TRUE(p.ok()) << p.error().message;
  ASSERT_EQ(p->samples().size(), 1u);
  EXPECT_EQ(p->Total(0), 5);
  EXPECT_EQ(p->samples()[0].labels, (std::map<std::string, std::string>{{"thread", "t1"}}));
  EXPECT_EQ(profile::FrameName(*p, p->locations()[p->samples()[0].locations[0]]), "main");
}

TEST(PprofTest, TheProgramIsTheFirstMapping) {
  Profile p;
  p.sample_types = {{"cpu", "nanoseconds"}};
  std::vector<uint32_t> stack;
  for (const char* file : {"[kernel.kallsyms]", "/lib/libc.so.6", "", "/opt/app.so.d/app", "/usr/lib/libz.so"}) {
    stack.push_back(p.AddLocation({p.AddMapping({0, 100, 0, file, "", true, false, false}), stack.size(), {}}));
  }
  p.AddSample(stack, std::vector<int64_t>{1});
  auto back = DecodePprof(EncodePprof(p));
  ASSERT_TRUE(back.ok()) << back.error().message;
  std::vector<std::string> files;
  for (const profile::Mapping& mapping : back->mappings()) files.push_back(mapping.filename);
  EXPECT_EQ(files, (std::vector<std::string>{"/opt/app.so.d/app", "/lib/libc.so.6", "/usr/lib/libz.so", "[kernel.kallsyms]", ""}));
  for (size_t i = 0; i < stack.size(); ++i) {
    EXPECT_EQ(back->mappings()[back->locations()[back->samples()[0].locations[i]].mapping].filename, p.mappings()[i].filename);
  }
}

TEST(PprofTest, RefusesWithThingAndValue) {
  struct Case {
    std::function<void(pb::Profile&)> change;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {[](auto& p) { p.clear_sample_type(); }, "no sample types"},
           {[](auto& p) { p.mutable_location(0)->set_id(0); }, "a location has id 0"},
           {[](auto& p) { p.mutable_function(0)->set_id(0); }, "a function has id 0"},
           {[](auto& p) { *p.add_mapping() = p.mapping(0); }, "two of the mappings have id 77"},
           {[](auto& p) { p.mutable_location(0)->set_mapping_id(3); }, "no mapping with id 3"},
           {[](auto& p) { p.mutable_location(0)->mutable_line(0)->set_function_id(4); }, "no function with id 4"},
           {[](auto& p) { p.mutable_sample(0)->set_location_id(0, 10); }, "no location with id 10"},
           {[](auto& p) { p.mutable_sample(0)->add_value(1); }, "2 values, but there are 1 sample types"},
           {[](auto& p) { p.mutable_function(0)->set_name(7); }, "string index 7 is outside of the table of 7"},
           {[](auto& p) { p.mutable_function(0)->set_name(-1); }, "string index -1"},
           {[](auto& p) { p.set_string_table(0, "x"); }, "entry 0 of the string table"},
           {[](auto& p) { p.set_string_table(3, "\xff"); }, "string 3 is not UTF-8"},
           {[](auto& p) { p.clear_string_table(); }, "entry 0 of the string table"},
           {[](auto& p) { p.set_time_nanos(-1); }, "time_nanos is -1"},
       }) {
    pb::Profile p = Small();
    c.change(p);
    auto result = DecodePprof(p.SerializeAsString());
    ASSERT_FALSE(result.ok()) << c.message;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalid);
    EXPECT_NE(result.error().message.find(c.message), std::string::npos) << result.error().message;
  }
}

TEST(PprofTest, RefusesTooMuchBeforeItCostsMemory) {
  pb::Profile p = Small();
  PprofLimits limits;
  for (size_t i = 0; i < limits.max_samples; ++i) *p.add_sample() = p.sample(0);
  auto samples = DecodePprof(p.SerializeAsString());
  ASSERT_FALSE(samples.ok());
  EXPECT_EQ(samples.error().code, ErrorCode::kExhausted);
  EXPECT_NE(samples.error().message.find("more than 16000 samples"), std::string::npos) << samples.error().message;

  p = Small();
  for (size_t i = 0; i < limits.max_depth; ++i) p.mutable_sample(0)->add_location_id(9);
  auto depth = DecodePprof(p.SerializeAsString());
  ASSERT_FALSE(depth.ok());
  EXPECT_NE(depth.error().message.find("more than 1024 frames"), std::string::npos) << depth.error().message;

  std::string zeros(64 << 20, '\0');
  auto bomb = DecodePprof(gzip::Gzip(zeros));
  ASSERT_FALSE(bomb.ok());
  EXPECT_EQ(bomb.error().code, ErrorCode::kExhausted);
  EXPECT_NE(bomb.error().message.find("4194304"), std::string::npos) << bomb.error().message;
  EXPECT_EQ(DecodePprof(std::string(5 << 20, 'a')).error().code, ErrorCode::kExhausted);
  EXPECT_EQ(DecodePprof("").error().code, ErrorCode::kInvalid);
}

TEST(PprofTest, DamagedBytesNeverCrash) {
  std::mt19937_64 random(testing::Seed());
  std::string good = EncodePprof(testing::RandomProfile(random, 20, 10, 5));
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + random() % 4; n > 0; --n) bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 3 == 0) bad.resize(random() % bad.size());
    auto result = DecodePprof(bad);
    if (result.ok()) EncodePprof(*result);
  }
}

}  // namespace
}  // namespace borescope::codec
