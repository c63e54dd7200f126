// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/cluster/access.h"

// The commands on a cluster. Each returns the exit code: 0 done, 1 nothing was sampled, 2 it cannot be done (one sentence on standard error
// says what helps).
namespace borescope::cli {

struct SessionOptions {
  std::string target = {};                   // "deploy/checkout"; rerun: the session's name
  std::vector<std::string> containers = {};  // -c
  std::string kind = "cpu";             // --kind
  std::string duration = {};                 // --duration; empty: 30 s, rerun: as it was
  int frequency = 0;                    // --frequency; 0: the kind's own, rerun: as it was
  std::string output = "table";         // -o
  std::string output_file = {};              // --output-file
  bool dry_run = false;
  int top = 15;  // rows of the table
};

// Creates the session, follows it to its end, prints what it found.
int RunSession(const ClusterFlags& flags, const SessionOptions& options);
// The same with the spec of an earlier session.
int RunRerun(const ClusterFlags& flags, const SessionOptions& options);
int RunList(const ClusterFlags& flags, bool all_namespaces, const std::string& output);
int RunStop(const ClusterFlags& flags, const std::string& name, const std::string& output);
// Until its end, an interrupt, or (not on a terminal) the first table.
int RunTop(const ClusterFlags& flags, const std::string& name, const std::string& output, int rows);
// The flame graph in a browser, or where it lies.
int RunOpen(const ClusterFlags& flags, const std::string& name);
int RunShare(const ClusterFlags& flags, const std::string& name);

}  // namespace borescope::cli
