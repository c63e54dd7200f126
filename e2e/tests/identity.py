# SPDX-License-Identifier: Apache-2.0
"""A sampler's token writes only its own node's objects; without that fence a sampler takes no jobs; each capability matters and is named."""
import json
import re
import time

from lib import cluster as c
from lib.world import cpu

GROUP = "/apis/profiling.borescope.dev/v1alpha1"
SIX = ["bpf", "perfmon", "sys_ptrace", "checkpoint_restore", "dac_read_search", "syslog"]


def _as_sampler(node, method, path, body=None, kind="application/merge-patch+json"):
    """A request with the token of that node's sampler; (HTTP status, body)."""
    directory = c.cluster("token", "borescope-sampler", "borescope-system", "--node", node).strip()
    token = open(f"{directory}/token").read().strip()
    command = [c.CLUSTER, "exec", "curl", "-sS", "-k", "-X", method, "-H", f"Authorization: Bearer {token}", "-H", f"Content-Type: {kind}", "-w", "\n%{http_code}",
               f"https://10.244.0.1:16443{GROUP}{path}"]
    if body is not None:
        command += ["-d", json.dumps(body)]
    done = c.sh(*command)
    text, code = done.stdout.rsplit("\n", 1)
    return int(code), text


def test_writes_are_tied_to_the_node(world):
    status = {"status": {"clockOffsetMillis": 7}}
    report = {"status": {"jobs": {"a/b/c": {"state": "Published"}}}}
    for path, body in (("/nodesamplers/node2/status", status), ("/nodesamplerreports/node2", report)):
        code, text = _as_sampler("node1", "PATCH", path, body)
        c.expect(code == 403 and "node1" in text and "node2" in text, f"node1's token on {path}: HTTP {code} {text}")
    code, text = _as_sampler("node1", "PATCH", "/nodesamplers/node1", {"spec": {"jobs": []}, "metadata": {"labels": {"x": "y"}}})
    c.expect(code in (200, 403), f"HTTP {code}")
    code, text = _as_sampler("node1", "PATCH", "/nodesamplers/node1", {"spec": {"pods": [{"uid": "6f1c0000-0000-4000-8000-000000000000", "namespace": "shop", "name": "x"}]}})
    c.expect(code == 403, f"own spec changed by a sampler: HTTP {code} {text}")
    code, text = _as_sampler("node1", "PATCH", "/nodesamplerreports/node1", {})
    c.expect(code == 200, f"own report: HTTP {code} {text}")
    code, _ = _as_sampler("node1", "GET", "/nodesamplerreports/node1")
    c.expect(code == 403, f"a sampler can read reports: HTTP {code}")


def test_watch_is_by_name(world):
    """The API server's own metrics or audit are not here; the sampler says the query string it sends, and a unit test asserts it."""
    log = c.cluster("logs", "sampler-node1")
    c.expect("fieldSelector=metadata.name%3Dnode1" in log or "fieldSelector=metadata.name=node1" in log, "the sampler's log does not show its watch")
    c.expect("labelSelector" not in log, "the sampler watches with a label selector")


def test_unprotected_takes_no_jobs(world):
    pod = world.pod("spin", "node1", "1")
    policies = json.loads(c.kubectl("get", "validatingadmissionpolicybindings", "-o", "json"))["items"]
    ours = [p for p in policies if "sampler" in p["metadata"]["name"]]
    c.expect(ours, "no binding of the sampler's policy")
    try:
        for policy in ours:
            c.kubectl("delete", "validatingadmissionpolicybinding", policy["metadata"]["name"])
        time.sleep(2)  # the API server drops a policy with a small delay
        c.cluster("kill", "sampler-node1")
        def unprotected():
            condition = c.condition_of(c.get("nodesampler", "node1"), "Protected")
            return condition if condition and condition["status"] == "False" else None
        condition = c.wait("Protected=False on node1", 20, unprotected)
        c.expect("olicy" in condition["message"], f"the message does not name the policy: {condition}")
        name = world.start(target={"podName": pod}, durationSeconds=5)
        session = c.wait("the session to be refused", 15, lambda: (s := c.get("psess", name, "shop")) and (f := c.condition_of(s, "Finished")) and f["status"] == "True" and s)
        text = json.dumps(session["status"]["conditions"])
        c.expect("rotected" in text or "AdmissionPolicy" in text, f"the session does not say why: {text}")
        c.expect(not world.samples("node1", name), "an unprotected sampler took samples")
    finally:
        world.install()
        c.wait("Protected=True on node1", 30, lambda: (x := c.condition_of(c.get("nodesampler", "node1"), "Protected")) and x["status"] == "True")


def test_each_capability(world):
    """Removed in turn: a named degraded mode or a refusal that names the failed operation and errno; never a crash."""
    pod = world.pod("cpp", "node1", "busy")
    seen = []
    directory = c.cluster("token", "borescope-sampler", "borescope-system", "--node", "node1").strip()
    for missing in SIX:
        before = c.get("nodesampler", "node1")["status"]["incarnation"]
        c.cluster("stop", "sampler-node1")
        rest = ",".join(cap for cap in SIX if cap != missing)
        c.cluster("run", "sampler-node1", "--node", "node1", f"--caps={rest}", "--", f"{c.BIN}/borescope-sampler", "--in-cluster-dir", directory, "--api-server",
                  "https://10.244.0.1:16443", "--sinks", f"{c.STATE}/borescope/sinks.yaml", "--listen", "127.0.0.1:8082")
        def verdict():
            sampler = c.get("nodesampler", "node1")
            if sampler["status"]["incarnation"] == before:
                return None
            ready = c.condition_of(sampler, "Ready")
            log = c.cluster("logs", "sampler-node1", "-n", "40")
            c.expect("AddressSanitizer" not in log and "SIGSEGV" not in log, f"crash without {missing}: {log[-600:]}")
            degraded = c.condition_of(sampler, "Degraded")
            if degraded and degraded["status"] == "True" and missing.upper() in degraded["message"].upper():
                return f"{missing}: degraded: {degraded['message']}"
            if ready and ready["status"] == "False" and re.search(r"permitted|denied|EPERM|EACCES", ready["message"]):
                return f"{missing}: refused: {ready['message']}"
            return None
        seen.append(c.wait(f"what the sampler says without {missing}", 20, verdict))
        print("    " + seen[-1][:300])
        sampler = c.get("nodesampler", "node1")
        if missing in ("bpf", "perfmon"):  # a refusal: in the status and in the metrics
            findings = [f for f in sampler["status"].get("kernelFindings", []) if f["action"] == "Refused"]
            c.expect([f["name"] for f in findings] == ["perf-event-paranoid"] and missing.upper() in findings[0]["message"], f"findings {findings}")
            metrics = c.cluster("exec", "--node", "node1", "curl", "-sS", "http://127.0.0.1:8082/metrics")
            c.expect('borescope_sampler_kernel_findings{action="Refused",name="perf-event-paranoid"} 1' in metrics, "the refusal is not in the metrics")
        if missing == "syslog" and open("/proc/sys/kernel/dmesg_restrict").read().strip() == "1":
            unsafe = c.condition_of(sampler, "KernelUnsafe")
            c.expect(unsafe["status"] == "Unknown" and unsafe["reason"] == "KernelLogUnreadable" and "CAP_SYSLOG" in unsafe["message"], f"without the kernel's log: {unsafe}")
    c.cluster("stop", "sampler-node1")
    world.install()
    name = world.start(target={"podName": pod}, durationSeconds=3, profiles=cpu(199))
    c.expect(c.condition_of(world.finished(name), "Complete")["status"] == "True", "with all six it does not work any more")
    return f"{len(seen)} capabilities"


