// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/kube/exec_credential.h"

namespace borescope::kube {

struct ExecPlugin {
  std::string api_version;  // client.authentication.k8s.io/v1, or v1beta1
  std::string command;      // a path when it has a "/", else looked up on PATH
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> env;
  enum class Interactive { kNever, kIfAvailable, kAlways } interactive = Interactive::kIfAvailable;
  std::string install_hint;  // shown when the command is not there
  std::string cluster;       // JSON of spec.cluster in KUBERNETES_EXEC_INFO; empty: not asked for
  std::chrono::milliseconds timeout{60'000};
  std::chrono::milliseconds interactive_timeout{300'000};  // somebody may have to log in
  size_t max_output = 1 << 20;
};

// Credentials of a plugin, asked for when there are none, when they are within 10 s of their end, and after Invalidate (at most every 5 s:
// what was made just now and is refused will not get better). Thread-safe.
class ExecSource {
 public:
  explicit ExecSource(ExecPlugin plugin) : plugin_(std::move(plugin)) {}
  // kNotFound: no such command; kUnavailable: it took too long or failed. What it writes to standard error goes to ours.
  Result<ExecCredential> Get();
  void Invalidate();

 private:
  Result<std::string> Run() const;

  const ExecPlugin plugin_;
  std::mutex mutex_;
  ExecCredential credential_;
  bool have_ = false, invalid_ = false;
  std::chrono::steady_clock::time_point run_at_{};
};

}  // namespace borescope::kube
