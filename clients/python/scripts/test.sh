#!/usr/bin/env bash
# Checks and tests the Python client: types, lints, and a real queue with Docker sandboxes where
# the Rust programs are built (make build). The virtual environment is kept in
# ~/.cache/rollwright. Arguments go to pytest; PYTHON chooses the interpreter (3.10 or newer).
# ROLLWRIGHT_REQUIRE_QUEUE=1 fails, rather than skips, where there is no real queue.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$(cd ../.. && pwd)
. "$root/scripts/lib.sh"

python=${PYTHON:-python3}
key=$({
  "$python" -VV
  cat requirements-test.txt
} | sha256sum | cut -c1-16)
venv="$CACHE/python-$key"
mkdir -p "$CACHE"
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/complete" ]; then
  say "making $venv"
  rm -rf "$venv"
  "$python" -m venv "$venv" || die "'$python -m venv' failed: install python3-venv, or set PYTHON"
  "$venv/bin/pip" install -q --disable-pip-version-check -r requirements-test.txt
  touch "$venv/complete"
fi
exec 9>&-

say "checking types, lints and generated files"
"$venv/bin/python" scripts/unasync.py --check
"$venv/bin/ruff" check --quiet .
"$venv/bin/ruff" format --quiet --check .
"$venv/bin/mypy"

"$root/scripts/docker-engine.sh" start || say "no Docker engine: the tests on a real queue are skipped"
if docker version >/dev/null 2>&1; then
  "$root/scripts/busybox-image.sh"
fi
say "testing"
as_root env "ROLLWRIGHT_REQUIRE_QUEUE=${ROLLWRIGHT_REQUIRE_QUEUE:-}" PYTHONDONTWRITEBYTECODE=1 \
  "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
