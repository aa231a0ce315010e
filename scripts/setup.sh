#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that building Snug needs; returns at once where all are
# installed. `setup.sh ci` adds those that only CI needs.
set -euo pipefail

packages=(g++ make cmake libhwy-dev libxxhash-dev libzstd-dev libssl-dev nlohmann-json3-dev
          libcli11-dev libfmt-dev libgtest-dev libbenchmark-dev)
if [[ $(uname -m) == x86_64 ]]; then packages+=(libipsec-mb-dev); fi
if [[ ${1:-} == ci ]]; then packages+=(ccache clang libclang-rt-dev clang-format); fi

if ! command -v dpkg-query >/dev/null; then
  # Another system: CMake reports what is missing; these names are a hint for its packages.
  command -v cmake >/dev/null || {
    echo "Snug needs these packages (names as on Debian): ${packages[*]}" >&2
    exit 1
  }
  exit 0
fi

installed=$(dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' "${packages[@]}" 2>/dev/null |
            sed -n 's/^ii *//p' || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "$package" <<<"$installed" || missing+=("$package")
done
[[ ${#missing[@]} == 0 ]] && exit 0

cannot() {
  echo "Snug needs packages that are missing and cannot install them ($1)." >&2
  echo "Please run:  apt-get install ${missing[*]}" >&2
  exit 1
}
as_root=()
if [[ $(id -u) != 0 ]]; then
  command -v sudo >/dev/null || cannot "not root, and no sudo"
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
apt_get() { "${as_root[@]}" apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"; }

echo "Installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt_get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
  { apt_get update >"$log" 2>&1 &&
    apt_get install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; } ||
  { tail -n 5 "$log" >&2; cannot "apt-get failed"; }
