#!/usr/bin/env bash
# Builds the images rollwright/rollwright and rollwright/rollwright-agent.
# Usage: docker/build.sh [--tag TAG] [--prebuilt DIR] [--dind]
#   --prebuilt DIR   take the programs in DIR (such as target/quick) and make the base images on
#                    this machine: no image registry is asked for anything
#   --dind           make rollwright/dind too, a Docker engine for the agents' sidecar
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

tag=local prebuilt="" dind=""
while [ $# -gt 0 ]; do
  case $1 in
  --tag) tag=$2; shift 2 ;;
  --prebuilt) prebuilt=$2; shift 2 ;;
  --dind) dind=yes; shift ;;
  *) die "unknown argument '$1': use --tag, --prebuilt, --dind" ;;
  esac
done

# Builds an image, and removes the one that had its name. Old engines write their progress where
# errors go: it is shown when it failed.
build() { # IMAGE ARGUMENT...
  local image=$1 old log
  old=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null) || true
  log=$(docker build -q -t "$@" 2>&1) || die "docker build -t $*: $log"
  forget "$old" "$image"
}
forget() { # ID IMAGE
  [ -z "$1" ] || [ "$1" = "$(docker image inspect -f '{{.Id}}' "$2")" ] ||
    docker image rm "$1" >/dev/null 2>&1 || true # A container still has it.
}

# Imports a directory as an image, unless it was made from the same before.
label='{{index .Config.Labels "rollwright.dev/build"}}'
current() { [ "$(docker image inspect -f "$label" "$1" 2>/dev/null)" = "$2" ]; }
import() { # IMAGE KEY DIR
  local old
  old=$(docker image inspect -f '{{.Id}}' "$1" 2>/dev/null) || true
  as_root tar -c -C "$3" --numeric-owner . |
    docker import --change "LABEL rollwright.dev/build=$2" --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$1" >/dev/null
  forget "$old" "$1"
}

# The least that a dynamic program of ours needs, as in distroless/cc.
operator_base() {
  local program=$1 root=$2 file
  mkdir -p "$root"/{etc/ssl/certs,tmp,usr/local/bin}
  chmod 1777 "$root/tmp"
  ldd "$program" | grep -o '/[^ ]*' | while read -r file; do
    install -D "$file" "$root$file"
  done
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" 2>/dev/null || true
  echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
  printf 'root:x:0:0:root:/:\nnonroot:x:65532:65532:nonroot:/:\n' >"$root/etc/passwd"
  printf 'root:x:0:\nnonroot:x:65532:\n' >"$root/etc/group"
}

# A Debian root with packages, from a mirror, cached as an archive.
debian_base() { # IMAGE PACKAGES
  local image=$1 packages=$2 suite=bookworm key archive
  key=$(printf '%s' "$suite $packages" | sha256sum | cut -c1-16)
  current "$image" "$key" && return 0
  archive="$CACHE/debian-$suite-$key-$(dpkg --print-architecture).tar"
  if [ ! -f "$archive" ]; then
    scripts/install-deps.sh run
    say "making a Debian root with $packages (a minute or two, then cached)"
    as_root env PATH="$PATH:/usr/sbin:/sbin" debootstrap --variant=minbase --include="$packages" \
      "$suite" "$work/root-$key" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$CACHE/debootstrap.log" 2>&1 ||
      die "debootstrap failed: see $CACHE/debootstrap.log"
    as_root tar -c -C "$work/root-$key" --one-file-system --exclude='./usr/share/doc/*' \
      --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' --exclude='./var/cache/apt/*' \
      --exclude='./var/lib/apt/lists/*' --exclude='./dev/*' . >"$work/$key.tar"
    mv "$work/$key.tar" "$archive"
  fi
  docker import --change "LABEL rollwright.dev/build=$key" --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$image" <"$archive" >/dev/null
}

mkdir -p "$CACHE"
work=$(mktemp -d "$CACHE/images.XXXXXX")
trap 'as_root rm -rf "$work"' EXIT
bases=()
agent_bases=()
if [ -n "$prebuilt" ]; then
  for program in rollwright rollwright-agent rollwright-init; do
    [ -x "$prebuilt/$program" ] || die "$prebuilt/$program is missing: run make build"
    install -D "$prebuilt/$program" "$work/binaries/$program"
    strip --strip-debug "$work/binaries/$program"
  done
  key=$(cd "$work/binaries" && sha256sum -- * | sha256sum | cut -c1-16)
  current "rollwright/binaries:$tag" "$key" || import "rollwright/binaries:$tag" "$key" "$work/binaries"
  operator_base "$prebuilt/rollwright" "$work/base"
  key=$(cd "$work/base" && find . -type f -exec sha256sum {} + | sort | sha256sum | cut -c1-16)
  current rollwright/base:local "$key" || import rollwright/base:local "$key" "$work/base"
  debian_base rollwright/base-agent:local iptables
  bases=(--build-arg BASE=rollwright/base:local)
  # Nothing is missing in that base, so that its steps need no network.
  agent_bases=(--build-arg BASE=rollwright/base-agent:local --network none)
else
  say "compiling the programs (minutes)"
  build "rollwright/binaries:$tag" -f docker/binaries.Dockerfile .
fi
build "rollwright/rollwright:$tag" -f docker/rollwright.Dockerfile \
  --build-arg BINARIES="rollwright/binaries:$tag" "${bases[@]}" docker
build "rollwright/rollwright-agent:$tag" -f docker/agent.Dockerfile \
  --build-arg BINARIES="rollwright/binaries:$tag" "${agent_bases[@]}" docker
if [ -n "$dind" ]; then
  debian_base "rollwright/dind:$tag" docker.io,iptables,ca-certificates
fi
say "built rollwright/rollwright:$tag and rollwright/rollwright-agent:$tag${dind:+ and rollwright/dind:$tag}"
