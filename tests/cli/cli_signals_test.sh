#!/usr/bin/env bash
# Ctrl-C ends every command at once, whatever it is waiting for.
. "$(dirname "${BASH_SOURCE[0]}")/../transfer/transfer_common.sh"

expect_code 0 "$SNUG" sample model.safetensors --size 32MiB
expect_code 0 "$SNUG" sample next.safetensors --size 32MiB --seed 2
expect_code 0 "$SNUG" compress model.safetensors
expect_code 0 "$SNUG" diff model.safetensors next.safetensors -o patch
mkdir in served followed

# start command...: in the background as $PID. Background jobs of a script ignore SIGINT, hence the
# job control.
start() {
  set -m
  "$@" >interrupted.out 2>err &
  PID=$!
  PIDS+=("$PID")
  set +m
}

# stop command...: sends SIGINT to what was started, and expects its end. Two tenths of a second are
# the aim; the limit leaves room for slow machines, and is far below the timeout of 30 s of a peer.
stop() {
  local code
  kill -INT "$PID" 2>/dev/null
  wait_until 80 has_ended || fail "$* does not end within 8 s of SIGINT"
  wait "$PID"
  code=$?
  [ $code -eq 130 ] || [ "$WAITS" = no -a $code -eq 0 ] || fail "$* exits with $code, expected 130"
  [ -z "$(ls -A | grep 'tmp-')" ] || fail "$* leaves a temporary file: $(ls -A)"
}

has_ended() { ! kill -0 "$PID"; }

# interrupt SECONDS command...: stops it after that time.
interrupt() {
  local seconds=$1
  shift
  start "$@"
  sleep "$seconds"
  stop "$@"
}

# Commands that may have finished before.
WAITS=no
for seconds in 0.02 0.1; do
  interrupt $seconds "$SNUG" compress model.safetensors result.safetensors -t 1
  rm -f result.safetensors
  interrupt $seconds "$SNUG" decompress model.snug.safetensors result.safetensors -t 1
  rm -f result.safetensors
  interrupt $seconds "$SNUG" verify model.snug.safetensors -t 1
  interrupt $seconds "$SNUG" inspect model.safetensors -t 1
  interrupt $seconds "$SNUG" diff model.safetensors next.safetensors -o result -t 1
  rm -f result
  interrupt $seconds "$SNUG" patch model.safetensors patch -o result -t 1
  rm -f result
  interrupt $seconds "$SNUG" sample result.safetensors --size 32MiB
  rm -f result.safetensors
done

# Commands that wait, or take far longer.
WAITS=yes
interrupt 0.5 "$SNUG" bench model.safetensors --runs 1000
expect_in err "snug: interrupted"
interrupt 0.5 "$SNUG" recv in --listen 127.0.0.1:0
interrupt 0.5 "$SNUG" sync --serve served --listen 127.0.0.1:0

# Versions and headers that take long to read.
mkdir versions tiny
truncate -s 60G versions/sparse
interrupt 1 "$SNUG" sync --serve versions --listen 127.0.0.1:0
rm versions/sparse
if command -v python3 >/dev/null; then
  python3 - <<'END'
import struct
n = 200_000
header = ",".join('"%06d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
                  % (i * 7919 % n, i, i + 1) for i in range(n))
for name in range(8):
    with open(f"tiny/{name}.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(header) + 2) + b"{" + header.encode() + b"}" + bytes(n))
END
  interrupt 0.5 "$SNUG" compress tiny -t 1
  [ ! -e tiny.snug ] || fail "compress was stopped and has written its output"
fi

# A pipe that nobody empties.
mkfifo pipe
exec 9<>pipe
to_pipe() { exec "$@" >pipe; }
interrupt 0.5 to_pipe "$SNUG" cat model.snug.safetensors model.embed_tokens.weight

# It keeps listeners from nothing, whether it was full before (as it is now) or not.
to_pipes() { exec "$@" >pipe 2>pipe; }
address=shm:snug-signals-$$
cp "$DATA/sample.safetensors" served/v1.safetensors
start to_pipes "$SNUG" recv in --listen "$address" --force
has_sent() { "$SNUG" send served/v1.safetensors "$address" --retries 0 --timeout 3 >/dev/null 2>&1; }
wait_until 100 has_sent || fail "recv does not work while nobody reads its messages"
for i in 1 2 3; do has_sent || fail "nobody has read what recv printed, and it ends $? for the next"; done
stop recv
start to_pipes "$SNUG" sync --serve served --listen "$address"
has_followed() { "$SNUG" sync --follow "$address" followed --once --timeout 3 >/dev/null 2>&1; }
wait_until 100 has_followed || fail "sync does not work while nobody reads its messages"
stop sync --serve

# Nor does it keep the last word of a command from being the last.
no_stderr() { exec "$@" 2>pipe; }
interrupt 0.5 no_stderr "$SNUG" bench model.safetensors --runs 1000
WAITS=no
interrupt 0.1 no_stderr "$SNUG" compress model.safetensors result.safetensors -t 1
rm -f result.safetensors
WAITS=yes
exec 9>&-

# A peer that is connected and says nothing: the system accepts for a stopped process.
serve stopped "$SNUG" recv in --listen 127.0.0.1:0
kill -STOP "$PID"
interrupt 0.5 "$SNUG" send model.safetensors "$ADDRESS"
interrupt 0.5 "$SNUG" sync --follow "$ADDRESS" followed
echo passed
