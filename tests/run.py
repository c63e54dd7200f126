#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the test suites and adds them up. See scripts/test.

A suite is a GoogleTest build (each case counts), or a program that prints one line a test:
  PASS name [detail]  |  FAIL name: reason  |  SKIP name: reason
"""
import fnmatch
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CI = os.environ.get("CI") == "true"
START = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - START:4.0f}s] {text}", flush=True)


class Totals:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], []

    def add(self, kind, name, detail=""):
        if kind == "PASS":
            self.passed += 1
        elif kind == "SKIP":
            self.skipped.append((name, detail))
        else:
            self.failed.append((name, detail))


def run(command, totals, suite, timeout, env=None):
    """Runs a program that speaks PASS/FAIL/SKIP; a program that ends badly without a FAIL line is one failure."""
    before, lines = len(totals.failed), []
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               env={**os.environ, **(env or {})}, start_new_session=True)
    seen = 0
    deadline = time.monotonic() + timeout
    # A program that hangs without a word is ended too; SIGTERM first, so that it can take down what it started.
    alarms = [threading.Timer(timeout + wait, os.killpg, (process.pid, number)) for wait, number in ((0, 15), (30, 9))]
    for alarm in alarms:
        alarm.daemon = True
        alarm.start()
    try:
        for line in process.stdout:
            line = line.rstrip("\n")
            lines.append(line)
            match = re.match(r"(PASS|FAIL|SKIP) ([^\s:]+):? ?(.*)", line)
            if match:
                seen += 1
                totals.add(match[1], match[2], match[3])
                say(f"  {line[:400]}")
        code = process.wait()
    finally:
        for alarm in alarms:
            alarm.cancel()
    if time.monotonic() >= deadline:
        totals.add("FAIL", suite, f"still running after {timeout} s")
    elif code != 0 and len(totals.failed) == before:
        totals.add("FAIL", suite, f"exit code {code} without a FAIL line")
    elif code == 0 and seen == 0:
        totals.add("FAIL", suite, "it ran no test")
    if len(totals.failed) > before:
        print("\n".join("    | " + line for line in lines[-60:]), flush=True)


def build(preset, *targets):
    say(f"building {preset} {' '.join(targets)}")
    done = subprocess.run([f"{ROOT}/scripts/build", preset, *targets], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print("\n".join(done.stdout.splitlines()[-80:]))
        say(f"the {preset} build failed")
        return False
    return True


def googletest(preset, totals, pattern, env=None):
    """Runs build/PRESET/tests/PATTERN; each GoogleTest case counts."""
    programs = sorted(glob.glob(f"{ROOT}/build/{preset}/tests/{pattern}"))
    if not programs:
        totals.add("FAIL", f"{preset}.{pattern}", "no test program was built")
    for program in programs:
        name = os.path.basename(program)
        report = f"{ROOT}/build/{preset}/{name}.json"
        if os.path.exists(report):
            os.unlink(report)
        try:
            done = subprocess.run([program, "--gtest_shuffle", f"--gtest_output=json:{report}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, errors="replace", timeout=900, env={**os.environ, **(env or {})})
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, code = (late.stdout or b"").decode(errors="replace"), None
        cases = failed = 0
        try:
            for suite in json.load(open(report))["testsuites"]:
                for case in suite["testsuite"]:
                    cases += 1
                    full = f"{preset}.{name}.{suite['name']}.{case['name']}"
                    if case.get("failures"):
                        failed += 1
                        totals.add("FAIL", full, case["failures"][0]["failure"][:600])
                    elif case.get("result") == "SKIPPED":
                        # GoogleTest prints the reason on the line after "Skipped".
                        reason = re.search(re.escape(case["name"]) + r"\n(?:.*\n)?(.*)", output)
                        totals.add("SKIP", full, reason[1] if reason else "")
                    else:
                        totals.add("PASS", full)
        except (OSError, ValueError, KeyError):
            cases = 0
        if code != 0 and not failed:
            totals.add("FAIL", f"{preset}.{name}", f"exit code {code}")
        if code == 0 and cases == 0:
            totals.add("FAIL", f"{preset}.{name}", "it ran no test")
        say(f"  {name} ({preset}): {cases} cases, {'ok' if code == 0 else 'FAILED'}")
        if code != 0:
            print("\n".join("    | " + line for line in output.splitlines()[-60:]), flush=True)


def why_no_bpf():
    """Empty when BPF and namespaces can be used here, else the reason: programs that need them are skipped with it."""
    if os.geteuid() != 0:
        return "not root"
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        return "the kernel has no BTF (/sys/kernel/btf/vmlinux)"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        return "namespaces are not permitted here: " + probe.stderr.strip()
    probe = subprocess.run(["bpftool", "prog", "list"], capture_output=True, text=True, env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"})
    if probe.returncode != 0:
        return "BPF is not permitted here: " + (probe.stderr.strip() or "bpftool prog list failed")
    return ""


def suite_layering(totals, long):
    run(["tests/layering/check"], totals, "layering", 60)


def suite_unit(totals, long):
    googletest("dev", totals, "*_test")


def suite_asan(totals, long):
    if not build("asan", "unit_tests"):
        return totals.add("FAIL", "asan.build", "it does not compile")
    googletest("asan", totals, "*_test", {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"})


def suite_tsan(totals, long):
    if not build("tsan", "unit_tests"):
        return totals.add("FAIL", "tsan.build", "it does not compile")
    googletest("tsan", totals, "*_test")


def suite_fuzz(totals, long):
    if not build("fuzz", "fuzzers"):
        return totals.add("FAIL", "fuzz.build", "it does not compile")
    seconds = 60 if long else 10
    programs = sorted(glob.glob(f"{ROOT}/build/fuzz/fuzz/*_fuzz"))
    if not programs:
        totals.add("FAIL", "fuzz", "no fuzz target was built")
    for program in programs:
        name = os.path.basename(program)
        corpus = f"{ROOT}/tests/fuzz/corpus/{name[:-5]}"
        work = f"{ROOT}/build/fuzz/work/{name}"
        os.makedirs(work, exist_ok=True)
        command = [program, work] + ([corpus] if os.path.isdir(corpus) else [])
        command += [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={work}/"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds + 120)
        except subprocess.TimeoutExpired:
            totals.add("FAIL", f"fuzz.{name}", f"still running {seconds + 120} s after its start")
            continue
        runs = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
        if done.returncode == 0 and runs and int(runs[1]) > 0:
            totals.add("PASS", f"fuzz.{name}")
            say(f"  PASS fuzz.{name} ({seconds} s, {runs[1]} runs)")
        else:
            totals.add("FAIL", f"fuzz.{name}", f"exit code {done.returncode}; input kept in {work}")
            print("\n".join("    | " + line for line in done.stderr.splitlines()[-40:]), flush=True)


    if long:
        for program in sorted(glob.glob(f"{ROOT}/build/fuzz/fuzz/*_planted")):
            planted(totals, program)


def planted(totals, program):
    """A target into which a read out of bounds was built: the fuzzer has to find it within a minute."""
    name = os.path.basename(program)
    with tempfile.TemporaryDirectory() as work:
        command = [program, work, f"{ROOT}/tests/fuzz/corpus/{name.removesuffix('_planted')}", "-max_total_time=60", f"-artifact_prefix={work}/"]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=180)
    if done.returncode != 0 and "heap-buffer-overflow" in done.stderr:
        totals.add("PASS", f"fuzz.{name}")
        say(f"  PASS fuzz.{name} (found after {time.monotonic() - start:.1f} s)")
    else:
        totals.add("FAIL", f"fuzz.{name}", "the planted fault was not found in 60 s")


def suite_script(path, timeout, needs_bpf=False, long_timeout=None):
    def suite(totals, long):
        reason = why_no_bpf() if needs_bpf else ""
        if reason:
            return totals.add("SKIP", path, reason)
        run([path] + (["--long"] if long else []), totals, path, (long_timeout or timeout * 6) if long else timeout)
    return suite


def suite_oracle(totals, long):
    if reason := why_no_bpf():
        return totals.add("SKIP", "tests/oracle", reason)
    googletest("dev", totals, "*_oracle", {"BORESCOPE_LONG": "1" if long else ""})


# name: (function, what it is, in --long only)
SUITES = {
    "layering": (suite_layering, "the arrows between the modules", False),
    "unit": (suite_unit, "GoogleTest, no privileges", False),
    "asan": (suite_asan, "the same under AddressSanitizer and UndefinedBehaviorSanitizer", False),
    "fuzz": (suite_fuzz, "each parser of foreign bytes, 10 s a target", False),
    "pprof": (suite_script("tests/pprof/run", 300), "what we write, read by go tool pprof and an independent decoder", False),
    "store": (suite_script("tests/store/run", 120), "the store from outside: refusals, queries, kill -9", False),
    "tables": (suite_script("tests/oracle/tables/run", 300), "unwind tables of this machine's files against readelf", False),
    "names": (suite_script("tests/oracle/names/run", 600), "inline chains, files and lines against llvm-symbolizer", False),
    "table_budget": (suite_script("tests/oracle/table_budget/run", 120, needs_bpf=True), "400 executables under a budget of unwind tables", True),
    "oracle": (suite_oracle, "the engine against cgroup files and known truth (root, BPF)", False),
    "paths": (suite_script("tests/oracle/paths/run", 900, needs_bpf=True, long_timeout=4 * 3600), "drawn programs of which every stack is known (--long: every build)", False),
    "naming": (suite_script("tests/oracle/naming/run", 300, needs_bpf=True), "names of real processes: debug files (one of 1 GiB), deleted, replaced, libraries, vDSO", False),
    "unwind": (suite_script("tests/oracle/unwind/run", 600, needs_bpf=True), "stacks of real programs beside elfutils, and call site by call site", False),
    "top": (suite_script("tests/oracle/top/run", 600, needs_bpf=True), "the first line of top: what is called from a drawn function and line (--long: a hundred runs of each)", False),
    "short_lives": (suite_script("tests/oracle/short_lives/run", 300, needs_bpf=True), "processes of milliseconds (--long: what is hard on tables)", False),
    "cli": (suite_script("tests/cli/run", 300, needs_bpf=True), "borescope profile on this machine", False),
    "browser": (suite_script("tests/browser/run", 300), "the flame graph's page in Chromium", True),
    "demo": (suite_script("tests/demo/run", 600, needs_bpf=True), "scripts/demo", False),
    "crds": (suite_script("tests/crds/run", 300), "CRDs and admission policy on a real API server", False),
    "e2e": (suite_script("e2e/run", 1200, needs_bpf=True), "real control plane, real nodes, real processes", False),
    "e2e-install": (suite_script("e2e/chart/run", 900, needs_bpf=True), "images, chart, real helm: install, profile pods of every shape, upgrade, rollback, uninstall", True),
    "kernels": (suite_script("e2e/kernels/run", 1200, long_timeout=7200), "Debian's kernels in QEMU: 6.1 (--long: 5.10 to 7.3, and 6.1 on arm64)", False),
    "tsan": (suite_tsan, "unit tests under ThreadSanitizer", True),
    "coverage": (suite_script("tests/coverage/run", 1200), "line coverage of the parsers by their fuzz targets", True),
    "mutants": (suite_script("tests/mutants/run", 60, needs_bpf=True, long_timeout=3600), "planted faults of engine and unwinder: they fit the sources (--long: each turns a named test red)", False),
    "bench": (suite_script("bench/run", 3600, needs_bpf=True), "writes docs/bars.md", True),
}


def main():
    args = sys.argv[1:]
    if "--list" in args:
        for name, (_, text, only_long) in SUITES.items():
            print(f"{name:11} {text}{' (--long)' if only_long else ''}")
        return 0
    long = "--long" in args or "--mutants" in args
    wanted = ["mutants"] if "--mutants" in args else [a for a in args if not a.startswith("--")]
    for name in wanted:
        if name not in SUITES:
            print(f"error: no suite {name!r}; there are: {', '.join(SUITES)}", file=sys.stderr)
            return 2
    totals = Totals()
    if not build("dev"):
        totals.add("FAIL", "dev.build", "it does not compile")
    else:
        for name, (function, text, only_long) in SUITES.items():
            if (wanted and name not in wanted) or (only_long and not long and not wanted):
                continue
            say(f"suite {name}: {text}")
            function(totals, long)

    allowed = [line.split("\t") for line in open(f"{ROOT}/tests/skips.txt") if line.strip() and not line.startswith("#")]
    for name, reason in totals.skipped:
        print(f"skipped: {name}: {reason}")
        if CI and not any(fnmatch.fnmatch(name, row[0]) for row in allowed):
            totals.failed.append((name, "skipped, and not listed in tests/skips.txt"))
    for name, reason in totals.failed:
        print(f"failed: {name}: {reason}")
    say("done")
    print(f"{totals.passed} passed, {len(totals.failed)} failed, {len(totals.skipped)} skipped", flush=True)
    return 1 if totals.failed or not totals.passed else 0


sys.exit(main())
