#!/usr/bin/env bash
# Trains the tiny policy through a real gateway on this machine, and draws the curve.
# Usage: run.sh [--steps N] [--out DIR] [more options of train.py]
# Needs `make build`, Docker (started when none answers), Python 3.11 or newer, and root
# (asked for by sudo): sandboxes are made, and the queue's socket is its user's alone.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/scripts/lib.sh"
if [ "$(id -u)" -ne 0 ]; then
  as_root "$here/run.sh" "$@"
  exit
fi

out=$root/target/grpo-tiny
options=()
while [ $# -gt 0 ]; do
  case $1 in
  --out)
    out=$(realpath -m "$2")
    shift 2
    ;;
  *)
    options+=("$1")
    shift
    ;;
  esac
done

rollwright=${ROLLWRIGHT_BIN:-$root/target/quick/rollwright}
init=${ROLLWRIGHT_INIT:-$root/target/quick/rollwright-init}
[ -x "$rollwright" ] && [ -x "$init" ] || die "$rollwright or $init is missing: run \`make build\`"
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  die "$python is older than Python 3.11: set PYTHON"

"$root/scripts/docker-engine.sh" start
"$root/scripts/busybox-image.sh"

key=$({ "$python" --version && cat "$here/requirements.txt"; } | sha256sum | cut -c1-16)
venv=$CACHE/grpo-tiny-$key
if [ ! -e "$venv/ready" ]; then
  say "1/3 Python packages (about a minute, then cached)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
  touch "$venv/ready"
else
  say "1/3 Python packages: cached"
fi
# Programs that JAX has compiled once.
export JAX_COMPILATION_CACHE_DIR=$CACHE/jax JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
export JAX_PLATFORMS=cpu PYTHONDONTWRITEBYTECODE=1
# The client is this tree's own.
export PYTHONPATH=$root/clients/python/src
py=$venv/bin/python

mkdir -p "$out"
rm -rf "$out/weights"
# Sockets have short names.
scratch=$(mktemp -d /tmp/grpo-tiny.XXXXXX)
engine= gateway=
cleanup() {
  trap - EXIT INT TERM
  # Its end removes its sandboxes.
  if [ -n "$gateway" ]; then
    kill -INT "$gateway" 2>/dev/null || true
    wait "$gateway" || true
  fi
  if [ -n "$engine" ]; then
    kill "$engine" 2>/dev/null || true
    wait "$engine" || true
  fi
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Waits until a command succeeds, while the process of that id lives.
until_ready() {
  local pid=$1 log=$2
  shift 2
  for _ in $(seq 1200); do
    "$@" >/dev/null 2>&1 && return 0
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$log" >&2
  die "it did not start: see $log"
}

say "2/3 engine and gateway"
"$py" "$here/model.py" "$out/initial.safetensors"
port=$("$py" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$py" "$here/engine.py" --port "$port" --weights "$out/initial.safetensors" >"$out/engine.log" 2>&1 &
engine=$!
until_ready "$engine" "$out/engine.log" curl -sf "http://127.0.0.1:$port/health"
"$rollwright" standalone -f "$here/manifests" --init "$init" \
  --engine "http://127.0.0.1:$port,slots=64" \
  --socket "$scratch/queue.sock" --gateway-socket "$scratch/gateway.sock" --state-dir "$scratch/state" \
  --metrics-addr 127.0.0.1:0 --agent-metrics-addr 127.0.0.1:0 --gateway-metrics-addr 127.0.0.1:0 \
  >"$out/rollwright.log" 2>&1 &
gateway=$!
until_ready "$gateway" "$out/rollwright.log" \
  curl -sf --unix-socket "$scratch/gateway.sock" http://gateway/health

say "3/3 training"
"$py" "$here/train.py" --gateway "unix:$scratch/gateway.sock" \
  --queue "unix:$scratch/queue.sock" --weights "$out/initial.safetensors" --out "$out" \
  ${options[@]+"${options[@]}"}
