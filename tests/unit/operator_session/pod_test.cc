// SPDX-License-Identifier: Apache-2.0
#include "operator/session/pod.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/api/json.h"
#include "common/kube/projection.h"

namespace borescope::op {
namespace {

constexpr const char* kPod = R"({
  "metadata": {"name": "checkout-7d9f-x2", "namespace": "shop", "uid": "u1", "resourceVersion": "77", "creationTimestamp": "2026-11-30T13:00:00Z",
    "managedFields": [{"much": "more"}],
    "annotations": {"kubernetes.io/config.hash": "hash", "pyroscope.io/service_name": "third", "profiles.grafana.com/service_name": "second", "other": "x"},
    "labels": {"app.kubernetes.io/name": "checkout", "tier": "web", "team": "pay"},
    "ownerReferences": [{"kind": "Other", "name": "o", "uid": "o"}, {"kind": "ReplicaSet", "name": "checkout-7d9f", "uid": "rs", "controller": true}]},
  "spec": {"nodeName": "n1", "initContainers": [{"name": "init", "image": "busybox"}],
    "containers": [{"name": "app", "image": "host:5000/shop/app:v1.2@sha256:0123456789abcdef"}, {"name": "proxy", "image": "proxy@sha256:0123456789abcdef"}]},
  "status": {"phase": "Running", "containerStatuses": [{"name": "app", "state": {"running": {"startedAt": "x"}}},
    {"name": "proxy", "state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 1}}}],
    "initContainerStatuses": [{"name": "init", "state": {"terminated": {}}}]}})";

Pod Parse(const std::string& text) {
  kube::Projection projection(PodPaths());
  for (const char* path :
       {"metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion"})
    projection.Add(path);
  auto json = projection.Parse(text);
  EXPECT_TRUE(json.ok());
  EXPECT_EQ(json->dump().find("managedFields"), std::string::npos);
  auto pod = ParsePod(*json);
  EXPECT_TRUE(pod.ok());
  return *pod;
}

TEST(Pod, IsReadFromWhatTheProjectionKeeps) {
  Pod pod = Parse(kPod);
  EXPECT_EQ(pod.name, "checkout-7d9f-x2");
  EXPECT_EQ(pod.resource_version, 77u);
  EXPECT_EQ(pod.node, "n1");
  EXPECT_EQ(pod.config_hash, "hash");
  EXPECT_EQ(pod.service_name, "second") << "by rank, not by order";
  EXPECT_EQ(pod.controller, (Controller{"ReplicaSet", "checkout-7d9f", "rs"}));
  EXPECT_TRUE(pod.live());
  ASSERT_EQ(pod.containers.size(), 3u);
  EXPECT_EQ(pod.containers[0].name, "init");
  EXPECT_FALSE(pod.containers[0].running);
  EXPECT_TRUE(pod.containers[0].started);
  EXPECT_TRUE(pod.containers[1].running);
  EXPECT_FALSE(pod.containers[2].running);
  EXPECT_TRUE(pod.containers[2].started);
}

TEST(Pod, OddShapesAreNoCrash) {
  for (
      const char* text :
      {R"({"metadata":{"name":"a","uid":"b","labels":[1],"ownerReferences":{"x":1},"annotations":3},"spec":[],"status":"x"})",
       R"({"metadata":{"name":"a","uid":"b"},"spec":{"containers":[1,{"name":2},null]},"status":{"containerStatuses":[7,{"name":"q"}]}})"}) {
    EXPECT_TRUE(ParsePod(nlohmann::json::parse(text)).ok()) << text;
  }
  EXPECT_FALSE(ParsePod(nlohmann::json::parse("[]")).ok());
  EXPECT_FALSE(ParsePod(nlohmann::json::parse(R"({"metadata":{"name":1,"uid":"x"}})")).ok());
}

TEST(Pod, ImageVersions) {
  EXPECT_EQ(ImageVersion("app:v1"), "v1");
  EXPECT_EQ(ImageVersion("host:5000/app"), "");
  EXPECT_EQ(ImageVersion("host:5000/app:v2@sha256:0123"), "v2");
  EXPECT_EQ(ImageVersion("app@sha256:0123456789abcdef"), "0123456789ab");
  EXPECT_EQ(ImageVersion(""), "");
}

TEST(Pod, IdentityLabels) {
  Pod pod = Parse(kPod);
  api::NodePod out = MakeNodePod(pod, {"Deployment", "checkout", "d"}, "prod", {"tier", "absent"});
  EXPECT_EQ(out.cgroup_uid, "") << "no mirror pod";
  EXPECT_EQ(out.labels, (std::map<std::string, std::string>{{"service_name", "second"},
                                                            {"namespace", "shop"},
                                                            {"pod", "checkout-7d9f-x2"},
                                                            {"node", "n1"},
                                                            {"cluster", "prod"},
                                                            {"workload", "checkout"},
                                                            {"workload_kind", "Deployment"}}));
  EXPECT_EQ(out.pod_labels, (std::map<std::string, std::string>{{"tier", "web"}}));
  EXPECT_EQ(out.containers[1],
            (api::PodContainer{"app", "host:5000/shop/app:v1.2@sha256:0123456789abcdef", "v1.2"}));
  EXPECT_EQ(out.containers[2].version, "0123456789ab");

  pod.service_name.clear();
  pod.labels["app.kubernetes.io/version"] = "9";
  out = MakeNodePod(pod, {"Deployment", "d", "d"}, "", {});
  EXPECT_EQ(out.labels.at("service_name"), "checkout");
  EXPECT_EQ(out.labels.at("version"), "9");
  EXPECT_EQ(out.containers[1].version, "9");
  EXPECT_FALSE(out.labels.contains("cluster"));
  pod.labels["app.kubernetes.io/instance"] = "checkout-eu";
  EXPECT_EQ(MakeNodePod(pod, {"Deployment", "d", "d"}, "", {}).labels.at("service_name"),
            "checkout-eu");
  pod.labels.clear();
  EXPECT_EQ(MakeNodePod(pod, {"Deployment", "d", "d"}, "", {}).labels.at("service_name"), "d");
}

TEST(Pod, TheCgroupUidOfAStaticPodIsItsHash) {
  const std::string kHash = "0123456789abcdef0123456789abcdef";
  Pod pod = Parse(kPod);
  auto uid = [&] { return MakeNodePod(pod, {"Pod", "p", "p"}, "", {}).cgroup_uid; };
  pod.config_hash = kHash;
  EXPECT_EQ(uid(), "") << "anybody may write that annotation";
  pod.controller = Controller{"Node", "n1", "nu"};
  EXPECT_EQ(uid(), kHash);
  pod.config_hash = "6f1c0a3e5b7d4c2e9a1b0c2d3e4f5a6b";  // another pod's uid without its dashes
  EXPECT_EQ(uid(), "");
  for (const std::string& odd : {std::string(), kHash + "0", std::string(64, 'a'), "../" + kHash.substr(3)}) {
    pod.config_hash = odd;
    EXPECT_EQ(uid(), "") << odd;
  }
}

// One text too long and the API server refuses the spec of the whole node.
TEST(Pod, WhatTenantsWriteIsCutToTheBoundsOfTheNodeSampler) {
  Pod pod = Parse(kPod);
  pod.service_name = std::string(5000, 's') + "\n";
  pod.labels["tier"] = std::string(300, 't');
  pod.containers.clear();
  for (int i = 0; i < 90; ++i) {
    pod.containers.push_back({"c" + std::to_string(i),
                              "registry/" + std::string(3000, 'i') + ":" + std::string(300, 'v'),
                              i >= 80, i >= 80});
  }
  api::NodePod out =
      MakeNodePod(pod, {std::string(300, 'k'), std::string(400, 'w'), "d"}, std::string(500, 'c'), {"tier"});
  for (const auto& [key, value] : out.labels) EXPECT_LE(value.size(), 253u) << key;
  EXPECT_TRUE(out.labels.at("service_name").starts_with("sss"));
  EXPECT_EQ(out.labels.at("namespace"), "shop");
  EXPECT_LE(out.pod_labels.at("tier").size(), 63u);
  ASSERT_EQ(out.containers.size(), 64u);
  EXPECT_EQ(out.containers[0].name, "c80") << "those that run come first";
  EXPECT_EQ(out.containers[10].name, "c0");
  for (const api::PodContainer& container : out.containers) {
    EXPECT_LE(container.image.size(), 1024u);
    EXPECT_LE(container.version.size(), 128u);
  }
  api::NodeSampler sampler;
  sampler.metadata.name = "n1";
  sampler.spec.pods = {out};
  auto read = api::ParseNodeSampler(api::ToJson(sampler));
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->spec, sampler.spec);

  pod.labels["app.kubernetes.io/version"] = std::string(300, '9');
  EXPECT_LE(MakeNodePod(pod, {"Pod", "p", "p"}, "", {}).containers[0].version.size(), 128u);
}

}  // namespace
}  // namespace borescope::op
