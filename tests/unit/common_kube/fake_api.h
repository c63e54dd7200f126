// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "common/kube/rest.h"
#include "raw_server.h"

namespace borescope::kube {

inline const Resource kSessions{"profiling.borescope.dev", "v1alpha1", "profilingsessions"};
inline const Resource kPods{"", "v1", "pods"};

inline std::unique_ptr<RestClient> ClientOf(const test::RawServer& server, std::shared_ptr<TokenSource> token = nullptr) {
  Config config;
  config.server = server.url();
  config.token = std::move(token);
  auto client = RestClient::Create(std::move(config), "test");
  EXPECT_TRUE(client.ok());
  return *std::move(client);
}

inline std::string StatusBody(int code, const std::string& reason, const std::string& message, const std::string& details = "{}") {
  return R"({"kind":"Status","apiVersion":"v1","status":"Failure","message":")" + message + R"(","reason":")" + reason + R"(","code":)" +
         std::to_string(code) + R"(,"details":)" + details + "}";
}

inline std::string ObjectJson(const std::string& name, const std::string& version, const std::string& more = "") {
  return R"({"metadata":{"name":")" + name + R"(","namespace":"ns","uid":"uid-)" + name + R"(","resourceVersion":")" + version + R"(","junk":[1,2]})" +
         (more.empty() ? "" : "," + more) + "}";
}

inline std::string EventJson(const std::string& type, const std::string& object) { return R"({"type":")" + type + R"(","object":)" + object + "}\n"; }

inline std::string ListJson(const std::string& version, const std::vector<std::string>& items, const std::string& more = "") {
  std::string out = R"({"kind":"List","metadata":{"resourceVersion":")" + version + R"(","continue":")" + more + R"("},"items":[)";
  for (size_t i = 0; i < items.size(); ++i) out += (i > 0 ? "," : "") + items[i];
  return out + "]}";
}

}  // namespace borescope::kube
