# SPDX-License-Identifier: Apache-2.0
"""What stacks without frame pointers cost: samples of three depths beside perf by frame pointers and by DWARF, unwind tables, memory."""
import glob
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

import costs

FRAMES = (5, 20, 100)
ROUNDS, TABLE_RUNS = 3, 5


def largest_program():
    """The largest executable that is to be had: the control plane of e2e/cluster, some 140 MiB, else Node."""
    return max(glob.glob("/root/.cache/borescope/*/kube") + ["/usr/bin/node"], key=os.path.getsize)


def library(pattern):
    return next(iter(sorted(glob.glob(pattern))), "")


FILES = {name: path for name, path in (("libc", library("/lib/x86_64-linux-gnu/libc.so.6")), ("node", library("/usr/bin/node")),
                                       ("libjvm", library("/usr/lib/jvm/*/lib/server/libjvm.so")), ("a Go program of more than 100 MiB", largest_program())) if path}


def add(*parts):
    total = {}
    for part in parts:
        for start, count in part.items():
            total[start] = total.get(start, 0) + count
    return total


def run_round(programs, frames, hertz, seconds, number):
    """One load; empty program, ours, perf twice, in an order that rotates."""
    with tempfile.TemporaryDirectory() as folder:
        steps = {"empty": lambda t: costs.empty(programs, t, hertz, 4), "ours": lambda t: costs.ours(programs, t, hertz, seconds, folder),
                 "fp": lambda t: costs.perf(programs, t, hertz, seconds, folder, "fp"), "dwarf": lambda t: costs.perf(programs, t, hertz, seconds, folder, "dwarf,8192")}
        names = list(steps)
        names = names[number % 4:] + names[:number % 4]
        with costs.Load(programs, frames, plain=True) as target:
            return {name: steps[name](target) for name in names}


def run_rounds(programs, frames, hertz, seconds, quiet):
    with quiet():
        return [run_round(programs, frames, hertz, seconds, number) for number in range(ROUNDS)]


def figures(rounds, hertz):
    median = lambda get: statistics.median(get(r) for r in rounds)
    above = lambda r, who: max(0.0, r[who]["kernel_us"] - r["empty"]["kernel_us"])
    out = {"hertz": hertz, "samples": sum(r["ours"]["count"] for r in rounds), "whole_percent": median(lambda r: r["ours"]["whole_percent"])}
    for who in ("ours", "dwarf", "fp"):
        out[f"{who}_kernel"] = median(lambda r: above(r, who))
        out[f"{who}_user"] = median(lambda r: r[who]["user_us"])
        out[f"{who}_whole"] = median(lambda r: above(r, who) + r[who]["user_us"])
    out["kernel_ratio"] = median(lambda r: above(r, "ours") / above(r, "dwarf"))
    out["user_ratio"] = median(lambda r: r["ours"]["user_us"] / r["dwarf"]["user_us"])
    out["whole_ratio"] = median(lambda r: (above(r, "ours") + r["ours"]["user_us"]) / (above(r, "dwarf") + r["dwarf"]["user_us"]))
    out["fp_kernel_ratio"] = median(lambda r: above(r, "ours") / above(r, "fp"))
    out["fp_user_ratio"] = median(lambda r: r["ours"]["user_us"] / r["fp"]["user_us"])
    return out


def compare(programs, quiet):
    by_frames = {frames: run_rounds(programs, frames, 99, 10, quiet) for frames in FRAMES}
    fast = run_rounds(programs, 20, 999, 5, quiet)
    return {
        "costs": [figures(by_frames[20], 99), figures(fast, 999)],
        "bins": {frames: {who: costs.pooled([r[who]["ticks"] for r in rounds]) for who in ("ours", "fp", "dwarf")} for frames, rounds in by_frames.items()},
        "max_us": {who: max(costs.longest_us(rounds, who) for rounds in (*by_frames.values(), fast)) for who in ("ours", "empty", "fp", "dwarf")},
    }


def bench_tables(programs, files, cache):
    command = [f"{programs}/bench/bench-tables", "--compiler", f"{programs}/bin/borescope-unwind-tables", "--cache", cache, *files]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def table(programs, path):
    with tempfile.TemporaryDirectory() as cache:
        found = bench_tables(programs, [path], cache)
    file = found["files"][0]
    return (f"{file['rows']} rows ({100 * file['unsupported'] / max(file['rows'], 1):.2f} % without a rule), {file['bytes'] / 1024:.0f} KiB "
            f"({100 * file['bytes'] / os.path.getsize(path):.1f} % of the file's {os.path.getsize(path) / (1 << 20):.0f} MiB), {found['compile_cpu_ms']:.0f} ms")


def executable_files(pid):
    return sorted({match[1] for line in open(f"/proc/{pid}/maps") if (match := re.match(r"\S+ r.xp .* (/\S+)$", line.strip()))})


def ready(programs, quiet):
    """ms from arming until all tables of a Node process stand: without tables on disk, and with."""
    node = subprocess.Popen(["node", "-e", "setInterval(() => {}, 1000)"])
    try:
        time.sleep(1)
        files = executable_files(node.pid)
    finally:
        node.kill()
        node.wait()
    cold, warm = [], []
    with quiet():
        for _ in range(TABLE_RUNS):
            with tempfile.TemporaryDirectory() as cache:
                cold.append(bench_tables(programs, files, cache)["ready_ms"])
                warm.append(bench_tables(programs, files, cache)["ready_ms"])
    return cold, warm


def memory(programs, quiet):
    """RSS and maps, at most, of `borescope profile` over 100 processes that all run now and then."""
    kinds = [["python3", "-c", "import time\nwhile True:\n  sum(range(20000)); time.sleep(0.1)"], ["perl", "-e", "while (1) { $x += $_ for 1..20000; select(undef, undef, undef, 0.1) }"],
             ["node", "-e", "setInterval(() => { let x = 0; for (let i = 0; i < 1e5; i++) x += i }, 100)"], ["bash", "-c", "while :; do for i in {1..500}; do :; done; read -t 0.1 < <(:); done"]]
    processes = [subprocess.Popen(kinds[i % 4], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) for i in range(100)]
    try:
        time.sleep(8)
        with quiet(), tempfile.TemporaryDirectory() as folder:
            profiler = subprocess.Popen([f"{programs}/bin/borescope", "profile", "--duration", "20s", "-o", f"{folder}/x.pb.gz"] +
                                        [word for p in processes for word in ("--pid", str(p.pid))], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            costs.samples_begin(profiler.pid)
            most = (0, 0)
            while profiler.poll() is None:
                try:
                    most = max(most, (costs.resident(profiler.pid), costs.maps(profiler.pid)), key=sum)
                except (FileNotFoundError, ProcessLookupError):
                    break
                time.sleep(0.5)
            text = profiler.communicate()[0]
        return {"resident": most[0], "maps": most[1], "samples": int(re.search(r"(\d+) samples in", text)[1])}
    finally:
        for p in processes:
            p.kill()
            p.wait()
