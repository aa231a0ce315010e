#!/usr/bin/env bash
# snug sync: three followers keep up with a trainer; one dies and returns, one
# comes late, one has no room.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"
export SNUG_TOKEN="correct horse battery"

mkdir served one two three tiny
expect_code 0 "$SNUG" sample next.safetensors --size 4MiB

# publish N: a folder that differs from the one before in a few values.
publish() {
  local i
  for i in 1 2 3 4 5 6 7 8; do
    printf '\1' | dd of=next.safetensors bs=1 seek=$((500000 + $1 * 1001 + i * 300000)) conv=notrunc status=none
  done
  mkdir served/.making
  cp next.safetensors served/.making/model.safetensors
  echo "{\"step\": $1}" >served/.making/config.json
  mv served/.making "served/step-$1"
}
# has FOLDER N: the follower has version N, and it is the right one.
has() {
  [ -e "$1/step-$2" ] && [ "$(readlink "$1/current")" = "step-$2" ]
}
expect_version() {
  wait_until 300 has "$1" "$2" || fail "$1 has no step-$2: $(ls -A "$1") $(cat "$1".err)"
  diff -r "served/step-$2" "$1/step-$2" >/dev/null || fail "$1/step-$2 differs"
}
follow() {
  "$SNUG" sync --follow "$ADDRESS" "$1" --timeout 5 >>"$1.out" 2>>"$1.err" &
  PID=$!
  PIDS+=("$PID")
}

publish 1
serve server "$SNUG" sync --serve served --listen 127.0.0.1:0
server=$PID
follow one
follow two
two=$PID
expect_version one 1
expect_version two 1
for n in 2 3 4 5; do
  publish $n
  [ $n -eq 3 ] && kill -9 $two
  expect_version one $n
done
follow two
follow three
expect_version two 5
expect_version three 5
publish 6
for follower in one two three; do
  expect_version $follower 6
  [ "$(ls -d $follower/step-* | wc -l)" -le 2 ] || fail "$follower keeps more than two versions"
  [ -z "$(ls -A $follower | grep snug-part)" ] || fail "$follower has parts left: $(ls -A $follower)"
done
# A version is there a moment before it is reported.
expect_report() { wait_until 100 grep -q "$2" "$1" || fail "'$2' is not in $1: $(cat "$1")"; }
expect_report one.out "step-6  patch"
expect_report two.out "step-5  patch"
expect_report three.out "step-5  full"
expect_report server.out "step-6  patch"

# A follower whose version was damaged gets a full copy, never a wrong byte.
printf 'x' | dd of=three/step-6/model.safetensors bs=1 seek=1000000 conv=notrunc status=none
publish 7
expect_version three 7

# The server restarts; followers find it again.
end $server
serve server "$SNUG" sync --serve served --listen "127.0.0.1:${ADDRESS##*:}"
publish 8
expect_version one 8
expect_version two 8

# No room: an error, and nothing under a version's name.
(ulimit -f 1000 && "$SNUG" sync --follow "$ADDRESS" tiny --once >tiny.out 2>tiny.err)
code=$?
[ $code -eq 7 ] || fail "a full disk exits with $code, expected 7: $(cat tiny.err)"
[ -z "$(ls tiny)" ] || fail "something is there: $(ls tiny)"
expect_code 0 "$SNUG" sync --follow "$ADDRESS" tiny --once
expect_version tiny 8

expect_code 2 "$SNUG" sync
expect_code 2 "$SNUG" sync --follow "$ADDRESS"
echo passed
