#!/usr/bin/env bash
# The machine that the test cluster runs on: namespaces of its own for network, mounts,
# processes, cgroups and host name. The machine around it keeps its iptables, mounts, Docker
# and /etc as they are, and whatever way this ends, the kernel ends all that runs in it.
#
# Usage: node.sh STATE PROGRAM
#   STATE    directory of this cluster (created; emptied but for logs at the end)
#   PROGRAM  the built rollwright-cluster, which starts the daemons
#
# Exits with 75 when the cluster of STATE is up already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../scripts/lib.sh"
PATH="$PATH:/usr/sbin:/sbin"

cgroups=/sys/fs/cgroup
# The hierarchies of cgroup v1, or the one of v2.
hierarchies() {
  if [ -e $cgroups/cgroup.controllers ]; then
    echo $cgroups
  else
    find $cgroups -mindepth 1 -maxdepth 1 -type d
  fi
}

outside() {
  local state=$1 program=$2 name
  mkdir -p "$state/logs"
  exec 9>"$state/lock"
  flock -n 9 || exit 75
  echo $$ >"$state/pid"
  name=$(basename "$state")
  leave "$state" "$name"
  local free
  free=$(df --output=avail --block-size=M "$state" | tail -n 1 | tr -dc 0-9)
  [ "$free" -ge 3000 ] ||
    die "$state has $free MB of disk left and the images of a cluster need 3000: free some, for example with cargo clean"
  # The binaries are built with the lock held: whoever else wants this cluster waits for it.
  local bin
  bin=$("$here/binaries.sh")
  ln -sfn "$bin" "$state/bin"
  "$here/images.sh" "$state/images"
  # shellcheck disable=SC2064 # expanded now: they are local
  trap "leave '$state' '$name'" EXIT
  (
    join "$name"
    # If this script is killed, so is all that it started.
    trap - EXIT
    exec setpriv --pdeathsig KILL unshare --net --mount --pid --uts --ipc --cgroup \
      --fork --kill-child --mount-proc --propagation slave \
      "$here/node.sh" --inside "$state" "$bin" "$program"
  )
}

# Puts this process into cgroups of the cluster's own; they become the root of what it sees.
join() {
  local hierarchy
  for hierarchy in $(hierarchies); do
    mkdir -p "$hierarchy/$1"
    if [ -e "$hierarchy/cpuset.cpus" ]; then
      cat "$hierarchy/cpuset.cpus" >"$hierarchy/$1/cpuset.cpus"
      cat "$hierarchy/cpuset.mems" >"$hierarchy/$1/cpuset.mems"
    fi
    echo $BASHPID >"$hierarchy/$1/cgroup.procs"
  done
}

# Removes what a cluster that is down left behind. Its processes are gone with their namespace.
leave() {
  local hierarchy
  rm -rf "$1"/{var,upper,work,images,*.tar,socket,kubeconfig}
  for hierarchy in $(hierarchies); do
    [ ! -d "$hierarchy/$2" ] || find "$hierarchy/$2" -depth -type d -exec rmdir {} \; || true
  done
}

inside() {
  local state=$1 bin=$2 program=$3 path
  mount --make-rshared /

  # A private layer over what is written to by default; images and volumes on the disk itself.
  for path in /etc /var/lib /var/log; do
    mkdir -p "$state/upper$path" "$state/work$path"
    mount -t overlay overlay -o "lowerdir=$path,upperdir=$state/upper$path,workdir=$state/work$path" $path
  done
  for path in /var/lib/docker /var/lib/containerd /var/lib/kubelet /var/lib/etcd; do
    mkdir -p "$state$path" $path
    mount --bind "$state$path" $path
  done
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/lock
  remount_cgroups

  # One address, and a route that leads back here: nothing leaves.
  hostname kubelet-0
  ip link set lo up
  ip link add node0 type veth peer name uplink0
  ip address add 10.200.0.1/24 dev node0
  ip link set node0 up
  ip link set uplink0 up
  ip route add default via 10.200.0.1 dev node0
  echo 1 >/proc/sys/net/ipv4/ip_forward

  mkdir -p /etc/kubernetes /etc/cni/net.d
  cp "$here"/config/* /etc/kubernetes
  mv /etc/kubernetes/cni.conflist /etc/cni/net.d/10-pods.conflist
  rm -f /etc/resolv.conf
  mv /etc/kubernetes/resolv.conf /etc/resolv.conf
  "$here/pki.sh" /etc/kubernetes 2>"$state/logs/pki.log"
  install -m 600 /etc/kubernetes/admin.kubeconfig "$state/kubeconfig"

  # Not exec: as process 1 this shell also reaps what other processes leave to it.
  PATH="$bin:$PATH" KUBECONFIG=/etc/kubernetes/admin.kubeconfig "$program" serve "$state"
}

# The cgroup file systems with the cluster's own groups as their roots.
remount_cgroups() {
  local name names=() links=()
  if [ -e $cgroups/cgroup.controllers ]; then
    mount -t sysfs sysfs /sys
    mount -t cgroup2 cgroup2 $cgroups
    # A group that gives controllers to groups below it may hold no process itself.
    mkdir $cgroups/init
    xargs -rn1 <$cgroups/cgroup.procs >$cgroups/init/cgroup.procs || true
    sed 's/\w\+/+&/g' $cgroups/cgroup.controllers >$cgroups/cgroup.subtree_control
    return
  fi
  for name in "$cgroups"/*; do
    if [ -L "$name" ]; then links+=("$(readlink "$name")=$(basename "$name")"); else names+=("$(basename "$name")"); fi
  done
  mount -t sysfs sysfs /sys
  mount -t tmpfs -o mode=755 tmpfs $cgroups
  for name in "${names[@]}"; do
    mkdir $cgroups/"$name"
    case $name in
    unified) mount -t cgroup2 cgroup2 $cgroups/unified ;;
    systemd) mount -t cgroup -o none,name=systemd cgroup $cgroups/systemd ;;
    *) mount -t cgroup -o "$name" cgroup $cgroups/"$name" ;;
    esac
  done
  for name in ${links[@]+"${links[@]}"}; do ln -s "${name%=*}" $cgroups/"${name#*=}"; done
}

case $1 in
--inside) shift && inside "$@" ;;
*) outside "$@" ;;
esac
