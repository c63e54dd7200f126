# SPDX-License-Identifier: Apache-2.0
"""Whether a stack is exactly the one that the program can have at that instruction."""
import os
import re
import subprocess

WORD = re.compile(r"(?<![A-Za-z_.])k_[a-z]{6,10}(?![a-z_])")
LAMBDA = re.compile(r"\{lambda|'lambda|\$_\d|closure")
OF_LIBRARY = re.compile(r"(^|\s)(std|core|alloc|__gnu_cxx)::")


def without_templates(name):
    """Drops template arguments; Rust's "<program::k_x as program::Callable>::call" keeps its type."""
    if rust := re.match(r"<([\w:]+) as [^>]+>(.*)", name):
        name = rust[1] + rust[2]
    out, depth = [], 0
    name = name.replace("operator<", "operator_less").replace("->", "")
    for c in name:
        if c == "<":
            depth += 1
        elif c == ">":
            depth -= 1
        elif depth == 0:
            out.append(c)
    return "".join(out)


def token(name):
    """(kind, key): "ours" of a function or a lambda, "stub" of a stub of the linker for one, "foreign"."""
    if name.startswith("_$LT$"):  # Rust's mangling of old, not undone
        name = name[1:].replace("$LT$", "<").replace("$GT$", ">").replace("$u20$", " ").replace("..", "::")
    stub = name.endswith(("@plt", "$plt"))
    text = without_templates(name)
    at = text.find("(", 1)
    head = text[:at] if at > 0 else text
    word = WORD.search(head)
    if word is None or OF_LIBRARY.search(text):  # "k_fa::{lambda} std::for_each(…)" has ours in its result
        return "foreign", name
    if stub:
        return "stub", word[0]
    if LAMBDA.search(text):
        return "ours", "lambda of " + word[0]
    return "ours", word[0]


TRAMPOLINE = bytes.fromhex("48c7c00f0000000f05")  # mov $rt_sigreturn, %rax; syscall


def trampolines(binary):
    """Names that an unnamed instruction of a signal trampoline in this file may have."""
    with open(binary, "rb") as f:
        data = f.read()
    names, at = set(), data.find(TRAMPOLINE)
    base = os.path.basename(binary)
    while at >= 0:
        names |= {f"{base}+0x{at + i:x}" for i in range(len(TRAMPOLINE) + 1)} | {f"{base}+0x{0x400000 + at + i:x}" for i in range(len(TRAMPOLINE) + 1)}
        at = data.find(TRAMPOLINE, at + 1)
    return names


def disassemble(program, binaries, objdump="objdump"):
    """(edges whose caller jumps, so that its frame is gone, to None if it jumps to a library; unnamed instructions of the linker's stubs: name by
    address). By objdump."""
    jumps, calls, stubs, gone = set(), set(), {}, set()
    for binary in binaries:
        base = os.path.basename(binary)
        text = subprocess.run([objdump, "-d", "--no-show-raw-insn", binary], capture_output=True, text=True, check=True).stdout
        inside = None
        for line in text.splitlines():
            if line.endswith(">:"):
                symbol = line[line.index("<") + 1:-2]
                inside = key_of_symbol(symbol)
                if symbol.endswith("@plt"):
                    for address in range(int(line.split()[0], 16), int(line.split()[0], 16) + 16):
                        stubs[f"{base}+0x{address:x}"] = symbol
                    inside = None
            elif inside is not None and re.search(r"\tjmp\s+\*0x[0-9a-f]+\(%rip\)", line):  # through the global offset table
                gone.add((inside, None))
            elif inside is not None and (m := re.search(r"\t(call|j[a-z]+|bl?|b\.[a-z]+|[ct]bn?z)\s.*<([^>+]+)>$", line)):
                target = key_of_symbol(m[2])
                if target is None and m[1] in ("jmp", "b"):
                    gone.add((inside, None))
                elif target != inside:
                    (calls if m[1] in ("call", "bl") else jumps).add((inside, target))
    for n in program.nodes.values():
        if n.parent is not None and n.high == 0 and (n.parent.key, n.key) in jumps - calls:
            gone.add((n.parent.key, n.key))
    return gone, stubs


def key_of_symbol(symbol):
    word = WORD.search(symbol)
    if word is None:
        return None
    nested = re.search(r"Ul\w*E\d*_?|\$_\d|closure", symbol[word.end():])
    return "lambda of " + word[0] if nested and not symbol.startswith("_ZNSt") else word[0]


class Judge:
    def __init__(self, program, gone, stubs, trampolines, tails, libraries_anywhere=False):
        """gone, stubs: disassemble(); tails: frames above each root to the thread's entry. libraries_anywhere: unoptimised Rust calls its
        own library for each operator."""
        self.stubs, self.trampolines = stubs, trampolines | {"__restore_rt", "__restore", "__kernel_rt_sigreturn"}
        self.nodes, self.gone, self.tails, self.anywhere = program.nodes, gone, tails, libraries_anywhere

    def caller(self, node):
        """(who stands above node, least and most frames of libraries between)."""
        low, high = node.low, node.high
        parent = node.parent
        while parent is not None and (parent.key, node.key) in self.gone:
            low, high = low + parent.low, high + parent.high
            node, parent = parent, parent.parent
        return parent, low, high

    def problem(self, frames, end):
        """None: exact. Else what is wrong, short, for counting."""
        if end != "none":
            return f"end: {end}"
        # A closure of Rust is a frame of a library, as far as we can know: it is inlined or not.
        tokens = [t if not t[1].startswith("lambda") or t[1] in self.nodes else ("foreign", t[1]) for t in map(token, (self.stubs.get(f, f) for f in frames))]
        at, n = 0, len(tokens)
        while True:  # a whole stack, and another one where an asynchronous handler interrupted it
            if tokens[at][1] in self.trampolines:  # a handler has just returned
                at += 1
            start = at
            while at < n and tokens[at][0] == "foreign":
                at += 1
            if at == n:
                return "no function of ours below libraries"
            kind, key = tokens[at]
            node = self.nodes.get(key)
            if node is None:
                return f"unknown function {key}"
            if at > start and not node.calls_libraries and not self.anywhere and not any((child.key, None) in self.gone for child in node.children):
                return f"{node.kind} {key} calls no library, found {tokens[at - 1][1]}"
            if kind == "stub":
                at, first = at + 1, False
                node, low, high = self.caller(node)
                if at >= n or tokens[at] != ("ours", node.key):
                    return f"stub of {key} not under {node.key}"
            else:
                first = True
            while True:  # tokens[at] is node
                count = 0
                while at < n and tokens[at] == ("ours", node.key):
                    at, count = at + 1, count + 1
                # The function itself may be interrupted at any depth of its recursion.
                if count > node.depth or (not first and count != node.depth):
                    return f"{node.kind} {node.key}: {count} times, expected {node.depth}"
                first = False
                if node.fresh:
                    at += 1  # the trampoline
                    break
                parent, low, high = self.caller(node)
                if parent is None:
                    rest = n - at
                    if node not in self.tails:
                        return f"no root: {node.key}"
                    if any(kind != "foreign" for kind, _ in tokens[at:]) or rest != self.tails[node]:
                        return f"{rest} frames above the root, expected {self.tails[node]}: {' '.join(frames[at:])}"
                    return None
                begin = at
                while at < n and tokens[at] != ("ours", parent.key):
                    kind, key = tokens[at]
                    if kind != "foreign":
                        return f"{node.kind} {node.key} under {key}, expected {parent.key}"
                    at += 1
                if at == n:
                    return f"{node.kind} {node.key}: {parent.key} is missing"
                if not low <= at - begin <= high:
                    return f"{node.kind} {node.key}: {at - begin} frames of libraries under {parent.kind} {parent.key}, expected {low} to {high}"
                node = parent
