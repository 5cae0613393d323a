#!/usr/bin/env bash
# Fails when docs/dependencies.md lacks a direct dependency, or names one that is gone.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

named=$(sed -n 's/^| \([a-z0-9_-]*\) | .*/\1/p' docs/dependencies.md | grep -vx crate | sort -u)
used=$(git ls-files '*Cargo.toml' | xargs awk '
  /^\[/ { inside = /dependencies\]$/ }
  inside && /^[a-z]/ && !/^rollwright-/ { sub(/[ .=].*/, ""); print }' | sort -u)
missing=$(comm -13 <(echo "$named") <(echo "$used") | xargs)
gone=$(comm -23 <(echo "$named") <(echo "$used") | xargs)
[ -z "$missing" ] || die "docs/dependencies.md says nothing about: $missing"
[ -z "$gone" ] || die "docs/dependencies.md names what nothing depends on: $gone"
