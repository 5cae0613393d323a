#!/usr/bin/env bash
# Measures the gateway beside nginx, haproxy, sglang-router and vllm-router on this machine,
# before the same simulated engines, on the loopback interface only.
# Usage: run.sh [--quick] [--only loads|streams] [--against NAME,NAME] (see bench.py --help)
# Needs target/quick/rollwright (`make bench-gateway` builds it). Installs what
# is missing: nginx, haproxy, wrk, a C compiler, and the routers' wheels in ~/.cache/rollwright.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/scripts/lib.sh"
export PATH="$PATH:/usr/sbin:/sbin"

rollwright=${ROLLWRIGHT_BIN:-$root/target/quick/rollwright}
[ -x "$rollwright" ] || die "$rollwright is missing: run \`make bench-gateway\`"

missing=()
have nginx || missing+=(nginx-light)
have haproxy || missing+=(haproxy)
have wrk || missing+=(wrk)
have cc && [ -e /usr/include/stdio.h ] || missing+=(gcc libc6-dev)
[ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"

routers=(sglang-router==0.3.2 vllm-router==0.1.17)
venv=$CACHE/gateway-bench-$(printf '%s\n' "${routers[@]}" "$(python3 --version)" | sha256sum | cut -c1-12)
if [ ! -e "$venv/ready" ]; then
  say "installing ${routers[*]}"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check "${routers[@]}"
  touch "$venv/ready"
fi

out=$root/target/gateway-bench
mkdir -p "$out"
for program in engine streams; do
  cc -O2 -Wall -Wextra -Werror -o "$out/$program" "$here/$program.c"
done
PYTHONDONTWRITEBYTECODE=1 exec python3 "$here/bench.py" --rollwright "$rollwright" --routers "$venv" \
  --programs "$out" --json "$out/figures.json" "$@"
