#!/usr/bin/env bash
# Host names that are not known yet: followers and senders come back until they are. In a
# mount namespace of its own, where /etc/hosts is the test's and no name server answers.
if [ -z "${SNUG_IN_NAMESPACE:-}" ]; then
  for flags in -m -rm; do
    unshare $flags mount --bind /etc/hosts /etc/hosts 2>/dev/null &&
      SNUG_IN_NAMESPACE=1 exec unshare $flags bash "${BASH_SOURCE[0]}"
  done
fi
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

# Addresses that no name server could ever know stay usage errors.
mkdir fo served in
for bad in 'me@trainer:7000' '10.0.0.256:7000' 'a b:7000' trainer trainer:70000; do
  expect_code 2 timeout 20 "$SNUG" sync --follow "$bad" fo
  expect_code 2 timeout 20 "$SNUG" send served "$bad"
done
if [ -z "${SNUG_IN_NAMESPACE:-}" ]; then
  echo "skipped: no mount namespaces here"
  exit 0
fi
echo "127.0.0.1 localhost" >hosts
echo "nameserver 127.0.0.1" >resolv.conf
echo "hosts: files dns" >nsswitch.conf
for file in hosts resolv.conf nsswitch.conf; do
  mount --bind "$WORK/$file" "/etc/$file" || { echo "skipped: cannot mount"; exit 0; }
done
export SNUG_TOKEN="correct horse battery"
expect_code 2 "$SNUG" recv in --listen trainer.test:0

echo 1 >served/v1
serve server "$SNUG" sync --serve served --listen 127.0.0.1:0
port=${ADDRESS##*:}
"$SNUG" sync --follow "trainer.test:$port" fo >fo.out 2>fo.err &
follower=$!
PIDS+=("$follower")
serve receiver "$SNUG" recv in --listen 127.0.0.1:0
"$SNUG" send served/v1 "trainer.test:${ADDRESS##*:}" --retries 20 >send.out 2>send.err &
sender=$!
PIDS+=("$sender")
wait_until 200 grep -q "trainer.test:$port" fo.err || fail "the host is not named: $(cat fo.err)"
sleep 0.5
kill -0 $follower 2>/dev/null || fail "the follower has ended: $(cat fo.err)"
kill -0 $sender 2>/dev/null || fail "the sender has ended: $(cat send.err)"
echo "127.0.0.1 trainer.test" >>hosts
wait_until 300 test -e fo/v1 || fail "the follower does not come back: $(cat fo.err)"
wait $sender || fail "the sender does not come back: $(cat send.err)"
expect_same served/v1 in/v1
# Without retries: one line that names the host.
expect_code 12 timeout 60 "$SNUG" send served/v1 nowhere.test:7000 --retries 0
expect_in err nowhere.test
end $follower
echo passed
