# SPDX-License-Identifier: Apache-2.0
"""kubectl borescope as a person runs it: on a terminal and in a pipe, with and without rights."""
import base64
import datetime
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

from lib import cluster as c
from lib import truth
from lib.pprof import Profile

PROGRAM = f"{c.BIN}/kubectl-borescope"


def kubeconfig(world, name, user, namespace="shop"):
    """A kubeconfig of the test cluster with these credentials (a dict); returns its path."""
    admin = json.loads(c.kubectl("config", "view", "--raw", "-o", "json"))
    admin["users"] = [{"name": name, "user": user}]
    admin["contexts"] = [{"name": name, "context": {"cluster": admin["clusters"][0]["name"], "user": name, "namespace": namespace}}]
    admin["current-context"] = name
    path = f"{world.dir}/{name}.kubeconfig"
    with open(path, "w") as file:
        json.dump(admin, file)
    return path


def admin(world):
    config = json.loads(c.kubectl("config", "view", "--raw", "-o", "json"))
    return kubeconfig(world, "admin", config["users"][0]["user"])


def command(config, *args, env=()):
    return [c.CLUSTER, "exec", "env", f"KUBECONFIG={config}", "DISPLAY=", *env, PROGRAM, *args]


def run(config, *args, code=0, timeout=120, env=()):
    """In a pipe; returns the finished process."""
    done = subprocess.run(command(config, *args, env=env), capture_output=True, text=True, timeout=timeout)
    c.expect(done.returncode == code, f"{' '.join(args)}: exit {done.returncode}, not {code}: {done.stdout[-400:]} {done.stderr[-800:]}")
    for name, text in (("standard output", done.stdout), ("standard error", done.stderr)):
        c.expect("\x1b" not in text and "\r" not in text, f"{' '.join(args)}: terminal codes on {name} in a pipe: {text[:300]!r}")
    return done


def on_terminal(config, *args, interrupt_when=None, seconds=120, columns=80):
    """On a terminal of 80 columns; interrupt_when: sends Ctrl-C once this text was seen. Returns (exit code, what was shown)."""
    import fcntl
    import struct
    import termios
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(command(config, *args, env=["TERM=xterm"]), stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    shown, deadline, interrupted = b"", time.monotonic() + seconds, False
    while time.monotonic() < deadline:
        if select.select([controller], [], [], 0.2)[0]:
            try:
                piece = os.read(controller, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        if interrupt_when and not interrupted and interrupt_when in shown.decode(errors="replace"):
            interrupted = True
            # To the program alone: what brings it into the cluster's namespaces would end before it.
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    words = open(f"/proc/{pid}/cmdline").read().split("\0")
                except OSError:
                    continue
                if words[0] == PROGRAM and words[1:1 + len(args)] == list(args):
                    os.kill(int(pid), signal.SIGINT)
    code = process.wait(timeout=20)
    os.close(controller)
    return code, shown.decode(errors="replace")


def expired_like(token):
    """The same token, its time long over, signed by the cluster's own key."""
    head, body, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    claims.update(iat=claims["iat"] - 7200, nbf=claims["nbf"] - 7200, exp=claims["iat"] - 3600)
    signed = head + "." + base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    der = subprocess.run(["openssl", "dgst", "-sha256", "-sign", f"{c.STATE}/pki/sa.key"], input=signed.encode(), capture_output=True, check=True).stdout
    # ECDSA-Sig-Value: SEQUENCE {r INTEGER, s INTEGER}; a JWT has both in 32 bytes each.
    numbers, at = [], 2
    for _ in range(2):
        length = der[at + 1]
        numbers.append(int.from_bytes(der[at + 2:at + 2 + length], "big"))
        at += 2 + length
    raw = b"".join(n.to_bytes(32, "big") for n in numbers)
    return signed + "." + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def narrow(text, columns=80):
    for line in text.splitlines():
        c.expect(len(line) <= columns, f"a line of {len(line)} columns: {line}")


def seconds_of(timestamp):
    return datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def made_by(text, world):
    """The session that a command tells of; removed after the test."""
    found = re.search(r"borescope open (\S+) ", text) or re.search(r"profilingsession\.profiling\.borescope\.dev/(\S+)", text)
    c.expect(found, f"no session is named in: {text}")
    world.sessions.append((found[1], "shop"))
    return found[1]


def test_profile_prints_the_answer(world):
    """profile pod/X in a pipe: the busiest function of the workload's own clock is the first row, within its error; it ends in time."""
    pod = world.pod("cpp", "node1", "busy")
    config = admin(world)
    done = run(config, "profile", f"pod/{pod}", "--duration", "8s", "--frequency", "499")
    ended = time.time()
    narrow(done.stdout)
    c.expect(done.stderr == "", f"standard error in a pipe: {done.stderr}")
    name = made_by(done.stdout, world)
    session = c.get("psess", name, "shop")
    c.expect(session["spec"]["durationSeconds"] == 8 and session["spec"]["profiles"][0]["cpu"]["frequencyHertz"] == 499, f"spec: {session['spec']}")
    late = ended - seconds_of(session["status"]["endTime"])
    c.expect(late <= 3, f"it ended {late:.1f} s after the duration")
    # Tail of the table's first row is "FUNCTION  LOCATION".
    lines = done.stdout.splitlines()
    c.expect(lines[0].split() == ["OWN", "±", "TOTAL", "CORES", "FUNCTION", "LOCATION"], f"first line: {lines[0]}")
    row = re.match(r" *([0-9.]+)% +([0-9.]+) +([0-9.]+)% +(\S+)  (.*)$", lines[1])
    c.expect(row, f"first row: {lines[1]}")
    window = [round(seconds_of(session["status"][k]) * 1e9) for k in ("startTime", "endTime")]
    time.sleep(1.2)  # the workload writes its report each second
    known = world.truth(pod, *window)
    by_leaf = {}
    for path in known["paths"]:
        if path["kind"] == "burn":
            leaf = truth.plain(path["leaf"])
            by_leaf[leaf] = by_leaf.get(leaf, 0) + path["cpu_ns"]
    leaf = next((leaf for leaf in sorted(by_leaf, key=len, reverse=True) if leaf[:20] in truth.plain(row[5])), None)
    c.expect(leaf, f"{lines[1]!r} is no function of the workload: {list(by_leaf)}")
    expected = 100 * by_leaf[leaf] / known["total_ns"]
    c.expect(abs(float(row[1]) - expected) <= 2 * float(row[2]) + 1, f"{lines[1]!r}, but the workload's clock says {expected:.1f} %")
    for part in ("pod/" + pod, "Sampled ", " lost", "Whole stacks: ", "Cost on the node"):
        c.expect(part in done.stdout, f"{part!r} is not in:\n{done.stdout}")
    return f"{late:+.1f} s after the duration; first row {row[1]} ±{row[2]} %, its clock {expected:.1f} %"


def test_profile_on_a_terminal_and_ctrl_c(world):
    """A bar for each target while it runs, no line longer than the terminal; Ctrl-C stops the session and prints what there is."""
    first, second = world.pod("spin", "node1", "1", kind="Deployment"), None
    config = admin(world)
    code, shown = on_terminal(config, "profile", f"deploy/{first}", "--duration", "60s", interrupt_when="lost 0")
    c.expect(code == 0, f"exit {code}: {shown[-900:]}")
    c.expect("█" in shown or "░" in shown, f"no bar: {shown[-900:]!r}")
    c.expect("Sampling" in shown and "OWN" in shown, shown[-900:])
    plain = re.sub(r"\x1b\[[0-9]*[A-Za-z]", "", shown).replace("\r", "")
    narrow(plain)
    name = made_by(plain, world)
    session = c.wait("the session is finished", 10, lambda: (s := c.get("psess", name, "shop")) and c.condition_of(s, "Finished")["status"] == "True" and s)
    c.expect(session["spec"]["desiredState"] == "Stop" and session["status"]["phase"] == "Stopped", f"{session['spec']} {session['status']['phase']}")
    ran = seconds_of(session["status"]["endTime"]) - seconds_of(session["status"]["startTime"])
    c.expect(ran < 50, f"it ran {ran} s")
    row = next(line for line in plain.splitlines() if "%" in line and "spin" in line and "█" not in line)
    return f"stopped after {ran:.1f} s: {row}"


def test_list_top_stop_rerun_share(world):
    """A session's life by the other commands, their text at 80 columns and their JSON."""
    pod = world.pod("spin", "node1", "1")
    config = admin(world)
    name = run(config, "profile", f"po/{pod}", "--duration", "300s", "-o", "name").stdout.strip().split("/")[1]
    world.sessions.append((name, "shop"))
    c.wait("a first answer", 20, lambda: (c.get("psess", name, "shop").get("status") or {}).get("top"))
    top = run(config, "top", name)
    narrow(top.stdout)
    c.expect("OWN" in top.stdout and "spin" in top.stdout, top.stdout)
    c.expect(json.loads(run(config, "top", name, "-o", "json").stdout)["status"]["top"], "no top in its JSON")
    listed = run(config, "list")
    narrow(listed.stdout)
    c.expect(name in listed.stdout and "Sampling" in listed.stdout and "±" in listed.stdout, listed.stdout)
    c.expect("NAMESPACE" in run(config, "list", "-A").stdout, "list -A has no namespaces")
    items = json.loads(run(config, "list", "-o", "json").stdout)["items"]
    c.expect(any(i["metadata"]["name"] == name and "managedFields" not in i["metadata"] and i["kind"] == "ProfilingSession" for i in items), "list -o json lacks it")
    c.expect(f"profilingsession.profiling.borescope.dev/{name}\n" in run(config, "list", "-o", "name").stdout, "list -o name lacks it")
    c.expect("No sessions in namespace other" in run(config, "list", "-n", "other").stderr, "list of an empty namespace")
    stopped = run(config, "stop", name)
    narrow(stopped.stdout)
    c.expect(name in stopped.stdout and "stopped" in stopped.stdout, stopped.stdout)
    world.finished(name)
    c.expect("had ended already (Stopped)" in run(config, "stop", name).stdout, "stop twice")
    c.expect(json.loads(run(config, "stop", name, "-o", "json").stdout)["status"]["phase"] == "Stopped", "stop -o json")
    share = run(config, "share", name).stdout
    c.expect(len(share.splitlines()) == 5 and "spin" in share and f"open {name} -n shop" in share and pod in share, share)
    again = run(config, "rerun", name, "--duration", "3s")
    second = made_by(again.stdout, world)
    session = c.get("psess", second, "shop")
    c.expect(second != name and session["spec"]["target"] == {**session["spec"]["target"], "podName": pod} and session["spec"]["durationSeconds"] == 3
             and session["spec"].get("desiredState", "Run") == "Run", f"rerun: {session['spec']}")
    whole = json.loads(run(config, "rerun", name, "--duration", "2s", "-o", "json").stdout)
    world.sessions.append((whole["metadata"]["name"], "shop"))
    c.expect(whole["status"]["phase"] == "Complete" and whole["status"]["top"], f"rerun -o json: {whole['status']}")
    print(listed.stdout + share)


def test_profile_and_its_flame_graph(world):
    """-o collapsed, pprof, html and open, through the API server, by somebody with the role edit alone; what each holds is what the status counted."""
    pod = world.pod("cpp", "node1", "busy")
    c.apply([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "editor", "namespace": "shop"}},
             {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "editor", "namespace": "shop"},
              "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
              "subjects": [{"kind": "ServiceAccount", "name": "editor", "namespace": "shop"}]}])
    config = kubeconfig(world, "editor", {"token": c.kubectl("-n", "shop", "create", "token", "editor").strip()})
    with c.store_service():
        page = f"{world.dir}/page.html"
        done = run(config, "profile", f"pod/{pod}", "--duration", "5s", "--frequency", "499", "-o", "html", "--output-file", page)
        narrow("\n".join(line for line in done.stdout.splitlines() if page not in line))
        name = re.search(r"session (\S+)\.", " ".join(done.stdout.split()))[1]
        world.sessions.append((name, "shop"))
        c.expect("OWN" in done.stdout and f"Profile: {page}" in done.stdout, done.stdout)
        text = open(page).read()
        data = json.loads(re.search(r'id="data">(.*?)</script', text, re.S)[1])
        sampled = c.get("psess", name, "shop")["status"]["cpu"]["sampled"]
        c.expect(abs(data["nodes"][2] / 1e9 - float(sampled.rstrip("s"))) < 0.002, f"the page has {data['nodes'][2]} ns, status says {sampled}")
        c.expect(os.path.getsize(page) <= 2 << 20 and data["title"] == f"pod/{pod}", data["title"])
        piped = subprocess.run(command(config, "rerun", name, "-o", "collapsed"), capture_output=True, timeout=120)
        lines = piped.stdout.decode().splitlines()
        c.expect(piped.returncode == 0 and lines and all(re.match(r".+ \d+$", line) for line in lines), f"collapsed: {piped.returncode} {piped.stderr.decode()} {lines[:3]}")
        second = c.kubectl("-n", "shop", "get", "psess", "--sort-by=.metadata.creationTimestamp", "-o", "name").split()[-1].split("/")[1]
        world.sessions.append((second, "shop"))
        raw = subprocess.run(command(config, "rerun", name, "--duration", "2s", "-o", "pprof"), capture_output=True, timeout=120)
        world.sessions.append((c.kubectl("-n", "shop", "get", "psess", "--sort-by=.metadata.creationTimestamp", "-o", "name").split()[-1].split("/")[1], "shop"))
        c.expect(raw.returncode == 0 and Profile(raw.stdout).total() > 0, f"pprof: {raw.returncode} {raw.stderr.decode()}")
        opened = run(config, "open", name, env=[f"TMPDIR={world.dir}"])
        path = opened.stdout.strip()
        c.expect(path.startswith(world.dir) and path.endswith(f"/{name}.html") and os.stat(path).st_mode & 0o777 == 0o600, f"open: {path}")
        c.expect("open that file" in opened.stderr.lower() and json.loads(re.search(r'id="data">(.*?)</script', open(path).read(), re.S)[1])["nodes"][2] == data["nodes"][2],
                 "open shows another profile")
        said = done.stdout + done.stderr + opened.stdout + opened.stderr
        c.expect("eyJ" not in said, "a token is shown")
    # Without the store: the table all the same, and a sentence.
    gone = subprocess.run(command(config, "open", name), capture_output=True, text=True, timeout=120)
    c.expect(gone.returncode == 2 and "borescope-store" in gone.stderr and gone.stderr.startswith("error: "), f"without the service: {gone.stderr}")
    print("    " + gone.stderr.strip())
    return f"{len(data['nodes']) // 4} frames, {os.path.getsize(page) >> 10} KiB"


def test_dry_run_makes_nothing(world):
    """Which pods, by whom they are found, whether their nodes have samplers; nothing is made."""
    name = world.pod("spin", "node1", "1", kind="Deployment")
    config = admin(world)
    before = c.kubectl("-n", "shop", "get", "psess", "-o", "name")
    done = run(config, "profile", f"deploy/{name}", "--dry-run")
    narrow(done.stdout)
    pods = json.loads(c.kubectl("-n", "shop", "get", "pods", "-l", f"app={name}", "-o", "json"))["items"]
    c.expect(pods and all(p["metadata"]["name"] in done.stdout for p in pods) and "ready" in done.stdout and "node1" in done.stdout, done.stdout)
    c.expect(f"ReplicaSets of Deployment {name}" in " ".join(done.stdout.split()), done.stdout)
    c.expect("no container" in run(config, "profile", f"deploy/{name}", "-c", "sidecar", "--dry-run", code=2).stdout.lower(), "an unknown container in a dry run")
    c.expect(c.kubectl("-n", "shop", "get", "psess", "-o", "name") == before, "a dry run made a session")
    print(done.stdout)


def _refused(config, world, *args, holds, code=2, env=()):
    before = c.kubectl("get", "psess", "-A", "-o", "name")
    done = run(config, *args, code=code, env=env)
    c.expect(done.stdout == "", f"{args}: {done.stdout}")
    c.expect(done.stderr.startswith("error: ") and len(done.stderr.strip().splitlines()) == 1, f"{args}: not one sentence: {done.stderr}")
    for part in holds:
        c.expect(part in done.stderr, f"{args}: {part!r} is not in: {done.stderr}")
    c.expect(c.kubectl("get", "psess", "-A", "-o", "name") == before, f"{args}: a session was made")
    print("    " + done.stderr.strip())
    return done.stderr


def test_people_without_rights(world):
    """No rights, another namespace, an expired and a foreign token, no cluster, no Borescope: the sentence that helps, and no session."""
    pod = world.pod("spin", "node1", "1")
    c.kubectl("-n", "shop", "create", "serviceaccount", "developer", check=False)
    c.kubectl("-n", "shop", "create", "serviceaccount", "nobody", check=False)
    c.kubectl("-n", "shop", "create", "rolebinding", "developer-edits", "--clusterrole=borescope-edit", "--serviceaccount=shop:developer", check=False)
    nobody = kubeconfig(world, "nobody", {"token": c.kubectl("-n", "shop", "create", "token", "nobody").strip()})
    dev_token = c.kubectl("-n", "shop", "create", "token", "developer").strip()
    dev = kubeconfig(world, "developer", {"token": dev_token})
    target = ["profile", f"pod/{pod}", "--duration", "2s"]
    granted = _refused(nobody, world, *target, holds=["may not create profilingsessions in namespace shop", "kubectl create rolebinding", "--clusterrole=borescope-edit",
                                                      "--serviceaccount=shop:nobody"])
    _refused(nobody, world, "list", holds=["may not list profilingsessions", "--clusterrole=borescope-view"])
    _refused(dev, world, *target, "-n", "other", holds=["may not create profilingsessions in namespace other"])
    _refused(dev, world, "list", "-A", holds=["may not list profilingsessions", "-n NAMESPACE"])
    _refused(dev, world, "top", "no-such-session", holds=["no session \"no-such-session\"", "list -n shop"])
    expired = kubeconfig(world, "expired", {"token": expired_like(dev_token)})
    said = _refused(expired, world, *target, holds=["does not accept your credentials", "expired", "kubectl auth whoami"])
    c.expect(dev_token.split(".")[1][:40] not in said, "the token is in the message")
    away = kubeconfig(world, "away", {"token": "x"})
    text = open(away).read()
    with open(away, "w") as file:
        file.write(re.sub(r"https://[0-9.]+:[0-9]+", "https://10.244.0.1:9", text))
    _refused(away, world, *target, holds=["https://10.244.0.1:9", "cannot be reached", "kubectl version"])
    _refused("/no/such/kubeconfig", world, *target, holds=["no kubeconfig", "KUBECONFIG"])
    _refused(dev, world, "profile", "service/x", holds=["no target", "deploy/NAME"])
    _refused(dev, world, "profile", "pod/no-such-pod", "--dry-run", holds=["may not get pods", "--clusterrole=view"])
    # The command that the refusal names helps.
    c.sh(c.CLUSTER, "exec", "sh", "-c", re.search(r"kubectl create rolebinding .*", granted)[0])
    name = run(nobody, *target, "-o", "name").stdout.strip().split("/")[1]
    world.sessions.append((name, "shop"))
    # What the operator refuses is said, too.
    done = run(dev, "profile", "pod/no-such-pod", "--duration", "2s", code=2)
    c.expect("NoMatchingPods" in done.stderr and "no-such-pod" in done.stderr, done.stderr)
    print("    " + done.stderr.strip())


def test_credential_plugin(world):
    """A kubeconfig whose exec plugin hands out the token; nothing of it is shown or stays in a command line."""
    pod = world.pod("spin", "node1", "1")
    c.kubectl("-n", "shop", "create", "serviceaccount", "developer", check=False)
    c.kubectl("-n", "shop", "create", "rolebinding", "developer-edits", "--clusterrole=borescope-edit", "--serviceaccount=shop:developer", check=False)
    token = c.kubectl("-n", "shop", "create", "token", "developer").strip()
    plugin = f"{world.dir}/give-token"
    with open(plugin, "w") as file:
        file.write("#!/bin/sh\nprintf '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{\"token\":\"%s\"}}' \"$TOKEN\"\n")
    os.chmod(plugin, 0o755)
    config = kubeconfig(world, "exec", {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "Never",
                                                 "env": [{"name": "TOKEN", "value": token}]}})
    done = run(config, "profile", f"pod/{pod}", "--duration", "3s")
    made_by(done.stdout, world)
    c.expect("spin" in done.stdout and token not in done.stdout + done.stderr, done.stdout)
    os.unlink(plugin)
    _refused(config, world, "list", holds=["credential plugin", "give-token"])
