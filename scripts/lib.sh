# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts: where things are, progress with elapsed time, sudo only where it is needed.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${BORESCOPE_CACHE:-$HOME/.cache/borescope}
HTTPLIB_DIR=$CACHE/cpp-httplib
ARM64_SYSROOT=$CACHE/arm64-sysroot
mkdir -p "$CACHE"

say() { printf '[%3ds] %s\n' "$SECONDS" "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Runs a command as root: directly when we are, else through sudo.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -E "$@"; else
    die "this step needs root: run the script as root, or install sudo"; fi
}

# step "TEXT" EXPECTED_SECONDS CMD...: runs CMD with its output in a log, shows elapsed beside expected time, prints the log's end on failure.
step() {
  local text=$1 expected=$2 log start=$SECONDS rc=0; shift 2
  log=$(mktemp "${TMPDIR:-/tmp}/borescope-step.XXXXXX")
  say "$text (about ${expected} s)"
  "$@" >"$log" 2>&1 || rc=$?
  if [ $rc -ne 0 ]; then tail -n 40 "$log" >&2; say "$text: FAILED (exit $rc) after $((SECONDS - start)) s; whole log: $log"; return $rc; fi
  rm -f "$log"
  say "$text: done in $((SECONDS - start)) s"
}
