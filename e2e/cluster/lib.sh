# SPDX-License-Identifier: Apache-2.0
# Shared by `cluster` (on the machine) and `inside` (in the cluster's namespaces): where things are, how to wait, how to get in.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$HERE/../../scripts/lib.sh"

STATE=${BORESCOPE_STATE:-/run/borescope-e2e}
CGROUP=${STATE##*/}            # every node's cgroup root lies below this one; clusters of other state folders have their own
IMAGE=localhost/borescope-e2e:1
KUBE_VERSION=1.35.4
BOX_IP=10.244.0.1              # the control plane, on the bridge that joins it with the nodes
API_PORT=16443
PKI=$STATE/pki
LOGS=$STATE/logs
export KUBECONFIG=$PKI/admin.kubeconfig
export KUBECACHEDIR=$STATE/kubectl-cache  # not in the user's home
export PATH=$PATH:/usr/sbin:/sbin

node_ip() { echo "10.244.0.$((10 + ${1#node}))"; }
node_pods() { echo "10.244.${1#node}"; }  # the first three numbers of its pods' addresses

# await TEXT SECONDS LOG CMD...: waits until CMD succeeds; else dies with the last lines of LOG. With WATCH=PID at once when that
# process has ended.
await() {
  local text=$1 seconds=$2 log=$3 deadline why
  shift 3
  deadline=$(($(date +%s%N) + seconds * 1000000000))
  until "$@" >/dev/null 2>&1; do
    if [ -n "${WATCH:-}" ] && ! kill -0 "$WATCH" 2>/dev/null; then
      why="its process ended"
    elif [ "$(date +%s%N)" -ge "$deadline" ]; then
      why="not within $seconds s"
    else
      sleep 0.1
      continue
    fi
    if [ -f "$log" ]; then tail -n 15 "$log" >&2; fi
    die "$text: $why; the lines above are the end of $log"
  done
}

# Content hash of files, for names in the cache.
digest() { cat "$@" | sha256sum | cut -c1-16; }

kube_directory() { echo "$CACHE/kube-$KUBE_VERSION-$(cd "$HERE/kube" && digest go.mod go.sum main.go)"; }
helm_directory() { echo "$CACHE/helm-$(cd "$HERE/helm" && digest go.mod go.sum)"; }
dns_directory() { echo "$CACHE/dns-$(cd "$HERE/dns" && digest go.mod go.sum main.go)"; }
cni_directory() { echo "$CACHE/cni-$(cd "$HERE/cni" && digest go.mod go.sum)"; }

unified_cgroups() { [ -f /sys/fs/cgroup/cgroup.controllers ]; }

# cgroup_roots: the root of every hierarchy of this machine.
cgroup_roots() {
  if unified_cgroups; then
    echo /sys/fs/cgroup
  else
    find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d
  fi
}

# The hierarchy in which a group's CPU time is read.
cpu_cgroup() { if unified_cgroups; then echo "/sys/fs/cgroup/$CGROUP"; else echo "/sys/fs/cgroup/cpuacct/$CGROUP"; fi; }

# running_from FILE: pids (as seen here) of the processes that execute it, also after it was deleted.
running_from() {
  find /proc/[0-9]*/exe -maxdepth 0 \( -lname "$1" -o -lname "$1 (deleted)" \) 2>/dev/null | cut -d/ -f3
}
