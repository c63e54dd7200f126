// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace borescope::cli {
namespace {

using ::testing::HasSubstr;

std::string Explained(int http_status, const std::string& message, Wanted wanted, ErrorCode code = ErrorCode::kInvalid) {
  kube::Config config;
  config.server = "https://k:6443";
  config.context = "prod";
  kube::KubeError details;
  details.http_status = http_status;
  details.message = message;
  return ExplainFailure({code, "raw"}, details, wanted, config, "kubectl borescope").message;
}

const Wanted kCreate{.verb = "create", .resource = "profilingsessions", .ns = "shop", .role = "borescope-edit"};

// The messages are the API server's own (1.35).
TEST(ExplainFailureTest, WithoutRightsTheCommandThatGrantsThem) {
  auto message = Explained(403, R"(profilingsessions.profiling.borescope.dev is forbidden: User "alice@corp" cannot create resource "profilingsessions" in API group "profiling.borescope.dev" in the namespace "shop")",
                           kCreate);
  EXPECT_THAT(message, HasSubstr("alice@corp may not create profilingsessions in namespace shop"));
  EXPECT_THAT(message, HasSubstr("kubectl create rolebinding borescope-edit-alice -n shop --clusterrole=borescope-edit --user=alice@corp"));
  message = Explained(403, R"(x is forbidden: User "system:serviceaccount:ci:robot" cannot list resource)", {.verb = "list", .resource = "nodesamplers", .role = "borescope-node-viewer"});
  EXPECT_THAT(message, HasSubstr("kubectl create clusterrolebinding borescope-node-viewer-robot --clusterrole=borescope-node-viewer --serviceaccount=ci:robot"));
  // Not of RBAC: as the server says it.
  message = Explained(403, "sessions is forbidden: unable to create new content in namespace shop because it is being terminated", kCreate);
  EXPECT_THAT(message, HasSubstr("being terminated"));
  // What comes from the server into a command is one word of a shell.
  message = Explained(403, R"(x is forbidden: User "a'; rm -rf /; '" cannot create resource)", kCreate);
  EXPECT_THAT(message, HasSubstr(R"(--user='a'\''; rm -rf /; '\''')"));
}

TEST(ExplainFailureTest, TheRest) {
  EXPECT_THAT(Explained(401, "Unauthorized", kCreate), HasSubstr("https://k:6443 (context prod) does not accept your credentials"));
  EXPECT_THAT(Explained(404, "", kCreate), HasSubstr("Borescope is not installed"));
  EXPECT_THAT(Explained(404, "the server could not find the requested resource", kCreate), HasSubstr("Borescope is not installed"));
  EXPECT_THAT(Explained(404, R"(namespaces "shop" not found)", kCreate), HasSubstr("no namespace \"shop\""));
  EXPECT_THAT(Explained(404, R"(profilingsessions.profiling.borescope.dev "x" not found)", {.verb = "get", .resource = "profilingsessions", .ns = "shop", .name = "x", .role = "borescope-view"}),
              HasSubstr("kubectl borescope list -n shop"));
  EXPECT_THAT(Explained(422, "spec.durationSeconds: found 9999; give a whole number from 1 to 3600", kCreate), HasSubstr("found 9999"));
  EXPECT_THAT(Explained(0, "", kCreate, ErrorCode::kUnavailable), HasSubstr("cannot be reached: raw"));
  EXPECT_EQ(Explained(0, "", kCreate, ErrorCode::kNotFound), "raw");  // of a credential plugin: says it itself
}

TEST(ShellWordTest, PlainOrQuoted) {
  EXPECT_EQ(ShellWord("a-b/c:d@e.f"), "a-b/c:d@e.f");
  EXPECT_EQ(ShellWord(""), "''");
  EXPECT_EQ(ShellWord("a b"), "'a b'");
  EXPECT_EQ(ShellWord("$(x)'"), "'$(x)'\\'''");
}

}  // namespace
}  // namespace borescope::cli
