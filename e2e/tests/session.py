# SPDX-License-Identifier: Apache-2.0
"""The main job: a session over pods on two real nodes, against the workloads' own clocks."""
import json
import os
import subprocess
import tempfile

from lib import cluster as c
from lib import truth
from lib.pprof import Profile
from lib.world import cpu, pod_target


def window_of(session):
    import datetime
    def ns(text):
        return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e9)
    return ns(session["status"]["startTime"]), ns(session["status"]["endTime"])


def test_two_nodes(world):
    """Merged shares and all else of a session over pods on two nodes. A machine that is busy with other work gives too few samples in 25 s."""
    try:
        return _two_nodes(world, 25)
    except TooFew:
        world.clean()
        return _two_nodes(world, 75)


class TooFew(Exception):
    pass


def _two_nodes(world, duration):
    """Merged shares, whole stacks, labels, `top`, what kubectl shows; each sampler only its own pods."""
    first = world.pod("cpp", "node1", "busy", options=["--label", "tier=web", "--label", "app.kubernetes.io/version=v7"])
    second = world.pod("go", "node2", "busy", options=["--label", "tier=back"])
    name = world.start(target=pod_target(first, second), durationSeconds=duration, profiles=cpu(999), podLabels=["tier"], labels={"release": "42"})

    def specs():
        return {node: json.dumps(c.get("nodesampler", node).get("spec", {})) for node in world.nodes}
    seen = c.wait("the session's job in the NodeSampler specs", 5, lambda: (s := specs()) and all(name in v for v in s.values()) and s)
    c.expect(first in seen["node1"] and first not in seen["node2"], f"node2's NodeSampler names {first}, which runs on node1")
    c.expect(second in seen["node2"] and second not in seen["node1"], f"node1's NodeSampler names {second}, which runs on node2")
    session = world.finished(name)
    status = session["status"]
    complete = c.condition_of(session, "Complete")
    c.expect(complete and complete["status"] == "True", f"not Complete: {json.dumps(status.get('conditions'))}")
    start, end = window_of(session)

    details, problems, total_n = [], [], 0
    for pod, lang in ((first, "cpp"), (second, "go")):
        query = f'process_cpu:cpu:nanoseconds:cpu:nanoseconds{{namespace="shop",pod="{pod}",profiling_session=~"{name}.*"}}'
        profile = Profile(c.fetch_profile(query, start - 10**9, end + 10**9))
        # The store answers with the sample type that was asked for; how many samples they were follows from the period.
        samples = [(frames, values[-1], max(1, round(values[-1] * 999 / 1e9))) for frames, values, _ in profile.samples]
        verdict = truth.compare(samples, [world.truth(pod, start, end)], truth.REACH[lang])
        total_n += verdict.n
        details.append(f"{lang}: {verdict}")
        problems += [f"{lang}: {problem}" for problem in verdict.problems]
        collapsed = c.fetch_profile(query, start - 10**9, end + 10**9, "collapsed").decode()
        c.expect(sum(int(line.rsplit(" ", 1)[1]) for line in collapsed.splitlines()) == profile.total(),
                 "the collapsed form's sum is not the profile's")
        for labels in (f'node="{"node1" if lang == "cpp" else "node2"}"', 'cluster="e2e"', 'container="app"', f'language="{lang}"',
                       f'tier="{"web" if lang == "cpp" else "back"}"', 'release="42"', 'service_name=~".+"', 'workload=~".*"'):
            Profile(c.fetch_profile(query[:-1] + "," + labels + "}", start - 10**9, end + 10**9))  # fails when nothing has that label
    if total_n < 20000:
        raise TooFew(f"only {total_n} samples in {duration} s")
    c.expect(not problems, "; ".join(problems))

    # `top` names a function that the workloads have, and its share is that of its own clock.
    truths = [world.truth(pod, start, end) for pod in (first, second)]
    by_leaf = {}
    for t in truths:
        for path in t["paths"]:
            if path["kind"] == "burn":
                by_leaf[truth.plain(path["leaf"])] = by_leaf.get(truth.plain(path["leaf"]), 0) + path["cpu_ns"]
    top = [row for row in status["top"] if truth.plain(row["function"]) in by_leaf]
    c.expect(top, f"no function of the workloads in top: {status['top']}")
    total = sum(t["total_ns"] for t in truths)
    for row in top[:3]:
        expected = 1000 * by_leaf[truth.plain(row["function"])] / total
        c.expect(abs(row["ownPerMille"] - expected) <= 5 * max(row.get("errorPerMille", 0), 2) + 5,
                 f"top: {row} but the workload's clock says {expected:.0f} per mille")
    used = status["cpu"]
    c.expect(status["samples"]["collected"] >= 20000 and "overhead" in status and used, f"status lacks figures: {status.keys()}")

    text = c.kubectl("-n", "shop", "get", "psess", name)
    c.expect("Complete" in text and "2/2" in text, f"kubectl get: {text}")
    wide = c.kubectl("-n", "shop", "get", "psess", name, "-o", "wide")
    described = c.kubectl("-n", "shop", "describe", "psess", name)
    c.expect("Finished" in described and "Events:" in described, described[-500:])
    print(text + wide)
    return f"; ".join(details)


def test_go_tool_pprof_opens_it(world):
    """`go tool pprof -top` names the function that the workload's clock says is busiest."""
    pod = world.pod("cpp", "node1", "busy")
    name = world.start(target={"podName": pod}, durationSeconds=6, profiles=cpu(499))
    session = world.finished(name)
    start, end = window_of(session)
    raw = c.fetch_profile(f'process_cpu:cpu:nanoseconds:cpu:nanoseconds{{pod="{pod}"}}', start - 10**9, end + 10**9)
    profile = Profile(raw)
    c.expect(any(m["build_id"] for m in profile.mappings.values()), "no mapping has a build id")
    built = subprocess.run(["readelf", "-n", f"{world.dir}/bin/workload-cpp"], capture_output=True, text=True).stdout
    for mapping in profile.mappings.values():
        if mapping["file"].endswith("workload-cpp"):
            c.expect(mapping["build_id"] in built and mapping["build_id"], f"build id {mapping['build_id']} is not readelf's")
            break
    else:
        raise c.Failed(f"no mapping of the workload: {profile.mappings}")
    with tempfile.NamedTemporaryFile(suffix=".pb.gz") as file:
        file.write(raw)
        file.flush()
        top = c.sh(f"{c.ROOT}/e2e/cluster/go-env", "go", "tool", "pprof", "-top", "-nodecount=5", file.name).stdout
    reports = truth.load_report(world.report(pod))
    busiest = max((p for p in reports[-1]["paths"] if p["kind"] == "burn"), key=lambda p: p["cpu_ns"])
    c.expect(truth.plain(busiest["leaf"]) in top, f"{busiest['leaf']} is not in:\n{top}")
    return top.splitlines()[-1].strip()


def test_same_window_twice_is_one(world):
    """What the store has is not doubled by a second push; shown on the store's own counters while a session runs."""
    pod = world.pod("spin", "node1", "1")
    name = world.start(target={"podName": pod}, durationSeconds=12, profiles=cpu(199))
    session = world.finished(name)
    start, end = window_of(session)
    sampled = session["status"]["cpu"]["sampled"]
    c.expect(abs(cpu_of(pod, start, end) / 1e9 - seconds(sampled)) < 0.002, f"the store has {cpu_of(pod, start, end) / 1e9:.3f} s, status says {sampled}")
    collected = session["status"]["samples"]["collected"]
    c.expect(samples_of(pod, start, end) == collected, f"the store has {samples_of(pod, start, end)} samples, status says {collected}")


def samples_of(pod, start, end, more=""):
    """How many samples the store has of a pod."""
    raw = c.fetch_profile(f'process_cpu:samples:count:cpu:nanoseconds{{pod="{pod}"{more}}}', start - 10**9, end + 10**9)
    return Profile(raw).total()


def cpu_of(pod, start, end, more=""):
    """CPU time in ns that the store has of a pod."""
    raw = c.fetch_profile(f'process_cpu:cpu:nanoseconds:cpu:nanoseconds{{pod="{pod}"{more}}}', start - 10**9, end + 10**9)
    return Profile(raw).total()


def seconds(text):
    """"61.2s" or "350ms" as a number of seconds."""
    if isinstance(text, (int, float)):
        return float(text)
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.rstrip("s"))
