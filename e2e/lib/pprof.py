# SPDX-License-Identifier: Apache-2.0
"""An independent reader of pprof files: protobuf wire format by hand, nothing of our C++ in it."""
import gzip
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests", "pprof"))
from pprof_wire import read_varint as _varint  # noqa: E402
from pprof_wire import fields as _fields  # noqa: E402


def _numbers(value):
    """A repeated varint: packed, or one number."""
    if isinstance(value, int):
        return [value]
    out, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        out.append(number)
    return out


def _message(data):
    out = {}
    for field, value in _fields(data):
        out.setdefault(field, []).append(value)
    return out


class Profile:
    """samples: list of (frames leaf first, values); each frame a function name (innermost line first)."""

    def __init__(self, raw):
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        top = _message(raw)
        strings = [s.decode() for s in top.get(6, [])]
        assert strings and strings[0] == "", "string_table[0] is not empty"
        one = lambda message, field: message.get(field, [0])[0]
        self.sample_types = [(strings[one(m, 1)], strings[one(m, 2)]) for m in map(_message, top.get(1, []))]
        self.mappings = {one(m, 1): {"start": one(m, 2), "limit": one(m, 3), "file": strings[one(m, 5)], "build_id": strings[one(m, 6)]}
                         for m in map(_message, top.get(3, []))}
        functions = {one(m, 1): strings[one(m, 2)] for m in map(_message, top.get(5, []))}
        self.locations = {}
        for m in map(_message, top.get(4, [])):
            lines = [functions[one(_message(line), 1)] for line in m.get(4, [])]
            self.locations[one(m, 1)] = (lines, one(m, 2), one(m, 3))
        self.samples = []
        for m in map(_message, top.get(2, [])):
            ids = [n for v in m.get(1, []) for n in _numbers(v)]
            values = [n - (1 << 64) if n >> 63 else n for v in m.get(2, []) for n in _numbers(v)]
            labels = {strings[one(label, 1)]: strings[one(label, 2)] for label in map(_message, m.get(3, []))}
            assert len(values) == len(self.sample_types), "a sample whose values do not match the sample types"
            frames = []
            for i in ids:
                lines, mapping, address = self.locations[i]
                assert mapping == 0 or mapping in self.mappings, "a location without its mapping"
                frames += lines if lines else [f"0x{address:x}"]
            self.samples.append((frames, values, labels))
        self.time_ns = one(top, 9)
        self.duration_ns = one(top, 10)
        self.period = one(top, 12)

    def total(self, index=-1):
        return sum(values[index] for _, values, _ in self.samples)
