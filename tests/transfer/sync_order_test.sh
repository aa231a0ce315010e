#!/usr/bin/env bash
# Which version is the newest: the one that appeared last, whatever it is called and
# however often the server restarts. And what cannot be published is said, once.
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"

mkdir served one two
# restart: the same server on the same port.
restart() {
  end $server
  serve server "$SNUG" sync --serve served --listen "127.0.0.1:${ADDRESS##*:}"
  server=$PID
}
# expect_newest FOLDER NAME: what somebody who asks now is given.
expect_newest() {
  expect_code 0 "$SNUG" sync --follow "$ADDRESS" "$1" --once
  [ "$(readlink "$1/current")" = "$2" ] || fail "$1 was given $(readlink "$1/current"), not $2"
  [ "$(cat "$1/current/f")" = "$2" ] || fail "$1/current holds something else"
}

# Nobody has seen them appear: names decide, and numbers in them are numbers.
publish_named step-9
publish_named step-10
serve server "$SNUG" sync --serve served --listen 127.0.0.1:0
server=$PID
expect_newest one step-10
# best is the last to appear, then an older name comes back.
publish_named best
wait_until 100 grep -q best served/.snug-serve/order || fail "best is not published"
expect_newest one best
restart
expect_newest one best
expect_newest two best
publish_named a-rollback
wait_until 100 grep -q a-rollback served/.snug-serve/order || fail "a-rollback is not published"
restart
expect_newest one a-rollback
# What appears while no server runs is newer than all it knew; what is gone keeps its place.
end $server
publish_named aaa
rm -r served/step-9
serve server "$SNUG" sync --serve served --listen "127.0.0.1:${ADDRESS##*:}"
server=$PID
expect_newest one aaa
[ "$(cut -d' ' -f2 served/.snug-serve/order | tr '\n' ' ')" = "step-9 step-10 best a-rollback aaa " ] ||
  fail "the order is $(cat served/.snug-serve/order)"
# An order that was damaged is worth nothing, but no harm either.
end $server
head -c 300 /dev/urandom >served/.snug-serve/order
serve server "$SNUG" sync --serve served --listen "127.0.0.1:${ADDRESS##*:}"
server=$PID
expect_newest one step-10
# The same name with other contents is another version.
mkdir served/.making
echo best >served/.making/f
echo 2 >served/.making/g
end $server
rm -r served/best
mv served/.making served/best
serve server "$SNUG" sync --serve served --listen "127.0.0.1:${ADDRESS##*:}"
server=$PID
expect_newest one best
expect_same served/best/g one/best/g

# A link to a version has a name of its own.
ln -s ../elsewhere served/linked
mkdir elsewhere
echo linked >elsewhere/f
wait_until 100 grep -q linked served/.snug-serve/order || fail "linked is not published"
rm -rf two/* two/.snug-sync
expect_newest two linked

# Broken versions: one line each, while the others are published.
mkfifo served/pipe
mkdir served/.half
ln -s nowhere served/.half/dangling
mv served/.half served/half
publish_named "$(printf 'tab\there')"
publish_named good
wait_until 100 grep -q good served/.snug-serve/order || fail "good is not published"
wait_until 100 grep -q pipe server.err || fail "a FIFO is not reported"
expect_newest one good
sleep 1.5
for name in served/pipe served/half/dangling 'tab.here'; do
  [ "$(grep -c "$name.*not published" server.err)" = 1 ] ||
    fail "$name is reported $(grep -c "$name" server.err) times: $(cat server.err)"
done
# Mended in place, it is published after all.
echo half >served/half/f
rm served/half/dangling
wait_until 100 grep -q half served/.snug-serve/order || fail "half was mended and is not published"
expect_newest one half

# The folder itself goes away and comes back.
mv served gone
wait_until 100 grep -q "cannot list" server.err || fail "nobody misses the folder"
sleep 1
[ "$(grep -c "cannot list" server.err)" = 1 ] || fail "a missing folder is reported again and again"
mv gone served
expect_newest one half

# A follower's folder can be served to others, with patches and all.
end $server
serve server "$SNUG" sync --serve one --listen 127.0.0.1:0
server=$PID
expect_newest two half
echo passed
