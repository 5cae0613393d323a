#!/usr/bin/env bash
# Makes the images that the cluster itself needs, as archives in DIR, from busybox-static:
# no registry and no Docker engine is asked. Usage: images.sh DIR
set -euo pipefail
dir=$1
mkdir -p "$dir"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# archive NAME CMD-AS-JSON: an image of the files in $work/root.
archive() {
  local image="$work/image" layer config
  mkdir "$image"
  tar -c -C "$work/root" --owner=0 --group=0 --sort=name --mtime=@0 -f "$image/layer.tar" .
  layer=$(sha256sum "$image/layer.tar" | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Env":["PATH=/bin:/sbin:/usr/bin:/usr/sbin"],"Cmd":%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(dpkg --print-architecture)" "$2" "$layer" >"$image/config.json"
  config=$(sha256sum "$image/config.json" | cut -d' ' -f1)
  mv "$image/config.json" "$image/$config.json"
  printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$config" "$1" >"$image/manifest.json"
  tar -c -C "$image" -f "$dir/$(basename "${1%:*}").tar" .
  rm -rf "$image"
}

mkdir -p "$work"/root/{bin,etc,tmp,proc,sys,dev}
chmod 1777 "$work/root/tmp"
cp /bin/busybox "$work/root/bin/busybox"
# What holds a pod's namespaces.
archive rollwright/pause:local '["/bin/busybox","sleep","2147483647"]'

for applet in $(/bin/busybox --list); do
  [ "$applet" = busybox ] || ln -s busybox "$work/root/bin/$applet"
done
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65532:65532:nobody:/:/bin/sh\n' >"$work/root/etc/passwd"
archive rollwright/busybox:local '["/bin/sh"]'
