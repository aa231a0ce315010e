#!/usr/bin/env bash
# A version keeps its place in the order: when it is touched, cannot be read for a while,
# or vanishes with its whole folder and comes back. New contents under an old name are new.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

mkdir served elsewhere one
publish() {
  publish_named "$1"
  wait_until 100 grep -q " $1\$" served/.snug-serve/order || fail "$1 is not published"
}
start() {
  serve server "$SNUG" sync --serve served --listen "127.0.0.1:${ADDRESS##*:}"
  server=$PID
}
# expect_newest FOLDER NAME: what somebody who asks now is given.
expect_newest() {
  expect_code 0 timeout 20 "$SNUG" sync --follow "$ADDRESS" "$1" --once
  [ "$(readlink "$1/current")" = "$2" ] || fail "$1 was given $(readlink "$1/current"), not $2"
}
# expect_newest_for_all NAME: for the follower that was always there, and for a new one.
expect_newest_for_all() {
  expect_newest one "$1"
  rm -rf fresh
  mkdir fresh
  expect_newest fresh "$1"
}
# after_look: waits until the server has looked around at least once more.
looks=0
after_look() {
  looks=$((looks + 1))
  mkfifo "served/look-$looks"
  wait_until 100 grep -q "look-$looks.*not published" server.err || fail "the server does not look"
  rm "served/look-$looks"
}

ADDRESS=:0
start
# z is the oldest, though the last by name; b's file lies elsewhere.
publish z
echo b >elsewhere/f
mkdir served/.making
ln -s ../../elsewhere/f served/.making/f
mv served/.making served/b
wait_until 100 grep -q ' b$' served/.snug-serve/order || fail "b is not published"
publish a
expect_newest one a

# Touched: the same bytes are no news. A file or a folder, in place or replaced.
touch -d "2040-01-01" served/z served/z/f
cp -r served/z served/.again
rm -r served/z
mv served/.again served/z
after_look
touch -d "2041-01-01" served/z served/z/f
sleep 2.5
after_look
expect_newest_for_all a

# Out of reach while the server restarts: back in its place when it can be read again.
end $server
mv elsewhere/f elsewhere/hidden
start
wait_until 100 grep -q "served/b.*not published" server.err || fail "b is not reported"
expect_newest_for_all a
mv elsewhere/hidden elsewhere/f
wait_until 100 grep -q ' b$' served/.snug-serve/order || fail "b is forgotten"
sleep 1.5
after_look
expect_newest_for_all a
# The newest out of reach: who has it keeps it, who has none gets the one before.
end $server
rm -r served/a
mkdir served/.making
ln -s ../../elsewhere/a served/.making/f
echo a >elsewhere/a
mv served/.making served/a
mv elsewhere/a elsewhere/hidden
start
wait_until 100 grep -q "served/a.*not published" server.err || fail "a is not reported"
expect_newest one a
mkdir late
expect_newest late b
mv elsewhere/hidden elsewhere/a
is_back() { "$SNUG" sync --follow "$ADDRESS" late --once >out && [ "$(readlink late/current)" = a ]; }
wait_until 100 is_back || fail "a is not published again: $(cat server.err)"
expect_newest_for_all a

# The folder is empty for a moment, as between umount and mount.
mv served hidden
mkdir served
sleep 0.5
[ ! -e served/.snug-serve/order ] || fail "an empty folder has an order: $(cat served/.snug-serve/order)"
rm -r served
mv hidden served
after_look
expect_newest_for_all a
end $server
# Or when the server starts.
mv served hidden
mkdir served
start
sleep 0.3
rm -r served
mv hidden served
after_look
expect_newest_for_all a
[ "$(cut -d' ' -f2 served/.snug-serve/order | tr '\n' ' ')" = "z b a " ] ||
  fail "the order is $(cat served/.snug-serve/order)"

# Rewritten in place; the folder itself looks as before.
echo "z again" >served/z/f
has() { [ "$(cat one/current/f)" = "$1" ] || { "$SNUG" sync --follow "$ADDRESS" one --once >out && false; }; }
wait_until 50 has "z again" || fail "new contents are not published: $(cat server.err)"
expect_newest_for_all z
expect_same served/z/f fresh/z/f

# Names that are never published are reported, once. A follower's own link is not.
mkdir served/current
mkdir -p served/model.tmp-1
touch -d "2020-01-01" served/model.tmp-1
wait_until 100 grep -q "served/model.tmp-1.*not published" server.err || fail "model.tmp-1 is not reported"
wait_until 100 grep -q "served/current.*not published" server.err || fail "current is not reported"
after_look
for name in current model.tmp-1; do
  [ "$(grep -c "served/$name" server.err)" = 1 ] || fail "$name is reported again: $(cat server.err)"
done
end $server
serve server "$SNUG" sync --serve one --listen 127.0.0.1:0
sleep 0.3
if grep -q "current" server.err; then fail "a follower's link is reported: $(cat server.err)"; fi
echo passed
