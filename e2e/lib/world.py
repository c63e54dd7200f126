# SPDX-License-Identifier: Apache-2.0
"""What the tests share: the workloads built from the seed, the pods that run them, what the samplers wrote of each sample."""
import json
import os
import random
import shutil
import subprocess
import tempfile
import time

from lib import cluster as c
from lib import truth

class World:
    def __init__(self, seed, long):
        self.seed, self.long = seed, long
        self.random = random.Random(seed)
        # Below /tmp: the nodes see the machine's files there at the same path.
        self.dir = tempfile.mkdtemp(prefix="borescope-e2e.", dir="/tmp")
        os.chmod(self.dir, 0o755)
        self.nodes = ["node1", "node2"]
        self.sessions, self.pods = [], []
        self.count = 0

    def build(self):
        for lang in ("cpp", "go"):
            c.sh(f"{c.ROOT}/e2e/workloads/build-{lang}", f"{self.dir}/bin", str(self.seed), f"workload-{lang}", timeout=180)
        shutil.copy(f"{c.BIN}/workloads/spin", f"{self.dir}/bin/spin")

    def install(self):
        """Starts (or starts anew) all parts of Borescope in the cluster."""
        c.sh(f"{c.ROOT}/e2e/install", c.PRESET, timeout=120, env={**os.environ, "BORESCOPE_SAMPLES": "1"})
        for namespace in ("shop", "other"):
            c.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    def word(self, prefix):
        """A name nobody used before."""
        self.count += 1
        return f"{prefix}-{self.count}-{''.join(self.random.choice('abcdefghij') for _ in range(4))}"

    def pod(self, lang, node, *arguments, name=None, namespace="shop", kind="Pod", options=(), wait=True):
        """Starts a workload ("cpp", "go" or "spin") on a node; returns its name. Its report is at self.report(name)."""
        name = name or self.word(lang)
        program = f"{self.dir}/bin/" + ("spin" if lang == "spin" else f"workload-{lang}")
        more = [] if lang == "spin" else ["--report", self.report(name)]
        manifest = c.sh(f"{c.ROOT}/e2e/cluster/pod", name, "--namespace", namespace, "--kind", kind, "--node", node, "--mount", f"{self.dir}:rw", *options,
                        "--", program, *arguments, *more).stdout
        c.sh(c.CLUSTER, "kubectl", "apply", "-f", "-", input=manifest)
        self.pods.append((kind, name, namespace))
        if wait:
            resource = "pod" if kind == "Pod" else kind.lower()
            what = "condition=Ready" if kind == "Pod" else "condition=Available"
            c.kubectl("-n", namespace, "wait", f"--for={what}", f"{resource}/{name}", "--timeout=60s", timeout=80)
        return name

    def report(self, name):
        return f"{self.dir}/{name}.report"

    def pod_object(self, name, namespace="shop"):
        return c.get("pod", name, namespace)

    def pids(self, name, namespace="shop"):
        """Pids of the pod's workload as seen on this machine."""
        uid = self.pod_object(name, namespace)["metadata"]["uid"]
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if uid in open(f"/proc/{pid}/cgroup").read() and "pause" not in os.readlink(f"/proc/{pid}/exe"):
                    found.append(int(pid))
            except OSError:
                continue
        return found

    def start(self, name=None, namespace="shop", **spec):
        name = name or self.word("session")
        c.apply(c.session(name, namespace, **spec))
        self.sessions.append((name, namespace))
        return name

    def finished(self, name, namespace="shop", seconds=120):
        return c.wait_finished(name, namespace, seconds)

    def samples(self, node, session):
        """What the sampler of the node wrote of each sample of this session: list of dicts."""
        found = []
        try:
            with open(f"{c.STATE}/borescope/samples-{node}") as lines:
                for line in lines:
                    if line.endswith("}\n"):
                        sample = json.loads(line)
                        if session in sample["session"]:
                            found.append(sample)
        except FileNotFoundError:
            pass
        return found

    def truth(self, name, start_ns, end_ns):
        return truth.during(truth.load_report(self.report(name)), start_ns, end_ns)

    def clean(self):
        """Removes what a test made, so that the next one has the machine to itself."""
        for name, namespace in self.sessions:
            c.kubectl("-n", namespace, "delete", "psess", name, "--ignore-not-found", "--wait=false", check=False)
        for kind, name, namespace in self.pods:
            c.kubectl("-n", namespace, "delete", kind.lower(), name, "--ignore-not-found", "--grace-period=0", "--force", "--wait=false", check=False)
        self.sessions, self.pods = [], []

    def explain(self):
        """After a failure: the state of the sessions and the end of the logs."""
        for name, namespace in self.sessions[-3:]:
            done = c.sh(c.CLUSTER, "kubectl", "-n", namespace, "get", "psess", name, "-o", "yaml", check=False)
            print("    | " + "\n    | ".join(done.stdout.splitlines()[-90:]))
        for program in ("operator", "sampler-node1", "sampler-node2", "store"):
            done = subprocess.run([c.CLUSTER, "logs", program, "-n", "12"], capture_output=True, text=True)
            print(f"    | log of {program}:\n    |   " + "\n    |   ".join(done.stdout.splitlines()))

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def pod_target(*names):
    """A target of pods by their label app."""
    return {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": list(names)}]}}


def cpu(frequency):
    return [{"name": "cpu", "cpu": {"frequencyHertz": frequency}}]


def now_ns():
    return time.time_ns()
