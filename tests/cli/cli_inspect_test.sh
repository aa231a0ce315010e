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

# Many tensors: no form of the report, and no other command, keeps much of each.
# Sanitizers take memory of their own.
if command -v python3 >/dev/null && ! ldd "$SNUG" | grep -qE 'lib(a|t)san'; then
  python3 - many.safetensors <<'EOF' || fail "cannot write many.safetensors"
import struct, sys
tensors = ('"%d":{"dtype":"BF16","shape":[1],"data_offsets":[%d,%d]}' % (i, 2 * i, 2 * i + 2) for i in range(100000))
json = ("{" + ",".join(tensors) + "}").encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(json)) + json + bytes(200000))
EOF
  for command in "compress many.safetensors" "inspect many.safetensors" \
    "inspect many.snug.safetensors --html many.html" "inspect many.snug.safetensors --json" \
    "cat many.snug.safetensors 777" "verify many.snug.safetensors" \
    "decompress many.snug.safetensors again.safetensors"; do
    # A tenth of the tensors that a file may have, and a fifth of the memory that it may take.
    python3 -c '
import resource, subprocess, sys
done = subprocess.run([*sys.argv[1:], "--threads", "2"], stdout=open("out", "wb"))
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
sys.exit(done.returncode or (peak >= 50 and f"{peak} MiB"))
' "$SNUG" $command 2>err || fail "$command: 100000 tensors take too much: $(cat err)"
  done
  expect_same many.safetensors again.safetensors
fi
echo passed
