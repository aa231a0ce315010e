#!/usr/bin/env bash
# Memory of both sides stays bounded, also while the receiver does not read.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"
if ldd "$SNUG" | grep -qE 'lib(a|t)san'; then
  echo "skipped: sanitizers take memory of their own"
  exit 0
fi
LIMIT_KB=$((64 * 1024 + 24 * 1024)) # of one connection, and of the program itself

peak_kb() { sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$1/status"; }
started() { [ -n "$(ls -A in)" ]; }

expect_code 0 "$SNUG" sample model.safetensors --size 256MiB
mkdir in
serve recv "$SNUG" recv in --listen 127.0.0.1:0
receiver=$PID
"$SNUG" send model.safetensors "$ADDRESS" --timeout 60 >send.out 2>send.err &
sender=$!
PIDS+=($sender)
wait_until 100 started || fail "nothing arrives: $(cat send.err)"
kill -STOP $receiver
sleep 1
stalled=$(peak_kb $sender)
kill -CONT $receiver
wait $sender || fail "send: $(cat send.err)"
expect_same model.safetensors in/model.safetensors
received=$(peak_kb $receiver)
end $receiver
echo "sender ${stalled:-gone} kB, receiver $received kB"
[ "${stalled:-0}" -le $LIMIT_KB ] || fail "the sender took $stalled kB"
[ "$received" -le $LIMIT_KB ] || fail "the receiver took $received kB"
echo passed
