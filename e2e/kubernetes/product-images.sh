#!/usr/bin/env bash
# Makes the product's images and those of its simulators from built programs, on this machine's
# Docker engine. Usage: product-images.sh ARCHIVE DIR
#   ARCHIVE   where to write them, as containerd imports them
#   DIR       holds rollwright, rollwright-agent and engine-sim, as cargo leaves them
set -euo pipefail
archive=$1 programs=$2
cd "$(dirname "$0")/../.."
. scripts/lib.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for program in rollwright rollwright-agent engine-sim; do
  [ -x "$programs/$program" ] || die "$programs/$program is missing: run cargo build --workspace --bins"
  strip -o "$work/$program" "$programs/$program"
done
# Static: it runs inside sandboxes, whatever their image.
cp "${ROLLWRIGHT_INIT:-target/quick/rollwright-init}" "$work/rollwright-init" 2>/dev/null ||
  die "rollwright-init is missing: run make init"

docker/build.sh --prebuilt "$work" --tag e2e
mkdir "$work/simulators"
mv "$work/engine-sim" "$work/simulators"
docker build -q -f - -t rollwright/engine-sim:e2e "$work/simulators" >/dev/null <<'END'
FROM rollwright/base:local
COPY engine-sim /usr/local/bin/engine-sim
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/engine-sim"]
END
docker save -o "$archive.new" rollwright/rollwright:e2e rollwright/rollwright-agent:e2e rollwright/engine-sim:e2e
mv "$archive.new" "$archive"
