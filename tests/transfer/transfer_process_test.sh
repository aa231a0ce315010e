#!/usr/bin/env bash
# snug send and recv as processes: killed, stopped, strangers, two at once.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

expect_code 0 "$SNUG" sample model.safetensors --size 48MiB
mkdir in folder folder/sub
cp "$DATA/sample.safetensors" folder/sub/
echo '{"x": 1}' >folder/config.json

# The plain case, a file and a folder, with a token.
export SNUG_TOKEN="correct horse battery"
serve recv "$SNUG" recv in --listen 127.0.0.1:0
receiver=$PID
expect_code 0 "$SNUG" send model.safetensors "$ADDRESS"
expect_in out "on the wire"
expect_same model.safetensors in/model.safetensors
expect_code 0 "$SNUG" send folder "$ADDRESS" --json
expect_in out '"num_files": 2'
expect_same folder/sub/sample.safetensors in/folder/sub/sample.safetensors

echo x >tiny
expect_code 0 "$SNUG" send tiny "$ADDRESS"
grep -q ' 0 kB/s' out && fail "the rate of a small transfer is nothing: $(cat out)"

# Refusals: one line, the right code, at once.
expect_code 8 "$SNUG" send model.safetensors "$ADDRESS"
SNUG_TOKEN="another one of 16 bytes" expect_code 13 "$SNUG" send model.safetensors "$ADDRESS"
wait_until 100 grep -q '127.0.0.1:.*refused: it has another token' recv.err ||
  fail "the receiver does not say who had another token: $(cat recv.err)"
SNUG_TOKEN="short" expect_code 2 "$SNUG" send model.safetensors "$ADDRESS"

# A token that others can read, and one that is not used: said, not refused.
echo "$SNUG_TOKEN" >token && chmod 644 token
"$SNUG" send model.safetensors "$ADDRESS" --token-file token 2>err
expect_in err "warning: other users can read"
expect_in err "already there"
chmod 600 token
expect_code 8 "$SNUG" send model.safetensors "$ADDRESS" --token-file token
"$SNUG" send model.safetensors "$ADDRESS" --insecure --retries 0 2>err
expect_in err "SNUG_TOKEN is not used"
head -c 4096 /dev/zero | tr '\0' x >token
expect_code 2 "$SNUG" send model.safetensors "$ADDRESS" --token-file token
expect_code 9 "$SNUG" send nothing "$ADDRESS"
expect_code 2 "$SNUG" send model.safetensors nonsense
end $receiver
expect_code 13 "$SNUG" send model.safetensors "$ADDRESS"
SNUG_TOKEN="" expect_code 2 "$SNUG" recv in --listen 0.0.0.0:0
expect_code 9 "$SNUG" recv nowhere

# The sender is killed again and again; the next one goes on.
rm -rf in/model.safetensors
serve recv "$SNUG" recv in --listen 127.0.0.1:0 --timeout 5
receiver=$PID
for ms in 10 20 40 60; do
  "$SNUG" send model.safetensors "$ADDRESS" --lanes 1 --chunk 64KiB >/dev/null 2>&1 &
  sender=$!
  sleep "0.$(printf %03d $ms)"
  kill -9 $sender 2>/dev/null
  wait $sender 2>/dev/null
  [ ! -e in/model.safetensors ] || expect_same model.safetensors in/model.safetensors
  rm -f in/model.safetensors
done
# One that was killed after its last word may still arrive.
sleep 0.5
rm -f in/model.safetensors
expect_code 0 "$SNUG" send model.safetensors "$ADDRESS"
expect_same model.safetensors in/model.safetensors

# The receiver is killed and comes back on the same port; the sender goes on.
rm -rf in/model.safetensors
for ms in 20 60; do
  port=${ADDRESS##*:}
  "$SNUG" send model.safetensors "$ADDRESS" --lanes 1 --chunk 64KiB >send.out 2>send.err &
  sender=$!
  sleep "0.$(printf %03d $ms)"
  kill -9 $receiver 2>/dev/null
  wait $receiver 2>/dev/null
  serve recv "$SNUG" recv in --listen "127.0.0.1:$port" --timeout 5
  receiver=$PID
  wait $sender || [ -s send.err ] || fail "a sender ended without a word"
  [ -e in/model.safetensors ] || expect_code 0 "$SNUG" send model.safetensors "$ADDRESS"
  expect_same model.safetensors in/model.safetensors
  rm -f in/model.safetensors
done

# A receiver that stands still: an error within the timeout, not a hang.
kill -STOP $receiver
start=$SECONDS
expect_code 12 timeout 60 "$SNUG" send model.safetensors "$ADDRESS" --timeout 1 --retries 0
[ $((SECONDS - start)) -lt 20 ] || fail "a stopped receiver held the sender for $((SECONDS - start)) s"
# Whoever does not want to wait that long need not, in whatever phase.
for command in "send model.safetensors $ADDRESS" "sync --follow $ADDRESS folder"; do
  "$SNUG" $command --timeout 600 >stop.out 2>stop.err &
  waiting=$!
  sleep 0.3
  start=$SECONDS
  kill -TERM $waiting
  wait $waiting
  code=$?
  [ $code -eq 143 ] || fail "snug $command exits with $code after SIGTERM: $(cat stop.err)"
  [ $((SECONDS - start)) -lt 20 ] || fail "SIGTERM took $((SECONDS - start)) s to end snug $command"
done
kill -CONT $receiver

# Two at once, of different names.
cp model.safetensors second.safetensors
"$SNUG" send model.safetensors "$ADDRESS" >/dev/null 2>one.err &
one=$!
"$SNUG" send second.safetensors "$ADDRESS" >/dev/null 2>two.err &
two=$!
wait $one || fail "the first of two senders: $(cat one.err)"
wait $two || fail "the second of two senders: $(cat two.err)"
expect_same model.safetensors in/model.safetensors
expect_same model.safetensors in/second.safetensors
end $receiver
if [ -e /proc/net/if_inet6 ] && grep -q ' lo$' /proc/net/if_inet6; then
  rm in/model.safetensors
  serve recv6 "$SNUG" recv in --listen '[::1]:0'
  [[ $ADDRESS == "[::1]:"* ]] || fail "an IPv6 address is printed as $ADDRESS"
  expect_code 0 "$SNUG" send model.safetensors "$ADDRESS"
  expect_same model.safetensors in/model.safetensors
  expect_soon recv6.out "verified"
  expect_code 2 "$SNUG" send model.safetensors "::1:${ADDRESS##*:}"
  end $PID
fi
[ -z "$(ls -A in | grep snug-part)" ] || fail "parts are left: $(ls -A in)"
echo passed
