#!/usr/bin/env bash
# fuzz.sh SECONDS: builds the fuzz targets with clang and libFuzzer and shares
# SECONDS of running between them. Without clang it says so and succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."
budget=${1:-60}

scripts/setup.sh ci || true
if ! command -v clang++ >/dev/null; then
  echo "fuzz: skipped, no clang++ (packages clang and libclang-rt-dev)"
  exit 0
fi
if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
     clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null; then
  echo "fuzz: skipped, clang++ has no libFuzzer (package libclang-rt-dev)"
  exit 0
fi
cmake --preset fuzz
cmake --build --preset fuzz -j "$(nproc)" --target fuzzers

targets=(build-fuzz/tests/fuzz/*_fuzz)
seconds=$(((budget + ${#targets[@]} - 1) / ${#targets[@]}))
for target in "${targets[@]}"; do
  name=$(basename "$target")
  echo "--- $name for $seconds s"
  mkdir -p "build-fuzz/corpus/$name" "build-fuzz/findings"
  seeds="tests/fuzz/corpus/${name%_fuzz}"
  mkdir -p "build-fuzz/seeds/$name"
  [[ -d $seeds ]] && cp "$seeds"/* "build-fuzz/seeds/$name/"
  "$target" "build-fuzz/corpus/$name" "build-fuzz/seeds/$name" -max_total_time="$seconds" \
    -timeout=20 -rss_limit_mb=4096 -max_len=200000 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/findings/$name-" 2>&1 | grep -vE '^#|NEW|REDUCE' | tail -n 12
done
