# SPDX-License-Identifier: Apache-2.0
"""Compares sampled stacks with what a workload of e2e/workloads says of itself: its own thread clocks, by path."""
import json
import math
import re


# How many of a program's samples reach an entry that its report names, at least. The Go runtime's own threads begin elsewhere.
REACH = {"cpp": 0.995, "go": 0.98}


def load_report(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines if line.endswith("}\n")]


def during(reports, start_ns, end_ns):
    """The truth of a window: the paths of the last report with cpu_ns = what was used between the reports nearest to the window's ends."""
    def nearest(ns):
        return min(reports, key=lambda r: abs(r["realtime_ns"] - ns))
    first, last = nearest(start_ns), nearest(end_ns)
    assert first is not last, "the workload reported only once in the window"
    truth = dict(last)
    truth["paths"] = [{**b, "cpu_ns": b["cpu_ns"] - a["cpu_ns"]} for a, b in zip(first["paths"], last["paths"])]
    truth["total_ns"] = last["total_ns"] - first["total_ns"]
    return truth


def plain(name):
    """A function's name without parameters and compiler suffixes."""
    return re.sub(r"(?<=\w)\(.*|\.abi0|\[clone.*|\.(isra|constprop|part|cold)\.\d+", "", name).strip()


class Verdict:
    def __init__(self):
        self.problems = []
        self.n = 0            # samples
        self.reach = 1.0      # how many of them reach main or the thread's function, and are not cut
        self.cuts = {}        # the others: how many by reason
        self.smallest = 0.0   # smallest error of a share that 5 sigma could have seen

    def __str__(self):
        cuts = "".join(f", {count} {reason}" for reason, count in sorted(self.cuts.items(), key=lambda item: -item[1]))
        return (f"n={self.n}, {100 * self.reach:.2f} % reach main or the thread's function{cuts}, an error of {100 * self.smallest:.2f} points would have "
                "been seen")


def compare(samples, truths, reach):
    """samples: (frames leaf first, weight, how many); truths: one report (window) for each workload process that they are of; reach: how many
    of the samples must reach an entry at least."""
    verdict = Verdict()
    paths, edges, entries, copiers, drawn_names = {}, set(), set(), set(), set()
    total_truth = sum(t["total_ns"] for t in truths)
    for truth in truths:
        entries |= {plain(name) for name in truth["entry"]}
        for path in truth["paths"]:
            names = tuple(plain(name) for name in path["path"])
            drawn_names |= set(names)
            if path["callback"]:
                drawn_names.add(plain(path["callback"]))
            edges |= set(zip(names, names[1:]))
            if path["kind"] == "burn":
                paths[names] = paths.get(names, 0) + path["cpu_ns"]
            else:
                copiers.add(names[-1])
    weight_total = 0
    seen = {}
    reached = wrong = 0
    example = ""
    counted = 0
    for frames, weight, count in samples:
        frames = [plain(frame) if not frame.startswith("[") else frame for frame in frames]
        cut = frames[-1] if frames and frames[-1].startswith("[truncated") else ""
        drawn = tuple(reversed([f for f in frames if f in drawn_names]))
        counted += count
        weight_total += weight
        # No impossible pair of neighbours: what stands next to each other must call each other.
        for callee, caller in zip(frames, frames[1:]):
            if callee in drawn_names and caller in drawn_names and (caller, callee) not in edges:
                wrong += count
                example = f"{callee} below {caller}: {frames}"
            if re.match(r"(__)?mem(cpy|move)|msort|qsort|runtime\.memmove", callee) and caller in drawn_names and caller not in copiers:
                wrong += count
                example = f"{callee} charged to {caller}: {frames}"
        if cut:
            verdict.cuts[cut] = verdict.cuts.get(cut, 0) + count
        if any(f in entries for f in frames) and not cut:
            reached += count
        elif not example:
            example = f"does not reach an entry: {frames}"
        seen[drawn] = seen.get(drawn, 0) + weight
    if not counted:
        verdict.problems.append("no samples")
        return verdict
    verdict.n = counted
    verdict.reach = reached / counted
    if wrong:
        verdict.problems.append(f"{wrong} impossible caller/callee pairs, e.g. {example}")
    if verdict.reach < reach:
        verdict.problems.append(f"only {100 * verdict.reach:.2f} % of {counted} samples reach an entry ({verdict.cuts}), e.g. {example}")
    for names, cpu_ns in paths.items():
        expected = cpu_ns / total_truth
        # The functions above the leaf take a little time of their own; a sample there belongs to no leaf.
        got = seen.get(names, 0) / weight_total
        sigma = math.sqrt(max(expected * (1 - expected), 1e-4) * 1.03 / counted)
        verdict.smallest = max(verdict.smallest, 5 * sigma)
        if abs(got - expected) > 5 * sigma + 0.002:
            verdict.problems.append(f"{names[-1]}: sampled {100 * got:.2f} %, its own clock says {100 * expected:.2f} % (5 sigma = {500 * sigma:.2f} points)")
    return verdict
