#!/usr/bin/env bash
# Makes the product's images and those of its simulators from built programs, on this machine's
# Docker engine. Usage: product-images.sh PROGRAMS DIR
#   PROGRAMS  holds rollwright, rollwright-agent, engine-sim and vllm-sim, as cargo leaves them
#   DIR       gets product.tar for the pods, and sandboxes.tar for the node's Docker engine: sandboxes, and
#             engines of reward services
set -euo pipefail
programs=$1 dir=$2
cd "$(dirname "$0")/../.."
. scripts/lib.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in rollwright rollwright-agent engine-sim vllm-sim; do
  [ -x "$programs/$program" ] || die "$programs/$program is missing: run cargo build --workspace --bins"
  strip -o "$work/$program" "$programs/$program"
done
# Static: it runs inside sandboxes, whatever their image.
cp "${ROLLWRIGHT_INIT:-target/quick/rollwright-init}" "$work/rollwright-init" 2>/dev/null ||
  die "rollwright-init is missing: run make init"

docker/build.sh --prebuilt "$work" --tag e2e --dind
mkdir "$work/simulators"
mv "$work"/{engine-sim,vllm-sim} "$work/simulators"
docker build -q -f - -t rollwright/engine-sim:e2e "$work/simulators" >/dev/null <<'END'
FROM rollwright/base:local
COPY engine-sim /usr/local/bin/
COPY vllm-sim /usr/local/bin/vllm
USER 65532:65532
END
docker save -o "$dir/product.tar" rollwright/rollwright:e2e rollwright/rollwright-agent:e2e rollwright/engine-sim:e2e
scripts/busybox-image.sh
docker save -o "$dir/sandboxes.tar" rollwright/busybox:local rollwright/engine-sim:e2e
