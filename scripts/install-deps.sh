#!/usr/bin/env bash
# Installs what building and running need and this machine lacks (Debian 12 or later).
# Usage: install-deps.sh [build|run|test|cluster]...
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ -x "$HOME/.cargo/bin/cargo" ] && PATH="$HOME/.cargo/bin:$PATH"
for part in "$@"; do
  case $part in
  build)
    have cargo || die "Rust is missing: install it with rustup, see https://rustup.rs"
    have cc && [ -e /usr/include/stdio.h ] || apt_install gcc libc6-dev
    ;;
  run)
    # An engine that runs already is used as it is, whoever packaged it.
    have docker dockerd || [ -S /var/run/docker.sock ] && have docker || apt_install docker.io
    have iptables || apt_install iptables
    have debootstrap || apt_install debootstrap
    [ -x /bin/busybox ] && /bin/busybox true && ! ldd /bin/busybox >/dev/null 2>&1 ||
      apt_install busybox-static
    have python3 && python3 -m pip --version >/dev/null 2>&1 && python3 -c "import ensurepip" 2>/dev/null ||
      apt_install python3 python3-pip python3-venv ca-certificates
    ;;
  test)
    have qemu-system-x86_64 || apt_install qemu-system-x86
    have cpio || apt_install cpio
    ;;
  cluster)
    # The cluster's own programs are built (e2e/kubernetes/binaries.sh); this is what they call.
    have containerd runc || apt_install containerd
    [ -x /usr/lib/cni/ptp ] || apt_install containernetworking-plugins
    have ip || apt_install iproute2
    have conntrack || apt_install conntrack
    have prometheus || apt_install prometheus
    have openssl || apt_install openssl
    have nsenter unshare setpriv || apt_install util-linux
    scripts/go.sh >/dev/null
    ;;
  *) die "unknown part '$part': use build, run, test or cluster" ;;
  esac
done
