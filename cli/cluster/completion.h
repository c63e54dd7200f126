// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/cluster/access.h"

namespace borescope::cli {

// The script that a shell reads: bash, zsh or fish. Empty: another one.
std::string_view CompletionScript(std::string_view shell);

// Names in the cluster that begin with `word`, asked for within 2 s; nothing when it cannot be asked.
std::vector<std::string> CompleteSession(const ClusterFlags& flags, std::string_view word);
// "deploy/", then "deploy/checkout".
std::vector<std::string> CompleteTarget(const ClusterFlags& flags, std::string_view word);

}  // namespace borescope::cli
