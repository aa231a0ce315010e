#!/usr/bin/env bash
# Standard streams that are closed or full, and outputs that are no files.
. "$(dirname "${BASH_SOURCE[0]}")/../transfer/transfer_common.sh"

cp "$DATA/sample.safetensors" model.safetensors
mkdir in served followed
cp model.safetensors served/v1.safetensors

# has_sent ADDRESS: by then the receiver listens; it cannot say so without stderr.
has_sent() { "$SNUG" send model.safetensors "$1" --retries 0 >/dev/null 2>&1; }
has_followed() { "$SNUG" sync --follow "$1" followed --once >/dev/null 2>&1; }

for stderr in closed full; do
  address=shm:snug-streams-$stderr-$$
  rm -rf in/* followed/* followed/.[!.]*
  if [ $stderr = closed ]; then
    "$SNUG" recv in --listen "$address" --once >out 2>&- &
  else
    "$SNUG" recv in --listen "$address" --once >out 2>/dev/full &
  fi
  PIDS+=($!)
  wait_until 200 has_sent "$address" || fail "recv does not work with stderr $stderr"
  wait $! || fail "recv exits with $? with stderr $stderr"
  expect_same model.safetensors in/model.safetensors
  if [ $stderr = closed ]; then
    "$SNUG" sync --serve served --listen "$address" >out 2>&- &
  else
    "$SNUG" sync --serve served --listen "$address" >out 2>/dev/full &
  fi
  PIDS+=($!)
  wait_until 200 has_followed "$address" || fail "sync --serve does not work with stderr $stderr"
  expect_same model.safetensors followed/v1.safetensors
  end $!
done

# With all three closed, files that are opened must not become one of them.
"$SNUG" compress model.safetensors closed.snug.safetensors --quiet <&- >&- 2>&- ||
  fail "compress fails without standard streams"
expect_code 0 "$SNUG" verify closed.snug.safetensors
"$SNUG" cat model.safetensors model.embed_tokens.weight >&- 2>err
[ $? -eq 7 ] || fail "cat loses its output and does not say so"

"$SNUG" --help >/dev/full 2>err
[ $? -eq 7 ] || fail "help that cannot be printed is no error"

mkfifo pipe
expect_code 8 timeout 60 "$SNUG" inspect model.safetensors --html pipe --force
[ -p pipe ] || fail "--force replaced a FIFO"
expect_code 8 timeout 60 "$SNUG" inspect model.safetensors --html /dev/zero --force
echo passed
