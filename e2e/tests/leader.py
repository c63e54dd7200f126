# SPDX-License-Identifier: Apache-2.0
"""Two operators: one leads by the Lease, and what a deposed one still writes is refused."""
import json
import os
import signal
import time

from lib import cluster as c
from lib.world import cpu, pod_target
from tests.session import samples_of, window_of

ADDRESS = "10.244.0.1"
PORTS = {"operator-a": 8083, "operator-b": 8084}
NAMESPACE = "borescope-system"


def _run(name, lease=True, store=f"http://{ADDRESS}:4040"):
    """Starts an operator beside the installed one's place."""
    token = c.cluster("token", "borescope-operator", NAMESPACE).strip()
    election = ["--lease-namespace", NAMESPACE, "--identity", name] if lease else []
    c.cluster("run", name, "--", f"{c.BIN}/borescope-operator", "--in-cluster-dir", token, "--api-server", f"https://{ADDRESS}:16443",
              "--listen", f"{ADDRESS}:{PORTS[name]}", "--cluster", "e2e", "--store-url", store, "--store-token-file", f"{c.STATE}/borescope/borescope-operator.token", *election)


def _get(name, path):
    """(HTTP status, body); 0 when it does not answer."""
    done = c.sh(c.CLUSTER, "exec", "curl", "-sS", "-m", "5", "-w", "\n%{http_code}", f"http://{ADDRESS}:{PORTS[name]}{path}", check=False)
    if done.returncode != 0:
        return 0, done.stderr
    text, code = done.stdout.rsplit("\n", 1)
    return int(code), text


def _metrics(name):
    """{series as it is written: value}"""
    _, text = _get(name, "/metrics")
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line and not line.startswith("#")}


def _leads(name):
    return _metrics(name).get("borescope_operator_leader") == 1


def _writes(name, result):
    return sum(value for series, value in _metrics(name).items() if series.startswith("borescope_operator_writes_total") and f'result="{result}"' in series)


def _lease():
    return (c.get("lease", "borescope-operator", NAMESPACE) or {}).get("spec", {})


def _outcome(session):
    """What a session came to, without times and figures."""
    status = session["status"]
    return {"phase": status["phase"], "targets": status["targets"], "conditions": {x["type"]: (x["status"], x["reason"]) for x in status["conditions"]},
            "results": [{"state": r["state"], "profile": r["profile"]} for r in status["results"]]}


class _Operators:
    """Takes the installed operator away for a while, and puts it back."""
    def __init__(self, world):
        self.world = world

    def __enter__(self):
        c.cluster("stop", "operator")

    def __exit__(self, *_):
        for name in PORTS:
            c.sh(c.CLUSTER, "kill", name, "-CONT", check=False)
            c.sh(c.CLUSTER, "stop", name, check=False)
        self.world.install()


def long_test_standby_takes_over_at_once(world):
    """A standby is ready and writes nothing; after SIGTERM of the leader it leads without waiting, and the session that runs ends as it should."""
    pod = world.pod("spin", "node1", "1")
    with _Operators(world):
        _run("operator-a")
        c.wait("operator-a to lead", 20, lambda: _leads("operator-a"))
        _run("operator-b")
        c.wait("operator-b to be ready", 10, lambda: _get("operator-b", "/readyz")[0] == 200)
        c.expect(_metrics("operator-b")["borescope_operator_leader"] == 0, "two operators lead")
        name = world.start(target={"podName": pod}, durationSeconds=8, profiles=cpu(99))
        c.wait("samples", 10, lambda: world.samples("node1", name))
        before, begin = _lease(), time.monotonic()
        c.expect(before["holderIdentity"] == "operator-a" and before["leaseDurationSeconds"] == 15, f"lease: {before}")
        c.cluster("stop", "operator-a")
        c.wait("operator-b to lead before the lease can have run out", 12, lambda: _leads("operator-b"))
        took = time.monotonic() - begin
        after = _lease()
        c.expect(after["holderIdentity"] == "operator-b" and after["leaseTransitions"] == before["leaseTransitions"] + 1, f"lease: {after}, before it {before}")
        session = world.finished(name)
        c.expect(c.condition_of(session, "Complete")["status"] == "True", json.dumps(session["status"]["conditions"]))
        start, end = window_of(session)
        stored, taken = samples_of(pod, start, end, f',profiling_session=~"{name}.*"'), len(world.samples("node1", name))
        c.expect(stored == taken, f"the store has {stored} of {taken} samples")
    return f"taken over {took:.1f} s after SIGTERM was sent"


def long_test_leader_stopped_and_resumed(world):
    """SIGSTOP of the leader in a session: the standby takes over when the lease has run out; the woken one writes nothing; the session ends as one without a fault."""
    first, second = world.pod("cpp", "node1", "busy"), world.pod("spin", "node2", "1")
    with _Operators(world):
        _run("operator-a")
        c.wait("operator-a to lead", 20, lambda: _leads("operator-a"))
        reference = _outcome(world.finished(world.start(target=pod_target(first, second), durationSeconds=5, profiles=cpu(199))))
        _run("operator-b")
        c.wait("operator-b to be ready", 10, lambda: _get("operator-b", "/readyz")[0] == 200)
        name = world.start(target=pod_target(first, second), durationSeconds=40, profiles=cpu(199))
        c.wait("samples", 10, lambda: world.samples("node1", name))
        time.sleep(3)
        written = _writes("operator-a", "ok")
        transitions = _lease()["leaseTransitions"]
        c.cluster("kill", "operator-a", "-STOP")
        begin = time.monotonic()
        c.wait("operator-b to lead", 25, lambda: _leads("operator-b"))
        took = time.monotonic() - begin
        c.expect(took > 8, f"the standby took over after {took:.1f} s: the lease had not run out")
        c.cluster("kill", "operator-a", "-CONT")
        c.wait("operator-a to stand by", 10, lambda: _metrics("operator-a").get("borescope_operator_leader") == 0)
        c.expect(not _ended(name), f"the session ended before the leader woke: nothing was tested ({took:.0f} s)")
        session = world.finished(name)
        c.expect(_outcome(session) == reference, f"{_outcome(session)} is not what comes without a fault: {reference}")
        for pod, node in ((first, "node1"), (second, "node2")):
            start, end = window_of(session)
            stored, taken = samples_of(pod, start, end, f',profiling_session=~"{name}.*"'), len(world.samples(node, name))
            c.expect(stored == taken > 0, f"{pod}: the store has {stored} of {taken} samples")
        late = _writes("operator-a", "ok") - written
        c.expect(late <= 1, f"the deposed leader wrote {late:.0f} times")  # one may lie between the count and SIGSTOP
        lease = _lease()
        c.expect(lease["holderIdentity"] == "operator-b" and lease["leaseTransitions"] == transitions + 1, f"lease: {lease}")
    return f"taken over after {took:.1f} s"


def _ended(name):
    finished = c.condition_of(c.get("psess", name, "shop"), "Finished")
    return finished is not None and finished["status"] == "True"


HOLE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
kept = []
while True:
    kept.append(server.accept()[0])
    open(sys.argv[3], "a").write(kept[-1].recv(4096).decode(errors="replace").split("\\r\\n")[0] + "\\n")
"""


def long_test_write_of_a_deposed_leader_is_refused(world):
    """An operator that knows of no lease is stopped in the middle of its last step for a session (a store that never answers holds it there); another one ends the session. What the first writes when it wakes is refused."""
    pod = world.pod("spin", "node1", "1")
    script, seen = f"{world.dir}/hole.py", f"{world.dir}/hole.seen"
    open(script, "w").write(HOLE)
    open(seen, "w").close()
    with _Operators(world):
        c.cluster("run", "hole", "--", "python3", script, ADDRESS, "8085", seen)
        try:
            _run("operator-a", lease=False, store=f"http://{ADDRESS}:8085")
            c.wait("operator-a to be ready", 10, lambda: _get("operator-a", "/readyz")[0] == 200)
            pid = int(c.cluster("pid", "operator-a"))
            name = world.start(target={"podName": pod}, durationSeconds=5, profiles=cpu(99))
            c.wait("operator-a's last step", 30, lambda: f"/{name}/" in open(seen).read(), every=0.02)
            os.kill(pid, signal.SIGSTOP)
            c.expect(not _ended(name), "operator-a was faster than the signal")
            _run("operator-b")
            session = world.finished(name)
            c.expect(c.condition_of(session, "Complete")["status"] == "True", json.dumps(session["status"]["conditions"]))
            time.sleep(2)
            version = c.get("psess", name, "shop")["metadata"]["resourceVersion"]
            os.kill(pid, signal.SIGCONT)
            refused = c.wait("operator-a's write to be refused", 15, lambda: _writes("operator-a", "conflict"))
            time.sleep(2)
            after = c.get("psess", name, "shop")
            c.expect(after["metadata"]["resourceVersion"] == version and after["status"] == session["status"], "the woken operator has changed the session")
        finally:
            c.sh(c.CLUSTER, "stop", "hole", check=False)
    return f"{refused:.0f} refused"
