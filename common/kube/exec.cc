// SPDX-License-Identifier: Apache-2.0
#include "common/kube/exec.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/strings.h"

extern char** environ;

namespace borescope::kube {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr int64_t kRenewBeforeNs = 10'000'000'000;
constexpr auto kBetweenRuns = std::chrono::seconds(5);

std::string Name(const std::string& command) { return "credential plugin \"" + SanitizeName(command) + "\""; }

// Reads until the end of the pipe; false: too late, or too much.
bool ReadAll(int fd, milliseconds timeout, size_t max, std::string* out) {
  const int64_t deadline = NowNs(CLOCK_MONOTONIC) + timeout.count() * 1'000'000;
  char buffer[16 << 10];
  while (true) {
    const int64_t left = deadline - NowNs(CLOCK_MONOTONIC);
    if (left <= 0) return false;
    pollfd wait{fd, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left / 1'000'000 + 1)) <= 0) continue;
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) return true;
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return true;
    }
    out->append(buffer, static_cast<size_t>(n));
    if (out->size() > max) return false;
  }
}

// Its exit status; it is ended when it goes on although its output has ended.
int WaitFor(pid_t pid, milliseconds timeout) {
  int status = 0;
  for (milliseconds waited{0}; waited < timeout; waited += milliseconds(2)) {
    if (::waitpid(pid, &status, WNOHANG) == pid) return status;
    ::usleep(2000);
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, &status, 0);
  return status;
}

}  // namespace

Result<std::string> ExecSource::Run() const {
  using Interactive = ExecPlugin::Interactive;
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (plugin_.interactive == Interactive::kAlways && !terminal) {
    return Error{ErrorCode::kDenied, Name(plugin_.command) + " needs a terminal (interactiveMode is Always): run this from one, or log in first"};
  }
  const bool interactive = terminal && plugin_.interactive != Interactive::kNever;
  json info = {{"apiVersion", plugin_.api_version}, {"kind", "ExecCredential"}, {"spec", {{"interactive", interactive}}}};
  if (!plugin_.cluster.empty()) info["spec"]["cluster"] = json::parse(plugin_.cluster, nullptr, false);

  std::vector<std::string> variables;
  auto set = [&](const std::string& name, const std::string& value) {
    std::erase_if(variables, [&](const std::string& v) { return v.starts_with(name + "="); });
    variables.push_back(name + "=" + value);
  };
  for (char** v = environ; *v != nullptr; ++v) variables.emplace_back(*v);
  for (const auto& [name, value] : plugin_.env) set(name, value);
  set("KUBERNETES_EXEC_INFO", info.dump(-1, ' ', false, json::error_handler_t::replace));
  std::vector<char*> argv{const_cast<char*>(plugin_.command.c_str())}, envp;
  for (const std::string& arg : plugin_.args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  for (std::string& v : variables) envp.push_back(v.data());
  envp.push_back(nullptr);

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd reader(ends[0]), writer(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  if (!interactive) posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  sigset_t none, ours;
  sigemptyset(&none);
  sigemptyset(&ours);
  for (int s : {SIGPIPE, SIGINT, SIGTERM}) sigaddset(&ours, s);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &ours);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, plugin_.command.c_str(), &actions, &attributes, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  writer.Reset();
  if (failed != 0) {
    Error error = ErrnoError(Name(plugin_.command), failed);
    if (!plugin_.install_hint.empty()) error.message += "; " + SanitizeName(plugin_.install_hint, 512);
    return error;
  }
  std::string output;
  const milliseconds timeout = interactive ? plugin_.interactive_timeout : plugin_.timeout;
  if (!ReadAll(reader.get(), timeout, plugin_.max_output, &output)) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    if (output.size() > plugin_.max_output) {
      return Error{ErrorCode::kInvalid, Name(plugin_.command) + " printed more than " + std::to_string(plugin_.max_output) + " bytes: that is no ExecCredential"};
    }
    return Error{ErrorCode::kUnavailable, Name(plugin_.command) + " gave no credential within " + std::to_string(timeout.count() / 1000) +
                                              " s: try it by hand, or log in again"};
  }
  const int status = WaitFor(pid, milliseconds(1000));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  return Error{ErrorCode::kUnavailable, Name(plugin_.command) +
                                            (WIFEXITED(status) ? " failed with exit code " + std::to_string(WEXITSTATUS(status))
                                                               : " was ended by signal " + std::to_string(WTERMSIG(status))) +
                                            ": what it wrote stands above; log in again if it asks for that"};
}

Result<ExecCredential> ExecSource::Get() {
  std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  const bool young = have_ && now - run_at_ < kBetweenRuns;
  const bool ends = credential_.expires_ns != 0 && NowNs(CLOCK_REALTIME) + kRenewBeforeNs >= credential_.expires_ns;
  if (have_ && (young || (!invalid_ && !ends))) return credential_;
  ASSIGN_OR_RETURN(std::string output, Run());
  auto credential = ParseExecCredential(output, plugin_.api_version);
  if (!credential.ok()) return credential.error().WithContext(Name(plugin_.command));
  credential_ = *std::move(credential);
  have_ = true;
  invalid_ = false;
  run_at_ = std::chrono::steady_clock::now();
  return credential_;
}

void ExecSource::Invalidate() {
  std::lock_guard lock(mutex_);
  invalid_ = true;
}

}  // namespace borescope::kube
