# SPDX-License-Identifier: Apache-2.0
"""Several sessions at once, late containers, containers that live for 3 s, coverage against the cgroup's own clock."""
import math
import os
import threading
import time

from lib import cluster as c
from lib.world import cpu, pod_target
from tests.session import seconds, window_of


def _steal():
    """Steal time of all CPUs in seconds."""
    return float(open("/proc/stat").readline().split()[8]) / 100


def _covered(session, used_by_cgroup, hertz, steal):
    """sampled + lost against the cgroup's CPU time: within 1 % + steal + 5 sigma."""
    cpu_status = session["status"]["cpu"]
    sampled, lost = seconds(cpu_status["sampled"]), seconds(cpu_status["lost"])
    sigma = math.sqrt(used_by_cgroup / hertz)
    bound = 0.01 * used_by_cgroup + steal + 5 * sigma
    ratio = (sampled + lost) / used_by_cgroup
    c.expect(abs(sampled + lost - used_by_cgroup) <= bound, f"sampled {sampled} + lost {lost} against the cgroup's {used_by_cgroup:.2f} s at {hertz} Hz (bound {bound:.2f} s)")
    c.expect(lost <= 0.005 * used_by_cgroup, f"lost {lost} of {used_by_cgroup:.2f} s")
    return f"{hertz} Hz: {100 * ratio:.2f} % of {used_by_cgroup:.1f} s (the sampler says {cpu_status['used']}) (could have seen {100 * bound / used_by_cgroup:.2f} %)"


def test_two_rates_on_one_pod(world):
    """49 and 199 Hz overlap on one pod; each has its own correct total, against the cgroup's clock read at the window's ends."""
    pod = world.pod("spin", "node1", "1")
    uid = world.pod_object(pod)["metadata"]["uid"]
    read_cpu = _cgroup_clock(uid)
    readings, ended = [], threading.Event()

    def keep_reading():
        while not ended.is_set():
            before, value = time.time_ns(), read_cpu()
            readings.append(((before + time.time_ns()) // 2, value))
            time.sleep(0.02)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    steal = _steal()
    try:
        low = world.start(target={"podName": pod}, durationSeconds=24, profiles=cpu(49))
        time.sleep(3)
        high = world.start(target={"podName": pod}, durationSeconds=18, profiles=cpu(199))
        world.finished(low)
        world.finished(high)
    finally:
        ended.set()
        reader.join()
    steal = _steal() - steal
    details = []
    for name, hertz in ((low, 49), (high, 199)):
        session = c.get("psess", name, "shop")
        start, end = window_of(session)
        details.append(_covered(session, _at(readings, end) - _at(readings, start), hertz, steal))
    return "; ".join(details)


def _cgroup_clock(pod_uid):
    """A function that reads the CPU time of the pod's cgroup in seconds, straight from its file."""
    group = c.cluster("cgroup", pod_uid).split()[0]
    for path in (f"{group}/cpuacct.usage", f"{group}/cpu.stat"):
        if os.path.exists(path):
            if path.endswith("cpu.stat"):
                return lambda: int(open(path).read().split("usage_usec ")[1].split()[0]) / 1e6
            return lambda: int(open(path).read()) / 1e9
    raise c.Failed(f"no CPU time to be read in {group}")


def _at(readings, ns):
    """The cgroup's clock at an instant between two readings."""
    for (t0, v0), (t1, v1) in zip(readings, readings[1:]):
        if t0 <= ns <= t1:
            return v0 + (v1 - v0) * (ns - t0) / (t1 - t0)
    raise c.Failed(f"{ns} is not between the first and the last reading of the cgroup's clock")


def test_late_container_from_its_first_instructions(world):
    """A pod of the target that starts inside the window is sampled from its first 100 ms."""
    first = world.pod("spin", "node1", "1")
    late = world.word("cpp")
    name = world.start(target=pod_target(first, late), durationSeconds=20, profiles=cpu(999))
    c.wait("samples of the first pod", 10, lambda: world.samples("node1", name))
    world.pod("cpp", "node1", "busy", name=late)
    (pid,) = world.pids(late)
    # The process's own start, on the clock of the samples: field 22 of /proc/PID/stat is in ticks since boot.
    ticks = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[19])
    started = ticks * 10_000_000 - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns())
    session = world.finished(name)
    early = [s for s in world.samples("node1", name) if started - 10_000_000 <= s["time_ns"] <= started + 110_000_000 and not any("Spin" in f for f in s["frames"])]
    c.expect(early, "no sample in the first 100 ms of the late container")
    c.expect(session["status"]["targets"]["display"].startswith("2/"), f"targets: {session['status']['targets']}")
    return f"{len(early)} samples in its first 100 ms"


def test_ten_jobs_of_three_seconds(world):
    """Ten containers that live 3 s, 999 Hz: at least 95 % of their own CPU time is sampled, and named after their death."""
    keep = world.pod("spin", "node2", "1")
    job = world.word("short")
    name = world.start(target=pod_target(keep, job), durationSeconds=150, profiles=cpu(999))
    c.wait("the session to sample", 10, lambda: c.get("psess", name, "shop").get("status", {}).get("phase") == "Sampling")
    world.pod("cpp", "node1", "short", "--ms", "2500", name=job, kind="Job", options=["--replicas", "10"], wait=False)
    c.kubectl("-n", "shop", "wait", "--for=condition=Complete", f"job/{job}", "--timeout=130s", timeout=140)
    c.kubectl("-n", "shop", "patch", "psess", name, "--type=merge", "-p", '{"spec":{"desiredState":"Stop"}}')
    world.finished(name, seconds=30)
    samples = world.samples("node1", name)
    sampled = sum(s["weight_ns"] for s in samples) / 1e9
    # Each container writes its report anew in the shared file; 2.5 s of CPU each is what they were told to use.
    used = 10 * 2.5
    unnamed = sum(1 for s in samples if any(f.startswith(("[unknown]", "0x")) for f in s["frames"]))
    c.expect(sampled >= 0.95 * used, f"sampled {sampled:.2f} s of {used:.2f} s")
    c.expect(unnamed <= 0.05 * len(samples), f"{unnamed} of {len(samples)} samples have a frame without a name")
    ours = sum(1 for s in samples if any("::f_" in f or "::c_" in f or f == "main" or "libc" in f for f in s["frames"]))
    c.expect(ours >= 0.95 * len(samples), f"only {ours} of {len(samples)} samples show the workload's functions or its libc")
    return f"sampled {sampled:.2f} s of {used:.2f} s, {100 * ours / len(samples):.1f} % named"
