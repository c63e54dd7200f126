# SPDX-License-Identifier: Apache-2.0
"""A real etcd and kube-apiserver on loopback, without nodes or controllers: enough to test what the API server itself decides."""

import atexit
import base64
import ctypes
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
PATCH = "application/merge-patch+json"
_libc = ctypes.CDLL(None)


def _die_with_parent():
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing is left behind, however the test ends


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Answer:
    def __init__(self, code, body):
        self.code = code
        self.body = body

    @property
    def message(self):
        return self.body.get("message", "") if isinstance(self.body, dict) else str(self.body)


class ApiServer:
    """Starts on construction, ends with the process or stop()."""

    def __init__(self):
        subprocess.run([f"{ROOT}/e2e/cluster/cluster", "build"], check=True)
        self.kube = subprocess.run(
            ["bash", "-c", '. "$0"; kube_directory', f"{ROOT}/e2e/cluster/lib.sh"], check=True, capture_output=True, text=True
        ).stdout.strip()
        self.directory = tempfile.mkdtemp(prefix="borescope-crds.")
        self.processes = []
        atexit.register(self.stop)
        etcd, peer, self.port = _free_ports(3)
        self.admin = secrets.token_hex(16)
        d = self.directory
        with open(f"{d}/tokens.csv", "w") as f:
            f.write(f'{self.admin},admin,1,"system:masters"\n')
        subprocess.run(["openssl", "genrsa", "-out", f"{d}/sa.key", "2048"], check=True, capture_output=True)
        self._start(
            "etcd", f"--data-dir={d}/etcd", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )  # fmt: skip
        self._start(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1", f"--secure-port={self.port}",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", f"--cert-dir={d}/certificates", f"--token-auth-file={d}/tokens.csv",
            f"--service-account-key-file={d}/sa.key", f"--service-account-signing-key-file={d}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.96.0.0/16", "--profiling=false",
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while self._ready() is False:
            for name, process in self.processes:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = open(f"{d}/{name}.log").read()[-2000:]
                    raise SystemExit(f"{name} does not answer (exit {process.returncode}); the end of its log:\n{log}")
            time.sleep(0.1)
        self.kubeconfig = f"{d}/kubeconfig"
        with open(self.kubeconfig, "w") as f:
            json.dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}}],
                    "users": [{"name": "u", "user": {"token": self.admin}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                },
                f,
            )

    def _start(self, program, *arguments):
        log = open(f"{self.directory}/{program}.log", "w")
        process = subprocess.Popen(
            [f"{self.kube}/{program}", *arguments], stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent
        )
        self.processes.append((program, process))

    def _ready(self):
        try:
            return self.request("GET", "/readyz").code == 200
        except OSError:
            return False

    def stop(self):
        for _, process in reversed(self.processes):
            process.kill()
            process.wait()
        self.processes = []
        shutil.rmtree(self.directory, ignore_errors=True)

    def request(self, method, path, body=None, token=None, content_type=None):
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=30)
        headers = {"Authorization": f"Bearer {token or self.admin}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type or (PATCH if method == "PATCH" else "application/json")
            body = json.dumps(body)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        try:
            return Answer(response.status, json.loads(text))
        except ValueError:
            return Answer(response.status, text)

    def kubectl(self, *arguments, stdin=None, check=True):
        """Standard output and error of kubectl, joined."""
        done = subprocess.run(
            [f"{self.kube}/kubectl", f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.directory}/cache", *arguments],
            input=stdin, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise SystemExit(f"kubectl {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}")
        return done.stdout

    def service_account_token(self, namespace, account, pod=None):
        """A token of TokenRequest, bound to a pod (name, uid) when there is one."""
        spec = {"expirationSeconds": 3600}
        if pod:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod[0], "uid": pod[1]}
        answer = self.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        if answer.code != 201:
            raise SystemExit(f"token of {namespace}/{account}: {answer.code} {answer.message}")
        return answer.body["status"]["token"]


def claims(token):
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
