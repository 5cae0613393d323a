#!/usr/bin/env bash
# Makes the agent's virtual environment in ${XDG_CACHE_HOME:-~/.cache}/rollwright, once for
# each list of packages, and prints its Python. PYTHON chooses the interpreter (3.11 or newer).
set -euo pipefail
cd "$(dirname "$0")"
. ../../../scripts/lib.sh

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is older than Python 3.11: set PYTHON"
key=$({ "$python" -VV && cat requirements.txt; } | sha256sum | cut -c1-16)
venv=$CACHE/quickstart-$key
if [ ! -e "$venv/complete" ]; then
  say "making $venv (half a minute, then cached)"
  mkdir -p "$CACHE"
  rm -rf "$venv"
  "$python" -m venv "$venv" || die "'$python -m venv' failed: install python3-venv, or set PYTHON"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r requirements.txt
  touch "$venv/complete"
fi
echo "$venv/bin/python"
