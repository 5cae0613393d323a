#!/usr/bin/env bash
# Builds the fake of NVIDIA's driver: build.sh DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?a directory}
mkdir -p "$out"
flags=(-std=gnu11 -O1 -fPIC -shared -Wall -Wextra -Werror -fvisibility=hidden -pthread)
build() {
  local library=$1
  shift
  "${CC:-cc}" "${flags[@]}" -Wl,-soname,"$library" -o "$out/$library.$$" "${@/#/$here/}"
  mv "$out/$library.$$" "$out/$library"
}
build libcuda.so.1 device.c context.c handles.c ranges.c pinned.c copies.c checkpoint.c
build libnvidia-ml.so.1 device.c nvml.c
