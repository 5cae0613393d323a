#!/usr/bin/env bash
# Makes rollwright/quickstart:local: Debian with Python, pytest, the source distributions
# that trajectories work on, and what grades them. Nothing is pulled from an image registry;
# each stage is cached below ${XDG_CACHE_HOME:-~/.cache}/rollwright.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

image=rollwright/quickstart:local
inputs=examples/quickstart/image
suite=bookworm
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

key=$(cat "$0" $inputs/*.txt $inputs/grade.py | sha256sum | cut -c1-16)
label='{{index .Config.Labels "rollwright.dev/build"}}'
if [ "$(docker image inspect -f "$label" "$image" 2>/dev/null)" = "$key" ]; then
  say "$image is up to date"
  exit 0
fi

mkdir -p "$CACHE"
work=$(mktemp -d "$CACHE/image.XXXXXX")
trap 'as_root rm -rf "$work"' EXIT

base="$CACHE/debian-$suite-python-$(dpkg --print-architecture).tar"
if [ ! -f "$base" ]; then
  say "1/3 making a Debian $suite root with Python (about a minute, then cached)"
  as_root env PATH="$PATH:/usr/sbin:/sbin" debootstrap --variant=minbase --include=python3,patch \
    "$suite" "$work/root" "$mirror" >"$CACHE/debootstrap.log" 2>&1 ||
    die "debootstrap failed: see $CACHE/debootstrap.log"
  # The user that actions run as.
  echo 'agent:x:1000:1000:agent:/home/agent:/bin/sh' | as_root tee -a "$work/root/etc/passwd" >/dev/null
  echo 'agent:x:1000:' | as_root tee -a "$work/root/etc/group" >/dev/null
  as_root tar -c -C "$work/root" --one-file-system \
    --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/info/*' \
    --exclude='./usr/share/locale/*' --exclude='./var/cache/apt/*' \
    --exclude='./var/lib/apt/lists/*' --exclude='./dev/*' \
    --exclude=./usr/local --exclude=./opt . >"$work/base.tar"
  mv "$work/base.tar" "$base"
else
  say "1/3 Debian root: cached"
fi

say "2/3 fetching pytest and the packages from PyPI"
pip() { PIP_ROOT_USER_ACTION=ignore python3 -m pip --disable-pip-version-check "$@"; }
site="$work/add/usr/local/lib/python3.11/dist-packages"
mkdir -p "$site" "$work/add/opt/sdist" "$work/own/workspace" "$work/own/home/agent"
pip install -q --target "$site" --no-deps --require-hashes --python-version 3.11 \
  --implementation py --abi none --platform any --only-binary=:all: -r $inputs/requirements.txt
sdists="$CACHE/sdists-$(sha256sum $inputs/sdists.txt | cut -c1-16)"
if [ ! -d "$sdists" ]; then
  names=$(sed -n 's/==.*//p' $inputs/sdists.txt | paste -sd,)
  pip download -q -d "$work/sdists" --no-deps --require-hashes --no-binary "$names" \
    -r $inputs/sdists.txt
  mv "$work/sdists" "$sdists"
fi
# Names without versions: the trajectories name packages, sdists.txt the versions.
for sdist in "$sdists"/*.tar.gz; do
  name=$(basename "$sdist" | sed 's/-[0-9][^-]*$//')
  cp "$sdist" "$work/add/opt/sdist/$name.tar.gz"
done
install -D $inputs/grade.py "$work/add/usr/local/bin/grade"
find "$work/add" -name __pycache__ -prune -exec rm -rf {} +

say "3/3 importing $image"
cp "$base" "$work/image.tar"
chmod -R u=rwX,go=rX "$work/add" "$work/own"
tar -r -f "$work/image.tar" -C "$work/add" --owner=0 --group=0 ./usr/local ./opt
tar -r -f "$work/image.tar" -C "$work/own" --owner=1000 --group=1000 ./workspace ./home/agent
docker import --change "LABEL rollwright.dev/build=$key" --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' \
  --change 'CMD ["/bin/sh"]' - "$image" <"$work/image.tar" >/dev/null
say "$image is ready ($(docker image inspect -f '{{.Size}}' "$image" | awk '{printf "%.0f MB", $1/1e6}'))"
