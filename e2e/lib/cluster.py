# SPDX-License-Identifier: Apache-2.0
"""The test cluster and what runs in it, as the tests use them."""
import contextlib
import json
import os
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLUSTER = f"{ROOT}/e2e/cluster/cluster"
PRESET = os.environ.get("BORESCOPE_PRESET", "dev")
STATE = os.environ.get("BORESCOPE_STATE", "/run/borescope-e2e")
BIN = f"{ROOT}/build/{PRESET}/bin"


class Failed(Exception):
    """A test's expectation that did not hold; the text says what was seen."""


def expect(condition, text):
    if not condition:
        raise Failed(text)


def sh(*command, check=True, timeout=120, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-800:]}")
    return done


def cluster(*args, **more):
    return sh(CLUSTER, *args, **more).stdout


def kubectl(*args, **more):
    return sh(CLUSTER, "kubectl", *args, **more).stdout


def apply(manifest, check=True):
    """Applies a manifest given as a dict or list of dicts; returns the finished process."""
    items = manifest if isinstance(manifest, list) else [manifest]
    return sh(CLUSTER, "kubectl", "apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), check=check)


def get(kind, name, namespace=None):
    """The object as a dict, or None."""
    args = ["get", kind, name, "-o", "json"] + (["-n", namespace] if namespace else [])
    done = sh(CLUSTER, "kubectl", *args, check=False)
    if done.returncode != 0:
        if "NotFound" in done.stderr:
            return None
        raise Failed(f"kubectl {' '.join(args)}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def wait(what, seconds, condition, every=0.2):
    """Polls until condition() is truthy and returns it."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(every)


def condition_of(session, kind):
    for condition in (session.get("status") or {}).get("conditions", []):
        if condition["type"] == kind:
            return condition
    return None


def session(name, namespace="shop", **spec):
    return {"apiVersion": "profiling.borescope.dev/v1alpha1", "kind": "ProfilingSession", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def wait_finished(name, namespace="shop", seconds=120):
    """Waits as a user would, and returns the finished session."""
    kubectl("-n", namespace, "wait", "--for=condition=Finished", f"psess/{name}", f"--timeout={seconds}s", timeout=seconds + 20)
    return get("psess", name, namespace)


def new_token(account, namespace, audience="borescope-store"):
    return kubectl("-n", namespace, "create", "token", account, f"--audience={audience}", "--duration=600s").strip()


_reader_tokens = {}  # namespace: (when, token)


def reader_token(namespace="shop"):
    """A token for the store of the namespace's borescope-reader, which the operator made; the same for some minutes."""
    if namespace not in _reader_tokens or time.monotonic() - _reader_tokens[namespace][0] > 400:
        _reader_tokens[namespace] = (time.monotonic(), new_token("borescope-reader", namespace))
    return _reader_tokens[namespace][1]


def ask_store(path, token=None, *more, base="http://10.244.0.1:4040", **options):
    """(HTTP status, body) of a request to the store; the token travels in Borescope-Token."""
    header = ["-H", f"Borescope-Token: {token}"] if token else []
    done = sh(CLUSTER, "exec", "curl", "-sS", "-w", "\n%{http_code}", *header, *more, base + path, **options)
    text, code = done.stdout.rsplit("\n", 1)
    return int(code), text


@contextlib.contextmanager
def store_service():
    """The service borescope-store, by which the API server reaches the store meanwhile. The API server proxies to addresses of pods alone. Here the store
    is none (in a cluster it is: e2e-install), so a pod that nobody starts has its address."""
    namespace, standin = "borescope-system", "borescope-store-address"
    apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": standin, "namespace": namespace},
           "spec": {"schedulerName": "nobody", "containers": [{"name": "x", "image": "none"}]}})
    address = {"status": {"podIP": "10.244.0.1", "podIPs": [{"ip": "10.244.0.1"}]}}
    kubectl("-n", namespace, "patch", "pod", standin, "--subresource=status", "--type=merge", "-p", json.dumps(address))
    apply([{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "borescope-store", "namespace": namespace},
            "spec": {"ports": [{"name": "http", "port": 4040, "targetPort": 4040}]}},
           {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "borescope-store", "namespace": namespace},
            "subsets": [{"addresses": [{"ip": "10.244.0.1", "targetRef": {"kind": "Pod", "name": standin, "namespace": namespace}}],
                         "ports": [{"name": "http", "port": 4040}]}]}])
    try:
        yield
    finally:
        kubectl("-n", namespace, "delete", "service/borescope-store", "endpoints/borescope-store", f"pod/{standin}", "--wait=false", "--ignore-not-found")


def fetch_profile(query, start_ns, end_ns, form="pprof", namespace="shop"):
    """What the store answers to a GET of /pyroscope/render, as bytes."""
    import urllib.parse
    url = f"http://10.244.0.1:4040/pyroscope/render?query={urllib.parse.quote(query)}&from={start_ns}&until={end_ns}&format={form}"
    done = subprocess.run([CLUSTER, "exec", "curl", "-sS", "-f", "-H", f"Borescope-Token: {reader_token(namespace)}", url], capture_output=True, timeout=60)
    if done.returncode != 0:
        raise Failed(f"GET {url}: {done.stderr.decode().strip()[-400:]}")
    return done.stdout


def signal_api_server(signal_number):
    """Sends a signal to the test cluster's kube-apiserver: SIGSTOP makes it hang with all its connections open, SIGCONT wakes it."""
    sent = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = open(f"/proc/{pid}/cmdline").read().split("\0")
        except OSError:
            continue
        if os.path.basename(command[0]) == "kube-apiserver" and any(STATE in argument for argument in command):
            os.kill(int(pid), signal_number)
            sent += 1
    expect(sent == 1, f"{sent} kube-apiservers of {STATE} run")
