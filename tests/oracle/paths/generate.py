# SPDX-License-Identifier: Apache-2.0
"""Draws a program and knows every stack that it can have.

The call graph is a tree: each function has one caller, so that the name of the interrupted function alone says what the whole stack must
be. What a library puts between two of our functions (qsort, std::sort, the trampoline of a signal) is "foreign": its frames are counted,
not named. A foreign leaf is believed only in functions that call libraries, and no such function calls another one: a frame that is
skipped right above a library shows.
"""
import random

MASK = "0x%xul"


class Node:
    """A function. parent: who calls it; min_foreign..max_foreign: how many frames of libraries stand between."""

    def __init__(self, key, kind, parent, module, low=0, high=0):
        self.key, self.kind, self.parent, self.module = key, kind, parent, module
        self.low, self.high = low, high
        self.children, self.times = [], {}
        self.calls_libraries = False
        self.depth = 1            # of its recursion
        self.fresh = False        # an asynchronous handler: above it stands any stack
        self.on_alternate = False
        self.budget = 0


class Program:
    def __init__(self, seed, lang):
        self.random = random.Random(f"{seed}/{lang}")
        self.lang = lang
        self.nodes = {}
        self.used = set()
        self.signals = 0
        self.roots = []
        for thread in range(2):
            root = self.new("loop", None, "main")
            self.roots.append(root)
            kinds = self.every_kind()
            self.random.shuffle(kinds)
            # Every kind that the language has comes at least once in each thread; the rest is drawn.
            self.required = kinds
            width = self.random.randint(4, 6)
            for _ in range(width):
                self.grow(root, self.random.randint(60_000, 240_000), self.random.randint(3, 24), False)
            while self.required:
                self.grow(root, 60_000, self.random.randint(3, 12), False)
        if lang != "rust":
            self.asynchronous = self.new("handler", None, "main")
            self.asynchronous.fresh = True
            self.asynchronous.on_alternate = self.random.random() < 0.5
            self.grow(self.asynchronous, 60_000, 3, True, plain=True)

    def every_kind(self):
        kinds = ["plain", "saves", "recursive", "pointer", "tail", "copy", "qsort", "large", "realigned", "noreturn"]
        if self.lang != "rust":
            kinds += ["dynamic", "signal", "signal"]
        if self.lang == "cpp":
            kinds += ["virtual", "sort", "stable_sort", "for_each", "function", "catch", "catch"]
        if self.lang == "rust":
            kinds += ["virtual", "function", "catch"]
        return kinds

    def word(self):
        while True:
            text = "k_" + "".join(self.random.choice("bdfgklmnprstvz") + self.random.choice("aeiou") for _ in range(self.random.randint(3, 5)))
            if text not in self.used:
                self.used.add(text)
                return text

    def new(self, kind, parent, module, low=0, high=0, key=None):
        node = Node(key or self.word(), kind, parent, module, low, high)
        self.nodes[node.key] = node
        if parent is not None:
            parent.children.append(node)
        return node

    def pick(self, parent, in_handler, plain, hot):
        draw = self.random
        # While an exception's way is made ready, the unwinder of libgcc writes over the frames that it will drop: nobody can read these
        # stacks, so that exceptions must not be most of what a program does.
        rare = {"catch"} | ({"noreturn"} if self.lang == "rust" else set())
        quiet = {"copy", "qsort", "sort", "stable_sort", "for_each", "function", "catch", "noreturn", "signal"}
        while True:
            if self.required and not plain and draw.random() < 0.6:
                kind = self.required[-1]
                allowed = not (hot and kind in rare) and not (in_handler and kind in ("large", "signal")) and not (parent.calls_libraries and kind in quiet)
                if allowed and not (parent.kind == "tail" and kind == "noreturn"):
                    self.required.pop()
                    return kind
            kind = draw.choice(["plain", "saves"] if plain else ["plain", "plain", "saves", "saves", "pointer", "realigned", *self.every_kind()])
            if (kind in quiet and parent.calls_libraries) or (kind in rare and (hot or draw.random() < 0.7)):
                continue
            if in_handler and kind in ("large", "signal"):
                continue
            return kind

    def module(self, parent):
        if self.lang == "rust" or parent.kind in ("tail",):
            return parent.module
        return self.random.choice(["main", "main", "library"]) if self.random.random() < 0.4 else parent.module

    def grow(self, parent, budget, depth, in_handler, times=None, plain=False, hot=False):
        """A subtree below parent that burns about `budget` steps."""
        draw = self.random
        if times is None:
            times = draw.choice([1, 1, 1, 1, 20, 200]) if not parent.calls_libraries else 1
        # A function that is called all the time is sampled in its first and last instructions.
        times = max(1, min(times, budget // 4))
        budget = max(4, budget // times)
        module = self.module(parent)
        if depth <= 0 or budget < 40:
            node = self.new(draw.choice(["leaf", "leaf", "leaf_saves", "leaf_array"]), parent, module)
            node.budget = budget
            parent.times[node.key] = times
            return node
        hot = hot or times > 1
        kind = self.pick(parent, in_handler, plain, hot)
        if times > 1 and kind in ("signal", "catch", "noreturn", "qsort", "sort", "stable_sort", "function"):
            budget, times = budget * times, 1
        node = self.new(kind, parent, parent.module if kind == "virtual" else module)
        node.budget = min(200, budget // 10)
        parent.times[node.key] = times
        below = lambda n, share=1.0, plain=plain: self.grow(n, int(budget * share), depth - 1, in_handler, plain=plain, hot=hot)  # noqa: E731
        if kind in ("plain", "saves", "pointer", "large", "realigned", "dynamic", "virtual"):
            for _ in range(draw.choice([1, 1, 1, 2, 3])):
                below(node, 0.6)
            node.calls_libraries = kind in ("virtual", "large", "realigned", "pointer") and self.lang == "rust"
        elif kind == "recursive":
            node.depth = draw.randint(2, 12)
            below(node)
        elif kind == "tail":
            self.grow(node, budget, depth - 1, in_handler, times=1, plain=True, hot=hot)
        elif kind == "copy":
            node.calls_libraries = True
        elif kind in ("qsort", "sort", "stable_sort"):
            node.calls_libraries = True
            inner = self.new("compare", node, node.module, *((0, 40) if kind != "qsort" or self.lang == "rust" else (1, 24)))
            self.grow(inner, budget // 80, 1, in_handler, times=1, plain=True, hot=hot)
        elif kind in ("for_each", "function"):
            node.calls_libraries = True
            if self.lang == "cpp":
                inner = self.new("lambda", node, node.module, 0, 12, key="lambda of " + node.key)
                self.grow(inner, budget // 4, depth - 2, in_handler, times=1, plain=True, hot=hot)
            else:
                child = self.grow(node, budget, depth - 2, in_handler, times=1, plain=True, hot=hot)
                child.low, child.high = 0, 12
        elif kind == "signal":
            node.calls_libraries = True
            inner = self.new("handler", node, "main", 2, 8)
            inner.number = self.signals
            self.signals += 1
            inner.on_alternate = draw.random() < 0.5
            self.grow(inner, budget, depth - 2, True, plain=draw.random() < 0.5, hot=hot)
        elif kind in ("noreturn", "catch"):
            node.calls_libraries = True
            middle = self.new("falls_off", node, node.module, *((0, 12) if self.lang == "rust" else (0, 0)))
            inner = self.new("escapes", middle, node.module)
            inner.calls_libraries = True
            inner.back_to = node
            self.grow(inner, budget // 2, 1, in_handler, times=1, plain=True, hot=hot)
            if kind == "catch":
                self.grow(node, budget // 2, depth - 2, in_handler, times=1, plain=True, hot=hot)
        return node


class Source:
    """C and C++."""

    def __init__(self, program):
        self.p, self.draw = program, random.Random(program.random.random())
        self.cpp = program.lang == "cpp"
        self.callbacks = [n for n in program.nodes.values() if n.module == "main" and n.parent is not None and n.parent.module == "library"
                          and n.kind not in ("compare", "lambda", "handler", "virtual")]

    def constant(self):
        return MASK % (self.draw.getrandbits(40) | 1)

    def prototype(self, n):
        name = n.key
        if n.kind == "compare":
            return f"bool {name}(ulong x, ulong y)" if n.parent.kind != "qsort" else f"int {name}(const void* a, const void* b)"
        if n.kind == "handler":
            return f"void {name}(int signal_number)"
        if n.kind == "escapes":
            return f"__attribute__((noreturn)) void {name}(ulong x)"
        return f"void {name}(ulong x)"

    def call(self, caller, n, x="x"):
        times = caller.times.get(n.key, 1)
        argument = str(n.depth - 1) if n.kind == "recursive" else x if times == 1 else f"{x} + i"
        name = n.key
        if n.kind == "handler":
            return f"raise(SIGRTMIN + {n.number});"
        if n.kind == "virtual":
            name = f"use_{name}->call"
        elif n in self.callbacks:
            name = "callback_" + n.key
        elif caller.kind == "pointer":
            name = "pointer_to_" + n.key
        if times == 1:
            return f"{name}({argument});"
        return f"for (ulong i = 0; i < {times}; ++i) {name}({argument});"

    def burn(self, steps, x="x"):
        return f"for (ulong j = 0; j < {max(1, steps)}; ++j) {x} = {x} * {self.constant()} + {self.constant()};" if steps > 3 else f"{x} = {x} * {self.constant()};"

    def calls(self, n, x="x"):
        return "\n  ".join(self.call(n, c, x) + f" SINK = SINK + {self.constant()};" for c in n.children)

    def body(self, n):
        d, k = self.draw, n.kind
        burn = self.burn(n.budget)
        after = f"SINK = SINK + {self.constant()};"
        if k == "loop":
            return f"for (;;) {{ ulong x = SINK; {self.calls(n)} }}"
        if k == "leaf":
            return f"{burn} SINK = x;"
        if k == "leaf_saves":
            names = [f"v{i}" for i in range(d.randint(8, 13))]
            start = " ".join(f"ulong {v} = x ^ {self.constant()};" for v in names)
            step = " ".join(f"{a} = {a} * 5 + {b};" for a, b in zip(names, names[1:] + names[:1]))
            return f"{start} for (ulong j = 0; j < {max(1, n.budget // 12)}; ++j) {{ {step} }} SINK = {' ^ '.join(names)};"
        if k == "leaf_array":
            size = d.choice([4, 8, 12, 40])
            return f"volatile ulong block[{size}]; for (ulong j = 0; j < {max(1, n.budget // 3)}; ++j) {{ x = x * 7 + {self.constant()}; block[x % {size}] = x; }} SINK = block[x % {size}];"
        if k == "copy":
            size = d.choice([64, 500, 4000, 20000])
            times = max(1, n.budget * 10 // (20 + size // 16))
            return (f"static char from[{size}], to[{size}]; for (ulong j = 0; j < {times}; ++j) {{ memcpy(to, from, {size} - (SINK & 7)); HIDE(to); "
                    f"memset(from, (int)j, {size} - (SINK & 7)); HIDE(from); }} {after}")
        if k in ("plain", "pointer", "falls_off", "virtual"):
            text = f"{burn} SINK = x; {self.calls(n)}"
            return text if k != "falls_off" else f"{burn} SINK = x; {self.call(n, n.children[0])}"
        if k == "tail":
            return f"{burn} SINK = x; {self.call(n, n.children[0])}"
        if k == "saves":
            names = [f"v{i}" for i in range(d.randint(3, 8))]
            start = " ".join(f"ulong {v} = x * {self.constant()};" for v in names)
            return f"{start} {self.calls(n)} SINK = SINK + ({' ^ '.join(names)});"
        if k == "large":
            size = 65536 + 16 * d.randint(1, 2000)
            return f"volatile char block[{size}]; block[0] = (char)x; block[{size - 1}] = (char)(x >> 8); {self.calls(n)} SINK = SINK + block[0] + block[{size - 1}];"
        if k == "realigned":
            size = d.choice([8, 16, 24])
            align = d.choice([32, 64, 128])
            more = "volatile char* more = (volatile char*)__builtin_alloca(16 + (x & 63)); more[0] = (char)x;" if d.random() < 0.5 else "volatile char more[1] = {1};"
            return (f"ALIGNED({align}) volatile ulong block[{size}]; {more} for (ulong j = 0; j < {size}; ++j) block[j] = x + j; HIDE(block); "
                    f"{self.calls(n)} SINK = SINK + block[x % {size}] + (ulong)more[0];")
        if k == "dynamic":
            return f"volatile char* block = (volatile char*)__builtin_alloca(64 + (x & 1023)); block[3] = (char)x; {self.calls(n)} SINK = SINK + (ulong)block[3];"
        if k == "recursive":
            return f"if (x == 0) {{ {self.calls(n)} }} else {{ {n.key}(x - 1); {after} }}"
        if k == "compare":
            if n.parent.kind == "qsort":
                return f"ulong x = *(const ulong*)a, y = *(const ulong*)b; {self.calls(n)} return x < y ? -1 : x > y;"
            return f"{self.calls(n)} return x < y;"
        if k == "handler":
            return f"ulong x = (ulong)signal_number; {burn} {self.calls(n)} SINK = x;"
        fill = f"ulong values[20]; for (int j = 0; j < 20; ++j) values[j] = x = x * {self.constant()} + {self.constant()};"
        inner = n.children[0] if n.children else None
        if k == "qsort":
            return f"{fill} qsort(values, 20, sizeof(ulong), {inner.key}); SINK = SINK + values[3];"
        if k in ("sort", "stable_sort"):
            return f"{fill} std::{k}(values, values + 20, {inner.key}); SINK = SINK + values[3];"
        if k in ("for_each", "function"):
            text = f"[&](ulong y) __attribute__((noinline)) {{ {self.calls(inner, 'y')} x += y; }}"
            if k == "for_each":
                return f"ulong values[4] = {{x, x + 1, x + 2, x + 3}}; std::for_each(values, values + 4, {text}); SINK = x;"
            return f"std::function<void(ulong)> f = {text}; f(x); f(x + 1); SINK = x;"
        if k == "signal":
            return f"{burn} SINK = x; {self.call(n, inner)} {after}"
        if k == "escapes":
            leave = f"longjmp(jump_{n.back_to.key}, 1);" if n.back_to.kind == "noreturn" else "throw Escape{x};"
            return f"{burn} {self.calls(n)} {leave}"
        if k == "noreturn":
            return f"if (_setjmp(jump_{n.key}) == 0) {{ {self.call(n, inner)} }} {after}"
        if k == "catch":
            caught = self.call(n, n.children[1], "(x + e.value)")
            return f"try {{ {self.call(n, inner)} }} catch (const Escape& e) {{ SINK = e.value; {caught} {after} }} {after}"
        raise ValueError(k)

    def function(self, n):
        if n.kind == "lambda":
            return ""
        if n.kind == "virtual":
            return f"NOINLINE void {n.key}::call(ulong x) {{\n  {self.body(n)}\n}}\n"
        return f"NOINLINE {self.prototype(n)} {{\n  {self.body(n)}\n}}\n"

    def text(self, module):
        """The whole text of one module; "all" for both in one (static programs keep two files all the same)."""
        nodes = list(self.p.nodes.values())
        out = ["#define _GNU_SOURCE 1", "#include <pthread.h>", "#include <setjmp.h>", "#include <signal.h>", "#include <stdio.h>", "#include <stdlib.h>",
               "#include <string.h>", "#include <sys/prctl.h>", "#include <sys/time.h>", "#include <unistd.h>"]
        if self.cpp:
            out += ["#include <algorithm>", "#include <functional>", "#include <thread>"]
        else:
            out += ["#include <stdbool.h>"]
        out += ["typedef unsigned long ulong_;", "#define ulong ulong_",
                "#ifdef __clang__\n#define NOINLINE __attribute__((noinline))\n#else\n#define NOINLINE __attribute__((noinline, noclone))\n#endif",
                "#define ALIGNED(n) __attribute__((aligned(n)))", '#define HIDE(p) __asm__ volatile("" : : "r"(p) : "memory")',
                f"#define SINK sink_{module}", f"static volatile ulong sink_{module} = {self.constant()};"]
        if self.cpp:
            out += ["struct Escape { ulong value; };", "struct Callable { virtual void call(ulong x) = 0; };", 'extern "C" {']
        out += [f"{self.prototype(n)};" for n in nodes if n.kind not in ("lambda", "virtual")]
        for n in self.callbacks:
            out.append(f"{'extern ' if module == 'main' else ''}void (*volatile callback_{n.key})(ulong);")
        if self.cpp:
            out.append("}")
        mine = [n for n in nodes if n.module == module]
        for n in mine:
            if n.kind == "noreturn":
                out.append(f"static jmp_buf jump_{n.key};")
            if n.kind == "pointer":
                for c in n.children:
                    if c not in self.callbacks and c.kind != "virtual":
                        out.append(f"static void (*volatile pointer_to_{c.key})(ulong) = {c.key};")
            if n.kind == "virtual":
                out += [f"struct {n.key} : Callable {{ void call(ulong x) override; }};", f"static {n.key} object_{n.key};",
                        f"static Callable* volatile use_{n.key} = &object_{n.key};"]
        for n in sorted(mine, key=lambda n: self.draw.random()):
            text = self.function(n)
            if self.cpp and n.kind != "virtual" and text:
                text = 'extern "C" ' + text
            out.append(text)
        return "\n".join(out) + (self.main() if module == "main" else "")

    def main(self):
        p = self.p
        handlers = [n for n in p.nodes.values() if n.kind == "handler"]
        out = ["", "static char alternate[2][1 << 20];", "static void use_alternate_stack(int thread) {",
               "  stack_t stack; memset(&stack, 0, sizeof stack); stack.ss_sp = alternate[thread]; stack.ss_size = sizeof alternate[0]; sigaltstack(&stack, NULL);", "}",
               "static void handle(int number, void (*handler)(int), int flags) {",
               "  struct sigaction action; memset(&action, 0, sizeof action); action.sa_handler = handler; action.sa_flags = flags | SA_RESTART;",
               "  sigaction(number, &action, NULL);", "}",
               "static void* body(void* unused) {", "  (void)unused; use_alternate_stack(1);", f"  {p.roots[1].key}(2);", "  return NULL;", "}",
               "int main(void) {", "  prctl(PR_SET_PDEATHSIG, SIGKILL); alarm(900);", "  use_alternate_stack(0);"]
        for n in self.callbacks:
            out.append(f"  callback_{n.key} = {n.key};")
        for n in handlers:
            number = "SIGPROF" if n.fresh else f"SIGRTMIN + {n.number}"
            out.append(f"  handle({number}, {n.key}, {'SA_ONSTACK' if n.on_alternate else '0'});")
        out += ["  struct itimerval timer = {{0, 4000}, {0, 4000}};", "  setitimer(ITIMER_PROF, &timer, NULL);"]
        if self.cpp:
            out.append("  std::thread thread(body, nullptr);")
        else:
            out.append("  pthread_attr_t large; pthread_attr_init(&large); pthread_attr_setstacksize(&large, 8 << 20);")  # musl: 128 KiB
            out.append("  pthread_t thread; if (pthread_create(&thread, &large, body, NULL) != 0) return 1;")
        out += ['  puts("ready"); fflush(stdout);', f"  {p.roots[0].key}(1);", "  return 0;", "}", ""]
        return "\n".join(out)


class RustSource:
    def __init__(self, program):
        self.p, self.draw = program, random.Random(program.random.random())

    def constant(self):
        return f"0x{self.draw.getrandbits(40) | 1:x}"

    def call(self, caller, n, x="x"):
        times = caller.times.get(n.key, 1)
        argument = str(n.depth - 1) if n.kind == "recursive" else x if times == 1 else f"{x} ^ i"
        name = {"virtual": f"black_box(&{n.key} as &dyn Callable).call"}.get(n.kind, n.key)
        if caller.kind == "pointer" and n.kind != "virtual":
            name = f"black_box({n.key} as fn(u64))"
        if times == 1:
            return f"{name}({argument});"
        return f"let mut i = 0; while i < {times} {{ {name}({argument}); i += 1; }}"

    def burn(self, steps):
        return f"let mut j = 0; while j < {max(1, steps)} {{ x = x * {self.constant()} + {self.constant()}; j += 1; }}"

    def calls(self, n, x="x"):
        return "\n  ".join(self.call(n, c, x) + f" SINK ^= {self.constant()};" for c in n.children)

    def body(self, n):
        d, k = self.draw, n.kind
        burn = self.burn(n.budget)
        inner = n.children[0] if n.children else None
        if k == "loop":
            return f"loop {{ x = SINK; {self.calls(n)} }}"
        if k in ("leaf", "leaf_array"):
            return f"{burn} SINK = x;"
        if k == "leaf_saves":
            names = [f"v{i}" for i in range(d.randint(8, 13))]
            start = " ".join(f"let mut {v} = x ^ {self.constant()};" for v in names)
            step = " ".join(f"{a} = {a} * 5 + {b};" for a, b in zip(names, names[1:] + names[:1]))
            return f"{start} let mut j = 0; while j < {max(1, n.budget // 12)} {{ {step} j += 1; }} SINK = {' ^ '.join(names)};"
        if k == "copy":
            size = d.choice([64, 500, 4000, 20000])
            times = max(1, n.budget * 10 // (20 + size // 16))
            return (f"let mut from = [1u8; {size}]; black_box(&mut from); let mut to = [0u8; {size}]; let mut j = 0; while j < {times} {{ "
                    f"to[..{size} - (j & 7)].copy_from_slice(&from[..{size} - (j & 7)]); black_box(&mut to); black_box(&mut from); j += 1; }} SINK ^= to[3] as u64 ^ {self.constant()};")
        if k in ("plain", "pointer", "virtual"):
            return f"{burn} SINK = x; {self.calls(n)}"
        if k in ("tail", "falls_off"):
            return f"{burn} SINK = x; {self.call(n, inner)[:-1]}"
        if k == "saves":
            names = [f"v{i}" for i in range(d.randint(3, 8))]
            start = " ".join(f"let {v} = x * {self.constant()};" for v in names)
            return f"{start} {self.calls(n)} SINK ^= {' ^ '.join(names)};"
        if k == "large":
            return f"let mut block = [x as u8; {65536 + 16 * d.randint(1, 300)}]; black_box(&mut block); {self.calls(n)} SINK ^= block[(x & 4095) as usize] as u64; black_box(&mut block);"
        if k == "realigned":
            return f"let mut block = black_box(Aligned([x; 8])); {self.calls(n)} SINK ^= block.0[(x & 7) as usize]; black_box(&mut block);"
        if k == "recursive":
            return f"if x == 0 {{ {self.calls(n)} }} else {{ {n.key}(x - 1); SINK ^= {self.constant()}; }}"
        if k == "qsort":
            return (f"let mut values = [0u64; 20]; let mut j = 0; while j < 20 {{ x = x * {self.constant()} + {self.constant()}; values[j] = x; j += 1; }} "
                    f"values.sort_by({inner.key}); SINK ^= values[3];")
        if k == "function":
            return f"let f: Box<dyn Fn(u64)> = black_box(Box::new(move |y: u64| {{ unsafe {{ {self.call(n, inner, 'y')} SINK ^= x; }} }})); f(x); f(x ^ 1); SINK ^= x;"
        if k == "escapes":
            return f"{burn} {self.calls(n)} SINK = x; std::panic::resume_unwind(Box::new(x))"
        if k in ("noreturn", "catch"):
            after = f"SINK ^= {self.constant()};"
            caught = f"{self.call(n, n.children[1])} {after}" if k == "catch" else ""
            return f"if std::panic::catch_unwind(move || {{ {inner.key}(x); }}).is_err() {{ {caught} }} {after}"
        raise ValueError(k)

    def text(self, module):
        out = ["#![allow(unknown_lints, unused_mut, unused_variables, unused_assignments, unused_unsafe, unreachable_code, unused_must_use, non_camel_case_types, static_mut_refs)]",
               "use std::cmp::Ordering;",
               # std::hint's is younger than the compiler of Debian 12.
               "#[inline(always)] fn black_box<T>(x: T) -> T { let kept = std::mem::ManuallyDrop::new(x); unsafe { std::ptr::read_volatile(&*kept) } }", f"static mut SINK: u64 = {self.constant()};",
               "#[repr(align(64))] struct Aligned([u64; 8]);", "trait Callable { fn call(&self, x: u64); }"]
        for n in sorted(self.p.nodes.values(), key=lambda n: self.draw.random()):
            if n.kind == "compare":
                out.append(f"#[inline(never)] fn {n.key}(a: &u64, b: &u64) -> Ordering {{ unsafe {{ let x = *a; {self.calls(n)} "
                           "if x < *b { Ordering::Less } else if x > *b { Ordering::Greater } else { Ordering::Equal } } }")
            elif n.kind == "virtual":
                out.append(f"struct {n.key};\nimpl Callable for {n.key} {{\n #[inline(never)] fn call(&self, mut x: u64) {{ unsafe {{\n  {self.body(n)}\n }} }}\n}}")
            else:
                returns = " -> !" if n.kind in ("escapes", "falls_off", "loop") else ""
                out.append(f"#[inline(never)] fn {n.key}(mut x: u64){returns} {{ unsafe {{\n  {self.body(n)}\n}} }}")
        out += ['extern "C" { fn prctl(option: i32, argument: u64) -> i32; fn alarm(seconds: u32) -> u32; }',
                f'fn main() {{ unsafe {{ prctl(1, 9); alarm(900); }} std::thread::spawn(|| {{ {self.p.roots[1].key}(2); }}); println!("ready"); {self.p.roots[0].key}(1); }}', ""]
        return "\n".join(out)
