#!/usr/bin/env bash
# inspect in its three forms, on plain and compressed files.
. "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

cp "$DATA/sample.safetensors" model.safetensors
expect_code 0 "$SNUG" compress model.safetensors

expect_code 0 "$SNUG" inspect model.safetensors
expect_in out "7 tensors, 985 kB, not compressed"
expect_in out "model.layers.0.mlp.gate_proj.weight"
expect_in out "[256, 384]"
expect_in out "Exponents of BF16"
expect_in out "snug compress would come close to"

expect_code 0 "$SNUG" inspect model.snug.safetensors
expect_in out "985 kB -> "
expect_in out "over"
expect_in out "█"

# What inspect computes does not depend on the form of the file.
entropies() { "$SNUG" inspect "$1" --json | grep -E '"(name|entropy_bits|bound)"' | tr -d ','; }
[ "$(entropies model.safetensors)" = "$(entropies model.snug.safetensors)" ] || fail "statistics differ between forms"
if command -v python3 >/dev/null; then
  "$SNUG" inspect model.snug.safetensors --json | python3 -c '
import json, sys
report = json.load(sys.stdin)
assert report["compressed"] and len(report["tensors"]) == 7, report
assert abs(report["ratio"] / report["bound"] - 1) < 0.02, (report["ratio"], report["bound"])
assert sum(report["exponents"][0]["histogram"]) == report["exponents"][0]["num_values"]
' || fail "JSON is not what it should be"
fi

expect_code 0 "$SNUG" inspect model.snug.safetensors --html page.html
expect_in page.html "<!doctype html>"
expect_in page.html "</html>"
expect_in page.html "model.layers.0.mlp.gate_proj.weight"
! grep -qE 'https?://|<script|src=' page.html || fail "the page needs the network"
expect_code 8 "$SNUG" inspect model.snug.safetensors --html page.html
expect_code 0 "$SNUG" inspect model.snug.safetensors --html page.html --force

# A folder, and names that want to break out of the page.
mkdir dir
cp model.safetensors dir/a.safetensors
json='{"<script>":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
printf "\\x$(printf %x ${#json})\\0\\0\\0\\0\\0\\0\\0%sab" "$json" >dir/b.safetensors
expect_code 0 "$SNUG" inspect dir --html dir.html
expect_in out "8 tensors in 2 files"
! grep -q '<script>' dir.html || fail "a tensor name is not escaped"
echo passed
