#!/usr/bin/env bash
# compress, verify, decompress, cat and sample, as a user runs them.
. "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

cp "$DATA/sample.safetensors" model.safetensors
expect_code 0 "$SNUG" compress model.safetensors
expect_in out "model.snug.safetensors  985 kB -> "
expect_in out "verified"
[ ! -s err ] || fail "compress is not quiet on stderr without a terminal"
expect_code 0 "$SNUG" verify model.snug.safetensors
expect_in out "intact"
expect_code 0 "$SNUG" decompress model.snug.safetensors again.safetensors
expect_same model.safetensors again.safetensors
expect_code 0 "$SNUG" compress model.safetensors -o other.safetensors
expect_code 0 "$SNUG" decompress other.safetensors --output again.safetensors --force
expect_same model.safetensors again.safetensors
[ "$(sha256sum <model.safetensors)" = "$(sha256sum <again.safetensors)" ] || fail "SHA-256 differs"

# Every codec and thread count; --quiet says nothing.
for codec in raw fixed entropy; do
  for threads in 1 3; do
    expect_code 0 "$SNUG" compress model.safetensors c.safetensors --codec $codec --threads $threads --force --quiet
    [ ! -s out ] || fail "--quiet prints something"
    expect_code 0 "$SNUG" decompress c.safetensors d.safetensors --force
    expect_same model.safetensors d.safetensors
  done
done

# A folder.
mkdir -p dir/sub
cp model.safetensors dir/model-00001-of-00001.safetensors
printf '{"weight_map":{"x":"model-00001-of-00001.safetensors"}}' >dir/model.safetensors.index.json
printf 'hello' >dir/sub/notes.txt
expect_code 0 "$SNUG" compress dir
expect_in out "(+ 2 other files copied)"
expect_code 0 "$SNUG" verify dir.snug
expect_code 0 "$SNUG" decompress dir.snug dir2
diff -r dir dir2 || fail "folders differ"

# config.json is marked, and restored byte for byte.
printf '\r\n{ "a": Infinity,\r\n"b": {} }' >dir/config.json
cp dir/config.json dir/sub/config.json
expect_code 0 "$SNUG" compress dir --force
[ ! -s err ] || fail "compress is not quiet about config.json"
expect_in dir.snug/config.json '"quantization_config": {"quant_method": "snug", "format": 1, "original_xxh3_128": "'
expect_same dir/sub/config.json dir.snug/sub/config.json
expect_code 0 "$SNUG" decompress dir.snug dir2 --force
diff -r dir dir2 || fail "folders with a config.json differ"
expect_code 0 "$SNUG" diff dir.snug dir --output none.patch
expect_code 0 "$SNUG" patch dir.snug none.patch --output dir3
diff -r dir dir3 || fail "patch of a compressed folder differs"
sed -i 's/"b"/"edited"/' dir.snug/config.json
expect_code 0 "$SNUG" decompress dir.snug dir2 --force
expect_in err "snug: config.json was edited"
expect_in dir2/config.json '{ "a": Infinity'
expect_in dir2/config.json '"edited"'
expect_code 0 "$SNUG" verify dir.snug --json
expect_in out '"config.json was edited'
cp dir.snug/config.json dir/config.json
expect_code 2 "$SNUG" compress dir other.snug
expect_in err "already compressed by Snug"
expect_absent other.snug
printf '{"quantization_config": {"quant_method": "awq"}}' >dir/config.json
expect_code 0 "$SNUG" compress dir --force
expect_in err "transformers cannot load it"
expect_same dir/config.json dir.snug/config.json
rm dir/config.json dir/sub/config.json

# A file into a folder that is there.
mkdir target
expect_code 0 "$SNUG" compress model.safetensors target
[ -f target/model.snug.safetensors ] || fail "no output in the folder"

# --json.
expect_code 0 "$SNUG" compress model.safetensors j.snug.safetensors --json
expect_in out '"raw_bytes": 985344'
expect_in out '"verified": true'

# cat: whole tensors and rows, from both forms, through a pipe that closes early.
name=model.layers.0.self_attn.q_proj.weight
"$SNUG" cat model.safetensors $name >plain.bin || fail "cat of a plain file"
"$SNUG" cat model.snug.safetensors $name >packed.bin || fail "cat of a compressed file"
expect_same plain.bin packed.bin
[ "$(wc -c <plain.bin)" -eq $((128 * 384 * 2)) ] || fail "cat has the wrong size"
"$SNUG" cat model.snug.safetensors $name --rows 5:8 >rows.bin || fail "cat --rows"
dd if=plain.bin bs=768 skip=5 count=3 status=none | cmp -s - rows.bin || fail "rows differ"
"$SNUG" cat model.snug.safetensors $name --rows 126: >tail.bin || fail "cat --rows A:"
[ "$(wc -c <tail.bin)" -eq 1536 ] || fail "open row range has the wrong size"
"$SNUG" cat model.snug.safetensors $name 2>err | head -c 10 >/dev/null
[ ! -s err ] || fail "a closed pipe is no reason for a message"

# sample: the same seed gives the same file.
expect_code 0 "$SNUG" sample s1.safetensors --size 2MiB --seed 7
expect_code 0 "$SNUG" sample s2.safetensors --size 2MiB --seed 7
expect_same s1.safetensors s2.safetensors
expect_code 0 "$SNUG" compress s1.safetensors
expect_code 0 "$SNUG" decompress s1.snug.safetensors s3.safetensors
expect_same s1.safetensors s3.safetensors

# The first example of cat works on such a model.
name=$("$SNUG" --help | sed -n 's/.* cat [^ ]* \([^ ]*\) --rows.*/\1/p')
expect_code 0 "$SNUG" cat s1.snug.safetensors "$name" --rows 0:16

# bench prints a row for each contender.
expect_code 0 "$SNUG" bench s1.safetensors --runs 1
expect_in out ", one run"
for row in memcpy "snug entropy" "snug fixed" "zstd -1"; do expect_in out "$row"; done
expect_code 0 "$SNUG" bench s1.snug.safetensors --runs 1 --limit 1MB --json
expect_in out '"raw_bytes": 1000000'
echo passed
