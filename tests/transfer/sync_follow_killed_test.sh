#!/usr/bin/env bash
# A follower that is killed while it applies a patch leaves nothing for good, and what a
# living one is at work on is not touched.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

mkdir served fo
expect_code 0 "$SNUG" sample next.safetensors --size 96MiB
publish() {
  printf "\\x$(printf %02x "$1")" |
    dd of=next.safetensors bs=1 seek=$((50000000 + $1)) conv=notrunc status=none
  cp next.safetensors served/.making
  mv served/.making "served/step-$1"
}
# In whatever place: the result of a patch while it grows.
growing() { compgen -G 'fo/*.tmp-*' || compgen -G 'fo/.step-*.snug-part/update.result*'; }
follow() {
  "$SNUG" sync --follow "$ADDRESS" fo >fo.out 2>fo.err &
  follower=$!
  PIDS+=("$follower")
}
# stop_in_patch: publishes until the follower is caught in the middle, and stops it there.
num=1
stop_in_patch() {
  local tries end
  for tries in 1 2 3 4 5 6 7 8; do
    num=$((num + 1))
    publish $num
    end=$((SECONDS + 20))
    until growing >/dev/null || [ -e fo/step-$num ] || [ $SECONDS -gt $end ]; do :; done
    kill -STOP $follower
    sleep 0.1
    growing >/dev/null && [ ! -e fo/step-$num ] && return 0
    kill -CONT $follower
    wait_until 200 test -e fo/step-$num || fail "no step-$num: $(cat fo.err)"
    wait_until 200 grep -q "step-$num " fo.out || fail "no report of step-$num: $(cat fo.err)"
  done
  fail "the follower was never caught in a patch"
}

publish $num
serve server "$SNUG" sync --serve served --listen 127.0.0.1:0
follow
wait_until 200 grep -q step-1 fo.out || fail "step-1 does not arrive: $(cat fo.err)"

# Another follower of this folder starts: what the first one has is not abandoned.
stop_in_patch
"$SNUG" sync --follow "$ADDRESS" fo >second.out 2>second.err &
second=$!
PIDS+=("$second")
sleep 1.5
growing >/dev/null || fail "the work of a living follower was removed"
end $second
kill -CONT $follower
wait_until 200 grep -q "step-$num " fo.out || fail "step-$num does not arrive: $(cat fo.err)"
expect_same served/step-$num fo/step-$num

# Killed in the middle; the next one clears away what is left, even if it is about a
# version that never comes again.
stop_in_patch
kill -9 $follower
wait $follower 2>/dev/null
rm served/step-$num
num=$((num + 1))
publish $num
# The server needs a moment to see it.
arrives() { expect_code 0 "$SNUG" sync --follow "$ADDRESS" fo --once && [ -e fo/step-$num ]; }
wait_until 100 arrives || fail "step-$num does not arrive"
expect_same served/step-$num fo/step-$num
[ -z "$(ls -A fo | grep -v -x -e current -e .snug-sync -e 'step-[0-9]*')" ] || fail "left: $(ls -A fo)"
[ "$(ls -d fo/step-* | wc -l)" -le 2 ] || fail "more than two versions: $(ls fo)"

# The same with full copies, of which a follower that comes back takes up the rest: the
# part of a version that is given up goes with the next one.
for tries in 1 2 3 4 5 6 7 8; do
  rm -rf empty
  mkdir empty
  "$SNUG" sync --follow "$ADDRESS" empty --chunk 64KiB >empty.out 2>empty.err &
  follower=$!
  PIDS+=("$follower")
  end=$((SECONDS + 20))
  until [ -s empty/.step-$num.snug-part/step-$num ] || [ -e empty/step-$num ] || [ $SECONDS -gt $end ]; do :; done
  kill -9 $follower
  wait $follower 2>/dev/null
  [ -s empty/.step-$num.snug-part/step-$num ] && break
done
[ -s empty/.step-$num.snug-part/step-$num ] || fail "never caught in a full copy: $(ls -A empty)"
num=$((num + 1))
publish $num
arrives() { expect_code 0 "$SNUG" sync --follow "$ADDRESS" empty --once && [ -e empty/step-$num ]; }
wait_until 100 arrives || fail "step-$num does not arrive"
[ -z "$(ls -A empty | grep snug-part)" ] || fail "left: $(ls -A empty)"
echo passed
