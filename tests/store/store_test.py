#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the real borescope-store and checks it from outside: store_test.py PATH-TO-borescope-store [TestName...]"""
import gzip
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid
from urllib.parse import quote

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pprof"))
import pprof_wire as wire  # noqa: E402

STORE = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "build/dev/bin/borescope-store"
SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
PUSH = "/push.v1.PusherService/Push"


class Store:
    """The program on a port of its own; kill() is kill -9, start() again uses the same data."""

    def __init__(self, *flags, listen="127.0.0.1:0"):
        self.directory = tempfile.TemporaryDirectory()
        self.flags = ["--data", os.path.join(self.directory.name, "db"), "--listen", listen, *flags]
        self.start()

    def start(self):
        path = os.path.join(self.directory.name, "log")
        with open(path, "w") as log:
            self.process = subprocess.Popen([STORE, *self.flags], stderr=log)
        while True:
            with open(path) as log:
                text = log.read()
            for line in text.splitlines(keepends=True):
                if line.endswith("\n") and json.loads(line)["msg"] == "listening":
                    self.port = json.loads(line)["port"]
                    return
            if self.process.poll() is not None:
                raise RuntimeError(f"the store ended: {text}")
            time.sleep(0.005)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    def close(self):
        code = self.stop()
        self.directory.cleanup()
        return code

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def push(self, body, content_type="application/proto", encoding="gzip"):
        headers = {"Content-Type": content_type}
        if encoding:
            headers["Content-Encoding"] = encoding
            body = gzip.compress(body, 1)
        return self.request("POST", PUSH, body, headers)

    def render(self, query, format="pprof", **times):
        more = "".join(f"&{k}={quote(str(v))}" for k, v in times.items())
        return self.request("GET", f"/pyroscope/render?query={quote(query)}&format={format}{more}")


def labels(**more):
    return {"__name__": "process_cpu", "__delta__": "false", "service_name": "shop", "pod": "shop-1", **more}


def error(reply):
    return reply[0], json.loads(reply[1])


class StoreTest(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(SEED)
        self.store = Store()
        self.now = time.time_ns()

    def tearDown(self):
        self.store.close()

    def window(self, ns=1_000_000, at=None, name="work", ident=None, **more):
        pprof = wire.encode({(name, "main"): (1, ns), ("other", name, "main"): (2, 5)}, at or self.now - 10_000_000_000)
        return wire.push([(labels(**more), [(gzip.compress(pprof, 1), ident)])])

    def test_push_then_query_in_every_form(self):
        at = self.now - 60_000_000_000
        for i in range(3):
            self.assertEqual(self.store.push(self.window(1000 + i, at + i * 10_000_000_000, ident=str(uuid.uuid4()))), (200, b""))
        status, body = self.store.render("{service_name=\"shop\"}")
        self.assertEqual(status, 200, body)
        profile = wire.decode(body)
        self.assertEqual(wire.total(profile, "cpu"), 3003 + 15)
        self.assertEqual(wire.total(profile, "samples"), 9)
        self.assertEqual(profile["mappings"], [dict(start=0x400000, limit=0x900000, offset=0, filename="/usr/bin/app",
                                                    build_id="00c0ffee", has_functions=True)])
        self.assertEqual(profile["duration_nanos"], 30_000_000_000)
        # With a type there is that type alone.
        status, body = self.store.render(CPU + "{pod=~\"shop-.*\"}")
        self.assertEqual(wire.decode(body)["sample_types"], [("cpu", "nanoseconds")])
        status, body = self.store.render(CPU, "collapsed")
        self.assertEqual(body, b"main;work 3003\nmain;work;other 15\n")
        status, body = self.store.render(CPU, "json")
        flame = json.loads(body)["flamebearer"]
        self.assertEqual((flame["names"][0], flame["numTicks"], flame["levels"][0]), ("total", 3018, [0, 3018, 0, 0]))
        # The Connect method, in milliseconds; the reply is the bare message.
        request = (wire.field(1, CPU) + wire.field(2, "{service_name=\"shop\"}") + wire.field(3, at // 1_000_000 - 1000) +
                   wire.field(4, self.now // 1_000_000))
        status, body = self.store.request("POST", "/querier.v1.QuerierService/SelectMergeProfile", request,
                                          {"Content-Type": "application/proto"})
        self.assertEqual(status, 200, body)
        self.assertEqual(wire.total(wire.decode(body), "cpu"), 3018)
        # Times: only the windows that overlap.
        for unit in (1_000_000_000, 1_000_000, 1):
            start = (at + 9_000_000_000 + unit - 1) // unit
            status, body = self.store.render(CPU, "collapsed", **{"from": start, "until": start + 2_000_000_000 // unit})
            self.assertEqual(body, b"main;work 2001\nmain;work;other 10\n")

    def test_the_same_window_twice_is_one(self):
        body = self.window(777, ident="0192aaaa-0000-4000-8000-000000000001")
        for _ in range(3):
            self.assertEqual(self.store.push(body)[0], 200)
        self.assertEqual(wire.total(wire.decode(self.store.render(CPU)[1]), "cpu"), 782)
        metrics = self.store.request("GET", "/metrics")[1].decode()
        self.assertIn('borescope_store_windows_total{outcome="duplicate"} 2', metrics)
        self.assertIn('borescope_store_windows_total{outcome="stored"} 1', metrics)
        self.assertIn("borescope_store_windows 1", metrics)
        # Without an ID nothing can be told apart.
        for _ in range(2):
            self.store.push(self.window(777))
        self.assertEqual(wire.total(wire.decode(self.store.render(CPU)[1]), "cpu"), 3 * 782)

    def test_refusals_name_limit_value_and_next_step(self):
        hour = 3_600_000_000_000
        good = wire.encode({("f",): (1, 1)}, self.now)
        one = lambda pprof, **more: wire.push([(labels(**more), [(pprof, None)])])
        many = {(f"f{i}",): (1, 1) for i in range(400)}
        samples = wire.encode(many, self.now)
        samples += b"".join(wire.field(2, wire.field(1, [1]) + wire.field(2, [1, 1])) for _ in range(15_601))
        cases = [
            (one(good, **{f"l{i}": "x" for i in range(27)}), ["30 labels", "service_name=\\\"shop\\\"", "fewer"]),
            (one(good, big="v" * 2049), ["\\\"big\\\"", "2049", "2048"]),
            (one(good, **{"n" * 1025: "v"}), ["1025", "1024"]),
            (one(good, bad="a\nb"), ["\\\"bad\\\"", "printable"]),
            (one(good, service_name=""), ["service_name"]),
            (wire.push([({"service_name": "shop"}, [(good, None)])]), ["__name__"]),
            (one(wire.encode({("f",): (1, 1)}, self.now - hour - 60_000_000_000)), ["in the past", "3600 s", "clock"]),
            (one(wire.encode({("f",): (1, 1)}, self.now + 660_000_000_000)), ["in the future", "600 s", "clock"]),
            (one(samples), ["16000 samples", "split"]),
            (one(gzip.compress(b"\0" * (5 << 20))), ["4194304", "split"]),
            (one(good + b"\x32\x80\x80\x40" + b"a" * (1 << 20) + b"\x32\x80\x80\xc0\x01" + b"a" * (3 << 20)), ["4194304", "split"]),
            (one(wire.encode({("f",): (1, -5)}, self.now)), ["-5"]),
            (one(wire.encode({("f",): (1, 1)}, self.now, types=(("a-b", "count"), ("cpu", "nanoseconds")))), ["a-b", "\\\"_\\\""]),
            (one(good[:-1]), ["cut short"]),
            (b"\xff\xff", ["push.v1.PushRequest"]),
        ]
        for body, wanted in cases:
            status, reply = self.store.push(body, encoding=None)
            text = reply.decode()
            self.assertEqual(status, 400, text)
            self.assertEqual(json.loads(text)["code"], "invalid_argument")
            for part in wanted:
                self.assertIn(part, text)
        # All of a request or nothing.
        self.assertEqual(self.store.push(wire.push([(labels(), [(good, None)]), (labels(pod=""), [(b"junk", None)])]))[0], 400)
        self.assertEqual(self.store.render(CPU)[0], 404)

        status, reply = error(self.store.push(self.window(), content_type="text/plain"))
        self.assertEqual((status, reply["code"]), (415, "unimplemented"))
        self.assertIn("application/proto", reply["message"])
        status, reply = error(self.store.request("POST", PUSH, b"x", {"Content-Type": "application/proto", "Content-Encoding": "br"}))
        self.assertEqual(status, 415)
        self.assertIn("gzip", reply["message"])
        status, reply = error(self.store.push(b"\0" * (17 << 20), encoding=None))
        self.assertEqual((status, reply["code"]), (413, "resource_exhausted"))
        self.assertIn("16777216", reply["message"])
        self.assertEqual(self.store.request("GET", PUSH)[0], 405)
        self.assertEqual(self.store.request("GET", "/nowhere")[0], 404)

    def test_queries_that_find_nothing_say_what_there_is(self):
        status, reply = error(self.store.render(CPU))
        self.assertEqual(status, 404)
        self.assertIn("holds no profile yet", reply["message"])
        for service in ("checkout", "cart", "search"):
            self.store.push(self.window(service_name=service))
        status, reply = error(self.store.render("{service_name=\"chekout\"}"))
        self.assertEqual((status, reply["code"]), (404, "not_found"))
        self.assertIn("service_name=\"chekout\"", reply["message"])
        self.assertIn("there are \"checkout\", ", reply["message"])
        status, reply = error(self.store.render("{servicename=\"cart\"}"))
        self.assertIn("no series has a label \"servicename\", there are \"service_name\"", reply["message"])
        status, reply = error(self.store.render("wall:wall:nanoseconds:wall:nanoseconds{}"))
        self.assertIn(CPU, reply["message"])
        status, reply = error(self.store.render(CPU, **{"from": "now-30d", "until": "now-29d"}))
        self.assertEqual(status, 404)
        self.assertIn("3 series match, with windows from", reply["message"])
        for query, wanted in (("{a=b}", "double quotes"), ("{a=~\"(\"}", "regular expression"), ("cpu{}", "profile type"), ("", "empty")):
            status, reply = error(self.store.render(query))
            self.assertEqual((status, reply["code"]), (400, "invalid_argument"), query)
            self.assertIn(wanted, reply["message"])
        self.assertIn("svg", error(self.store.render(CPU, "svg"))[1]["message"])
        self.assertIn("from", error(self.store.render(CPU, **{"from": "yesterday"}))[1]["message"])

    def test_session_records(self):
        path = "/api/v1/sessions/shop/checkout-1/6f1c0000-0000-4000-8000-000000000001"
        self.assertEqual(error(self.store.request("GET", path))[0], 404)
        for phase in ("Complete", "Failed"):
            self.assertEqual(self.store.request("PUT", path, json.dumps({"status": {"phase": phase}}))[0], 200)
            self.assertEqual(json.loads(self.store.request("GET", path)[1]), {"status": {"phase": phase}})
        self.assertEqual(self.store.request("PUT", path, b"[1]")[0], 400)
        self.assertEqual(self.store.request("PUT", path, b"{\"a\":\"" + b"x" * (256 << 10) + b"\"}")[0], 413)
        self.assertEqual(self.store.request("PUT", path + "/more", b"{}")[0], 400)

    def test_kill_9_loses_nothing_that_was_acknowledged_and_keeps_nothing_twice(self):
        # Four senders as the sampler is: each window again and again, with its ID, until a 200. The store is killed and restarted.
        print(f"SEED={SEED}")
        acknowledged, lock, end = {}, threading.Lock(), threading.Event()

        def send(sender):
            rng, number = random.Random(SEED + sender), 0
            while not end.is_set():
                number += 1
                ident, value = str(uuid.UUID(int=rng.getrandbits(128))), rng.randrange(1, 10_000)
                body = self.window(value, name=f"f_{sender}_{number}", ident=ident, pod=f"pod-{sender}")
                while True:
                    try:
                        status, reply = self.store.push(body)
                    except (OSError, http.client.HTTPException):
                        time.sleep(0.01)  # killed: the same window again
                        continue
                    self.assertEqual(status, 200, reply)
                    break
                with lock:
                    acknowledged[f"main;f_{sender}_{number}"] = value

        senders = [threading.Thread(target=send, args=(i,)) for i in range(4)]
        for thread in senders:
            thread.start()
        kills = int(os.environ.get("KILLS", 8))
        for _ in range(kills):
            time.sleep(self.random.uniform(0.05, 0.4))
            self.store.kill()
            self.store.start()
        time.sleep(0.2)
        end.set()
        for thread in senders:
            thread.join()
        found = wire.collapsed(wire.decode(self.store.render(CPU)[1]), "cpu")
        found = {stack: value for stack, value in found.items() if not stack.endswith(";other")}
        self.assertEqual(found, acknowledged)
        print(f"{len(acknowledged)} windows acknowledged over {kills} kills, each there once")
        self.assertGreater(len(acknowledged), 50)

    def test_merge_of_an_hour(self):
        # 360 windows of 10 s of one service, 1 000 stacks of 20 frames each out of 3 000 functions.
        functions = [f"app::module_{i % 50}::function_{i}(int, char const*)" for i in range(3000)]
        stacks = [tuple(self.random.choice(functions) for _ in range(20)) for _ in range(3000)]
        shared, wanted = [], 0
        for _ in range(12):
            chosen = {s: (1, self.random.randrange(1, 20_000_000)) for s in self.random.sample(stacks, 1000)}
            shared.append((wire.encode(chosen, 111_111_111), sum(v for _, v in chosen.values())))
        old = wire.field(9, 111_111_111)
        for i in range(360):
            pprof, value = shared[i % len(shared)]
            at = self.now - 3_540_000_000_000 + i * 9_800_000_000
            self.assertEqual(self.store.push(wire.push([(labels(), [(pprof.replace(old, wire.field(9, at)), str(uuid.uuid4()))])]))[0], 200)
            wanted += value
        began = time.monotonic()
        status, body = self.store.render(CPU)
        took = time.monotonic() - began
        self.assertEqual(wire.total(wire.decode(body), "cpu"), wanted)
        size = [l for l in self.store.request("GET", "/metrics")[1].decode().splitlines() if l.startswith("borescope_store_database_bytes ")]
        print(f"merge of 1 h (360 windows of 1000 stacks of 20 frames): {took * 1000:.0f} ms; {float(size[0].split()[1]) / 360:.0f} bytes a window in the store")


class StartTest(unittest.TestCase):
    def test_reachable_from_elsewhere_only_with_a_token(self):
        with tempfile.TemporaryDirectory() as data:
            ended = subprocess.run([STORE, "--data", data, "--listen", "0.0.0.0:0"], capture_output=True, text=True)
            self.assertEqual(ended.returncode, 2)
            self.assertIn("--token-file", ended.stderr)
            token = os.path.join(data, "token")
            with open(token, "w") as file:
                file.write("secret-1\n")
            store = Store("--token-file", token, listen="0.0.0.0:0")
            try:
                for path in ("/healthz", "/readyz"):
                    self.assertEqual(store.request("GET", path)[0], 200)
                for path in ("/metrics", "/pyroscope/render?query={}", "/api/v1/sessions/a/b/c"):
                    status, reply = error(store.request("GET", path))
                    self.assertEqual((status, reply["code"]), (401, "unauthenticated"))
                    self.assertEqual(store.request("GET", path, headers={"Authorization": "Bearer secret-2"})[0], 401)
                self.assertEqual(store.push(b"")[0], 401)
                self.assertEqual(store.request("GET", "/metrics", headers={"Authorization": "Bearer secret-1"})[0], 200)
                with open(token, "w") as file:
                    file.write("secret-2")
                self.assertEqual(store.request("GET", "/metrics", headers={"Authorization": "Bearer secret-2"})[0], 200)
            finally:
                self.assertEqual(store.close(), 0)

    def test_wrong_flags_say_what_to_give(self):
        for flags, wanted in ((["--retention", "1h"], "from 2h"), (["--retention", "abc"], "abc"), (["--listen", "nonsense"], "nonsense")):
            with tempfile.TemporaryDirectory() as data:
                ended = subprocess.run([STORE, "--data", data, *flags], capture_output=True, text=True)
                self.assertNotEqual(ended.returncode, 0)
                self.assertIn(wanted, ended.stderr)

    def test_oldest_windows_go_when_the_database_is_full(self):
        store = Store("--max-bytes", str(2 << 20))
        try:
            rng = random.Random(SEED)
            now = time.time_ns()
            for i in range(40):
                stacks = {(f"{rng.getrandbits(512):x}", f"w{i}"): (1, 1) for _ in range(1000)}
                pprof = wire.encode(stacks, now - 3_000_000_000_000 + i * 10_000_000_000)
                self.assertEqual(store.push(wire.push([(labels(), [(pprof, None)])]))[0], 200)
            store.stop()
            store.start()  # the first thing it does
            for _ in range(50):
                metrics = store.request("GET", "/metrics")[1].decode()
                if "borescope_store_evicted_windows_total{reason=\"bytes\"}" in metrics:
                    break
                time.sleep(0.1)
            size = next(float(l.split()[1]) for l in metrics.splitlines() if l.startswith("borescope_store_database_bytes "))
            self.assertLessEqual(size, 2 << 20)
            roots = {line.split(";")[0] for line in store.render("{}", "collapsed")[1].decode().splitlines()}
            self.assertIn("w39", roots)
            self.assertNotIn("w0", roots)
        finally:
            store.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
