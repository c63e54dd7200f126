# SPDX-License-Identifier: Apache-2.0
"""Programs drawn from a seed, of functions that compilers inline into each other over files: what they compute does not matter."""


def body(rng, calls, variable="x"):
    """Statements of C, C++ or Rust (without types) over an integer variable."""
    out = []
    for _ in range(rng.randint(2, 5)):
        kind = rng.randrange(4)
        if kind == 0 and calls:
            out.append(f"{variable} += {rng.choice(calls)}({variable} + {rng.randint(1, 99)});")
        elif kind == 1:
            out.append(f"{variable} ^= {variable} >> {rng.randint(1, 13)};")
        elif kind == 2:
            out.append(f"if ({variable} % {rng.randint(3, 17)} == 1) {{ {variable} = {variable} * {rng.randint(3, 99)} + {rng.choice(calls) if calls else ''}({variable}); }}")
        else:
            out.append(f"for (unsigned i = 0; i < ({variable} & {rng.randint(3, 31)}); ++i) {{ {variable} += g_data[i] * {rng.randint(3, 99)}u; }}")
    return out


def c_functions(rng, prefix, count, qualifiers, calls):
    """Text of `count` functions, each of which may call the ones before."""
    text, names = "", list(calls)
    for i in range(count):
        name = f"{prefix}_{i}_{rng.randrange(1 << 20):x}"
        lines = body(rng, names[-12:])
        gap = "\n" * rng.randint(1, 4)
        text += f"{gap}{rng.choice(qualifiers)} unsigned {name}(unsigned x) {{\n  " + "\n  ".join(lines) + "\n  return x;\n}\n"
        names.append(name)
    return text, names


def c_program(rng, folder):
    """Files of a C program; returns the sources to compile."""
    header, inlined = c_functions(rng, "step", 24, ["static inline", "static inline __attribute__((always_inline))"], [])
    (folder / "inc").mkdir(exist_ok=True)
    (folder / "inc/steps.h").write_text("#pragma once\nextern volatile unsigned g_data[32];\n" + header)
    sources, entries = [], []
    for part in range(3):
        text, names = c_functions(rng, f"part{part}", 16, ["static", "static inline", "__attribute__((noinline))", "static __attribute__((noinline, cold))"], inlined)
        entry = f"run_{part}"
        text += f"\nunsigned {entry}(unsigned x) {{\n" + "".join(f"  x += {n}(x);\n" for n in names[len(inlined):]) + "  return x;\n}\n"
        (folder / f"part{part}.c").write_text('#include "inc/steps.h"\n' + text)
        sources.append(f"part{part}.c")
        entries.append(entry)
    (folder / "main.c").write_text("#include <stdio.h>\nvolatile unsigned g_data[32];\n" + "".join(f"unsigned {e}(unsigned);\n" for e in entries)
                                   + "int main(int argc, char** argv) {\n  unsigned x = argc;\n  (void)argv;\n"
                                   + "".join(f"  x += {e}(x);\n" for e in entries) + '  printf("%u\\n", x);\n}\n')
    return sources + ["main.c"]


def cpp_program(rng, folder):
    """Files of a C++ program with namespaces, templates, closures, virtual functions and much of the standard library."""
    space = [f"ns_{rng.randrange(1 << 16):x}" for _ in range(3)]
    header, inlined = c_functions(rng, "step", 16, ["inline", "template <typename = void> inline", "static inline"], [])
    (folder / "inc").mkdir(exist_ok=True)
    (folder / "inc/steps.hpp").write_text(f"#pragma once\nextern volatile unsigned g_data[32];\nnamespace {space[0]} {{\nnamespace {{ inline unsigned hidden(unsigned x) {{ return x * 7 + g_data[3]; }} }}\n"
                                          + header + "}\n" + CPP_TYPES.replace("@", str(rng.randint(3, 99))))
    sources = []
    for part in range(2):
        text, names = c_functions(rng, f"part{part}", 10, ["static", "inline", "__attribute__((noinline))"], [f"{space[0]}::{n}" for n in inlined])
        text = f"namespace {space[1]}::{space[2]} {{\n{text}}}\n"
        calls = "".join(f"  x += {space[1]}::{space[2]}::{n}(x);\n" for n in names[len(inlined):])
        text += CPP_USES.replace("@P", str(part)).replace("@N", str(rng.randint(3, 99))).replace("@CALLS", calls).replace("@HIDDEN", f"{space[0]}::hidden")
        (folder / f"part{part}.cpp").write_text('#include "inc/steps.hpp"\n' + text)
        sources.append(f"part{part}.cpp")
    (folder / "main.cpp").write_text('#include "inc/steps.hpp"\n#include <cstdio>\nvolatile unsigned g_data[32];\nunsigned run_0(unsigned), run_1(unsigned);\n'
                                     'int main(int argc, char**) {\n  std::printf("%u\\n", run_0(argc) + run_1(argc));\n}\n')
    return sources + ["main.cpp"]


CPP_TYPES = """
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
struct Shape {
  virtual ~Shape() = default;
  virtual unsigned area(unsigned x) const { return x * @; }
  unsigned twice(unsigned x) const { return area(x) + area(x + 1); }
};
template <typename T, int N> struct Box final : Shape {
  std::vector<T> values;
  Box() : values(N) {
    for (auto& v : values) v = static_cast<T>(g_data[N % 32]);
  }
  unsigned area(unsigned x) const override {
    unsigned sum = x;
    for (const T& v : values) sum += static_cast<unsigned>(v) * @;
    return sum;
  }
  template <typename F> void each(F&& f) {
    std::for_each(values.begin(), values.end(), f);
  }
};
"""

CPP_USES = """
namespace {
struct Local {
  unsigned value = @N;
  unsigned operator()(unsigned x) const {
    auto inner = [this, x](unsigned y) { return (value ^ x) + y * @N; };
    return inner(x) + inner(x + 1);
  }
};
}  // namespace

unsigned run_@P(unsigned x) {
@CALLS
  Box<int, @N> ints;
  Box<unsigned short, 9> shorts;
  ints.each([&](int& v) {
    v = static_cast<int>(x % @N);
    x += @HIDDEN(x);
  });
  std::sort(ints.values.begin(), ints.values.end(), [](int a, int b) { return a % @N < b % @N; });
  std::map<std::string, unsigned> words;
  std::unordered_map<unsigned, std::string> numbers;
  for (unsigned i = 0; i < 20; ++i) {
    words["word" + std::to_string(i * x)] += Local()(i);
    numbers[i ^ x] = std::string(i, 'a');
  }
  std::unique_ptr<Shape> shape = x % 2 ? std::unique_ptr<Shape>(new Box<long, 4>) : std::unique_ptr<Shape>(new Shape);
  std::function<unsigned(unsigned)> f = [&](unsigned y) {
    struct Inner {
      static unsigned go(unsigned z) { return z * @N + g_data[1]; }
    };
    return Inner::go(y) + shape->twice(y);
  };
  for (auto& [word, count] : words) x += f(count) + static_cast<unsigned>(word.size());
  try {
    if (x == @N) throw std::string("thrown");
  } catch (const std::string& text) {
    x += static_cast<unsigned>(text.size());
  }
  std::vector<std::pair<std::string, unsigned>> sorted(words.begin(), words.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second < b.second; });
  return x + shorts.area(x) + sorted[0].second;
}
"""


def rust_program(rng, folder):
    """One crate of two files, with much of std inlined."""
    text = ""
    for i in range(20):
        call = f"step_{i - 1}" if i else "leaf"
        text += "\n" * rng.randint(1, 3) + f"#[inline{rng.choice(['', '(always)', '(never)'])}]\npub fn step_{i}(x: u64) -> u64 {{\n"
        text += f"    let values: Vec<u64> = (0..x % {rng.randint(3, 31)}).map(|v| v.wrapping_mul({rng.randint(3, 99)})).filter(|v| v % {rng.randint(2, 9)} != 1).collect();\n"
        text += f"    values.iter().fold(x, |a, b| a.rotate_left({rng.randint(1, 31)}) ^ b).wrapping_add({call}(x >> 1))\n}}\n"
    (folder / "steps.rs").write_text("#[inline]\nfn leaf(x: u64) -> u64 {\n    x.wrapping_mul(31)\n}\n" + text)
    (folder / "main.rs").write_text(RUST_MAIN.replace("@", str(rng.randint(3, 99))))
    return ["main.rs"]


RUST_MAIN = """mod steps;
use std::collections::{BTreeMap, HashMap};
trait Shape {
    fn area(&self) -> u64;
    fn twice(&self) -> u64 {
        self.area() * 2 + @
    }
}
struct Square<T>(T);
impl<T: Copy + Into<u64>> Shape for Square<T> {
    fn area(&self) -> u64 {
        let side: u64 = self.0.into();
        side * side
    }
}
fn total(shapes: &[Box<dyn Shape>]) -> u64 {
    shapes.iter().map(|s| s.twice()).sum()
}
fn main() {
    let seed = std::env::args().count() as u64;
    let mut words: HashMap<String, u64> = HashMap::new();
    let mut tree = BTreeMap::new();
    for i in 0..@ {
        *words.entry(format!("word{}", i * seed)).or_insert(0) += steps::step_19(i);
        tree.insert(i ^ seed, i.to_string());
    }
    let mut sorted: Vec<_> = words.into_iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let shapes: Vec<Box<dyn Shape>> = vec![Box::new(Square(3u32)), Box::new(Square(seed))];
    println!("{} {} {:?}", total(&shapes), sorted.len(), tree.values().next());
}
"""
