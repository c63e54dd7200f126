# SPDX-License-Identifier: Apache-2.0
"""Who may read and write the store, with tokens of the real API server: directly, through its proxy, and while it is down."""
import base64
import glob
import json
import signal
import subprocess
import tempfile
import time
import urllib.parse

from lib import cluster as c
from lib.pprof import Profile
from lib.world import cpu

RENDER = "/pyroscope/render?format=collapsed&query="
LABELS = "/querier.v1.QuerierService/"
SAMPLER = "system:serviceaccount:borescope-system:borescope-sampler"
PROXY = "/api/v1/namespaces/borescope-system/services/http:borescope-store:http/proxy"
API = "https://10.244.0.1:16443"


def _render(selector):
    return RENDER + urllib.parse.quote("process_cpu:cpu:nanoseconds:cpu:nanoseconds" + selector)


def _profiled(world):
    """A finished session in namespace shop; returns its pod."""
    pod = world.pod("spin", "node1", "1")
    session = world.finished(world.start(target={"podName": pod}, durationSeconds=3, profiles=cpu(199)))
    c.expect(session["status"]["phase"] == "Complete", f"the session is {session['status']['phase']}")
    return pod, session


def _expect(got, status, *texts):
    code, text = got
    c.expect(code == status and all(t in text for t in texts), f"HTTP {code} instead of {status} with {texts}: {text[-400:]}")
    return text


def _forge(token, **claims):
    """The token with other claims, signed by the cluster's own key."""
    def encode(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    head, payload, _ = token.split(".")
    old = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    signed = head + "." + encode(json.dumps({**old, **claims}).encode())
    der = subprocess.run(["openssl", "dgst", "-sha256", "-sign", f"{c.STATE}/pki/sa.key"], input=signed.encode(), capture_output=True, check=True).stdout
    at, raw = 2, b""
    for _ in range(2):  # SEQUENCE of two INTEGERs to 2 x 32 bytes
        length = der[at + 1]
        raw += der[at + 2:at + 2 + length].lstrip(b"\0").rjust(32, b"\0")
        at += 2 + length
    return signed + "." + encode(raw)


def test_a_namespace_reads_its_own(world):
    pod, session = _profiled(world)
    account = c.get("serviceaccount", "borescope-reader", "shop")
    c.expect(account and account["automountServiceAccountToken"] is False, f"the operator made no borescope-reader: {account}")
    token = c.reader_token()
    _expect(c.ask_store(_render(f'{{pod="{pod}"}}'), token), 200)
    record = f"/api/v1/sessions/shop/{session['metadata']['name']}/{session['metadata']['uid']}"
    _expect(c.ask_store(record, token), 200, session["metadata"]["uid"])
    _expect(c.ask_store(LABELS + "LabelValues?name=pod", token), 200, f'"{pod}"')
    _expect(c.ask_store(LABELS + "Series?labelNames=namespace,pod", token), 200, f'"{pod}"')
    _expect(c.ask_store(LABELS + "ProfileTypes", token), 200, "process_cpu:cpu:nanoseconds:cpu:nanoseconds")
    _expect(c.ask_store(LABELS + "LabelNames", token), 200, '"namespace"')

    c.kubectl("-n", "other", "create", "serviceaccount", "borescope-reader", check=False)
    other = c.new_token("borescope-reader", "other")
    for path in (_render('{namespace="shop"}'), LABELS + "Series?matchers=" + urllib.parse.quote('{namespace="shop"}'), record):
        _expect(c.ask_store(path, other), 403, "the token is of namespace other", "shop", "borescope-reader")
    text = _expect(c.ask_store(_render(f'{{pod="{pod[:-1]}"}}'), other), 404)
    c.expect(pod not in text, f"a hint names a pod of another namespace: {text}")
    for method in ("LabelNames", "LabelValues?name=pod", "Series", "ProfileTypes"):
        text = _expect(c.ask_store(LABELS + method, other), 200)
        c.expect(pod not in text and "process_cpu" not in text, f"{method} shows another namespace: {text}")
    # Neither reads, pushes nor puts more than its part.
    sampler, operator = c.new_token("borescope-sampler", "borescope-system"), c.new_token("borescope-operator", "borescope-system")
    push = ["-X", "POST", "-H", "Content-Type: application/json", "-d", '{"series":[]}']
    _expect(c.ask_store("/push.v1.PusherService/Push", token, *push), 403, "system:serviceaccount:shop:borescope-reader", SAMPLER)
    _expect(c.ask_store("/push.v1.PusherService/Push", operator, *push), 403, SAMPLER)
    _expect(c.ask_store("/push.v1.PusherService/Push", sampler, *push), 200)
    _expect(c.ask_store(_render(f'{{pod="{pod}"}}'), sampler), 403, SAMPLER, "borescope-reader")
    _expect(c.ask_store(record, token, "-X", "PUT", "-d", "{}"), 403, "borescope-operator")


def test_tokens_that_are_not_taken(world):
    c.kubectl("-n", "shop", "create", "serviceaccount", "borescope-reader", check=False)
    token = c.new_token("borescope-reader", "shop")
    _expect(c.ask_store("/borescope/v1/whoami"), 401, "no token")
    _expect(c.ask_store("/borescope/v1/whoami", c.new_token("borescope-reader", "shop", API)), 401, API, "borescope-store")
    _expect(c.ask_store("/borescope/v1/whoami", c.new_token("default", "shop")), 403, "system:serviceaccount:shop:default", "borescope-reader")
    head, payload, signature = token.split(".")
    _expect(c.ask_store("/borescope/v1/whoami", f"{head}.{payload}.{signature[:-4]}AAAA"), 401, "does not take the token")
    # Signed by the cluster's key: what is refused is refused for its time.
    now = int(time.time())
    _expect(c.ask_store("/borescope/v1/whoami", _forge(token, iat=now, nbf=now, exp=now + 300)), 200, '"reader"')
    _expect(c.ask_store("/borescope/v1/whoami", _forge(token, iat=now - 700, nbf=now - 700, exp=now - 100)), 401, "the token ended at")
    # The account is deleted before the token was ever shown.
    c.kubectl("-n", "other", "delete", "serviceaccount", "borescope-reader", "--ignore-not-found")
    c.kubectl("-n", "other", "create", "serviceaccount", "borescope-reader")
    gone = c.new_token("borescope-reader", "other")
    c.kubectl("-n", "other", "delete", "serviceaccount", "borescope-reader")
    _expect(c.ask_store("/borescope/v1/whoami", gone), 401, "does not take the token")


def test_api_server_down(world):
    """A token that the store knows goes on, a new one is told why not; no text of ours holds a token."""
    pod, _ = _profiled(world)
    known = c.reader_token()
    _expect(c.ask_store(_render(f'{{pod="{pod}"}}'), known), 200)
    new = c.new_token("borescope-reader", "shop")
    c.signal_api_server(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        text = _expect(c.ask_store(_render(f'{{pod="{pod}"}}'), new), 503, "does not answer", "this one is new")
        c.expect(time.monotonic() - begin < 10, "the refusal took longer than 10 s")
        _expect(c.ask_store(_render(f'{{pod="{pod}"}}'), known), 200)
    finally:
        c.signal_api_server(signal.SIGCONT)
    c.wait("the new token is taken", 20, lambda: c.ask_store(_render(f'{{pod="{pod}"}}'), new)[0] == 200)
    said = text + c.ask_store("/metrics")[1] + "".join(open(log, errors="replace").read() for log in glob.glob(f"{c.STATE}/programs/*/log"))
    c.expect("token_reviews_total" in said and len(said) > 5000, "the logs are not where they were")
    for name in ("borescope-sampler", "borescope-operator"):
        with open(f"{c.STATE}/borescope/{name}.token") as file:
            secret = file.read().strip()
        c.expect(secret[:200] not in said and secret.split(".")[2] not in said, f"the token of {name} is in a log or a metric")
    for secret in (known, new):
        c.expect(secret.split(".")[1] not in said and secret.split(".")[2] not in said, "a reader's token is in a log or a metric")


def test_through_the_api_server(world):
    """A user with nothing but the role view in one namespace reads through services/proxy, where his own credentials are taken away."""
    pod, _ = _profiled(world)
    c.apply([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "dev", "namespace": "shop"}},
             {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "dev", "namespace": "shop"},
              "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
              "subjects": [{"kind": "ServiceAccount", "name": "dev", "namespace": "shop"}]}])
    with c.store_service():
        _as_dev(world, pod)


def _as_dev(world, pod):
    dev = c.kubectl("-n", "shop", "create", "token", "dev").strip()
    with tempfile.NamedTemporaryFile("w", dir=world.dir) as headers:
        headers.write(f"Authorization: Bearer {dev}\n")
        headers.flush()

        def as_dev(path, token=None, *more):
            return c.ask_store(path, token, "--cacert", f"{c.STATE}/pki/ca.crt", "-H", f"@{headers.name}", *more, base=API)

        def ask_for_token(namespace):
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["borescope-store"], "expirationSeconds": 600}}
            return as_dev(f"/api/v1/namespaces/{namespace}/serviceaccounts/borescope-reader/token", None, "-X", "POST", "-H", "Content-Type: application/json",
                          "-d", json.dumps(body))
        # The role reaches `view` by aggregation, which takes a moment after the installation.
        c.wait("view may ask for the reader's tokens", 10, lambda: ask_for_token("shop")[0] == 201)
        token = json.loads(ask_for_token("shop")[1])["status"]["token"]
        c.kubectl("-n", "other", "create", "serviceaccount", "borescope-reader", check=False)
        _expect(ask_for_token("other"), 403, "borescope-reader")

        _expect(as_dev(PROXY + "/borescope/v1/whoami"), 401, "no token")
        _expect(as_dev(PROXY + "/borescope/v1/whoami", token), 200, '"namespace":"shop"')
        _expect(as_dev(PROXY + _render(f'{{pod="{pod}"}}'), token), 200)
        _expect(as_dev(PROXY + LABELS + "LabelValues?name=pod", token), 200, f'"{pod}"')
        _expect(as_dev(PROXY + "/push.v1.PusherService/Push", token, "-X", "POST", "-d", "x"), 403, "services/proxy")
        _expect(as_dev("/api/v1/namespaces/borescope-system/services/borescope-store/proxy/metrics", token), 403, "services/proxy")
        raw = subprocess.run([c.CLUSTER, "exec", "curl", "-sSf", "--cacert", f"{c.STATE}/pki/ca.crt", "-H", f"@{headers.name}", "-H", f"Borescope-Token: {token}",
                              API + PROXY + _render(f'{{pod="{pod}"}}').replace("collapsed", "pprof")], capture_output=True, timeout=60)
        c.expect(raw.returncode == 0, f"a profile through the proxy: {raw.stderr.decode()}")
        Profile(raw.stdout)
