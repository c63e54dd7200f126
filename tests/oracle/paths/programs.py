# SPDX-License-Identifier: Apache-2.0
"""A drawn program as files, and what samples of it have to look like."""
import collections
import json
import os
import re
import subprocess

import generate
import judge

COMPILERS = {"c-gcc": ["gcc"], "cpp-gcc": ["g++"], "c-clang": ["clang-19"], "cpp-clang": ["clang++-19"], "c-musl": ["musl-gcc"]}
CROSS_COMPILERS = {"c-gcc": ["aarch64-linux-gnu-gcc"], "cpp-gcc": ["aarch64-linux-gnu-g++"], "c-clang": ["clang-19", "--target=aarch64-linux-gnu"],
                   "cpp-clang": ["clang++-19", "--target=aarch64-linux-gnu"]}
LIBC = os.path.realpath("/lib/x86_64-linux-gnu/libc.so.6")
EXACT = 0.995  # of the samples
TOOLS = ["c-gcc", "c-clang", "cpp-gcc", "cpp-clang", "rust", "c-musl"]
SETTINGS = {"tool": TOOLS, "optimise": ["O0", "O2", "O3", "Os"], "link": ["pie", "nopie", "static", "staticpie"], "frame_pointer": ["keep", "omit"],
            "lto": ["nolto", "lto"]}


def possible(build):
    tool, _, link, _, _ = build
    return tool != "c-musl" or link != "staticpie"  # musl-gcc makes none


def sh(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:300]}: {(done.stderr + done.stdout)[-1500:]}")
    return done.stdout


class Drawn:
    """Of a seed and a build (one value of each of SETTINGS), compiled into a folder, for this machine or (cross) for aarch64.
    binaries: the files with code, the program first."""

    def __init__(self, seed, build, folder, cross=False):
        self.cross = cross
        self.build, self.name, self.folder = build, "-".join(build), folder
        self.program = generate.Program(f"{seed}/{self.name}", {"c": "c", "cpp": "cpp", "rust": "rust"}[build[0].split("-")[0]])
        os.makedirs(folder)
        self.binaries = self._compile()
        self.gone, self.stubs = judge.disassemble(self.program, self.binaries, "aarch64-linux-gnu-objdump" if cross else "objdump")

    def _compile(self):
        tool, optimise, link, frame_pointer, lto = self.build
        program, folder = self.program, self.folder
        out = f"{folder}/program"
        if tool == "rust":
            with open(f"{folder}/program.rs", "w") as f:
                f.write(generate.RustSource(program).text("main"))
            options = ["-C", f"opt-level={optimise[1:]}", "-C", f"force-frame-pointers={'yes' if frame_pointer == 'keep' else 'no'}", "-C", "overflow-checks=off"]
            options += ["-C", f"relocation-model={'pie' if link in ('pie', 'staticpie') else 'static'}"]
            options += ["-C", "target-feature=+crt-static"] if link.startswith("static") else []
            options += ["-C", "lto=fat", "-C", "codegen-units=1"] if lto == "lto" else []
            sh("rustc", "--edition", "2021", *options, f"{folder}/program.rs", "-o", out)
            return [out]
        language, compiler = tool.split("-")
        command = (CROSS_COMPILERS if self.cross else COMPILERS)[tool]
        options = [f"-{optimise}", "-w", "-pthread", "-fno-omit-frame-pointer" if frame_pointer == "keep" else "-fomit-frame-pointer"]
        if compiler == "clang":
            options += ["-fuse-ld=lld"]
            options += ["-mno-omit-leaf-frame-pointer"] if frame_pointer == "keep" else []
        options += ["-flto"] if lto == "lto" else []
        position = {"pie": ["-fPIE"], "nopie": ["-fno-pie"], "static": ["-fno-pie"], "staticpie": ["-fPIE"]}[link]
        sources = {}
        for module in ("main", "library"):
            sources[module] = f"{folder}/{module}.{'cc' if language == 'cpp' else 'c'}"
            with open(sources[module], "w") as f:
                f.write(generate.Source(program).text(module))
        if link.startswith("static"):
            flags = ["-static"] + (["-no-pie"] if compiler != "clang" else []) if link == "static" else ["-static-pie"]
            sh(*command, *options, *position, *sources.values(), *flags, "-o", out)
            return [out]
        library = f"{folder}/libpaths.so"
        sh(*command, *options, "-fPIC", "-shared", sources["library"], "-o", library)
        sh(*command, *options, *position, sources["main"], library, "-pie" if link == "pie" else "-no-pie", f"-Wl,-rpath,{folder}", "-o", out)
        return [out, library]

    def frames_above_roots(self, pid):
        """How many frames stand above the roots, by eu-stack; {} where it cannot tell: musl has no call frame information, aarch64 runs elsewhere."""
        if self.build[0] == "c-musl" or self.cross:
            return {}
        keys = {root.key: root for root in self.program.roots}
        tails = {}
        for _ in range(5):
            text = subprocess.run(["eu-stack", "-n", "0", "-p", str(pid)], capture_output=True, text=True).stdout
            for thread in text.split("\nTID "):
                lines = [line for line in thread.splitlines() if line.startswith("#")]
                for i, line in enumerate(lines):
                    word = judge.WORD.search(line)
                    if word and word[0] in keys and re.search(r"_start|clone", lines[-1]):
                        tails[keys[word[0]]] = len(lines) - 1 - i
            if len(tails) == len(keys):
                break
        return tails

    def judge(self, found, tails, main_tid):
        """Of samples, each a (tid, frames, end): how many are exact, a line of figures, and the problems: [(count, example, its frames)]."""
        tool, program = self.build[0], self.program
        learned = ""
        if len(tails) < len(program.roots):
            # Without an oracle: what most samples of the thread say, if they end where threads begin.
            learned = ", frames above the roots by majority"
            for root in program.roots:
                if root in tails:
                    continue
                counts = collections.Counter()
                for _, frames, end in found:
                    at = [i for i, f in enumerate(frames) if judge.token(f) == ("ours", root.key)]
                    # musl's clone is a local symbol: named by the function before it
                    if at and end == "none" and (tool == "c-musl" or re.search(r"_start|clone|\+0x", frames[-1])):
                        counts[len(frames) - 1 - at[0]] += 1
                if counts:
                    tails[root] = counts.most_common(1)[0][0]
        judged = judge.Judge(program, self.gone, self.stubs, set().union(*map(judge.trampolines, {*self.binaries, LIBC})), tails,
                             libraries_anywhere=tool == "rust" and self.build[1] == "O0")
        problems, examples = collections.Counter(), {}
        for tid, frames, end in found:
            problem = judged.problem(frames, end)
            if problem is None and any(judge.token(f)[1] == program.roots[tid == main_tid].key for f in frames):
                problem = "the other thread's root"
            if problem:
                shape = re.sub(r"k_[a-z]+", "k", problem)
                problems[shape] += 1
                examples.setdefault(shape, (problem, frames))
        exact = len(found) - sum(problems.values())
        text = (f"{len(found)} samples, exact {100 * exact / max(1, len(found)):.3f} %, smallest error seen {100 / max(1, len(found)):.3f} %, "
                f"{len(program.nodes)} functions, {len(self.gone)} tail calls{learned}")
        return exact, text, [(count, *examples[shape]) for shape, count in problems.most_common(8)]


def read_samples(lines):
    """[(tid, frames, end)] of `--samples`, without inlined functions: no call was made to them."""
    found = []
    for sample in map(json.loads, lines):
        inlined = set(sample.get("inlined", ()))
        found.append((sample["tid"], [f for i, f in enumerate(sample["frames"]) if i not in inlined], sample["end"]))
    return found


def show(problems):
    for count, problem, frames in problems:
        print(f"    {count} x {problem}\n        {' <- '.join(frames[:60])}", flush=True)
