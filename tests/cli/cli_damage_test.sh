#!/usr/bin/env bash
# Damage of a compressed file's marks and names: every command says so and writes nothing.
. "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

cp "$DATA/sample.safetensors" model.safetensors
expect_code 0 "$SNUG" compress model.safetensors
name=model.layers.0.self_attn
expect_code 0 "$SNUG" cat model.snug.safetensors $name.k_proj.weight
cp out k_proj.bin

# damaged SCRIPT: all commands refuse what sed makes of the file, with code 5 (corrupt).
damaged() {
  LC_ALL=C sed "$1" model.snug.safetensors >damaged.safetensors
  ! cmp -s model.snug.safetensors damaged.safetensors || fail "sed changed nothing"
  expect_code 5 "$SNUG" cat damaged.safetensors $name.k_proj.weight
  [ ! -s out ] || fail "cat wrote bytes of a damaged file"
  expect_code 5 "$SNUG" cat damaged.safetensors $name.k_proj.weight --rows 0:1
  [ ! -s out ] || fail "cat wrote rows of a damaged file"
  expect_code 5 "$SNUG" inspect damaged.safetensors
  expect_code 5 "$SNUG" verify damaged.safetensors
  expect_code 5 "$SNUG" decompress damaged.safetensors new.safetensors
  expect_absent new.safetensors
}
# One bit each, in the mark of a compressed file.
for key in snug.fnrmat rnug.format snuw.format snug/format snug.formaT; do
  damaged "s|\"snug\.format\"|\"$key\"|"
  expect_code 5 "$SNUG" compress damaged.safetensors new.safetensors
done
damaged 's/"snug\.format":"1"/"snug.format":"q"/'
damaged 's/"snug\.size"/"snug.rize"/'
damaged 's/"__snug__\.header"/"__snuw__.header"/'
# Two tensors of one size and shape under each other's name.
damaged "s/$name\.k_proj/$name.x_proj/;s/$name\.q_proj/$name.k_proj/;s/$name\.x_proj/$name.q_proj/"
# A tensor that was not touched can still be read.
expect_code 0 "$SNUG" cat damaged.safetensors model.embed_tokens.weight
echo passed
