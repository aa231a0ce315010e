#!/usr/bin/env bash
# The demo: compresses a model, verifies and restores it, compares it with the original and
# prints one table of the results. It works in a temporary folder that it removes at the end.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
snug=$(realpath "${SNUG_CLI:-build/snug}")
size=${DEMO_SIZE:-256MiB}
folder=$(mktemp -d "${TMPDIR:-/tmp}/snug-demo.XXXXXX")
trap 'rm -rf "$folder"' EXIT

rows=()
bytes() { stat -c %s "$1"; }
sha() { sha256sum "$1" | cut -d ' ' -f 1; }

# Runs a command, shows it, and leaves the time it took in $seconds.
timed() {
  local start=$EPOCHREALTIME
  echo "  \$ snug $*"
  (cd "$folder" && "$snug" "$@" >/dev/null)
  seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
}

# Compresses and restores one model; adds a row to the table.
round_trip() {  # round_trip WHAT NAME
  local what=$1 name=$2 original compressed there back verdict
  echo "$what"
  timed compress "$name.safetensors"
  there=$seconds
  timed verify "$name.snug.safetensors"
  timed decompress "$name.snug.safetensors" "$name.restored.safetensors"
  back=$seconds
  verdict="DIFFERENT"
  if [[ $(sha "$folder/$name.safetensors") == "$(sha "$folder/$name.restored.safetensors")" ]]; then
    verdict="identical"
  fi
  original=$(bytes "$folder/$name.safetensors") compressed=$(bytes "$folder/$name.snug.safetensors")
  rows+=("$(awk -v what="$what" -v o="$original" -v c="$compressed" -v there="$there" -v back="$back" \
                -v verdict="$verdict" 'BEGIN {
    printf "  %-24s %8.1f MB  %8.1f MB  %6.1f %%  %7.2f s  %8.2f s    %s", what, o / 1e6, c / 1e6,
           100 - 100 * c / o, there, back, verdict }')")
  rm -f "$folder/$name".*
  echo
}

if [[ -f tests/data/sample.safetensors ]]; then
  cp tests/data/sample.safetensors "$folder/trained.safetensors"
  round_trip "A small trained model" trained
fi
echo "Writing a model of about $size with the statistics of a trained one ..."
(cd "$folder" && "$snug" sample made.safetensors --size "$size" >/dev/null)
round_trip "A synthetic model, BF16" made

echo "                              original   compressed     saved   compress  decompress   SHA-256 after the round trip"
printf '%s\n' "${rows[@]}"
echo
echo "  compress also read its result back and compared it with the original; decompress checked"
echo "  every checksum; both synced to disk. ($("$snug" --version))"
case "${rows[*]}" in *DIFFERENT*) echo "demo: a restored file differs from its original" >&2; exit 1 ;; esac
