#!/usr/bin/env bash
# Makes rollwright/busybox:local, the small sandbox image of the tests, from busybox-static.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

image=rollwright/busybox:local
[ -x /bin/busybox ] || die "/bin/busybox is missing: run scripts/install-deps.sh run"
key=$(cat "$0" /bin/busybox | sha256sum | cut -c1-16)
label='{{index .Config.Labels "rollwright.dev/build"}}'
[ "$(docker image inspect -f "$label" "$image" 2>/dev/null)" = "$key" ] && exit 0

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,etc,tmp,proc,sys,dev,root,workspace,home/agent}
cp /bin/busybox "$root/bin/busybox"
for applet in $(/bin/busybox --list); do
  [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done
printf 'root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\nagent:x:1000:\n' >"$root/etc/group"
chmod 0755 "$root"
chmod 1777 "$root/tmp"
say "making $image"
# Owners are set in the archive, so that no root is needed to make it.
{
  tar -c -C "$root" --owner=0 --group=0 --exclude=./workspace --exclude=./home/agent .
} >"$root.tar"
tar -r -f "$root.tar" -C "$root" --owner=1000 --group=1000 ./workspace ./home/agent
trap 'rm -rf "$root" "$root.tar"' EXIT
docker import --change "LABEL rollwright.dev/build=$key" --change 'ENV PATH=/bin:/sbin:/usr/bin:/usr/sbin' \
  --change 'CMD ["/bin/sh"]' - "$image" <"$root.tar" >/dev/null
