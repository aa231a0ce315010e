#!/usr/bin/env bash
# diff and patch, as a user runs them.
. "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

# put FILE OFFSET TEXT: overwrites bytes in the middle of a file.
put() { printf '%s' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; }

cp "$DATA/sample.safetensors" base.safetensors
cp base.safetensors new.safetensors
for at in 100001 200003 300007 400009 900011; do put new.safetensors $at Z; done

expect_code 0 "$SNUG" diff base.safetensors new.safetensors -o p
expect_in out "verified"
[ ! -s err ] || fail "diff is not quiet on stderr without a terminal"
[ "$(wc -c <p)" -lt 2000 ] || fail "five changed bytes take $(wc -c <p) bytes"
expect_code 0 "$SNUG" patch base.safetensors p -o again.safetensors --threads 3
expect_same new.safetensors again.safetensors
[ "$(sha256sum <new.safetensors)" = "$(sha256sum <again.safetensors)" ] || fail "SHA-256 differs"
expect_code 0 "$SNUG" patch base.safetensors p -o again.safetensors --force --json
expect_in out '"num_changed": 5'
expect_in out '"verified": true'
expect_code 0 "$SNUG" diff base.safetensors new.safetensors -o p --force --quiet
[ ! -s out ] || fail "--quiet prints something"

# The base may be compressed.
expect_code 0 "$SNUG" compress base.safetensors
expect_code 0 "$SNUG" patch base.snug.safetensors p -o third.safetensors
expect_same new.safetensors third.safetensors

# Folders, with a file less and one more.
mkdir -p dir/sub dir2/sub
cp base.safetensors dir/model.safetensors
cp new.safetensors dir2/model.safetensors
echo old >dir/old.txt
echo new >dir2/sub/new.txt
expect_code 0 "$SNUG" diff dir dir2 -o dir.patch
expect_code 0 "$SNUG" patch dir dir.patch -o dir3
diff -r dir2 dir3 >/dev/null || fail "folders differ"

# What must not work, and leaves nothing behind.
expect_code 8 "$SNUG" diff base.safetensors new.safetensors -o p
expect_code 8 "$SNUG" patch base.safetensors p -o again.safetensors
expect_code 14 "$SNUG" patch new.safetensors p -o none
expect_in err "another version than the patch was made for"
expect_code 14 "$SNUG" patch dir p -o none
expect_code 2 "$SNUG" diff base.safetensors dir -o none
expect_code 2 "$SNUG" diff base.safetensors new.safetensors
expect_code 2 "$SNUG" patch base.safetensors p -o base.safetensors --force
expect_code 2 "$SNUG" patch base.safetensors p -o p --force
for inside in dir/p dir/sub/p dir dir2/p dir2/sub/new.txt; do
  expect_code 2 "$SNUG" diff dir dir2 -o $inside --force
done
expect_code 2 "$SNUG" patch dir dir.patch -o dir --force
expect_code 2 "$SNUG" patch dir dir.patch -o dir/new
expect_absent dir/p
[ "$(cat dir2/sub/new.txt)" = new ] || fail "diff wrote into its input"
expect_code 9 "$SNUG" patch missing p -o none
expect_code 3 "$SNUG" patch base.safetensors base.safetensors -o none
head -c 300 p >cut
expect_code 5 "$SNUG" patch base.safetensors cut -o none
cp p flipped
put flipped 150 XXXX
expect_code 5 "$SNUG" patch base.safetensors flipped -o none
# Names that Snug reserves, as every other command.
printf '\x40\0\0\0\0\0\0\0%s' '{"__snug__.x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}  ' >reserved
expect_code 5 "$SNUG" verify reserved
expect_code 5 "$SNUG" diff reserved new.safetensors -o none
expect_in err "names that Snug reserves"
expect_absent none
[ -z "$(find . -name '*.tmp-*')" ] || fail "temporary files are left: $(find . -name '*.tmp-*')"
