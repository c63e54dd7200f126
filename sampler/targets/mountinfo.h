// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace borescope::targets {

// What a process's /proc/PID/mountinfo says of the container it runs in.
struct ContainerMount {
  std::string name;          // of the container; empty: not said, or said twice differently
  bool pod_seen = false;     // some mount comes from the pod's folder (a volume, etc-hosts, …): this is no sandbox
};

// Looks for the kubelet's bind mount of the termination log, whose root is "…/pods/<uid>/containers/<name>/<hash>" whatever the
// node's /var/lib/kubelet is mounted from; normally at /dev/termination-log, elsewhere when the pod says so. Only mounts of the
// pod `pod_uid` count. Names are DNS labels (as Kubernetes has it); anything else is not a name. The text is hostile: bounded to
// its first 4 MiB and 20 000 lines, never an error.
ContainerMount FindContainerMount(std::string_view mountinfo, std::string_view pod_uid);

}  // namespace borescope::targets
