#!/usr/bin/env bash
# gpu_link_line_test.sh BUILD_DIR: a program that only encodes on a GPU links neither checkpoints
# nor sockets nor zstd. Shown by its link line, its symbols and its shared libraries.
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
cmake -S "$here/gpu_consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/prefix" \
  >"$work/log" 2>&1 && cmake --build "$work/consumer" --verbose >>"$work/log" 2>&1 ||
  { cat "$work/log"; exit 1; }
program=$work/consumer/encodes_on_gpu

refuse() {  # refuse WHAT PATTERN: fails if standard input has a line that matches
  if grep -E "$2"; then
    echo "$1: see the lines above" >&2
    exit 1
  fi
}
line=$(grep -E -- '-o encodes_on_gpu' "$work/log")
echo "$line"
[[ $line == *libsnug_cuda* ]]
refuse "the link line" 'snug_(net|store|wire|transfer|link_core|gpu_link)|zstd|xxhash' <<<"$line"
nm -C "$program" >"$work/symbols"
grep -q 'snug::cuda::encode' "$work/symbols"
refuse "symbols" 'snug::(store|wire|transfer|net|gpu_link)::|snug::Reader|ZSTD_|XXH' <"$work/symbols"
ldd "$program" | refuse "shared libraries" 'snug|zstd|xxhash'
