#!/usr/bin/env bash
# Removes sandboxes that a killed run left behind (containers labelled rollwright.dev/managed).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

ids=$(docker ps -aq --filter label=rollwright.dev/managed)
if [ -z "$ids" ]; then
  say "no sandbox is left"
else
  # shellcheck disable=SC2086
  docker rm -f $ids >/dev/null
  say "removed $(echo "$ids" | wc -l) sandboxes"
fi
