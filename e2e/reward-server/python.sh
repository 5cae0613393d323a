#!/usr/bin/env bash
# Prints a Python that can run the reference reward server: ROLLWRIGHT_PYTHON, else one that
# has NumPy already, else an environment of its own, made once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../scripts/lib.sh"

python=${ROLLWRIGHT_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is older than Python 3.11: set ROLLWRIGHT_PYTHON"
if "$python" -c 'import numpy' 2>/dev/null; then
  command -v "$python"
  exit
fi
key=$({ "$python" --version && cat "$here/requirements.txt"; } | sha256sum | cut -c1-16)
venv=$CACHE/reward-server-$key
mkdir -p "$CACHE"
exec 9>"$venv.lock"
flock 9
if [ ! -e "$venv/ready" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt" >&2
  touch "$venv/ready"
fi
printf '%s\n' "$venv/bin/python"
