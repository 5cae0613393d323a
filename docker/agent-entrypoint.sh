#!/bin/sh
# Makes ready what the agent needs of its node, gives up the rights that only this needs, and
# becomes the agent. The arguments are the agent's.
set -eu

own=/usr/local/bin/rollwright-init
for argument; do
  case $argument in
  --init=*)
    # Where Docker can mount the helper from. Sandboxes that run keep the file they have.
    init=${argument#--init=}
    if ! cmp -s "$own" "$init"; then
      mkdir -p "${init%/*}"
      cp "$own" "$init.new"
      chmod 0755 "$init.new"
      mv "$init.new" "$init"
    fi
    ;;
  esac
done

# The kernel has two packet filters. Ours must be the one that Docker's own rules are in.
for way in nft legacy; do
  if "iptables-$way" -w 10 -S DOCKER-USER >/dev/null 2>&1; then
    export PATH="/usr/local/lib/rollwright/$way:$PATH"
    break
  fi
done

set -- setpriv --bounding-set="-${ROLLWRIGHT_DROP:=setpcap,-sys_admin,-sys_ptrace}" \
  --inh-caps="-$ROLLWRIGHT_DROP" -- /usr/local/bin/rollwright-agent "$@"

# On cgroup v2 a process in a cgroup namespace of its own, as container runtimes give it, may not
# move the processes of sandboxes, which are outside: join the one of the process that is named,
# by its number (1: the node's first, with hostPID) or by its program (dockerd, the sidecar).
wanted=${ROLLWRIGHT_CGROUPS_OF:-1}
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  for process in /proc/[0-9]*; do
    if [ "${process#/proc/}" = "$wanted" ] || [ "$(cat "$process/comm" 2>/dev/null)" = "$wanted" ]; then
      exec nsenter --cgroup="$process/ns/cgroup" -- "$@"
    fi
  done
  echo "process '$wanted' is not in sight, whose cgroup namespace is needed: give the pod hostPID, or share its processes" >&2
  exit 1
fi
exec "$@"
