#!/usr/bin/env bash
# The wrong command at the other end: both sides say so, at once, and do not come back.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

mkdir served taken followed
publish_named v1
echo hello >small

# at_once command...: the code of a peer that refuses, within seconds, and one line.
at_once() {
  local start=$SECONDS
  expect_code 13 timeout 60 "$@"
  [ $((SECONDS - start)) -lt 8 ] || fail "$* took $((SECONDS - start)) s"
  [ "$(wc -l <err)" -eq 1 ] || fail "$* says more than one line: $(cat err)"
}

# expect_stranger_reported NAME: whoever does not speak Snug is told of.
expect_stranger_reported() {
  exec {fd}<>"/dev/tcp/127.0.0.1/${ADDRESS##*:}"
  echo "GET / HTTP/1.0" >&"$fd"
  exec {fd}>&-
  wait_until 200 grep -q "before they proved to be Snug" "$1.err" ||
    fail "a stranger is not reported: $(cat "$1.err")"
}

serve server "$SNUG" sync --serve served --listen 127.0.0.1:0
at_once "$SNUG" send small "$ADDRESS"
expect_in err "snug send has reached snug sync --serve; it needs snug recv"
wait_until 50 grep -q "snug send has reached snug sync --serve" server.err ||
  fail "the server says nothing of it: $(cat server.err)"
# It goes on, and tells strangers from senders; there is no token to speak of.
expect_code 0 "$SNUG" sync --follow "$ADDRESS" followed --once
expect_same served/v1/f followed/v1/f
expect_stranger_reported server
! grep -q token server.err || fail "there is no token: $(cat server.err)"

serve receiver "$SNUG" recv taken --listen 127.0.0.1:0
for once in --once ""; do
  at_once "$SNUG" sync --follow "$ADDRESS" followed $once
  expect_in err "snug sync --follow has reached snug recv; it needs snug sync --serve"
done
wait_until 50 grep -q "snug sync --follow has reached snug recv" receiver.err ||
  fail "the receiver says nothing of it: $(cat receiver.err)"
expect_stranger_reported receiver
expect_code 0 "$SNUG" send small "$ADDRESS"
expect_same small taken/small

# Another token, or one side that encrypts: a follower ends at once, as a sender does. One that was
# connected goes on trying, because servers are restarted with new tokens.
expect_code 0 "$SNUG" token one
expect_code 0 "$SNUG" token two
mkdir known
serve guarded "$SNUG" sync --serve served --listen 127.0.0.1:0 --token-file one
for once in --once ""; do
  at_once "$SNUG" sync --follow "$ADDRESS" followed --token-file two $once
  expect_in err "the other side has another token"
  at_once "$SNUG" sync --follow "$ADDRESS" followed --insecure $once
  expect_in err "--insecure is for both sides or neither"
done
"$SNUG" sync --follow "$ADDRESS" known --token-file one >known.out 2>known.err &
follower=$!
PIDS+=("$follower")
wait_until 200 test -e known/current || fail "nothing was fetched: $(cat known.err)"
end "$PID"
serve guarded "$SNUG" sync --serve served --listen "$ADDRESS" --token-file two
wait_until 200 grep -q "the other side has another token" known.err ||
  fail "a follower does not say that its server has another token: $(cat known.err)"
kill -0 $follower || fail "a follower gives up a server that it was connected to"
end $follower
echo passed
