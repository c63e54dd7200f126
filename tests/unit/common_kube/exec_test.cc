// SPDX-License-Identifier: Apache-2.0
#include "common/kube/exec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/strings.h"
#include "common/kube/config.h"

namespace borescope::kube {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kVersion[] = "client.authentication.k8s.io/v1";

std::string Credential(const std::string& status, const std::string& version = kVersion) {
  return R"({"kind":"ExecCredential","apiVersion":")" + version + R"(","status":)" + status + "}";
}

class ExecTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "kube-exec-" + RandomHex(6);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string Script(const std::string& body) {
    const std::string path = dir_ + "/plugin";
    EXPECT_TRUE(WriteFileAtomically(path, "#!/bin/sh\n" + body, 0755).ok());
    return path;
  }
  // Prints a credential whose token counts the runs.
  std::string Counting(const std::string& more = "") {
    return Script("echo x >>" + dir_ + "/runs\necho '{\"kind\":\"ExecCredential\",\"apiVersion\":\"" + std::string(kVersion) +
                  "\",\"status\":{\"token\":\"t'$(wc -l <" + dir_ + "/runs)'\"" + more + "}}'\n");
  }
  ExecPlugin Plugin(const std::string& command) {
    ExecPlugin plugin;
    plugin.api_version = kVersion;
    plugin.command = command;
    plugin.interactive = ExecPlugin::Interactive::kNever;
    return plugin;
  }
  std::string dir_;
};

TEST_F(ExecTest, ParsesWhatPluginsPrint) {
  auto token = ParseExecCredential(Credential(R"({"token":"abc","expirationTimestamp":"2030-01-02T03:04:05Z"})"), kVersion);
  ASSERT_TRUE(token.ok()) << token.error().ToString();
  EXPECT_EQ(token->token, "abc");
  EXPECT_EQ(token->expires_ns, *ParseTime("2030-01-02T03:04:05Z"));
  auto pair = ParseExecCredential(Credential(R"({"clientCertificateData":"C","clientKeyData":"K"})"), kVersion);
  ASSERT_TRUE(pair.ok());
  EXPECT_EQ(pair->certificate + pair->key, "CK");
  for (const auto& [text, word] : std::vector<std::pair<std::string, std::string>>{
           {"", "no ExecCredential"},
           {"{\"kind\":\"Pod\"}", "no ExecCredential"},
           {Credential("{}"), "neither"},
           {Credential(R"({"clientCertificateData":"C"})"), "only one"},
           {Credential(R"({"token":"secret-word"})", "client.authentication.k8s.io/v1beta1"), "v1beta1"},
           {Credential(R"({"token":"secret-word","expirationTimestamp":"tomorrow"})"), "expirationTimestamp"}}) {
    auto bad = ParseExecCredential(text, kVersion);
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_THAT(bad.error().message, HasSubstr(word));
    EXPECT_THAT(bad.error().message, Not(HasSubstr("secret-word")));
  }
}

TEST_F(ExecTest, RunsOnceUntilItsCredentialEndsOrIsRefused) {
  ExecSource lasting(Plugin(Counting()));
  EXPECT_EQ(lasting.Get()->token, "t1");
  EXPECT_EQ(lasting.Get()->token, "t1");
  lasting.Invalidate();
  EXPECT_EQ(lasting.Get()->token, "t1");  // made just now: asking again would give the same
  std::filesystem::remove(dir_ + "/runs");
  ExecSource source(Plugin(Counting(",\"expirationTimestamp\":\"2001-01-01T00:00:00Z\"")));
  EXPECT_EQ(source.Get()->token, "t1");
  EXPECT_EQ(source.Get()->token, "t1");  // likewise
}

TEST_F(ExecTest, GetsArgumentsEnvironmentAndClusterInfo) {
  ExecPlugin plugin = Plugin(Script("printf '%s' \"$KUBERNETES_EXEC_INFO\" >" + dir_ + "/info\nprintf '%s' \"$1|$WORD|$HOME\" >" + dir_ + "/args\necho '" +
                                    Credential(R"({"token":"t"})") + "'\n"));
  plugin.args = {"an argument"};
  plugin.env = {{"WORD", "w"}};
  plugin.cluster = R"({"server":"https://k"})";
  setenv("HOME", "/home/somebody", 1);
  ExecSource source(plugin);
  ASSERT_TRUE(source.Get().ok()) << source.Get().error().message;
  EXPECT_EQ(*ReadFile(dir_ + "/args"), "an argument|w|/home/somebody");
  auto info = nlohmann::json::parse(*ReadFile(dir_ + "/info"), nullptr, false);
  EXPECT_EQ(info["kind"], "ExecCredential");
  EXPECT_EQ(info["apiVersion"], kVersion);
  EXPECT_EQ(info["spec"]["interactive"], false);
  EXPECT_EQ(info["spec"]["cluster"]["server"], "https://k");
}

TEST_F(ExecTest, WhatGoesWrongIsSaidAndBounded) {
  ExecPlugin plugin = Plugin("no-such-plugin-" + RandomHex(4));
  plugin.install_hint = "install it with: brew install it";
  auto missing = ExecSource(plugin).Get();
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("brew install it"));

  auto failed = ExecSource(Plugin(Script("exit 3\n"))).Get();
  EXPECT_THAT(failed.error().message, HasSubstr("exit code 3"));

  plugin = Plugin(Script("exec sleep 60\n"));
  plugin.timeout = std::chrono::milliseconds(100);
  const int64_t begin = NowNs(CLOCK_MONOTONIC);
  auto slow = ExecSource(plugin).Get();
  EXPECT_EQ(slow.error().code, ErrorCode::kUnavailable);
  EXPECT_LT(NowNs(CLOCK_MONOTONIC) - begin, 30'000'000'000);

  plugin = Plugin(Script("exec cat /dev/zero\n"));
  plugin.max_output = 4096;
  EXPECT_THAT(ExecSource(plugin).Get().error().message, HasSubstr("4096 bytes"));

  plugin = Plugin(Script("echo '" + Credential(R"({"token":"t"})") + "'\n"));
  plugin.interactive = ExecPlugin::Interactive::kAlways;
  if (::isatty(0) == 0) {
    EXPECT_THAT(ExecSource(plugin).Get().error().message, HasSubstr("terminal"));
  }
}

TEST_F(ExecTest, OfAKubeconfig) {
  Script("echo '" + Credential(R"({"clientCertificateData":"CERT","clientKeyData":"KEY","token":"TOK"})") + "'\n");
  auto load = [&](const std::string& exec) {
    EXPECT_TRUE(WriteFileAtomically(dir_ + "/config", "current-context: x\nclusters:\n- {name: c, cluster: {server: 'https://k'}}\nusers:\n- name: u\n  user:\n    exec: {" + exec +
                                                          "}\ncontexts:\n- {name: x, context: {cluster: c, user: u}}\n")
                    .ok());
    return LoadKubeconfig(dir_ + "/config");
  };
  // A path is relative to the kubeconfig.
  auto config = load(std::string("apiVersion: ") + kVersion + ", command: ./plugin, interactiveMode: Never, provideClusterInfo: true");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(*config->token->Get(), "TOK");
  EXPECT_EQ(*config->client_certificate.Load(), "CERT");
  EXPECT_EQ(*config->client_key.Load(), "KEY");
  EXPECT_THAT(load("apiVersion: client.authentication.k8s.io/v1alpha1, command: x").error().message, HasSubstr("v1alpha1"));
  EXPECT_THAT(load(std::string("apiVersion: ") + kVersion).error().message, HasSubstr("command"));
  EXPECT_THAT(load(std::string("apiVersion: ") + kVersion + ", command: x, interactiveMode: Maybe").error().message, HasSubstr("Maybe"));
}

}  // namespace
}  // namespace borescope::kube
