#!/usr/bin/env bash
# Errors: one line, the right exit code, nothing written.
. "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

cp "$DATA/sample.safetensors" model.safetensors
expect_code 0 "$SNUG" compress model.safetensors

expect_code 2 "$SNUG"
expect_code 2 "$SNUG" shrink
expect_in err "(see snug --help)"
expect_code 2 "$SNUG" compress
expect_in err "(see snug compress --help)"
expect_code 2 "$SNUG" compress model.safetensors x -o y
expect_code 2 "$SNUG" compress model.safetensors --codec lzma
expect_code 2 "$SNUG" compress model.safetensors --threads 65
expect_code 2 "$SNUG" compress model.snug.safetensors twice.safetensors
expect_code 2 "$SNUG" compress model.safetensors model.safetensors --force
expect_code 2 "$SNUG" decompress model.snug.safetensors model.snug.safetensors --force
ln model.safetensors same.safetensors
expect_code 2 "$SNUG" compress model.safetensors same.safetensors --force
rm same.safetensors
expect_code 2 "$SNUG" cat model.safetensors model.norm --rows
expect_code 2 "$SNUG" cat model.safetensors model.embed_tokens.weight --rows 3
expect_code 2 "$SNUG" cat model.safetensors model.embed_tokens.weight --rows 0:257
expect_code 2 "$SNUG" cat model.safetensors model.embed_tokens.weight --rows 1:0
expect_in err "the rows end before they start"
expect_code 2 "$SNUG" sample x.safetensors --size big
expect_code 3 "$SNUG" verify model.safetensors
expect_in err "snug: bad magic: model.safetensors: plain safetensors, not compressed by Snug"
printf 'this is no tensor file' >foreign.safetensors
expect_code 3 "$SNUG" compress foreign.safetensors
expect_absent foreign.snug.safetensors
expect_code 8 "$SNUG" compress model.safetensors
expect_in err "snug: exists: model.snug.safetensors: already there; --force replaces it"
expect_code 8 "$SNUG" sample model.safetensors
expect_code 9 "$SNUG" compress nowhere.safetensors
expect_code 9 "$SNUG" decompress nowhere
expect_code 9 "$SNUG" inspect nowhere.safetensors
expect_code 9 "$SNUG" cat model.safetensors no.such.tensor
expect_code 9 "$SNUG" compress model.safetensors no/folder/x.safetensors

# Arguments that nobody asked for are errors, not ignored.
for command in "compress model.safetensors x" "decompress model.snug.safetensors x" \
  "verify model.snug.safetensors" "inspect model.safetensors" "cat model.safetensors x" \
  "sample x" "bench model.safetensors" "diff x y -o z" "patch x y -o z" "send x 127.0.0.1:1" \
  "recv ." "sync --follow 127.0.0.1:1 ." "sync --serve ."; do
  expect_code 2 "$SNUG" $command more
done
# Nor do empty ones mean anything, such as variables that are not set.
for command in "compress model.safetensors" "decompress model.snug.safetensors" sample \
  "diff model.safetensors model.safetensors -o" "inspect model.safetensors --html" \
  "cat model.safetensors model.embed_tokens.weight --rows" "sync --serve"; do
  expect_code 2 "$SNUG" $command ""
  expect_in err "is empty"
done
expect_code 2 "$SNUG" sync --serve . --once
expect_code 2 "$SNUG" sync --serve . --keep 3
expect_code 2 "$SNUG" sync --follow 127.0.0.1:1 . --listen 127.0.0.1:2

# Values that cannot be read, or are out of range: the message says what would be right.
# wrong_value TEXT command...
wrong_value() {
  local text=$1
  shift
  expect_code 2 "$@"
  expect_in err "$text"
}
send=("$SNUG" send model.safetensors 127.0.0.1:1 --retries 0)
wrong_value "not a multiple of 64 KiB" "${send[@]}" --chunk 1M
wrong_value "wants a size like 1MiB: nan" "${send[@]}" --chunk nan
wrong_value "wants a number of seconds" "${send[@]}" --timeout nan
wrong_value "HOST:PORT without http://" "$SNUG" send model.safetensors http://127.0.0.1:1
mkdir folder
wrong_value "at most 8000TB" "$SNUG" mount model.snug.safetensors folder --cache 9PB
expect_code 9 "${send[@]}" --token-file nowhere
expect_in err "No such file or directory"
printf '\n\n' >newlines
wrong_value "the file has no token" "${send[@]}" --token-file newlines
wrong_value "the file has no token" "${send[@]}" --token-file /dev/null
expect_code 9 "$SNUG" sync --serve nowhere
SNUG_FORCE=none "$SNUG" inspect model.safetensors >/dev/null 2>err
grep -q "this CPU has .*scalar; using" err || fail "SNUG_FORCE does not say what there is: $(cat err)"

# Damage is reported with file, tensor, block and byte.
cp model.snug.safetensors broken.snug.safetensors
chmod u+w broken.snug.safetensors
printf '\xAA\x55\xAA' | dd of=broken.snug.safetensors bs=1 seek=300000 conv=notrunc status=none
expect_code 5 "$SNUG" decompress broken.snug.safetensors
grep -qE '^snug: corrupt: broken\.snug\.safetensors: tensor "model\.[a-z_.0-9]+": block 0, byte [0-9]+: checksum does not match' err ||
  fail "message is not precise: $(cat err)"
expect_absent broken.safetensors
expect_code 5 "$SNUG" verify broken.snug.safetensors
head -c 200000 model.snug.safetensors >short.snug.safetensors
expect_code 5 "$SNUG" decompress short.snug.safetensors
expect_absent short.safetensors

# A missing shard is found before anything is written.
mkdir dir
cp model.safetensors dir/a.safetensors
printf '{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}' >dir/model.safetensors.index.json
expect_code 9 "$SNUG" compress dir
expect_in err "shard named by the index is missing: b.safetensors"
expect_absent dir.snug

# A full disk, played by a limit on file sizes (in KiB).
(ulimit -f 300 && "$SNUG" compress model.safetensors full.snug.safetensors >out 2>err)
[ $? -eq 7 ] || fail "a write that fails should exit with 7"
expect_in err "cannot write"
(ulimit -f 300 && "$SNUG" decompress model.snug.safetensors full.safetensors >out 2>err)
[ $? -eq 7 ] || fail "a write that fails should exit with 7"
ls | grep -q '^full' && fail "a failed write leaves a file: $(ls)"

# Threads that cannot be had, played by a limit on memory (in KiB), which sanitizers exceed.
if (ulimit -v 700000 && "$SNUG" --version) >/dev/null 2>&1; then
  (ulimit -v 700000 && "$SNUG" bench model.safetensors --runs 1 --threads 256 >out 2>err)
  [ $? -eq 7 ] || fail "bench without threads should exit with 7"
  expect_in err "cannot start a thread; use fewer"
fi

# Files and folders that may not be read or written; root may do everything.
if [ "$(id -u)" -ne 0 ]; then
  cp model.safetensors secret.safetensors
  chmod 000 secret.safetensors
  expect_code 7 "$SNUG" compress secret.safetensors
  mkdir readonly
  chmod 555 readonly
  expect_code 7 "$SNUG" compress model.safetensors readonly/x.safetensors
fi

"$SNUG" inspect model.safetensors >/dev/full 2>err
[ $? -eq 7 ] || fail "a full stdout should exit with 7"

# A message that cannot be printed changes nothing.
"$SNUG" compress nowhere.safetensors 2>/dev/full
[ $? -eq 9 ] || fail "a full stderr changes the exit code"
"$SNUG" compress nowhere.safetensors 2>&-
[ $? -eq 9 ] || fail "a closed stderr changes the exit code"

# --force replaces files of the same kind only, never the model itself or a FIFO.
expect_code 8 "$SNUG" inspect model.safetensors --html model.safetensors --force
cmp -s model.safetensors "$DATA/sample.safetensors" || fail "inspect --html destroyed the model"
expect_code 0 "$SNUG" inspect model.safetensors --html page.html
expect_code 0 "$SNUG" inspect model.safetensors --html page.html --force
mkfifo pipe
expect_code 8 "$SNUG" compress model.safetensors pipe --force
expect_code 8 "$SNUG" sample pipe --force
expect_in err "not a regular file; not replaced"
[ -p pipe ] || fail "--force replaced a FIFO"

# Control characters of names reach no terminal, in one byte or two.
bad=$(printf 'no\033such\302\233name')
"$SNUG" cat model.safetensors "$bad" 2>err
LC_ALL=C grep -qF "$(printf '\302\233')" err && fail "C1 controls are printed"

# A token for two hosts is new every time, private, and replaces nothing.
expect_code 0 "$SNUG" token secret
[ "$(stat -c %a secret)" = 600 ] || fail "others can read a token"
grep -qE '^snug-[0-9a-f]{64}$' secret || fail "no token: $(cat secret)"
cp secret older
expect_code 8 "$SNUG" token secret
expect_same secret older
expect_code 7 "$SNUG" token nowhere/secret
ln -s nobody dangling
expect_code 8 "$SNUG" token dangling
[ -e nobody ] && fail "a token was written through a link"
"$SNUG" token | cmp -s - secret && fail "the same token twice"

for command in "" compress decompress verify inspect cat bench sample token; do
  "$SNUG" $command --help >out || fail "$command --help fails"
  expect_in out "Example"
done
"$SNUG" --help | grep -q 'Exit codes' || fail "exit codes are not in --help"
"$SNUG" --version | grep -qE '^snug [0-9]+\.[0-9]+\.[0-9]+ ' || fail "--version"
echo passed
