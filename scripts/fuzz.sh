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
mkdir -p build-fuzz/findings
for target in "${targets[@]}"; do
  name=$(basename "$target")
  echo "--- $name for $seconds s"
  # libFuzzer adds what it finds to the first folder and only reads the others.
  folders=("build-fuzz/corpus/$name")
  mkdir -p "${folders[0]}"
  for seeds in "tests/fuzz/corpus/${name%_fuzz}" tests/golden/valid tests/golden/invalid; do
    if [[ -d $seeds ]]; then folders+=("$seeds"); fi
  done
  "$target" "${folders[@]}" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
    -max_len=100000 -print_final_stats=1 -artifact_prefix="build-fuzz/findings/$name-" 2>&1 |
    grep -vE '^#|NEW|REDUCE' | tail -n 12
done
echo "fuzz: ${#targets[@]} targets, nothing found"
