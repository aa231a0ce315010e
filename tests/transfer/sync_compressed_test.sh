#!/usr/bin/env bash
# snug sync of files that Snug has compressed: what is damaged is neither published nor delivered,
# and what its owner has changed is neither replaced nor deleted.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

NAME=c.snug.safetensors
# damage FILE: another byte in its middle, under the same name, by a rename.
damage() {
  cp "$1" .damaged
  printf 'Z' | dd of=.damaged bs=1 seek=$(($(stat -c %s .damaged) / 2)) conv=notrunc 2>/dev/null
  cmp -s .damaged "$1" && printf 'Y' | dd of=.damaged bs=1 seek=$(($(stat -c %s .damaged) / 2)) conv=notrunc 2>/dev/null
  mv .damaged "$1"
}
mkdir served weights
"$SNUG" compress "$DATA/sample.safetensors" good --quiet || fail "cannot compress"
"$SNUG" compress "$DATA/sample.safetensors" fixed --codec fixed --quiet || fail "cannot compress"
cp good served/.c && mv served/.c served/$NAME
serve server "$SNUG" sync --serve served --listen 127.0.0.1:0

# A version that is damaged after it was published.
damage served/$NAME
"$SNUG" sync --follow "$ADDRESS" weights >follow.out 2>follow.err &
FOLLOWER=$!
PIDS+=("$FOLLOWER")
wait_until 200 grep -q "not published" server.err || fail "the server says nothing: $(cat server.err)"
expect_in server.err "$NAME"
sleep 1
expect_absent weights/$NAME
[ ! -e weights/current ] || fail "current points to a damaged version"
# One that is damaged from the start.
cp served/$NAME served/.other && mv served/.other served/other.snug.safetensors
wait_until 200 grep -q "other.snug.safetensors" server.err || fail "the server says nothing"
expect_absent weights/other.snug.safetensors
# Mended, it arrives.
rm served/other.snug.safetensors
cp good served/.c && mv served/.c served/$NAME
wait_until 300 test -e weights/current || fail "nothing arrives: $(cat follow.err)"
expect_same good weights/$NAME
"$SNUG" verify weights/$NAME --quiet || fail "what arrived is damaged"
end "$FOLLOWER"

# What the owner has changed stays, whether it still restores the same original or not.
for change in damage recompress; do
  rm -rf mine && mkdir mine
  rm -f served/* && sleep 1
  cp good served/.v && mv served/.v served/v1
  follow() { "$SNUG" sync --follow "$ADDRESS" mine --once --keep 1 >out 2>err && [ "$(readlink mine/current)" = "$1" ]; }
  wait_until 200 follow v1 || fail "v1 does not arrive"
  case $change in
    damage) damage mine/v1 ;;
    recompress) cp fixed mine/v1 ;;
  esac
  cp mine/v1 changed
  head -c 1000 /dev/urandom >served/.v && mv served/.v served/v2
  : >said
  arrives() { follow "$1"; local rc=$?; cat err >>said; return $rc; }
  wait_until 200 arrives v2 || fail "v2 does not arrive"
  expect_same mine/v1 changed
  expect_in said "mine/v1: changed since it was fetched, so not deleted"
  # Nor is it replaced by a version of its name.
  "$SNUG" compress "$DATA/sample.safetensors" served/.v --codec raw --quiet --force && mv served/.v served/v1
  refused() { "$SNUG" sync --follow "$ADDRESS" mine --once >out 2>err; [ $? -eq 8 ]; }
  wait_until 200 refused || fail "v1 is not refused"
  expect_same mine/v1 changed
done
echo passed
