# SPDX-License-Identifier: Apache-2.0
"""What cannot be done is refused within 5 s, with the field, the value found and the next step."""
import time

from lib import cluster as c
from lib.world import cpu


def _refused_by_operator(world, reason, must_hold, target, **spec):
    name = world.word("refused")
    start = time.monotonic()
    world.start(name, target=target, **spec)
    def accepted():
        session = c.get("psess", name, "shop")
        condition = c.condition_of(session, "Accepted")
        return session if condition and condition["status"] == "False" else None
    session = c.wait(f"Accepted=False/{reason}", 5, accepted, every=0.1)
    took = time.monotonic() - start
    condition = c.condition_of(session, "Accepted")
    c.expect(condition["reason"] == reason, f"reason {condition['reason']} ({condition['message']}), not {reason}")
    for part in must_hold:
        c.expect(part in condition["message"], f"{part!r} is not in the message: {condition['message']}")
    finished = c.wait("Finished=True", 5, lambda: (s := c.get("psess", name, "shop")) and (f := c.condition_of(s, "Finished")) and f["status"] == "True" and s)
    c.expect(c.condition_of(finished, "Failed")["status"] == "True", "a refused session is not Failed")
    print(f"    {reason} after {took:.1f} s: {condition['message']}")
    return f"{took:.1f} s"


def _refused_by_server(world, must_hold, **spec):
    done = c.apply(c.session(world.word("refused"), **spec), check=False)
    c.expect(done.returncode != 0, f"accepted: {spec}")
    for part in must_hold:
        c.expect(part in done.stderr, f"{part!r} is not in the message: {done.stderr}")
    print("    " + done.stderr.strip().splitlines()[-1][:300])


def test_nothing_matched(world):
    return _refused_by_operator(world, "NoMatchingPods", ["spec.target", "nothere", "shop", "kubectl"], {"podSelector": {"matchLabels": {"app": "nothere"}}})


def test_pod_name_not_there(world):
    return _refused_by_operator(world, "NoMatchingPods", ["spec.target.podName", "no-such-pod", "kubectl"], {"podName": "no-such-pod"})


def test_workload_not_there(world):
    return _refused_by_operator(world, "NoMatchingPods", ["spec.target.workloadRef", "no-such-deployment", "kubectl"],
                                {"workloadRef": {"kind": "Deployment", "name": "no-such-deployment"}})


def test_unknown_container(world):
    pod = world.pod("spin", "node1", "1")
    return _refused_by_operator(world, "UnknownContainer", ["spec.target.containerNames", "sidecar", "app"], {"podName": pod, "containerNames": ["sidecar"]})


def test_unknown_sink(world):
    pod = world.pod("spin", "node1", "1")
    return _refused_by_operator(world, "UnknownSink", ["spec.sinkNames", "elsewhere", "default"], {"podName": pod}, sinkNames=["elsewhere"])


def test_kind_not_supported(world):
    pod = world.pod("spin", "node1", "1")
    for kind in ("wall", "offCPU", "locks", "memory", "threads"):
        _refused_by_operator(world, "KindNotSupported", ["spec.profiles", kind, "cpu"], {"podName": pod}, profiles=[{"name": "p", kind: {}}])
    return _refused_by_operator(world, "KindNotSupported", ["spec.profiles", "perfEvent", "cpu"], {"podName": pod},
                                profiles=[{"name": "p", "perfEvent": {"event": "cycles", "samplePeriod": 100003}}])


def test_no_sampler_on_node(world):
    """Also when the sampler is there but does not answer."""
    pod = world.pod("spin", "node2", "1")
    c.cluster("stop", "sampler-node2")
    try:
        c.kubectl("delete", "nodesampler", "node2")
        return _refused_by_operator(world, "NoSamplerOnNode", ["node2", "kubectl"], {"podName": pod})
    finally:
        world.install()


def test_frequency_out_of_range(world):
    for hertz in (0, 1000, 5000):
        _refused_by_server(world, ["frequencyHertz", str(hertz), "999" if hertz else "1"], target={"podName": "x"}, profiles=cpu(hertz))


def test_reserved_label(world):
    for key in ("namespace", "service_name", "__name__", "profiling_session"):
        _refused_by_server(world, ["labels", key], target={"podName": "x"}, labels={key: "mine"})


def test_changed_spec(world):
    pod = world.pod("spin", "node1", "1")
    name = world.start(target={"podName": pod}, durationSeconds=5)
    for change in ({"durationSeconds": 50}, {"labels": {"a": "b"}}, {"ttlSecondsAfterFinished": 5}):
        import json
        done = c.sh(c.CLUSTER, "kubectl", "-n", "shop", "patch", "psess", name, "--type=merge", "-p", json.dumps({"spec": change}), check=False)
        field = next(iter(change))
        c.expect(done.returncode != 0 and f"spec.{field}" in done.stderr and "create a new" in done.stderr, f"{change}: {done.stdout}{done.stderr}")
        print("    " + done.stderr.strip().splitlines()[-1][:240])
