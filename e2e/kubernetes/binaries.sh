#!/usr/bin/env bash
# Builds the programs of a Kubernetes cluster from the Go module proxy, once, and prints the
# folder below ${XDG_CACHE_HOME:-~/.cache}/rollwright that holds them. On two
# cores it takes about ten minutes; a build that was interrupted goes on where it stopped.
# Usage: binaries.sh [kwok]
#   kwok  builds KWOK instead, which only the scale benchmark needs (one minute)
set -euo pipefail
cd "$(dirname "$0")"
. ../../scripts/lib.sh

if [ "${1:-}" = kwok ]; then
  bin="$CACHE/kwok-$(cat binaries/kwok/go.* | sha256sum | cut -c1-12)"
  mkdir -p "$bin"
  echo "$bin"
  exec 9>"$bin/lock"
  flock 9
  [ ! -x "$bin/kwok" ] || exit 0
  go=$(../../scripts/go.sh)
  say "building KWOK in $bin (once)"
  cd binaries/kwok
  GOTOOLCHAIN=local GOFLAGS=-mod=readonly CGO_ENABLED=0 "$go" build -trimpath -buildvcs=false \
    -ldflags "-s -w" -o "$bin/kwok.new" sigs.k8s.io/kwok/cmd/kwok >&2
  mv "$bin/kwok.new" "$bin/kwok"
  exit 0
fi

kubernetes=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' binaries/go.mod)
key=$(cat binaries/go.* binaries/*/*.go | sha256sum | cut -c1-12)
bin="$CACHE/kubernetes-$key"
mkdir -p "$bin"
echo "$bin"

packages=(
  go.etcd.io/etcd/server/v3=etcd
  ./coredns
  k8s.io/kubernetes/cmd/kube-apiserver
  k8s.io/kubernetes/cmd/kube-controller-manager
  k8s.io/kubernetes/cmd/kube-scheduler
  k8s.io/kubernetes/cmd/kubelet
  k8s.io/kubernetes/cmd/kube-proxy
  k8s.io/kubernetes/cmd/kubectl
  helm.sh/helm/v3/cmd/helm
  github.com/yannh/kubeconform/cmd/kubeconform
)
missing() {
  local entry
  for entry in "${packages[@]}"; do
    [ -x "$bin/$(basename "${entry#*=}")" ] || echo "$entry"
  done
}
[ -n "$(missing)" ] || exit 0

# One build at a time; whoever waited finds everything done.
exec 9>"$bin/lock"
flock 9

go=$(../../scripts/go.sh)
export GOTOOLCHAIN=local GOFLAGS=-mod=readonly CGO_ENABLED=0
version="k8s.io/component-base/version"
ldflags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=${kubernetes:3:2}"
ldflags+=" -X helm.sh/helm/v3/internal/version.version=$(awk '$1 == "helm.sh/helm/v3" { print $2 }' binaries/go.mod)"

say "building Kubernetes $kubernetes in $bin (once, about ten minutes)"
cd binaries
for entry in $(missing); do
  name=$(basename "${entry#*=}")
  say "   $name"
  started=$SECONDS
  "$go" build -trimpath -buildvcs=false -ldflags "$ldflags" -o "$bin/$name.new" "${entry%=*}" >&2
  mv "$bin/$name.new" "$bin/$name"
  say "   $name: $((SECONDS - started)) s"
done

"$bin/kubelet" --version | grep -qF "$kubernetes" || die "$bin/kubelet is not of $kubernetes"
