#!/usr/bin/env bash
# Ctrl-C ends every command at once, whatever it is waiting for.
. "$(dirname "${BASH_SOURCE[0]}")/../transfer/transfer_common.sh"

expect_code 0 "$SNUG" sample model.safetensors --size 32MiB
expect_code 0 "$SNUG" sample next.safetensors --size 32MiB --seed 2
expect_code 0 "$SNUG" compress model.safetensors
expect_code 0 "$SNUG" diff model.safetensors next.safetensors -o patch
mkdir in served followed

# interrupt SECONDS command...: starts it, sends SIGINT after that time, and expects its end. Two
# tenths of a second are the aim; the limit leaves room for slow machines, and is far below the
# timeout of 30 s of a peer. Background jobs of a script ignore SIGINT, hence the job control.
interrupt() {
  local seconds=$1 start took code
  shift
  set -m
  "$@" >interrupted.out 2>err &
  local pid=$!
  PIDS+=("$pid")
  set +m
  sleep "$seconds"
  start=$(date +%s%N)
  kill -INT $pid 2>/dev/null
  wait $pid
  code=$?
  took=$((($(date +%s%N) - start) / 1000000))
  [ $took -lt 8000 ] || fail "$* ends $took ms after SIGINT"
  [ $code -eq 130 ] || [ "$WAITS" = no -a $code -eq 0 ] || fail "$* exits with $code, expected 130"
  [ -z "$(ls -A | grep 'tmp-')" ] || fail "$* leaves a temporary file: $(ls -A)"
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

# A pipe that nobody empties.
mkfifo pipe
exec 9<>pipe
to_pipe() { exec "$@" >pipe; }
interrupt 0.5 to_pipe "$SNUG" cat model.snug.safetensors model.embed_tokens.weight
exec 9>&-

# A peer that is connected and says nothing: the system accepts for a stopped process.
serve stopped "$SNUG" recv in --listen 127.0.0.1:0
kill -STOP "$PID"
interrupt 0.5 "$SNUG" send model.safetensors "$ADDRESS"
interrupt 0.5 "$SNUG" sync --follow "$ADDRESS" followed
echo passed
