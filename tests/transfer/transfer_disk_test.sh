#!/usr/bin/env bash
# Folders that cannot be written and disks that fill up in the middle: an error that says
# so at both ends, nothing under a final name, and all is well when there is room again.
if [ "${1:-}" != inside ]; then
  unshare -m true 2>/dev/null || { echo "skipped: mounting needs root"; exit 0; }
  exec unshare -m bash "$0" inside  # mounts end with it
fi
. "$(dirname "${BASH_SOURCE[0]}")/transfer_common.sh"
mkdir readonly full many small served
mount -t tmpfs -o size=300m none full 2>/dev/null || { echo "skipped: no tmpfs here"; exit 0; }
mount -t tmpfs -o size=64m none readonly
mount -t tmpfs -o nr_inodes=12 none many
mount -t tmpfs -o size=20m none small
clean_up() {
  { kill -9 "${PIDS[@]}"; wait; umount full readonly many small; } 2>/dev/null
  rm -rf "$WORK"
}
mkdir readonly/v0
echo old >readonly/v0/f
mount -o remount,ro readonly
mkdir folder
for i in $(seq 40); do echo $i >folder/f$i; done

# Read-only: refused with the system's words.
serve receiver "$SNUG" recv readonly --listen 127.0.0.1:0
expect_code 7 "$SNUG" send folder "$ADDRESS"
expect_in err "Read-only file system"
expect_soon receiver.err "Read-only file system"

# No room for more names.
serve receiver "$SNUG" recv many --listen 127.0.0.1:0
expect_code 7 "$SNUG" send folder "$ADDRESS"
wait_until 50 grep -q "No space left" receiver.err || fail "no reason is given: $(cat receiver.err)"
expect_absent many/folder

# Somebody else fills the disk while a file is on its way.
serve receiver "$SNUG" recv full --listen 127.0.0.1:0
truncate -s 200M big
"$SNUG" send big "$ADDRESS" --mode raw --lanes 1 --chunk 64KiB >send.out 2>send.err &
sender=$!
end=$((SECONDS + 20))
until [ -e full/.big.snug-part/big ] || [ $SECONDS -gt $end ]; do :; done
kill -STOP $sender
head -c 400000000 /dev/zero >full/filler 2>/dev/null
kill -CONT $sender
wait $sender
code=$?
[ $code -eq 7 ] || fail "a disk that fills up exits with $code: $(cat send.err)"
wait_until 50 grep -q "No space left" receiver.err || fail "no reason is given: $(cat receiver.err)"
expect_absent full/big
rm full/filler
expect_code 0 "$SNUG" send big "$ADDRESS"
expect_same big full/big

# Versions: the follower of a read-only or full folder ends, and keeps what it had.
expect_code 0 "$SNUG" sample model.safetensors --size 12MiB
mkdir served/v1
cp model.safetensors served/v1/
serve server "$SNUG" sync --serve served --listen 127.0.0.1:0
expect_code 7 "$SNUG" sync --follow "$ADDRESS" readonly --once
expect_in err "Read-only file system"
expect_code 0 "$SNUG" sync --follow "$ADDRESS" small --once
mkdir served/.v2
cp model.safetensors served/.v2/
printf xyz | dd of=served/.v2/model.safetensors bs=1 seek=5000000 conv=notrunc status=none
mv served/.v2 served/v2
wait_until 100 grep -q v2 served/.snug-serve/order || fail "v2 is not published"
expect_code 7 "$SNUG" sync --follow "$ADDRESS" small --once
expect_in err "No space left"
expect_absent small/v2
[ "$(readlink small/current)" = v1 ] || fail "current points to $(readlink small/current)"
expect_same model.safetensors small/current/model.safetensors
[ -z "$(ls -A small | grep -v '^v1$\|^current$\|^\.snug-sync$')" ] || fail "left behind: $(ls -A small)"

# A folder that is read-only can be served; only the order cannot be kept.
mkdir follower
serve server "$SNUG" sync --serve readonly --listen 127.0.0.1:0
expect_code 0 "$SNUG" sync --follow "$ADDRESS" follower --once
expect_same readonly/v0/f follower/current/f
[ "$(grep -c 'names decide after a restart' server.err)" = 1 ] || fail "not said once: $(cat server.err)"
echo passed
