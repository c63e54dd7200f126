# SPDX-License-Identifier: Apache-2.0
"""What names cost: of stacks that were never seen, beside llvm-symbolizer and perf script on the same samples; memory for large debug files."""
import contextlib
import ctypes
import json
import os
import random
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import costs

SYMBOLIZER = "llvm-symbolizer"
STACKS, ROUNDS, FRAMES, WIDTH, UNITS = 300, 3, 20, 16, 4
DEBUG_MIB, LARGE_MIB = 20, (100, 1024)
LARGE_STACKS = 200
PEER_LIMIT_S = 60  # a peer that takes longer is given up, and it is said

MAIN = """#include <cstddef>
#include <cstdint>
#include <vector>
using Entry = uint64_t (*)(uint64_t, uint64_t);
std::vector<Entry>& Entries() {
  static std::vector<Entry> entries;
  return entries;
}
int main() {
  for (uint64_t draw = 88172645463325252u, value = 1;;) {
    draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
    value = Entries()[draw % Entries().size()](draw * 0x9e3779b97f4a7c15u, value);
  }
}
"""
# A unit of its own names, which can be linked again and again: nothing of it has external linkage but templates of the standard library.
UNIT = """#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>
using Entry = uint64_t (*)(uint64_t, uint64_t);
std::vector<Entry>& Entries();
namespace {
template <int n>
inline __attribute__((always_inline)) uint64_t Mix_@U(uint64_t x) {
  x ^= x >> (n % 13 + 1);
  return x * (2 * n + 1);
}
template <int n>
inline __attribute__((always_inline)) uint64_t Turn_@U(uint64_t x) {
  x += Mix_@U<n>(x) ^ Mix_@U<n + 1>(x >> 3);
  asm volatile("" : "+r"(x));
  return x;
}
@FUNCTIONS
__attribute__((noinline, used)) size_t Library_@U(const std::string& text) {
  static const std::regex pattern("([a-z]+)=([0-9]*)");
  std::map<std::string, std::unordered_map<int, std::string>> words;
  std::smatch found;
  if (std::regex_search(text, found, pattern)) words[found[1]][std::stoi(found[2])] = text;
  std::mt19937_64 random(words.size());
  std::vector<std::pair<std::string, std::shared_ptr<std::function<int(int)>>>> calls;
  for (auto& [word, numbers] : words) calls.emplace_back(word, std::make_shared<std::function<int(int)>>([&numbers](int i) { return static_cast<int>(numbers.count(i)); }));
  std::shuffle(calls.begin(), calls.end(), random);
  std::sort(calls.begin(), calls.end(), [](auto& a, auto& b) { return a.first < b.first; });
  std::ostringstream out;
  for (auto& [word, call] : calls) out << word << (*call)(3);
  return out.str().size();
}
const bool registered = [] {
  Entries().push_back(@ENTRY);
  return true;
}();
}  // namespace
"""


def unit(draw, number):
    """A chain of functions: each calls one of four of the next level, drawn by two bits of the path; most time goes by in the last level."""
    name = lambda level, i: f"Step_{tag}_{level}_{i}"  # noqa: E731
    tag = "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(6))
    levels = FRAMES - 3  # main, and two of libc
    lines = []
    for level in range(levels, 0, -1):
        for i in range(WIDTH if level > 1 else 1):
            lines.append(f"__attribute__((noinline)) uint64_t {name(level, i)}(uint64_t path, uint64_t value) {{" + "\n" * draw.randrange(1, 4))
            if level == levels:
                lines.append(f"  for (int i = 0; i < {draw.randrange(2000, 6000)}; ++i) {{\n    value = Turn_{tag}<{draw.randrange(200)}>(value);\n"
                             f"    if (value % 64 < 32) value = Turn_{tag}<{draw.randrange(200)}>(value + path);\n  }}")
            else:
                lines.append(f"  value = Turn_{tag}<{draw.randrange(200)}>(value);\n  switch (path >> {2 * level} & 3) {{")
                lines += [f"    case {case}:\n      value = Turn_{tag}<{draw.randrange(200)}>({name(level + 1, draw.randrange(WIDTH))}(path, value));\n      break;" for case in range(4)]
                lines.append("  }")
            lines.append('  asm volatile("" : "+r"(value));\n  return value;\n}')
    return UNIT.replace("@FUNCTIONS", "\n".join(lines)).replace("@ENTRY", name(1, 0)).replace("@U", tag)


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def debug_bytes(path):
    return sum(int(match[2], 16) for match in re.finditer(r"\] (\.debug_\S+)\s+PROGBITS\s+\S+ \S+ (\S+)", run("readelf", "-SW", path)))


class Program:
    """A program of drawn functions with as much debug information as is asked for: its units are linked as often as that takes."""

    def __init__(self, folder, seed):
        self.folder = folder
        draw = random.Random(seed)
        for number in range(UNITS):
            with open(f"{folder}/unit{number}.cc", "w") as file:
                file.write(unit(draw, number))
        with open(f"{folder}/main.cc", "w") as file:
            file.write(MAIN)
        compilers = [subprocess.Popen(["g++", "-std=c++20", "-g", "-O2", "-fno-omit-frame-pointer", "-fno-pie", "-c", f"{name}.cc"], cwd=folder)
                     for name in ("main", *(f"unit{n}" for n in range(UNITS)))]
        if any([compiler.wait() for compiler in compilers]):
            raise RuntimeError("a drawn program does not compile")
        once, twice = (debug_bytes(self.link(copies)) for copies in (1, 3))
        self.first, self.each = once, (twice - once) / 2

    def link(self, copies):
        path = f"{self.folder}/program"
        run("g++", "-no-pie", "-Wl,--build-id", "-o", path, "main.o", *(f"unit{n}.o" for _ in range(copies) for n in range(UNITS)), cwd=self.folder)
        return path

    def of(self, mib):
        return self.link(max(1, round(1 + ((mib << 20) - self.first) / self.each)))


@contextlib.contextmanager
def running(path):
    process = subprocess.Popen([path])
    try:
        time.sleep(0.3)
        yield process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def record(path, data, wanted, stacks="fp"):
    """At least so many samples; (time stamp as perf writes it, stack as linked addresses of the program, leaf first, of callers the byte before) of each."""
    with running(path) as pid:
        perf = subprocess.Popen(["perf", "record", "-e", "cpu-clock:u", "-F", "999", "--call-graph", stacks, "-p", str(pid), "-o", data], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
        try:
            costs.samples_begin(perf.pid)
            enough = costs.cpu_of(pid) + wanted * 1.3e6
            while costs.cpu_of(pid) < enough and perf.poll() is None:
                time.sleep(0.05)
        finally:
            perf.send_signal(signal.SIGINT)
            perf.wait()
    text = re.search(r"\] \.text\s+PROGBITS\s+(\S+) (\S+)", run("readelf", "-SW", path))
    bias = int(text[1], 16) - int(text[2], 16)  # perf writes offsets in the file
    found, when, stack = [], None, []
    for line in [*run("perf", "script", "-i", data, "--no-inline", "-F", "time,ip,dso").splitlines(), ""]:
        if match := re.match(r"\s*(\d+\.\d+):\s*$", line):
            when, stack = match[1], []
        elif match := re.match(r"\s+([0-9a-f]+) \((.*)\)$", line):
            if match[2] == path:
                stack.append(int(match[1], 16) + bias - (1 if stack else 0))
        elif when and stack:
            found.append((when, stack))
            when = None
    if len(found) < wanted:
        raise RuntimeError(f"perf record gave {len(found)} of {wanted} samples of {path}")
    return found


def peer(command, text=""):
    """CPU seconds with all it starts, seconds, RSS at most, of a command; None: it took longer than PEER_LIMIT_S."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: perf script does not wait for its addr2line
    with tempfile.TemporaryFile("w+") as given:
        given.write(text)
        given.seek(0)
        begin = time.monotonic()
        process = subprocess.Popen(command, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        timer = threading.Timer(PEER_LIMIT_S, lambda: os.killpg(process.pid, signal.SIGKILL))
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        took = time.monotonic() - begin
        process.returncode = status
        usages = [usage]
        with contextlib.suppress(ChildProcessError):
            while True:
                usages.append(os.wait4(-process.pid, 0)[2])
        timer.cancel()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if status != 0:
        raise RuntimeError(f"{' '.join(command)}: status {status}")
    return {"cpu": sum(u.ru_utime + u.ru_stime for u in usages), "seconds": took, "resident": max(u.ru_maxrss for u in usages) * 1024}


def lines_of(stacks):
    return "".join(" ".join(f"{a:x}" for a in stack) + "\n" for stack in stacks)


def ours(programs, path, *parts):
    """Each of parts: (stacks, "all" or "each")."""
    text = "".join(f"{lines_of(stacks)}{how}\n" for stacks, how in parts)
    command = [f"{programs}/bench/bench-names", "--program", f"{programs}/bin/borescope-names", path]
    return json.loads(run(*command, input=text))


def distinct(stacks):
    return list(dict.fromkeys(address for stack in stacks for address in stack))


def one_round(programs, path, data, samples, unwound):
    """samples: in `data`; unwound: those in `data`.dwarf, of which perf finds inlined functions, too: it does only for stacks that it unwinds itself. Cold: the first STACKS with a process that knows nothing. Warm: what the next STACKS take beyond that; of ours also one by one."""
    first, second, third = (samples[i * STACKS:(i + 1) * STACKS] for i in range(3))
    stacks = lambda part: [stack for _, stack in part]  # noqa: E731
    out = {}
    found = ours(programs, path, (stacks(first), "all"), (stacks(second), "all"), (stacks(third), "each"))
    cold, warm, single = found["parts"]
    if any(part["with_lines"] < 0.99 * part["addresses"] for part in found["parts"]):
        raise RuntimeError(f"not all addresses were named with their lines: {found['outcomes']} {found['problem']}")
    out["ours"], out["single"] = (cold, warm), (single, single)

    def beyond(command, first, more, text=lambda part: ""):
        """CPU and seconds for the first ones, and what the others take beyond that."""
        short = peer(command(first), text(first))
        long = short and peer(command(first + more), text(first + more))
        known = set(distinct(stacks(first)))
        both = (short, long and {key: max(long[key] - short[key], 1e-3) for key in ("cpu", "seconds")})
        return tuple(took and {**took, "stacks": len(part), "addresses": new} for took, part, new in
                     zip(both, (first, more), (len(known), len(set(distinct(stacks(more))) - known))))

    out["symbolizer"] = beyond(lambda part: [SYMBOLIZER, f"--obj={path}"], first, second, lambda part: "".join(f"{a:#x}\n" for a in distinct(stacks(part))))
    script = lambda data, fields, *more: lambda part: ["perf", "script", "-i", data, "--time", f",{part[-1][0]}", "-F", fields, *more]  # noqa: E731
    out["symbols"] = beyond(script(data, "ip,sym", "--no-inline"), first, second)
    out["srcline"] = beyond(script(data, "ip,sym,srcline", "--no-inline"), first, second)
    first, second = unwound[:STACKS], unwound[STACKS:2 * STACKS]
    inline, plain = (beyond(script(f"{data}.dwarf", "ip,sym", *more), first, second) for more in ([], ["--no-inline"]))
    out["inline"] = tuple(i and p and {**i, "cpu": max(i["cpu"] - p["cpu"], 1e-3), "seconds": max(i["seconds"] - p["seconds"], 1e-3)} for i, p in zip(inline, plain))
    return out


def compare(programs, program, quiet):
    """{who: ((cold), (warm))}, medians over the rounds of names a second, names a CPU second, CPU ms of a stack; None: given up."""
    path, data, rounds = program.of(DEBUG_MIB), f"{program.folder}/perf.data", []
    for _ in range(ROUNDS):
        with quiet():
            rounds.append(one_round(programs, path, data, record(path, data, 3 * STACKS), record(path, f"{data}.dwarf", 2 * STACKS, "dwarf,8192")))
    out = {}
    for who in rounds[0]:
        figures = []
        for part in (0, 1):
            took = [r[who][part] for r in rounds]
            figures.append(None if None in took else {
                "names_s": statistics.median(t["addresses"] / t["seconds"] for t in took), "names_cpu": statistics.median(t["addresses"] / t["cpu"] for t in took),
                "stack_ms": statistics.median(1000 * t["cpu"] / t["stacks"] for t in took), "names_stack": statistics.median(t["addresses"] / t["stacks"] for t in took)})
        out[who] = tuple(figures)
    return out


class Peak(threading.Thread):
    """Resident memory, at most, of a process (without its BPF maps) and of its children borescope-names."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.own, self.children, self.over = pid, 0, {}, threading.Event()

    def run(self):
        while not self.over.wait(0.05):
            with contextlib.suppress(OSError):
                self.own = max(self.own, costs.resident(self.pid))
                for task in os.listdir(f"/proc/{self.pid}/task"):
                    for child in open(f"/proc/{self.pid}/task/{task}/children").read().split():
                        if open(f"/proc/{child}/comm").read().strip() == "borescope-names":
                            match = re.search(r"VmHWM:\s+(\d+) kB", open(f"/proc/{child}/status").read())
                            self.children[child] = max(self.children.get(child, 0), int(match[1]) << 10 if match else 0)


def large(programs, program, mib, quiet):
    """A stripped program and its debug file of that size: memory while it is sampled and named, and of llvm-symbolizer for the same addresses."""
    path, data = program.of(mib), f"{program.folder}/perf.data"
    run("objcopy", "--only-keep-debug", path, f"{path}.debug")
    run("strip", "--strip-all", path)
    run("objcopy", f"--add-gnu-debuglink={path}.debug", path)
    with quiet():
        stacks = [stack for _, stack in record(path, data, LARGE_STACKS)][:LARGE_STACKS]
        named = ours(programs, path, (stacks, "all"))
        with running(path) as pid:
            profiler = subprocess.Popen([f"{programs}/bin/borescope", "profile", "--pid", str(pid), "--duration", "20s", "-o", f"{program.folder}/x.pb.gz"], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
            peak = Peak(profiler.pid)
            peak.start()
            text = profiler.communicate()[0]
            peak.over.set()
            peak.join()
        if profiler.returncode != 0:
            raise RuntimeError(f"borescope profile: {text[-500:]}")
        theirs = peer([SYMBOLIZER, f"--obj={path}.debug"], "".join(f"{a:#x}\n" for a in distinct(stacks)))
    return {"file": os.path.getsize(f"{path}.debug"), "own": peak.own, "children": max(peak.children.values(), default=0), "bench": named["peak_bytes"], "part": named["parts"][0],
            "problem": named["problem"], "theirs": theirs, "samples": int(re.search(r"(\d+) samples in", text)[1])}


def measure(programs, quiet):
    """What compare() says, and {MiB: what large() says}."""
    with tempfile.TemporaryDirectory(prefix="borescope-bench-names.", dir="/var/tmp") as folder:
        program = Program(folder, "names")
        return compare(programs, program, quiet), {mib: large(programs, program, mib, quiet) for mib in LARGE_MIB}
