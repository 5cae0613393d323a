#!/usr/bin/env bash
# Figures of reward services that share a GPU, as a table: e2e/gpu/bench.sh [--fake] [OPTION...]
#
# With a GPU it needs the driver, Python 3.11 with PyTorch and NumPy (ROLLWRIGHT_PYTHON), 50 GB for
# models (ROLLWRIGHT_SCRATCH; default /tmp, or /dev/shm where that alone has them), and neither
# network nor Docker. ROLLWRIGHT_GPU_BENCH names a program that was built elsewhere (cargo build
# --profile quick -p rollwright-gpu-bench); without it the program is built here. Without PyTorch,
# ROLLWRIGHT_WITHOUT_PYTORCH=1 has the processor work on weights that are on the GPU: slow, so give
# small --bytes and --large. --fake needs none of that and is marked in the table.
# The table goes to stdout and to target/gpu-bench.md, or where --out says. Options, beside --fake:
# --services, --bytes, --cap, --large, --actions, --at-once, --work, --seed, --out and others of the
# program, which are explained where it is built: ROLLWRIGHT_GPU_BENCH=... e2e/gpu/bench.sh --help
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/scripts/lib.sh"

# Bytes that models take at a time.
models=50000000000

# A Python with PyTorch that sees a GPU. Nothing is installed: there may be no network.
gpu_python() {
  local python=${ROLLWRIGHT_PYTHON:-python3} need="set ROLLWRIGHT_PYTHON to a Python 3.11 or later with NumPy and PyTorch for CUDA"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$python is no Python 3.11: $need"
  "$python" -c 'import numpy' 2>/dev/null || die "$python has no NumPy: $need"
  if [ -z "${ROLLWRIGHT_WITHOUT_PYTORCH:-}" ]; then
    "$python" -c 'import torch' || die "$python has no PyTorch: $need, or ROLLWRIGHT_WITHOUT_PYTORCH=1"
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
      die "the PyTorch of $python sees no GPU: $need, or use --fake"
  fi
  command -v "$python"
}

has_room() { [ "$(df -B1 --output=avail "$1" 2>/dev/null | tail -1)" -ge "$models" ] 2>/dev/null; }

bench=${ROLLWRIGHT_GPU_BENCH:-}
case " $* " in
*" --help "* | *" -h "*)
  [ -z "$bench" ] || exec "$bench" --help
  sed -n '2,/^set /{s/^# \{0,1\}//p}' "$0"
  exit
  ;;
esac
if [ -z "$bench" ]; then
  target=${CARGO_TARGET_DIR:-$root/target}
  say "building the benchmark"
  (cd "$root" && cargo build --quiet --profile quick -p rollwright-gpu-bench)
  bench=$target/quick/gpu-bench
fi
[ -x "$bench" ] || die "$bench is no program: set ROLLWRIGHT_GPU_BENCH to one that runs here"
scratch=${ROLLWRIGHT_SCRATCH:-/tmp}
case " $* " in
*" --fake "*) python=$("$root/e2e/reward-server/python.sh") ;;
*)
  python=$(gpu_python)
  if [ -z "${ROLLWRIGHT_SCRATCH:-}" ] && ! has_room /tmp; then
    if has_room /dev/shm; then
      scratch=/dev/shm
    else
      say "neither /tmp nor /dev/shm has $((models / 1000000000)) GB: set ROLLWRIGHT_SCRATCH, or smaller --bytes and --large"
    fi
  fi
  ;;
esac
case " $* " in
*" --out"*) ;;
*)
  mkdir -p "$root/target"
  set -- --out "$root/target/gpu-bench.md" "$@"
  ;;
esac
# Models and servers of this run are gone with it, however it ends.
scratch=$(mktemp -d "$scratch/gpu-bench.XXXXXX")
child=
clean() {
  local line
  [ -z "$child" ] || kill "$child" 2>/dev/null || :
  for line in /proc/[0-9]*/cmdline; do
    if grep -qsF "$scratch/" "$line"; then kill -9 "$(basename "$(dirname "$line")")" 2>/dev/null || :; fi
  done
  rm -rf "$scratch"
}
trap clean EXIT
trap 'exit 130' INT TERM
# More than this is no figure any more.
timeout 530 "$bench" --python "$python" --reward-server "$root/e2e/reward-server" \
  --scratch "$scratch" "$@" &
child=$!
status=0
wait "$child" || status=$?
child=
[ "$status" -ne 124 ] || die "not done in 530 s: fewer --services, --actions or smaller --bytes"
exit "$status"
