// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/samples_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/base/strings.h"

namespace borescope::publish {
namespace {

TEST(SamplesFile, WritesOneJsonObjectALine) {
  std::string path = std::filesystem::temp_directory_path() / ("borescope-samples-" + RandomHex(8));
  {
    auto file = SamplesFile::Open(path);
    ASSERT_TRUE(file.ok());
    engine::Sample raw;
    raw.time_ns = 12;
    raw.tgid = 3;
    raw.tid = 4;
    raw.weight_ns = 1001;
    std::vector<stacks::NamedFrame> frames = {{"a<\"b\">", "x"}, {"main", "y"}};
    (*file)->Write({.raw = &raw, .frames = &frames, .end_reason = LOSS_NONE}, "shop/s");
    (*file)->Write({.raw = &raw, .frames = &frames, .end_reason = LOSS_NO_UNWIND_INFO}, "t");
  }
  auto text = ReadFile(path);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text,
            "{\"time_ns\":12,\"tid\":4,\"tgid\":3,\"session\":\"shop/s\",\"weight_ns\":1001,\"frames\":[\"a<\\\"b\\\">\",\"main\"],\"end\":\"none\"}\n"
            "{\"time_ns\":12,\"tid\":4,\"tgid\":3,\"session\":\"t\",\"weight_ns\":1001,\"frames\":[\"a<\\\"b\\\">\",\"main\"],\"end\":\"no_unwind_info\"}\n");
  std::filesystem::remove(path);
}

TEST(SamplesFile, NamesTheFileThatCantBeOpened) {
  auto file = SamplesFile::Open("/nonexistent/x");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message, testing::HasSubstr("--samples /nonexistent/x"));
}

}  // namespace
}  // namespace borescope::publish
