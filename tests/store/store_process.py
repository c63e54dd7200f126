# SPDX-License-Identifier: Apache-2.0
"""The real borescope-store as a child process."""
import gzip
import http.client
import json
import os
import signal
import subprocess
import tempfile
import time
from urllib.parse import quote

STORE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", os.environ.get("PRESET", "dev"), "bin", "borescope-store")
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
