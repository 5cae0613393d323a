#!/usr/bin/env bash
# Builds helm and kubeconform from the Go module proxy, once, in the versions that the
# end-to-end tests use too. Prints the directory that holds them.
# Usage: go-tools.sh helm|kubeconform ...
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

# The version of a module, as the tests on Kubernetes pin it.
version() { awk -v module="$1" '$1 == module { print $2 }' e2e/kubernetes/binaries/go.mod; }

bin="$CACHE/tools/go/bin"
mkdir -p "$bin"
# One build at a time; whoever waited finds everything done.
exec 9>"$CACHE/tools/go/lock"
flock 9
for name in "$@"; do
  case $name in
  helm) module=helm.sh/helm/v3 ;;
  kubeconform) module=github.com/yannh/kubeconform ;;
  *) die "unknown tool '$name': use helm or kubeconform" ;;
  esac
  version=$(version "$module")
  [ -n "$version" ] || die "e2e/kubernetes/binaries/go.mod names no version of $module"
  store="$CACHE/tools/go/$name-$version"
  if [ ! -x "$store/$name" ]; then
    say "building $name $version (a few minutes, then cached)"
    go=$(scripts/go.sh)
    rm -rf "$store.new"
    CGO_ENABLED=0 GOFLAGS=-trimpath GOBIN="$store.new" nice -n 10 "$go" install "$module/cmd/$name@$version" >&2
    rm -rf "$store"
    mv "$store.new" "$store"
  fi
  ln -sfn "$store/$name" "$bin/$name"
done
echo "$bin"
