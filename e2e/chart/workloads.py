# SPDX-License-Identifier: Apache-2.0
"""Small programs in four languages whose functions are drawn: OUTER calls INNER, which is on a CPU about a sixth of the time."""
import os
import re
import subprocess

C = """
#include <time.h>
#include <unistd.h>
static long Now() { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
volatile unsigned long sink;
__attribute__((noinline)) void INNER(long until) { do { for (int i = 0; i < 2000; ++i) sink = sink * 31 + 7; } while (Now() < until); }
__attribute__((noinline)) void OUTER() { INNER(Now() + 15000000); sink = sink + 1; }
int main(int argc, char** argv) {
  // With an argument: until that file is there.
  while (argc < 2 || access(argv[1], F_OK) != 0) { OUTER(); usleep(75000); }
}
"""
CPP = re.sub(r"static long Now\(\) .*", "#include <chrono>\nstatic long Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }", C)
GO = """
package main
import "time"
var sink uint64
//go:noinline
func INNER(until time.Time) { for { for i := 0; i < 2000; i++ { sink = sink*31 + 7 }; if !time.Now().Before(until) { return } } }
//go:noinline
func OUTER() { INNER(time.Now().Add(15 * time.Millisecond)); sink++ }
func main() { for { OUTER(); time.Sleep(75 * time.Millisecond) } }
"""
RUST = """
use std::time::{Duration, Instant};
use std::hint::black_box;
#[inline(never)]
fn INNER(until: Instant) -> u64 { let mut x = 1u64; loop { for _ in 0..2000 { x = black_box(x.wrapping_mul(31).wrapping_add(7)); } if Instant::now() >= until { return x; } } }
#[inline(never)]
fn OUTER() -> u64 { let x = INNER(Instant::now() + Duration::from_millis(15)); black_box(x).wrapping_add(1) }
fn main() { loop { black_box(OUTER()); std::thread::sleep(Duration::from_millis(75)); } }
"""
# language: (source, suffix, compiler; {0} the source, {1} the program)
KINDS = {
    "cpp": (CPP, "cc", "g++ -O2 -fomit-frame-pointer -o {1} {0}"),
    "go": (GO, "go", "{go} go build -o {1} {0}"),
    "rust": (RUST, "rs", "rustc -O -o {1} {0}"),
    "musl": (C, "c", "musl-gcc -static -O2 -fomit-frame-pointer -o {1} {0}"),
}


def build(root, folder, kind, name, outer, inner):
    """Writes folder/name.SUFFIX and the program folder/name."""
    source, suffix, compiler = KINDS[kind]
    path = f"{folder}/{name}.{suffix}"
    with open(path, "w") as file:
        file.write(source.replace("INNER", inner).replace("OUTER", outer))
    command = compiler.format(path, f"{folder}/{name}", go=f"{root}/e2e/cluster/go-env").split()
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-800:]}")
    os.chmod(f"{folder}/{name}", 0o755)
