# SPDX-License-Identifier: Apache-2.0
"""Sessions end when they shall, whoever is stopped or killed."""
import json
import signal
import time

from lib import cluster as c
from lib.pprof import Profile
from lib.world import cpu
from tests.session import samples_of, seconds, window_of


def _last_sample(world, node, name):
    samples = world.samples(node, name)
    return max((s["time_ns"] for s in samples), default=0)


def test_stop_and_deletion(world):
    """desiredState Stop and deletion end sampling within 1 s; a stopped session publishes what it has."""
    pod = world.pod("cpp", "node1", "busy")
    for how in ("stop", "delete"):
        name = world.start(target={"podName": pod}, durationSeconds=60, profiles=cpu(199))
        c.wait("samples", 10, lambda: world.samples("node1", name))
        time.sleep(1.5)
        if how == "stop":
            c.kubectl("-n", "shop", "patch", "psess", name, "--type=merge", "-p", '{"spec":{"desiredState":"Stop"}}')
        else:
            c.kubectl("-n", "shop", "delete", "psess", name)
        asked = time.monotonic_ns()
        time.sleep(3)
        late = _last_sample(world, "node1", name) - asked
        c.expect(late <= 1e9, f"{how}: the last sample came {late / 1e9:.2f} s after it was asked for")
        if how == "stop":
            session = world.finished(name, seconds=20)
            start, _ = window_of(session)
            Profile(c.fetch_profile(f'{{pod="{pod}",profiling_session=~"{name}.*"}}', start - 10**9, time.time_ns()))
    return "both within 1 s"


def test_api_server_and_operator_stopped(world):
    """Sampling ends at the deadline + 100 ms without them, and the profile is in the store."""
    pod = world.pod("cpp", "node1", "busy")
    name = world.start(target={"podName": pod}, durationSeconds=15, profiles=cpu(499))
    c.wait("samples", 10, lambda: world.samples("node1", name))
    session = c.get("psess", name, "shop")
    start, end = window_of(session)
    c.expect(c.ask_store("/borescope/v1/whoami", c.reader_token())[0] == 200, "the store does not know the reader")
    c.cluster("stop", "operator")
    c.signal_api_server(signal.SIGSTOP)
    try:
        time.sleep(max(0, (end - time.time_ns()) / 1e9) + 3)
        last = _last_sample(world, "node1", name)
        end_mono = end - (time.time_ns() - time.monotonic_ns())
        c.expect(last <= end_mono + 100_000_000, f"the last sample came {(last - end_mono) / 1e6:.0f} ms after the deadline")
        c.expect(last >= end_mono - 500_000_000, f"sampling ended {(end_mono - last) / 1e6:.0f} ms before the deadline")
        stored, taken = samples_of(pod, start, end, f',profiling_session=~"{name}.*"'), len(world.samples("node1", name))
        c.expect(stored == taken, f"the store has {stored} of {taken} samples")
    finally:
        c.signal_api_server(signal.SIGCONT)
        world.install()
    finished = world.finished(name, seconds=60)
    c.expect(c.condition_of(finished, "Complete")["status"] == "True", json.dumps(finished["status"]["conditions"]))
    return f"last sample {(last - end_mono) / 1e6:+.0f} ms from the deadline"


def _killed(world, program, at_seconds, duration=20):
    """Kills a program once while a session runs; returns the finished session and what the store has of it."""
    pod = world.pod("cpp", "node1", "busy")
    name = world.start(target={"podName": pod}, durationSeconds=duration, profiles=cpu(199))
    c.wait("samples", 10, lambda: world.samples("node1", name))
    time.sleep(at_seconds)
    c.cluster("kill", program)
    session = world.finished(name, seconds=duration + 60)
    start, end = window_of(session)
    over = time.time_ns() - end
    c.expect(over <= 30e9, f"finished {over / 1e9:.0f} s after its window")
    return session, samples_of(pod, start, end, f',profiling_session=~"{name}.*"'), world.samples("node1", name)


def _nothing_twice_or_missing(session, collected, samples, program):
    c.expect(collected <= len(samples), f"the store has {collected} samples, the sampler took only {len(samples)}: something is there twice")
    status = session["status"]
    used, sampled, lost = (seconds(status["cpu"][key]) for key in ("used", "sampled", "lost"))
    if program != "sampler-node1":
        c.expect(collected == len(samples), f"{len(samples) - collected} samples of acknowledged windows are missing")
        return f"{program}: {collected} samples"
    c.expect(any(key == "sampler_restart" for key in (status.get("lost") or {})) or "sampler_restart" in json.dumps(status), f"no loss row for the gap: {status.get('lost')}, {status['cpu']}")
    c.expect(lost > 0, f"the gap is not in cpu.lost: {status['cpu']}")
    return f"{program}: store {collected} of {len(samples)} samples taken, used {used} s = sampled {sampled} + lost {lost} s"


def test_kill_operator(world):
    session, collected, samples = _killed(world, "operator", 4)
    c.expect(c.condition_of(session, "Complete")["status"] == "True", json.dumps(session["status"]["conditions"]))
    return _nothing_twice_or_missing(session, collected, samples, "operator")


def test_kill_store(world):
    session, collected, samples = _killed(world, "store", 8.5)
    c.expect(c.condition_of(session, "Complete")["status"] == "True", json.dumps(session["status"]["conditions"]))
    return _nothing_twice_or_missing(session, collected, samples, "store")


def test_kill_sampler(world):
    session, collected, samples = _killed(world, "sampler-node1", 8.5)
    return _nothing_twice_or_missing(session, collected, samples, "sampler-node1")


def long_test_kill_at_ten_random_instants(world):
    seen = []
    for program in ("operator", "store", "sampler-node1"):
        for _ in range(10):
            session, collected, samples = _killed(world, program, world.random.uniform(0.5, 17))
            seen.append(_nothing_twice_or_missing(session, collected, samples, program))
            world.clean()
    return f"{len(seen)} kills"
