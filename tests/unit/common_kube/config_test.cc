// SPDX-License-Identifier: Apache-2.0
#include "common/kube/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "common/base/fd.h"
#include "common/base/strings.h"

namespace borescope::kube {
namespace {

using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "kube-config-" + RandomHex(6);
    std::filesystem::create_directories(dir_);
    unsetenv("KUBERNETES_SERVICE_HOST");
    unsetenv("KUBERNETES_SERVICE_PORT");
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_TRUE(WriteFileAtomically(dir_ + "/" + name, content).ok());
    return dir_ + "/" + name;
  }
  // A kubeconfig with one context; `cluster` and `user` are lines of YAML flow maps.
  Result<Config> Load(const std::string& cluster, const std::string& user, const std::string& context = "cluster: c, user: u") {
    return LoadKubeconfig(Write("config", "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters:\n- {name: other, cluster: {server: 'https://no'}}\n"
                                          "- {name: c, cluster: {" + cluster + "}}\nusers:\n- {name: u, user: {" + user +
                                          "}}\ncontexts:\n- {name: x, context: {" + context + "}}\n"));
  }
  std::string dir_;
};

TEST_F(ConfigTest, InCluster) {
  EXPECT_EQ(LoadInCluster(dir_, "https://h:1").error().code, ErrorCode::kNotFound);
  Write("token", "secret\n");
  EXPECT_FALSE(LoadInCluster(dir_, "https://h:1").ok());
  Write("ca.crt", "PEM");
  Write("namespace", "shop\n");
  EXPECT_THAT(LoadInCluster(dir_, "").error().message, HasSubstr("--api-server"));
  auto config = LoadInCluster(dir_, "https://h:1");
  ASSERT_TRUE(config.ok()) << config.error().ToString();
  EXPECT_EQ(config->server, "https://h:1");
  EXPECT_EQ(*config->token->Get(), "secret");
  EXPECT_EQ(*config->ca.Load(), "PEM");
  EXPECT_EQ(config->ns, "shop");
  setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
  setenv("KUBERNETES_SERVICE_PORT", "443", 1);
  EXPECT_EQ(LoadInCluster(dir_, "")->server, "https://[fd00::1]:443");
  EXPECT_THAT(LoadInCluster(dir_, "http://10.0.0.1:80").error().message, HasSubstr("https"));
  EXPECT_TRUE(LoadInCluster(dir_, "http://127.0.0.1:8001").ok());
}

TEST_F(ConfigTest, TokenIsReadAgainOnlyWhenAsked) {
  auto source = TokenSource::FromFile(Write("token", "one\n"));
  EXPECT_EQ(*source->Get(), "one");
  Write("token", "two\n");
  EXPECT_EQ(*source->Get(), "one");  // younger than 60 s
  source->Invalidate();
  EXPECT_EQ(*source->Get(), "two");
  std::filesystem::remove(dir_ + "/token");
  source->Invalidate();
  EXPECT_EQ(*source->Get(), "two");  // the old one is better than none
  EXPECT_FALSE(TokenSource::FromFile(dir_ + "/missing")->Get().ok());
  EXPECT_FALSE(TokenSource::FromFile(Write("empty", "\n"))->Get().ok());
  EXPECT_EQ(*TokenSource::Fixed("f")->Get(), "f");
}

TEST_F(ConfigTest, KubeconfigWithDataAndFiles) {
  auto config = Load("server: 'https://k:6443/', certificate-authority-data: Q0E=", "client-certificate-data: Q0VSVA==, client-key-data: S0VZ",
                     "cluster: c, user: u, namespace: shop");
  ASSERT_TRUE(config.ok()) << config.error().ToString();
  EXPECT_EQ(*config->ca.Load(), "CA");
  EXPECT_EQ(*config->client_certificate.Load(), "CERT");
  EXPECT_EQ(*config->client_key.Load(), "KEY");
  EXPECT_EQ(config->ns, "shop");
  EXPECT_EQ(config->token, nullptr);
  Write("ca.pem", "FILE CA");
  config = Load("server: 'https://k:6443', certificate-authority: ca.pem", "tokenFile: tok");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(*config->ca.Load(), "FILE CA");
  Write("tok", "T");
  EXPECT_EQ(*config->token->Get(), "T");
  EXPECT_EQ(*Load("server: 'https://k'", "token: abc")->token->Get(), "abc");
  EXPECT_EQ(Load("server: 'https://k'", "token: abc", "cluster: c")->token, nullptr);
}

TEST_F(ConfigTest, KubeconfigRefusesByName) {
  for (const char* field : {"auth-provider: {name: x}", "username: x", "as: admin"}) {
    auto config = Load("server: 'https://k'", field);
    EXPECT_EQ(config.error().code, ErrorCode::kUnsupported) << field;
    EXPECT_THAT(config.error().message, HasSubstr(std::string("\"") + std::string(field).substr(0, std::string(field).find(':')) + "\""));
    EXPECT_THAT(config.error().message, HasSubstr(dir_ + "/config"));
  }
  for (const char* field : {"insecure-skip-tls-verify: true", "proxy-url: 'http://p'", "tls-server-name: x"}) {
    EXPECT_EQ(Load(std::string("server: 'https://k', ") + field, "").error().code, ErrorCode::kUnsupported) << field;
  }
  EXPECT_TRUE(Load("server: 'https://k', insecure-skip-tls-verify: false", "").ok());
  EXPECT_THAT(Load("server: 'http://10.1.1.1'", "token: t").error().message, HasSubstr("https"));
  EXPECT_THAT(Load("server: 'https://k'", "", "cluster: nowhere").error().message, HasSubstr("\"nowhere\" in its clusters"));
  EXPECT_THAT(Load("server: 'https://k', certificate-authority-data: '!!'", "").error().message, HasSubstr("base64"));
  EXPECT_THAT(LoadKubeconfig(Write("config", "a: [")).error().message, HasSubstr("YAML: "));
  EXPECT_THAT(LoadKubeconfig(Write("config", "apiVersion: v1\n")).error().message, HasSubstr("current-context"));
  EXPECT_THAT(LoadKubeconfig(Write("config", "[1, 2]\n"), "x").error().message, HasSubstr("\"x\" in its contexts"));
  EXPECT_EQ(LoadKubeconfig(dir_ + "/missing").error().code, ErrorCode::kNotFound);
}

TEST_F(ConfigTest, PeopleHaveSeveralFiles) {
  const std::string one = Write("one", "contexts:\n- {name: x, context: {cluster: c, user: u, namespace: shop}}\nclusters:\n- {name: c, cluster: {server: 'https://one', certificate-authority: ca.pem}}\n");
  std::filesystem::create_directories(dir_ + "/sub");
  Write("ca.pem", "CA OF ONE");
  const std::string two = Write("sub/two", "current-context: x\nclusters:\n- {name: c, cluster: {server: 'https://two'}}\nusers:\n- {name: u, user: {tokenFile: tok}}\n"
                                           "contexts:\n- {name: second, context: {cluster: c, user: u}}\n");
  Write("sub/tok", "T");
  setenv("KUBECONFIG", (dir_ + "/missing:" + one + ":" + two).c_str(), 1);
  auto config = LoadUserConfig("", "", "");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->server, "https://one");  // the first that has the name
  EXPECT_EQ(*config->ca.Load(), "CA OF ONE");
  EXPECT_EQ(*config->token->Get(), "T");  // beside the file that names it
  EXPECT_EQ(config->ns, "shop");
  EXPECT_EQ(config->context, "x");
  config = LoadUserConfig("", "second", "mine");
  EXPECT_EQ(config->context + " " + config->ns, "second mine");
  EXPECT_THAT(LoadUserConfig("", "z", "").error().message, HasSubstr("\"z\" in its contexts"));
  EXPECT_EQ(LoadUserConfig(dir_ + "/missing", "", "").error().code, ErrorCode::kNotFound);
  unsetenv("KUBECONFIG");
  setenv("HOME", dir_.c_str(), 1);
  EXPECT_THAT(LoadUserConfig("", "", "").error().message, HasSubstr("KUBECONFIG"));
  std::filesystem::create_directories(dir_ + "/.kube");
  std::filesystem::copy(two, dir_ + "/.kube/config");
  EXPECT_EQ(LoadUserConfig("", "second", "")->server, "https://two");
}

TEST_F(ConfigTest, FlagsChoose) {
  ASSERT_TRUE(Load("server: 'https://k'", "token: t").ok());
  EXPECT_EQ(LoadConfig({.kubeconfig = dir_ + "/config", .api_server = ""})->server, "https://k");
  EXPECT_EQ(LoadConfig({.kubeconfig = dir_ + "/config", .api_server = "https://other:1"})->server, "https://other:1");
  Write("token", "x");
  Write("ca.crt", "PEM");
  EXPECT_EQ(LoadConfig({.kubeconfig = "", .in_cluster_dir = dir_, .api_server = "https://k2:2"})->server, "https://k2:2");
}

TEST(TokenClaims, AreRead) {
  // {"kubernetes.io":{"namespace":"ns","node":{"name":"n1","uid":"u1"},"pod":{"name":"p","uid":"pu"},"serviceaccount":{"name":"sa","uid":"x"}}}
  std::string payload =
      "eyJrdWJlcm5ldGVzLmlvIjp7Im5hbWVzcGFjZSI6Im5zIiwibm9kZSI6eyJuYW1lIjoibjEiLCJ1aWQiOiJ1MSJ9LCJwb2QiOnsibmFtZSI6InAiLCJ1aWQiOiJwdSJ9"
      "LCJzZXJ2aWNlYWNjb3VudCI6eyJuYW1lIjoic2EiLCJ1aWQiOiJ4In19fQ";
  auto claims = ReadTokenClaims("h." + payload + ".s");
  ASSERT_TRUE(claims.ok()) << claims.error().ToString();
  EXPECT_EQ(claims->node_name, "n1");
  EXPECT_EQ(claims->node_uid, "u1");
  EXPECT_EQ(claims->pod_name, "p");
  EXPECT_EQ(claims->pod_uid, "pu");
  EXPECT_EQ(claims->service_account, "sa");
  EXPECT_EQ(claims->ns, "ns");
  EXPECT_TRUE(claims->audiences.empty());
  EXPECT_EQ(claims->expires_ns, 0);
  // {"aud":"x","exp":1790000000,"kubernetes.io":{"namespace":"ns"}}, and {"aud":["x",7,"y"],"exp":1e30,"kubernetes.io":{}}
  claims = ReadTokenClaims("h.eyJhdWQiOiJ4IiwiZXhwIjoxNzkwMDAwMDAwLCJrdWJlcm5ldGVzLmlvIjp7Im5hbWVzcGFjZSI6Im5zIn19.s");
  ASSERT_TRUE(claims.ok());
  EXPECT_EQ(claims->audiences, std::vector<std::string>{"x"});
  EXPECT_EQ(claims->expires_ns, 1'790'000'000'000'000'000);
  claims = ReadTokenClaims("h.eyJhdWQiOlsieCIsNywieSJdLCJleHAiOjFlKzMwLCJrdWJlcm5ldGVzLmlvIjp7fX0.s");
  ASSERT_TRUE(claims.ok());
  EXPECT_EQ(claims->audiences, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(claims->expires_ns, 0);
  for (const char* bad : {"", "a.b", "a.b.c", "..", "a.!!.c", "a.e30.c", "a.MQ.c"}) EXPECT_FALSE(ReadTokenClaims(bad).ok()) << bad;
}

}  // namespace
}  // namespace borescope::kube
