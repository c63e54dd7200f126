// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/completion.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/cluster/sessions.h"
#include "cli/cluster/target.h"
#include "common/base/log.h"

namespace borescope::cli {
namespace {

constexpr std::string_view kBash = R"sh(# source <(borescope completion bash)
_borescope() {
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$(borescope __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | grep -v '^:')" -- "${COMP_WORDS[COMP_CWORD]}"))
  [[ ${COMPREPLY[0]-} == */ ]] && compopt -o nospace
  return 0
}
complete -F _borescope borescope
)sh";
constexpr std::string_view kZsh = R"sh(#compdef borescope
# source <(borescope completion zsh)
_borescope() {
  local -a found
  found=("${(@f)$(borescope __complete "${(@)words[2,CURRENT]}" 2>/dev/null | grep -v '^:')}")
  if [[ ${found[1]} == */ ]]; then compadd -S '' -a found; else compadd -a found; fi
}
compdef _borescope borescope
)sh";
constexpr std::string_view kFish = R"sh(# borescope completion fish | source
complete -c borescope -f -a '(borescope __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null | string match -v ":*")'
)sh";

std::vector<std::string> Names(const ClusterFlags& flags, const kube::Resource& resource, const std::string& prefix, std::string_view word) {
  std::vector<std::string> out;
  SetLogLevel(LogLevel::kError);
  auto cluster = Cluster::Open(flags);
  if (!cluster.ok()) return out;
  kube::CallOptions call;
  call.timeout = std::chrono::milliseconds(2'000);
  call.max_tries = 1;
  auto found = (*cluster)->api().List(resource, {.ns = (*cluster)->ns(), .projection = {"metadata.name"}}, call);
  if (!found.ok()) return out;
  for (const auto& item : found->items) {
    if (!item.contains("metadata") || !item["metadata"].contains("name") || !item["metadata"]["name"].is_string()) continue;
    std::string name = prefix + item["metadata"]["name"].get<std::string>();
    if (name.starts_with(word)) out.push_back(std::move(name));
  }
  return out;
}

}  // namespace

std::string_view CompletionScript(std::string_view shell) { return shell == "bash" ? kBash : shell == "zsh" ? kZsh : shell == "fish" ? kFish : std::string_view(); }

std::vector<std::string> CompleteSession(const ClusterFlags& flags, std::string_view word) { return Names(flags, kSessions, "", word); }

std::vector<std::string> CompleteTarget(const ClusterFlags& flags, std::string_view word) {
  const size_t slash = word.find('/');
  std::vector<std::string> out;
  if (slash == word.npos) {
    for (const char* kind : {"pod/", "deploy/", "sts/", "ds/", "rs/", "job/"}) {
      if (std::string_view(kind).starts_with(word)) out.emplace_back(kind);
    }
    return out;
  }
  const std::string prefix(word.substr(0, slash + 1));
  auto target = ParseTarget(prefix + "x");
  if (!target.ok()) return out;
  std::string plural = target->workload_ref ? target->workload_ref->kind + "s" : "pods";
  for (char& c : plural) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return Names(flags, {!target->workload_ref ? "" : plural == "jobs" ? "batch" : "apps", "v1", plural}, prefix, word);
}

}  // namespace borescope::cli
