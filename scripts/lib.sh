# Shared by the scripts: messages, root rights, packages. Sourced, never run.
# shellcheck shell=bash

CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/rollwright"

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Runs a command as root: directly, or by sudo with the environment kept.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo --preserve-env=PATH,HOME,XDG_CACHE_HOME,DOCKER_HOST,DOCKER_API_VERSION,ROLLWRIGHT_INIT,RUST_LOG,CI,PIP_INDEX_URL,PIP_CERT,PIP_FIND_LINKS,HTTP_PROXY,HTTPS_PROXY,http_proxy,https_proxy,SSL_CERT_FILE "$@"
  else
    die "'$1' needs root: run this as root, or install sudo"
  fi
}

# Succeeds when each of the commands exists, also in the directories of root.
have() {
  local command
  for command in "$@"; do
    # Programs only: `docker` is a function here.
    PATH="$PATH:/usr/sbin:/sbin" type -P "$command" >/dev/null || return 1
  done
}

# Installs Debian packages that are not installed yet.
apt_install() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  have apt-get || die "please install these yourself, apt-get is not here: ${missing[*]}"
  say "installing ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive sh -c '
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
      { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
  ' sh "${missing[@]}" || die "apt-get could not install: ${missing[*]}"
}

# The Docker client that talks to the engine at the default socket.
docker() { as_root env "PATH=$PATH:/usr/sbin:/sbin" docker "$@"; }
