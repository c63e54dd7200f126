# SPDX-License-Identifier: Apache-2.0
"""Only what was chosen is sampled, by time stamp."""
import os
import time

from lib import cluster as c
from lib.world import cpu


def _move(pid, group):
    """Moves a process into another group of every hierarchy; returns the time before and after (CLOCK_MONOTONIC ns)."""
    before = time.monotonic_ns()
    roots = ["/sys/fs/cgroup"] if os.path.exists("/sys/fs/cgroup/cgroup.procs") else [f"/sys/fs/cgroup/{name}" for name in os.listdir("/sys/fs/cgroup")]
    for root in roots:
        target = f"{root}/{group}"
        if not os.path.isdir(target):
            os.makedirs(target)
            if os.path.exists(f"{target}/cpuset.mems"):
                for file in ("cpuset.cpus", "cpuset.mems"):
                    open(f"{target}/{file}", "w").write(open(f"{root}/{file}").read())
        open(f"{target}/cgroup.procs", "w").write(str(pid))
    return before, time.monotonic_ns()


def test_neighbours_and_leavers(world):
    """A busy neighbour gives no sample; a process moved out of the pod's cgroup gives none after that instant."""
    wanted = world.pod("cpp", "node1", "busy")
    neighbour = world.pod("spin", "node1", "1")
    name = world.start(target={"podName": wanted}, durationSeconds=16, profiles=cpu(999))
    c.wait("samples of the pod", 10, lambda: world.samples("node1", name))
    (pid,) = [p for p in world.pids(wanted)]
    time.sleep(5)
    before, after = _move(pid, "borescope-e2e-outside")
    moved_for = 3.0
    time.sleep(moved_for)
    session = world.finished(name)
    samples = world.samples("node1", name)
    c.expect(len(samples) >= 500, f"only {len(samples)} samples")
    late = [s for s in samples if s["time_ns"] > after]
    c.expect(not late, f"{len(late)} samples after the process had left, the first {(late or [{'time_ns': 0}])[0]['time_ns'] - after} ns after it")
    foreign = [s for s in samples if any("Spin" in frame for frame in s["frames"])]
    c.expect(not foreign, f"{len(foreign)} samples of {neighbour}")
    threads = {s["tid"] for s in samples}
    c.expect(session["status"]["samples"]["collected"] == len(samples), f"status says {session['status']['samples']['collected']}, the file {len(samples)}")
    os.kill(pid, 9)
    metrics = c.cluster("exec", "--node", "node1", "curl", "-sS", "http://127.0.0.1:8082/metrics")
    return f"{len(samples)} samples of {len(threads)} threads, none later than {before} ns, metrics {len(metrics.splitlines())} lines"
