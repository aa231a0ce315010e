# Sourced by the tests of this folder: peers as processes of their own.
. "$(dirname "${BASH_SOURCE[0]}")/../cli/cli_common.sh"
PIDS=()
clean_up() { { kill -9 "${PIDS[@]}"; wait; } 2>/dev/null; rm -rf "$WORK"; }

# serve NAME command...: starts it in the background; $PID and $ADDRESS are set when
# it listens. Its output goes to NAME.out and NAME.err.
serve() {
  local name=$1
  shift
  rm -f "$name.out" "$name.err"
  "$@" >"$name.out" 2>"$name.err" &
  PID=$!
  PIDS+=("$PID")
  wait_until 200 grep -q '^listening on ' "$name.err" || fail "$* does not listen: $(cat "$name.err")"
  ADDRESS=$(sed -n 's/^listening on //p' "$name.err")
}

# wait_until TENTHS command...: until the command succeeds.
wait_until() {
  local tenths=$1 i
  shift
  for ((i = 0; i < tenths; i++)); do
    "$@" 2>/dev/null && return 0
    sleep 0.1
  done
  return 1
}

# expect_soon FILE TEXT: what a process that still runs prints, after its peer may have ended.
expect_soon() { wait_until 200 grep -qF -- "$2" "$1" || expect_in "$1" "$2"; }

# end PID: ends a process in good order and waits for it.
end() {
  kill -TERM "$1" 2>/dev/null
  wait "$1" 2>/dev/null
}

# publish_named NAME: a version in served/ that holds its name.
publish_named() {
  mkdir served/.making
  echo "$1" >served/.making/f
  mv served/.making "served/$1"
}
