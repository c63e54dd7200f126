// SPDX-License-Identifier: Apache-2.0
#include "sampler/targets/mountinfo.h"

#include <algorithm>

namespace borescope::targets {
namespace {

constexpr size_t kMaxBytes = 4 << 20;
constexpr size_t kMaxLines = 20'000;
constexpr std::string_view kTerminationLog = "/dev/termination-log";

// The next field up to a space; empty at the end.
std::string_view NextField(std::string_view& rest) {
  size_t end = std::min(rest.find(' '), rest.size());
  std::string_view field = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return field;
}

bool IsDnsLabel(std::string_view s) {
  auto alphanumeric = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !s.empty() && s.size() <= 63 && alphanumeric(s.front()) && alphanumeric(s.back()) &&
         std::all_of(s.begin(), s.end(), [&](char c) { return alphanumeric(c) || c == '-'; });
}

// The part of `root` behind "/pods/<uid>/", or empty. (Neither a uid nor a container's name needs mountinfo's octal escapes.)
std::string_view BelowPod(std::string_view root, std::string_view pod_uid) {
  constexpr std::string_view kPods = "/pods/";
  for (size_t at = root.find(kPods); at != std::string_view::npos; at = root.find(kPods, at + 1)) {
    std::string_view rest = root.substr(at + kPods.size());
    if (rest.size() > pod_uid.size() && rest.starts_with(pod_uid) && rest[pod_uid.size()] == '/')
      return rest.substr(pod_uid.size() + 1);
  }
  return {};
}

// "containers/<name>/<hash>" -> name.
std::string_view ContainerName(std::string_view below_pod) {
  constexpr std::string_view kContainers = "containers/";
  if (!below_pod.starts_with(kContainers)) return {};
  below_pod.remove_prefix(kContainers.size());
  size_t slash = below_pod.find('/');
  if (slash == std::string_view::npos) return {};
  std::string_view name = below_pod.substr(0, slash), hash = below_pod.substr(slash + 1);
  bool whole = !hash.empty() && hash.find('/') == std::string_view::npos;
  return whole && IsDnsLabel(name) ? name : std::string_view();
}

}  // namespace

ContainerMount FindContainerMount(std::string_view mountinfo, std::string_view pod_uid) {
  ContainerMount found;
  if (pod_uid.empty()) return found;
  mountinfo = mountinfo.substr(0, kMaxBytes);
  std::string_view at_usual_place, elsewhere;
  bool elsewhere_differs = false;
  for (size_t line_number = 0; !mountinfo.empty() && line_number < kMaxLines; ++line_number) {
    size_t end = std::min(mountinfo.find('\n'), mountinfo.size());
    std::string_view line = mountinfo.substr(0, end);
    mountinfo.remove_prefix(std::min(end + 1, mountinfo.size()));
    for (int skipped = 0; skipped < 3; ++skipped) NextField(line);  // mount id, parent id, device
    std::string_view root = NextField(line), mount_point = NextField(line);
    std::string_view below = BelowPod(root, pod_uid);
    if (below.empty()) continue;
    found.pod_seen = true;
    std::string_view name = ContainerName(below);
    if (name.empty()) continue;
    if (mount_point == kTerminationLog) {
      at_usual_place = name;  // of mounts on top of each other the last one is what is seen
    } else {
      elsewhere_differs |= !elsewhere.empty() && elsewhere != name;
      elsewhere = name;
    }
  }
  if (!at_usual_place.empty()) {
    found.name = at_usual_place;
  } else if (!elsewhere_differs) {
    found.name = elsewhere;
  }
  return found;
}

}  // namespace borescope::targets
