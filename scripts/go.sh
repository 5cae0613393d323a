#!/usr/bin/env bash
# Prints the path of a Go toolchain that is new enough for e2e/kubernetes/binaries: the one on
# the PATH, or else the one that the module proxy has, fetched by Debian's older Go (which
# checks it against Go's checksum database) and kept in ${XDG_CACHE_HOME:-~/.cache}/rollwright.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

needed=1.24
fetched=1.26.8

# Whether a `go` exists and is at least the version needed.
new_enough() {
  local version
  version=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
  [ "$(printf '%s\n' "go$needed" "$version" | sort -V | head -n 1)" = "go$needed" ]
}

PATH="$PATH:/usr/local/go/bin"
for go in $(type -aP go); do
  new_enough "$go" && echo "$go" && exit 0
done

root="$CACHE/go-$fetched"
if [ ! -x "$root/bin/go" ]; then
  have go || apt_install golang-go
  module="golang.org/toolchain@v0.0.1-go$fetched.linux-$(dpkg --print-architecture)"
  say "fetching Go $fetched from the module proxy (about 70 MB)"
  work=$(mktemp -d "${TMPDIR:-/tmp}/go.XXXXXX")
  trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
  (cd "$work" && GOMODCACHE="$work/mod" GOTOOLCHAIN=local GOFLAGS=-modcacherw go mod download "$module") ||
    die "could not fetch $module: install Go $needed or later yourself"
  # A module holds neither nested go.mod files nor execute permissions.
  fetched_root="$work/mod/$module"
  find "$fetched_root" -name _go.mod -execdir mv {} go.mod \;
  chmod +x "$fetched_root"/bin/* "$fetched_root"/pkg/tool/*/*
  mkdir -p "$CACHE"
  rm -rf "$root"
  mv "$fetched_root" "$root"
fi
new_enough "$root/bin/go" || die "the Go toolchain in $root does not run: remove it and try again"
echo "$root/bin/go"
