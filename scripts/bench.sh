#!/usr/bin/env bash
# bench.sh BUILD_DIR: runs every CPU benchmark that was built.
set -euo pipefail
build=$1
found=0
for program in "$build"/bench/*_bench; do
  [[ -x $program && $(basename "$program") != gpu_* ]] || continue
  found=1
  echo "== $(basename "$program")"
  "$program"
done
[[ $found == 1 ]] || { echo "bench: nothing was built; it needs libbenchmark-dev and libzstd-dev" >&2; exit 1; }
