#!/usr/bin/env bash
# What a killed run has left is named by the next one to the same target.
. "$(dirname "${BASH_SOURCE[0]}")/cli_common.sh"

cp "$DATA/sample.safetensors" x.safetensors
expect_code 0 "$SNUG" compress x.safetensors
[ ! -s err ] || fail "something is said: $(cat err)"

# A run that is stopped is alive; killed, it is not.
"$SNUG" sample big.safetensors --size 100MB >out 2>err || fail "no sample"
for ((try = 0; try < 20; try++)); do
  rm -f big.snug.safetensors*
  "$SNUG" compress big.safetensors --threads 1 >/dev/null 2>&1 &
  PID=$!
  for ((i = 0; i < 1000; i++)); do
    [ -n "$(find . -name 'big.snug.safetensors.tmp-*' -size +0)" ] && break
    sleep 0.01
  done
  kill -STOP $PID 2>/dev/null
  [ -n "$(find . -name 'big.snug.safetensors.tmp-*' -size +0)" ] && break
  kill -9 $PID 2>/dev/null
done
left=$(find . -name 'big.snug.safetensors.tmp-*' -printf '%P')
[ -n "$left" ] || fail "no run could be stopped in its middle"
expect_code 0 "$SNUG" compress big.safetensors
[ ! -s err ] || fail "a file in use is called a leftover: $(cat err)"
{ kill -9 $PID; wait $PID; } 2>/dev/null
expect_code 8 "$SNUG" compress big.safetensors --quiet
"$SNUG" compress big.safetensors >out 2>err
[ $? -eq 8 ] || fail "an existing output is replaced"
expect_in err "snug: $left ("
expect_code 0 "$SNUG" compress big.safetensors --force --json
expect_in err "$left ("
expect_in err "is left of a run that was killed; it may be deleted"
expect_in out "\"path\": \"$left\""
expect_code 0 "$SNUG" compress big.safetensors --force --quiet
[ ! -s err ] || fail "--quiet prints something"
rm "$left"

# Of every command that writes; of folders too.
mkdir dir dir2 dir3.tmp-0123abcd
cp x.safetensors dir
cp x.safetensors dir2/y.safetensors
echo left | tee dir3.tmp-0123abcd/f p.tmp-0123abcd z.tmp-0123abcd >/dev/null
expect_code 0 "$SNUG" diff dir dir2 -o p
expect_in err "snug: p.tmp-0123abcd ("
expect_code 0 "$SNUG" patch dir p -o dir3 --json
expect_in err "snug: dir3.tmp-0123abcd ("
expect_in out '"leftovers": ['
expect_code 0 "$SNUG" decompress x.snug.safetensors z
expect_in err "snug: z.tmp-0123abcd ("
echo left >page.tmp-0123abcd
expect_code 0 "$SNUG" inspect x.safetensors --html page
expect_in err "snug: page.tmp-0123abcd ("

# Also of sample, which does not replace what appears while it works.
start_sample() {
  "$SNUG" sample made --size 200MB >out 2>err &
  PID=$!
  for ((i = 0; i < 1000; i++)); do
    [ -n "$(find . -name 'made.tmp-*' -size +0)" ] && return
    sleep 0.01
  done
  fail "sample writes nothing"
}
start_sample
kill -STOP $PID
echo precious >made
kill -CONT $PID
wait $PID
[ $? -eq 8 ] || fail "sample does not see what appears while it works"
expect_in made precious
rm made
start_sample
{ kill -9 $PID; wait $PID; } 2>/dev/null
left=$(find . -name 'made.tmp-*' -printf '%P')
expect_code 0 "$SNUG" sample made --size 1MB
expect_in err "snug: $left ("
echo passed
