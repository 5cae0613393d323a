#!/bin/bash
# Runs the agent's cgroup and helper tests on a booted kernel with cgroup v2 and two
# NUMA nodes, in a virtual machine. Prints their results and exits with their status.
#
# Needs qemu-system-x86_64, cpio, a static busybox and apt (for the kernel package,
# which is kept in ${XDG_CACHE_HOME:-~/.cache}/rollwright).
#
#   run.sh [ARGUMENT...]    arguments go to both test programs
set -euo pipefail

cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rollwright/kernel
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "cgroup-v2: $*" >&2
    exit 1
}

for tool in qemu-system-x86_64 cpio apt-get dpkg cargo; do
    command -v "$tool" >/dev/null || fail "$tool is missing; apt-get install qemu-system-x86 cpio"
done
busybox=$(command -v busybox) || fail "busybox is missing; apt-get install busybox-static"

# A kernel made for virtual machines: small, and everything we need is built in.
mkdir -p "$cache"
kernel=$(find "$cache" -path '*/boot/vmlinuz-*' | sort -V | tail -1)
if [ -z "$kernel" ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" { print $2 }')
    [ -n "$package" ] || fail "no linux-image-cloud-amd64 in the package lists; run apt-get update"
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg -x ./*.deb "$cache")
    kernel=$(find "$cache" -path '*/boot/vmlinuz-*' | sort -V | tail -1)
fi

# The test programs and the helper, static: the machine holds nothing else.
# A test brings its package's programs along: only what is asked for by name counts.
built() {
    cargo rustc -q -p "$1" "--$2" "$3" --message-format=json -- -C target-feature=+crt-static |
        grep "\"name\":\"$3\"" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}
root=$work/root
mkdir -p "$root"/{bin,dev,etc,proc,root,sys,tmp,usr/bin}
cp "$(built rollwright-agent test cgroup)" "$root/bin/cgroup-test"
cp "$(built rollwright-agent test session)" "$root/bin/session-test"
cp "$(built rollwright-init bin rollwright-init)" "$root/bin/rollwright-init"
cp "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list); do
    [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
done
install -m 600 /dev/null "$root/etc/shadow"
printf '%q ' "$@" >"$root/arguments"
cat >"$root/init" <<'INIT'
#!/bin/sh
export PATH=/bin HOME=/root ROLLWRIGHT_INIT=/bin/rollwright-init RUST_BACKTRACE=0
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
chmod 1777 /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+cpuset +cpu +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
echo "Linux $(uname -r), cgroup v2, cores by node: $(cat /sys/devices/system/node/node*/cpulist | tr '\n' ' ')"
status=0
[ "$(ls -d /sys/devices/system/node/node? | wc -l)" = 2 ] || { echo "not two nodes"; status=1; }
# A gigabyte takes minutes on an emulated processor; it is moved on the machine itself.
for suite in cgroup-test "session-test --skip gigabyte"; do
    eval "$suite $(cat /arguments)" || status=1
done
echo "cgroup-v2 suite status: $status"
poweroff -f
INIT
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initramfs"

# What is said on the console is all that comes out; a hang ends too.
timeout 600 qemu-system-x86_64 -accel tcg -smp 4 -m 1024 \
    -object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 \
    -nographic -no-reboot -nic none -kernel "$kernel" -initrd "$work/initramfs" \
    -append "console=ttyS0 quiet panic=-1" </dev/null | tr -d '\r' | tee "$work/console" || true
grep -qx "cgroup-v2 suite status: 0" "$work/console"
