#!/usr/bin/env bash
# snug sync where people move things about: versions deleted while they are sent, other
# people's files under a version's name, versions that nobody can be sent.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

mkdir served one two
# A version is deleted while it is sent: the follower goes on with the next one and
# keeps nothing of it. The first file is large, so that the others are opened late.
mkdir served/v1
head -c 400000000 /dev/urandom >served/v1/a
for i in $(seq 60); do echo $i >served/v1/f$i; done
# A server that was killed has left a patch; no process has this number.
mkdir served/.snug-serve
echo old >served/.snug-serve/999999999-1.patch
serve server "$SNUG" sync --serve served --listen 127.0.0.1:0 --mode raw
[ ! -e served/.snug-serve/999999999-1.patch ] || fail "a dead server's patch is left"
"$SNUG" sync --follow "$ADDRESS" one >one.out 2>one.err &
follower=$!
PIDS+=("$follower")
# No sleep between the looks: the file is through in a fraction of a second.
end=$((SECONDS + 20))
until [ -s one/.v1.snug-part/a ] || [ $SECONDS -gt $end ]; do :; done
kill -STOP $follower
[ -s one/.v1.snug-part/a ] || fail "nothing arrives: $(cat one.err)"
rm served/v1/f*
kill -CONT $follower
wait_until 200 grep -q "cannot open" one.err || fail "nothing was missing: $(cat one.err one.out)"
expect_soon server.err "127.0.0.1:"
mkdir served/.v2
echo 2 >served/.v2/f
mv served/.v2 served/v2
rm -r served/v1
wait_until 200 test -e one/v2/f || fail "the follower has given up: $(cat one.err)"
wait_until 50 test ! -e one/.v1.snug-part || fail "the part of v1 is left"
kill -0 $follower || fail "the follower has ended"
end $follower

# What somebody else has put there is not replaced, unless it is the version itself.
mkdir two/v2
echo precious >two/v2/mine
expect_code 8 "$SNUG" sync --follow "$ADDRESS" two --once
[ "$(cat two/v2/mine)" = precious ] || fail "the follower replaced what was not its own"
rm -r two/v2
cp -r served/v2 two/v2
expect_code 0 "$SNUG" sync --follow "$ADDRESS" two --once
[ "$(readlink two/current)" = v2 ] || fail "an equal version was not taken"

# No room: said in units that people read, by whom it was sent, and nothing stays behind.
mkdir taken
serve receiver "$SNUG" recv taken --listen 127.0.0.1:0
truncate -s 8T huge
expect_code 7 "$SNUG" send huge "$ADDRESS"
expect_in err " MiB needed"
wait_until 200 grep -q ': 127.0.0.1:[0-9]*: taken: not enough room on the disk: [0-9]* MiB free' \
  receiver.err || fail "the receiver says something else: $(cat receiver.err)"
[ -z "$(ls -A taken)" ] || fail "left behind: $(ls -A taken)"

# Strangers who connect and say nothing keep nobody out.
for i in $(seq 150); do exec {fd}<>"/dev/tcp/127.0.0.1/${ADDRESS##*:}"; done
echo hello >small
expect_code 0 "$SNUG" send small "$ADDRESS"
expect_same small taken/small

# Names that cannot travel are refused by the sender, who can do something about it.
: >"$(printf 'bad\xff')"
expect_code 2 "$SNUG" send "$(printf 'bad\xff')" "$ADDRESS"
echo passed
