// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/preview.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/text/table.h"
#include "common/base/strings.h"

namespace borescope::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

api::ProfilingSession Session() {
  api::ProfilingSession s;
  s.metadata.namespace_name = "shop";
  s.spec.target.workload_ref = api::WorkloadRef{"Deployment", "checkout"};
  s.spec.duration_seconds = 30;
  return s;
}

PodsFound Pods() {
  return {.pods = {{"checkout-a", "node1", {"init", "app"}}, {"checkout-b", "node2", {"app"}}, {"checkout-c", "", {"app"}}}, .ended = 1, .how = "owned by the ReplicaSets of Deployment checkout"};
}

SamplersFound Samplers() {
  SamplersFound out;
  api::NodeSampler& sampler = out.of_node["node1"];
  sampler.status.kinds = {"cpu"};
  sampler.status.conditions = {{"Protected", "True", "", "", 0, 0}, {"Ready", "True", "", "", 0, 0}};
  return out;
}

TEST(RenderPreviewTest, SaysWhichPodsAndWhichNodesLackASampler) {
  auto preview = RenderPreview(Session(), Pods(), Samplers(), 80);
  EXPECT_TRUE(preview.possible);
  for (auto line : Split(preview.text, '\n')) EXPECT_LE(Characters(line), 80u) << line;
  EXPECT_THAT(preview.text, HasSubstr("deploy/checkout in namespace shop: 3 pods, owned by the ReplicaSets of"));
  EXPECT_THAT(preview.text, HasSubstr("checkout-a  node1  init,app    ready"));
  EXPECT_THAT(preview.text, HasSubstr("checkout-b  node2  app         no"));
  EXPECT_THAT(preview.text, HasSubstr("checkout-c  -      app         not bound yet"));
  EXPECT_THAT(preview.text, HasSubstr("Node node2: no sampler"));
  EXPECT_THAT(preview.text, HasSubstr("30 s at 99 Hz: 2970 samples for each CPU that they keep busy"));
  EXPECT_THAT(preview.text, HasSubstr("Nothing was made"));
}

TEST(RenderPreviewTest, SaysWhatIsNotKnownAndWhatCannotBe) {
  SamplersFound unknown{.of_node = {}, .unreadable = "bob may not list nodesamplers"};
  auto preview = RenderPreview(Session(), Pods(), unknown, 80);
  EXPECT_TRUE(preview.possible);
  EXPECT_THAT(preview.text, HasSubstr("not known: bob may not list nodesamplers"));
  EXPECT_FALSE(RenderPreview(Session(), Pods(), SamplersFound{}, 80).possible);
  auto session = Session();
  session.spec.target.container_names = {"sidecar"};
  preview = RenderPreview(session, Pods(), Samplers(), 80);
  EXPECT_FALSE(preview.possible);
  EXPECT_THAT(preview.text, HasSubstr("No container \"sidecar\" is in them; there are: app, init."));
  session.spec.target.container_names = {"app"};
  preview = RenderPreview(session, Pods(), Samplers(), 80);
  EXPECT_TRUE(preview.possible);
  EXPECT_THAT(preview.text, Not(HasSubstr("init")));
  auto sampler = Samplers();
  sampler.of_node["node1"].status.conditions[0] = {"Protected", "False", "NoPolicy", "install it", 0, 0};
  EXPECT_THAT(NodeTrouble(sampler, "node1", "cpu"), HasSubstr("not Protected (NoPolicy): install it"));
  EXPECT_THAT(NodeTrouble(Samplers(), "node1", "wall"), HasSubstr("kind wall"));
}

}  // namespace
}  // namespace borescope::cli
