#!/usr/bin/env bash
# install_test.sh BUILD_DIR: programs can use what `make install` installs, through CMake and
# through pkg-config.
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
pc=$(dirname "$(find "$work/prefix" -name snug.pc)")
export PKG_CONFIG_PATH=$pc LD_LIBRARY_PATH=${pc%/pkgconfig}
for package in snug snug-store snug-wire; do
  program=uses_${package#snug-}
  # shellcheck disable=SC2046  # the flags are several words
  ${CC:-cc} -std=c99 "$here/consumer/$program.c" $(pkg-config --cflags --libs "$package") \
    -o "$work/$program"
  "$work/$program"
done
pkg-config --exists snug-transfer
