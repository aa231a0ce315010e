#!/usr/bin/env bash
# The server's patches lie where others can reach them: whatever happens to them, followers
# get their version. A server removes the patches of servers that are dead, and only those.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

mkdir served one two three four five
expect_code 0 "$SNUG" sample next.safetensors --size 1MiB
publish() {
  local i
  for i in 1 2 3; do
    printf '\1' | dd of=next.safetensors bs=1 seek=$((100000 + $1 * 1001 + i * 200000)) conv=notrunc status=none
  done
  cp next.safetensors served/.making
  mv served/.making "served/step-$1"
  wait_until 100 grep -q "step-$1" served/.snug-serve/order || fail "step-$1 is not published"
}
# follow FOLDER N HOW: the follower gets version N, as a patch or in full.
follow() {
  expect_code 0 timeout 20 "$SNUG" sync --follow "$ADDRESS" "$1" --once
  expect_same "served/step-$2" "$1/current"
  expect_in out "step-$2  $3"
}
patches() { ls served/.snug-serve/*.patch 2>/dev/null; }

serve server "$SNUG" sync --serve served --listen 127.0.0.1:0
server=$PID
publish 1
for follower in one two three four five; do follow $follower 1 full; done
publish 2
follow one 2 patch
# Deleted, damaged, deleted with all that is there.
patch=$(patches)
[ -n "$patch" ] || fail "there is no patch"
rm $patch
follow two 2 patch
patch=$(patches)
: >$patch
follow three 2 patch
rm -r served/.snug-serve
follow four 2 patch
# Nothing can be written at all: in full.
rm -r served/.snug-serve
: >served/.snug-serve
follow five 2 full
rm served/.snug-serve

# A second server leaves the patches of the first alone, in another container too.
publish 3
follow one 3 patch
[ -n "$(patches)" ] || fail "there is no patch"
before=$(patches)
contained=()
unshare -rpf --mount-proc true 2>/dev/null && contained=(unshare -rpf --kill-child --mount-proc)
serve second "${contained[@]}" "$SNUG" sync --serve served --listen 127.0.0.1:0
[ "$(patches)" = "$before" ] || fail "the second server has removed $before"
follow two 3 patch
# Those of a server that was killed go.
kill -9 $server
wait $server 2>/dev/null
serve third "$SNUG" sync --serve served --listen 127.0.0.1:0
for patch in $before; do [ ! -e $patch ] || fail "a dead server's patch is left"; done
follow three 3 patch
echo passed
