# SPDX-License-Identifier: Apache-2.0
"""pprof and push.v1 by hand, standard library only: the independent reader and writer that checks Borescope's own."""
import gzip
import zlib


def _varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number, value):
    """One field: an int as varint, bytes or str with their length, a list of ints packed."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, list):
        value = b"".join(map(_varint, value))
    if isinstance(value, str):
        value = value.encode()
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7


def fields(data):
    """All (number, value) of a message; value is an int or bytes."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag & 7 == 0:
            value, at = read_varint(data, at)
        elif tag & 7 == 2:
            size, at = read_varint(data, at)
            value, at = data[at:at + size], at + size
            assert len(value) == size, "cut short"
        else:
            raise ValueError(f"wire type {tag & 7}")
        yield tag >> 3, value


def _signed(n):
    return n - (1 << 64) if n >> 63 else n


def _numbers(message, number):
    out = []
    for n, value in fields(message):
        if n != number:
            continue
        if isinstance(value, int):
            out.append(value)
        else:
            at = 0
            while at < len(value):
                v, at = read_varint(value, at)
                out.append(v)
    return out


def _one(message, number, default=0):
    for n, value in fields(message):
        if n == number:
            default = value
    return default


def decode(data):
    """{sample_types, samples: [(stack of names leaf first, values, labels)], mappings, time_nanos, duration_nanos, period ...}"""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    top = list(fields(data))
    strings = [v.decode() for n, v in top if n == 6]
    assert strings and strings[0] == "", "string table must begin with the empty string"
    every = lambda number: [v for n, v in top if n == number]
    mappings = {_one(m, 1): dict(start=_one(m, 2), limit=_one(m, 3), offset=_one(m, 4), filename=strings[_one(m, 5)],
                                 build_id=strings[_one(m, 6)], has_functions=bool(_one(m, 7))) for m in every(3)}
    functions = {_one(f, 1): strings[_one(f, 2)] for f in every(5)}
    locations = {}
    for loc in every(4):
        lines = [functions[_one(v, 1)] for n, v in fields(loc) if n == 4]
        mapping = _one(loc, 2)
        assert mapping == 0 or mapping in mappings, "location without its mapping"
        locations[_one(loc, 1)] = dict(names=lines, mapping=mappings.get(mapping), address=_one(loc, 3))
    for table, count in ((mappings, len(every(3))), (functions, len(every(5))), (locations, len(every(4)))):
        assert 0 not in table and len(table) == count, "ids must be unique and not 0"
    types = [(strings[_one(t, 1)], strings[_one(t, 2)]) for t in every(1)]
    samples = []
    for s in every(2):
        stack = [locations[i] for i in _numbers(s, 1)]
        values = [_signed(v) for v in _numbers(s, 2)]
        assert len(values) == len(types), "a value for each sample type"
        labels = {strings[_one(l, 1)]: strings[_one(l, 2)] for n, l in fields(s) if n == 3}
        samples.append((stack, values, labels))
    scalar = {n: v for n, v in top if isinstance(v, int)}
    return dict(sample_types=types, samples=samples, mappings=list(mappings.values()), time_nanos=scalar.get(9, 0),
                duration_nanos=scalar.get(10, 0), period=scalar.get(12, 0),
                comments=[strings[i] for i in _numbers(data, 13)], default_sample_type=strings[scalar.get(14, 0)])


def total(profile, sample_type):
    index = [t for t, _ in profile["sample_types"]].index(sample_type)
    return sum(values[index] for _, values, _ in profile["samples"])


def collapsed(profile, sample_type):
    """{"root;...;leaf": value}"""
    index = [t for t, _ in profile["sample_types"]].index(sample_type)
    out = {}
    for stack, values, _ in profile["samples"]:
        names = [name for location in stack for name in location["names"]]
        key = ";".join(reversed(names))
        out[key] = out.get(key, 0) + values[index]
    return out


def encode(stacks, time_nanos, duration_nanos=10_000_000_000, types=(("samples", "count"), ("cpu", "nanoseconds")),
           build_id="00c0ffee", filename="/usr/bin/app"):
    """A pprof of {("leaf", ..., "root"): (values...)}; one mapping."""
    strings = {"": 0}

    def text(s):
        return strings.setdefault(s, len(strings))

    out = b"".join(field(1, field(1, text(t)) + field(2, text(u))) for t, u in types)
    names = {}
    for stack in stacks:
        for name in stack:
            names.setdefault(name, len(names) + 1)
    for stack, values in stacks.items():
        out += field(2, field(1, [names[n] for n in stack]) + field(2, list(values)))
    out += field(3, field(1, 1) + field(2, 0x400000) + field(3, 0x900000) + field(5, text(filename)) + field(6, text(build_id)) + field(7, 1))
    for name, i in names.items():
        out += field(4, field(1, i) + field(2, 1) + field(3, 0x400000 + zlib.crc32(name.encode()) % 0x500000) + field(4, field(1, i)))
        out += field(5, field(1, i) + field(2, text(name)) + field(3, text(name)))
    out += field(9, time_nanos) + field(10, duration_nanos) + field(11, field(1, text("cpu")) + field(2, text("nanoseconds")))
    out += field(12, 10_101_010) + field(14, text("cpu"))
    return out + b"".join(field(6, s) for s in strings)


def push(series):
    """push.v1.PushRequest of [(labels dict, [(pprof bytes, id)])]."""
    out = b""
    for labels, windows in series:
        message = b"".join(field(1, field(1, k) + field(2, v)) for k, v in labels.items())
        message += b"".join(field(2, field(1, pprof) + (field(2, ident) if ident else b"")) for pprof, ident in windows)
        out += field(1, message)
    return out
