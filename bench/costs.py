# SPDX-License-Identifier: Apache-2.0
"""CPU per sample of borescope and of perf on the same load, in one run: paired, interleaved, compared as medians of ratios."""
import contextlib
import json
import os
import re
import statistics
import subprocess
import tempfile
import time


class Load:
    """All CPUs busy with stacks of so many frames, with frame pointers or (plain) without."""

    def __init__(self, programs, frames=20, plain=False):
        self.command = [f"{programs}/bench/bench-load{'-plain' if plain else ''}", str(os.cpu_count()), str(frames)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command)
        time.sleep(0.3)
        return self.process.pid

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Ticks:
    """What bench-ticks counted: times of the kernel's handler by bin, for ticks that hit the target and for others."""

    def __init__(self, text):
        self.target, self.other = (json.loads(text)[key] for key in ("target", "other"))

    def mean_us(self, which="target"):
        part = getattr(self, which)
        return part["sum_ns"] / part["count"] / 1000 if part["count"] else 0.0


def pooled(ticks):
    """{bin: count} of the target's ticks of several runs."""
    bins = {}
    for tick in ticks:
        for start, count in tick.target["bins"].items():
            bins[int(start)] = bins.get(int(start), 0) + count
    return bins


def quantile_us(bins, share):
    rank, below = share * sum(bins.values()), 0
    for start in sorted(bins):
        below += bins[start]
        if below > rank:
            return (start + 50) / 1000
    return max(bins, default=0) / 1000


def cpu_of(pid):
    """CPU ns of the process's live threads."""
    total = 0
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def resident(pid):
    """RSS without mapped BPF maps, which are counted by maps(): a ring buffer is mapped twice and would count three times."""
    total, name = 0, ""
    for line in open(f"/proc/{pid}/smaps"):
        if re.match("[0-9a-f]+-", line):
            name = line
        elif line.startswith("Rss:") and "anon_inode:bpf-map" not in name:
            total += int(line.split()[1]) * 1024
    return total


def held(pid):
    """(name, fdinfo) of each descriptor; some go while we look."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/{pid}/fd/{fd}"), open(f"/proc/{pid}/fdinfo/{fd}").read()


def maps(pid):
    """What the kernel says of the memory of its BPF maps."""
    return sum(int(re.search(r"memlock:\s*(\d+)", info)[1]) for _, info in held(pid) if "map_type:" in info)


def samples_begin(pid):
    """Waits until the process has opened its perf events."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if any("perf_event" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")):
                return
        except FileNotFoundError:
            pass
        time.sleep(0.01)
    raise RuntimeError(f"process {pid} opened no perf event within 20 s")


def run_profiler(programs, command, target, seconds):
    """Runs a profiler; returns its CPU ns before its events were open and from then to its end, what bench-ticks counted, and its output."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        samples_begin(process.pid)
        begin = cpu_of(process.pid)
        ticks = subprocess.run([f"{programs}/bench/bench-ticks", "--owner", str(process.pid), "--target", str(target), "--seconds", str(seconds - 1.5)],
                               capture_output=True, text=True, check=True).stdout
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        output.seek(0)
        text = output.read()
    if status != 0:
        raise RuntimeError(f"{' '.join(command)}: {text[-500:]}")
    return begin, (usage.ru_utime + usage.ru_stime) * 1e9 - begin, Ticks(ticks), text


def cpu_of_command(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status != 0:
        raise RuntimeError(f"{' '.join(command)}: status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1e9


def ours(programs, target, hertz, seconds, folder):
    command = [f"{programs}/bin/borescope", "profile", "--pid", str(target), "--frequency", str(hertz), "--duration", f"{seconds}s", "-o", f"{folder}/ours.pb.gz"]
    start, cpu, ticks, text = run_profiler(programs, command, target, seconds)
    count = int(re.search(r"(\d+) samples in", text)[1])
    whole = re.search(r"Whole stacks: ([\d.]+) %", text)
    return {"start_s": start / 1e9, "kernel_us": ticks.mean_us(), "user_us": cpu / count / 1000, "ticks": ticks, "count": count, "whole_percent": float(whole[1]) if whole else 0.0}


def perf(programs, target, hertz, seconds, folder, stacks="fp"):
    data = f"{folder}/perf.data"
    command = ["perf", "record", "-e", "cpu-clock", "-F", str(hertz), "--call-graph", stacks, "-p", str(target), "-o", data, "--", "sleep", str(seconds)]
    start, cpu, ticks, text = run_profiler(programs, command, target, seconds)
    count = int(re.search(r"\((\d+) samples\)", text)[1])
    naming = cpu_of_command(["perf", "script", "-i", data, "--no-inline", "-F", "ip,sym"])
    return {"start_s": start / 1e9, "kernel_us": ticks.mean_us(), "record_us": cpu / count / 1000, "user_us": (cpu + naming) / count / 1000, "ticks": ticks, "count": count}


def empty(programs, target, hertz, seconds):
    text = subprocess.run([f"{programs}/bench/bench-ticks", "--empty", str(hertz), "--target", str(target), "--seconds", str(seconds)],
                          capture_output=True, text=True, check=True).stdout
    ticks = Ticks(text)
    return {"kernel_us": ticks.mean_us(), "ticks": ticks}


def longest_us(rounds, who):
    return max(r[who]["ticks"].target["max_ns"] for r in rounds) / 1000


def compare(programs, hertz, pairs, seconds, quiet):
    """Medians over pairs, each of the three alike in one round, in an order that rotates."""
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        steps = {"empty": lambda t: empty(programs, t, hertz, min(seconds, 4)), "ours": lambda t: ours(programs, t, hertz, seconds, folder),
                 "perf": lambda t: perf(programs, t, hertz, seconds, folder)}
        for number in range(pairs):
            names = list(steps)
            names = names[number % 3:] + names[:number % 3]
            with quiet(), Load(programs) as target:
                rounds.append({name: steps[name](target) for name in names})
    median = lambda get: statistics.median(get(r) for r in rounds)
    above = lambda r, who: r[who]["kernel_us"] - r["empty"]["kernel_us"]
    whole = lambda r, who, user="user_us": above(r, who) + r[who][user]
    return {
        "hertz": hertz, "pairs": pairs, "seconds": seconds, "samples": sum(r["ours"]["count"] for r in rounds),
        "empty_us": median(lambda r: r["empty"]["kernel_us"]),
        "ours_kernel_us": median(lambda r: above(r, "ours")), "perf_kernel_us": median(lambda r: above(r, "perf")),
        "ours_user_us": median(lambda r: r["ours"]["user_us"]), "perf_user_us": median(lambda r: r["perf"]["user_us"]),
        "perf_record_us": median(lambda r: r["perf"]["record_us"]),
        "kernel_ratio": median(lambda r: above(r, "ours") / above(r, "perf")), "user_ratio": median(lambda r: r["ours"]["user_us"] / r["perf"]["user_us"]),
        "ratio": median(lambda r: whole(r, "ours") / whole(r, "perf")),
        "record_ratio": median(lambda r: whole(r, "ours") / whole(r, "perf", "record_us")),
        "ours_start_s": median(lambda r: r["ours"]["start_s"]), "perf_start_s": median(lambda r: r["perf"]["start_s"]),
        "foreign_us": median(lambda r: r["ours"]["ticks"].mean_us("other")),
        "bins": pooled([r["ours"]["ticks"] for r in rounds]), "perf_bins": pooled([r["perf"]["ticks"] for r in rounds]),
        "max_us": {who: longest_us(rounds, who) for who in steps},
    }
