#!/usr/bin/env bash
# snug sync --follow where the user keeps things of his own: a file or folder named
# `current`, and other data under the name of a version that was fetched long ago.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

mkdir served file folder
publish() {
  mkdir served/.making
  head -c 100000 /dev/urandom >served/.making/weights
  echo "$1" >served/.making/step
  mv served/.making "served/$1"
}
publish v1
serve server "$SNUG" sync --serve served --listen 127.0.0.1:0

# Only a link is replaced; anything else is refused before anything arrives.
echo precious >file/current
mkdir folder/current
echo precious >folder/current/mine
for target in file folder; do
  expect_code 8 "$SNUG" sync --follow "$ADDRESS" $target --once
  expect_in err "$target/current: not a link"
  [ "$(ls -A $target)" = current ] || fail "left in $target: $(ls -A $target)"
done
[ "$(cat file/current)" = precious ] || fail "the user's file is lost"
[ "$(cat folder/current/mine)" = precious ] || fail "the user's folder is lost"
rm file/current
ln -s elsewhere file/current
expect_code 0 "$SNUG" sync --follow "$ADDRESS" file --once
[ "$(readlink file/current)" = v1 ] || fail "a link was not replaced"

# The same when it appears while the follower waits.
mkdir late
"$SNUG" sync --follow "$ADDRESS" late >late.out 2>late.err &
follower=$!
PIDS+=("$follower")
wait_until 200 grep -q v1 late.out || fail "v1 does not arrive: $(cat late.err)"
rm late/current
echo precious >late/current
publish v2
wait_until 200 grep -q "not a link" late.err || fail "nothing is refused: $(cat late.out)"
wait $follower
[ $? -eq 8 ] || fail "the follower goes on"
[ "$(cat late/current)" = precious ] || fail "the user's file is lost while it waits"
[ -z "$(ls -A late | grep -v -x -e current -e v1 -e .snug-sync)" ] || fail "left: $(ls -A late)"

# --keep deletes what was fetched, by this follower or one before, and nothing else.
mkdir kept
# follow_to NAME: what is said on the way is in said; the server needs a moment to see it.
arrives() {
  expect_code 0 "$SNUG" sync --follow "$ADDRESS" kept --once --keep 1
  cat err >>said
  [ "$(readlink kept/current)" = "$1" ]
}
follow_to() {
  : >said
  wait_until 100 arrives "$1" || fail "$1 does not arrive"
}
follow_to v2
publish v3
follow_to v3
[ "$(ls kept)" = "$(printf 'current\nv3')" ] || fail "an old version stays: $(ls kept)"
rm -r kept/v3
mkdir kept/v3
echo precious >kept/v3/mine
publish v4
follow_to v4
[ "$(cat kept/v3/mine)" = precious ] || fail "somebody else's v3 was deleted"
expect_in said "kept/v3: changed since it was fetched, so not deleted"
[ "$(wc -l <said)" -eq 1 ] || fail "more than one line: $(cat said)"
# Touched, but equal; and a list without identities, as earlier ones were.
touch kept/v4/step
sed -i 's/^\([0-9a-f]*\):[0-9a-f]*/\1/' kept/.snug-sync
publish v5
follow_to v5
expect_absent kept/v4
[ ! -s said ] || fail "something is said: $(cat said)"
# A version that is published again does not replace what the user has put in its place.
rm -r kept/v5 served/v5
echo precious >kept/v5
publish v5
refused() { "$SNUG" sync --follow "$ADDRESS" kept --once >out 2>err; [ $? -eq 8 ]; }
wait_until 100 refused || fail "nothing is refused"
expect_in err "kept/v5: not fetched by snug sync"
[ "$(cat kept/v5)" = precious ] || fail "somebody else's v5 was replaced"
echo passed
