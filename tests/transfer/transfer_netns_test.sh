#!/usr/bin/env bash
# A real link between two network namespaces that is slow, and that goes away in the
# middle of a transfer: the transfer fails in bounded time or goes on.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"
A=snug-ta-$$ B=snug-tb-$$
skip() {
  echo "skipped: $*"
  exit 0
}
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip >/dev/null && command -v tc >/dev/null || skip "ip or tc is not there"
ip netns add $A 2>/dev/null || skip "no network namespaces here"
clean_up() {
  { kill -9 "${PIDS[@]}"; wait; ip netns del $A; ip netns del $B; } 2>/dev/null
  rm -rf "$WORK"
}
ip netns add $B
ip link add snug-a netns $A type veth peer name snug-b netns $B 2>/dev/null || skip "no veth here"
ip -n $A addr add 10.78.0.1/24 dev snug-a
ip -n $B addr add 10.78.0.2/24 dev snug-b
ip -n $A link set snug-a up
ip -n $B link set snug-b up
ip netns exec $A tc qdisc add dev snug-a root tbf rate 400mbit burst 256kb latency 20ms 2>/dev/null ||
  skip "no token bucket here"

export SNUG_TOKEN="correct horse battery"
mkdir in
expect_code 0 "$SNUG" sample model.safetensors --size 64MiB
serve recv ip netns exec $B "$SNUG" recv in --listen 10.78.0.2:0 --timeout 3
port=${ADDRESS##*:}

# On a slow link compression is found to pay: what follows the first tries goes compressed.
expect_code 0 ip netns exec $A "$SNUG" send model.safetensors "10.78.0.2:$port" --json
expect_same model.safetensors in/model.safetensors
chunks() { sed -n '/"num_chunks"/,/}/s/.*"'"$1"'": \([0-9]*\).*/\1/p' out; }
[ "$(chunks entropy)" -gt 0 ] && [ "$(chunks entropy)" -gt "$(chunks raw)" ] ||
  fail "$(chunks entropy) chunks went compressed, $(chunks raw) raw: $(cat out)"
rm in/model.safetensors

# The link goes away for a while: the same command carries on by itself.
ip netns exec $A timeout 60 "$SNUG" send model.safetensors "10.78.0.2:$port" --timeout 3 >send.out 2>send.err &
sender=$!
sleep 0.2
ip -n $B link set snug-b down
sleep 5
ip -n $B link set snug-b up
wait $sender || fail "send: $(cat send.err)"
expect_same model.safetensors in/model.safetensors
rm in/model.safetensors

# It goes away for good: an error, in bounded time.
ip netns exec $A timeout 60 "$SNUG" send model.safetensors "10.78.0.2:$port" --timeout 2 --retries 0 >send.out 2>send.err &
sender=$!
sleep 0.2
ip -n $B link set snug-b down
start=$SECONDS
wait $sender
code=$?
[ $code -eq 12 ] || [ $code -eq 13 ] || fail "a dead link exits with $code: $(cat send.err)"
[ $((SECONDS - start)) -lt 20 ] || fail "a dead link held the sender for $((SECONDS - start)) s"
expect_absent in/model.safetensors
echo passed
