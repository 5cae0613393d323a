#!/usr/bin/env bash
# Starts a Docker engine when none answers; an engine that runs is left as it is.
# Usage: docker-engine.sh start | stop   (stop ends only an engine that start started)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

pid_file="$CACHE/dockerd.pid"
log="$CACHE/dockerd.log"

answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

start() {
  answers && return 0
  case ${DOCKER_HOST:-unix:///var/run/docker.sock} in
  unix:///var/run/docker.sock | unix:///run/docker.sock) ;;
  *) die "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST: start it, or unset DOCKER_HOST" ;;
  esac
  mkdir -p "$CACHE"
  if [ -d /run/systemd/system ]; then
    say "starting docker.service"
    as_root systemctl start docker || die "systemctl could not start docker: see journalctl -u docker"
  else
    say "starting a Docker engine (log: $log)"
    # Without this the engine sets it itself only after it has made its bridge.
    as_root sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' || true
    as_root sh -c '
      PATH="$PATH:/usr/sbin:/sbin" setsid dockerd --storage-driver=overlay2 --pidfile "$1" >>"$2" 2>&1 </dev/null &
    ' sh "$pid_file" "$log"
  fi
  for _ in $(seq 300); do
    answers && return 0
    sleep 0.2
  done
  tail -n 20 "$log" >&2 2>/dev/null || true
  die "the Docker engine did not answer within 60 s: see $log"
}

stop() {
  [ -f "$pid_file" ] || return 0
  local pid
  pid=$(cat "$pid_file")
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 0
  say "stopping the Docker engine $pid"
  as_root kill "$pid"
}

case ${1:-start} in
start) start ;;
stop) stop ;;
*) die "usage: docker-engine.sh start | stop" ;;
esac
