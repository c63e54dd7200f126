// SPDX-License-Identifier: Apache-2.0
#include "sampler/publish/sinks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace borescope::publish {
namespace {

using testing::HasSubstr;

TEST(Sinks, ReadsTheAdministratorsFile) {
  auto sinks = ParseSinks(
      "sinks:\n- {name: default, url: 'http://127.0.0.1:4040'}\n"
      "- {name: big, url: 'https://pyroscope.example:443/base/', tokenFile: /t, caFile: /c, tenant: team-a}\n");
  ASSERT_TRUE(sinks.ok()) << sinks.error().message;
  ASSERT_EQ(sinks->size(), 2u);
  EXPECT_EQ((*sinks)[0].base_url, "http://127.0.0.1:4040");
  EXPECT_EQ((*sinks)[0].path, "");
  EXPECT_EQ((*sinks)[1].base_url, "https://pyroscope.example:443");
  EXPECT_EQ((*sinks)[1].path, "/base");
  EXPECT_EQ((*sinks)[1].tenant, "team-a");
}

TEST(Sinks, RefusesWithPathAndValue) {
  struct Case {
    const char* yaml;
    const char* message;
  };
  for (const Case& c : {Case{"sinks: []", "0 entries"}, Case{"[]", "array"}, Case{"sinks: [a]", "sinks[0]: found string"},
                        Case{"sinks: [{name: A, url: 'http://x'}]", "sinks[0].name: found \"A\""},
                        Case{"sinks: [{name: a, url: 'ftp://x'}]", "sinks[0].url: found \"ftp://x\""},
                        Case{"sinks: [{name: a, url: 'http://'}]", "sinks[0].url"},
                        Case{"sinks: [{name: a, url: 'http://u:p@x'}]", "without user"},
                        Case{"sinks: [{name: a, url: 'http://x', colour: red}]", "\"colour\""},
                        Case{"sinks: [{name: a, url: 3}]", "sinks[0].url: found 3"},
                        Case{"sinks: [{name: a, url: 'http://x'}, {name: a, url: 'http://y'}]", "a second time"}}) {
    auto sinks = ParseSinks(c.yaml);
    ASSERT_FALSE(sinks.ok()) << c.yaml;
    EXPECT_THAT(sinks.error().message, HasSubstr(c.message)) << c.yaml;
  }
}

}  // namespace
}  // namespace borescope::publish
