#!/usr/bin/env bash
# Figures of reward services that share a GPU, as a table: e2e/gpu/bench.sh [--fake] [OPTION...]
#
# With a GPU it needs the driver, Python with PyTorch (ROLLWRIGHT_PYTHON), 70 GB of disk for
# models (ROLLWRIGHT_SCRATCH, default /tmp) and no network and no Docker. ROLLWRIGHT_GPU_BENCH
# names a program that was built elsewhere (cargo build --release -p rollwright-gpu-bench);
# without it the program is built here. --fake needs none of that and is marked in the table.
# The table goes to stdout and to target/gpu-bench.md, or where --out says.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/scripts/lib.sh"

bench=${ROLLWRIGHT_GPU_BENCH:-}
if [ -z "$bench" ]; then
  target=${CARGO_TARGET_DIR:-$root/target}
  say "building the benchmark"
  (cd "$root" && cargo build --quiet --profile quick -p rollwright-gpu-bench)
  bench=$target/quick/gpu-bench
fi
python=$("$root/e2e/reward-server/python.sh")
mkdir -p "$root/target"
# More than this is no figure any more.
exec timeout 530 "$bench" --python "$python" --reward-server "$root/e2e/reward-server" \
  --scratch "${ROLLWRIGHT_SCRATCH:-/tmp}" --out "$root/target/gpu-bench.md" "$@"
