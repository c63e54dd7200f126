// SPDX-License-Identifier: Apache-2.0
#include "sampler/naming/debug_files.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/strings.h"
#include "sampler/symbols/files.h"

namespace borescope::naming {
namespace {

constexpr const char* kDebugDirectory = "/usr/lib/debug";

std::string DirectoryOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }
std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string ByBuildId(const std::string& build_id) {
  const std::string hex = HexEncode(build_id);
  return ".build-id/" + hex.substr(0, 2) + "/" + hex.substr(2) + ".debug";
}

}  // namespace

std::vector<std::string> CandidatePaths(const Wanted& wanted, const std::string& path) {
  std::vector<std::string> paths;
  const std::string directory = DirectoryOf(path);
  auto by_build_id = [&] {
    if (wanted.build_id.size() >= 2) paths.push_back(std::string(kDebugDirectory) + "/" + ByBuildId(wanted.build_id));
  };
  // A name of a file that is hostile; the root directory holds it in.
  if (wanted.name.find('\0') != std::string::npos || wanted.directory.find('\0') != std::string::npos) return paths;
  switch (wanted.kind) {
    case Wanted::kBuildId:
      by_build_id();
      break;
    case Wanted::kDebugLink:
      if (wanted.name.empty() || wanted.name.find('/') != std::string::npos || wanted.name == "." || wanted.name == "..") break;
      if (directory + wanted.name != path) paths.push_back(directory + wanted.name);
      paths.push_back(directory + ".debug/" + wanted.name);
      paths.push_back(kDebugDirectory + directory + wanted.name);
      break;
    case Wanted::kAltLink:
      by_build_id();
      if (wanted.name.empty()) break;
      if (wanted.name.starts_with('/')) {
        paths.push_back(wanted.name);
        break;
      }
      // Relative to the file that has the link: the program, or its debug file, which stands in one of these.
      paths.push_back(directory + wanted.name);
      paths.push_back(directory + ".debug/" + wanted.name);
      paths.push_back(kDebugDirectory + directory + wanted.name);
      paths.push_back(std::string(kDebugDirectory) + "/.build-id/00/" + wanted.name);
      paths.push_back(std::string(kDebugDirectory) + "/.dwz/" + BaseName(wanted.name));
      break;
    case Wanted::kPackage:
      paths.push_back(path + ".dwp");
      paths.push_back(kDebugDirectory + path + ".dwp");
      break;
    case Wanted::kSplit:
      if (wanted.name.empty()) break;
      if (wanted.name.starts_with('/')) {
        paths.push_back(wanted.name);
      } else {
        if (!wanted.directory.empty()) paths.push_back(wanted.directory + "/" + wanted.name);
        paths.push_back(directory + wanted.name);
      }
      if (std::string beside = directory + BaseName(wanted.name); std::find(paths.begin(), paths.end(), beside) == paths.end()) paths.push_back(beside);
      break;
  }
  return paths;
}

UniqueFd OpenDebugFile(const Wanted& wanted, const DebugRoots& roots) {
  size_t attempt = 0;
  auto is_it = [&](const Result<UniqueFd>& fd) { return fd.ok() && attempt++ == wanted.attempt; };
  if (roots.path.starts_with('/') && !roots.path.starts_with("//")) {
    for (const std::string& path : CandidatePaths(wanted, roots.path)) {
      for (pid_t pid : roots.pids) {
        auto fd = symbols::OpenInRoot(roots.proc_root, pid, path);
        if (is_it(fd)) return *std::move(fd);
        if (fd.ok()) break;  // the others see the same
      }
    }
  }
  if (wanted.build_id.size() >= 2 && !roots.debug_directory.empty()) {
    auto fd = symbols::OpenBeneath(roots.debug_directory, ByBuildId(wanted.build_id));
    if (is_it(fd)) return *std::move(fd);
  }
  return {};
}

}  // namespace borescope::naming
