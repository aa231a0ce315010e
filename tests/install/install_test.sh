#!/usr/bin/env bash
# install_test.sh BUILD_DIR: what `make install` installs can be used, from CMake
# and from pkg-config.
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
if [[ -x $build/snug ]]; then "$work/prefix/bin/snug" --version; fi

cmake -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1 &&
  cmake --build "$work/consumer" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/consumer/uses_snug"

if ! command -v pkg-config >/dev/null; then
  echo "no pkg-config here: that part is skipped"
  exit 0
fi
pc=$(find "$work/prefix" -name snug.pc)
flags=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --cflags --libs snug)
# shellcheck disable=SC2086  # the flags are several words
${CC:-cc} -std=c99 "$here/consumer/uses_snug.c" $flags -o "$work/uses_snug_c"
LD_LIBRARY_PATH=$(dirname "$(dirname "$pc")") "$work/uses_snug_c"
