#!/usr/bin/env bash
# Cargo's runner for users who are not root: tests of cgroups and Docker need to be.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
as_root "$@"
