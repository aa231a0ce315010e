#!/usr/bin/env bash
# snug sync: a trainer publishes 20 versions of a BF16 model in each of which 2 % of
# the values change by one unit in the last place; three followers keep up, one of
# them is killed and comes back. Prints bytes per update and compares SHA-256.
#
#   bench/wire/sync_bench.sh [SNUG] [SIZE] [VERSIONS]
set -euo pipefail
SNUG=$(realpath "${1:-build/snug}") SIZE=${2:-64MiB} VERSIONS=${3:-20}
WORK=$(mktemp -d /dev/shm/snug-sync.XXXX)
PIDS=()
trap '{ kill "${PIDS[@]}"; wait; } 2>/dev/null; rm -rf "$WORK"' EXIT
cd "$WORK"
mkdir served one two three
"$SNUG" sample next.safetensors --size "$SIZE" >/dev/null

publish() {
  python3 - "$1" <<'PY'
import mmap, random, sys
random.seed(int(sys.argv[1]))
with open("next.safetensors", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
    start = 8 + int.from_bytes(m[:8], "little")
    num_values = (len(m) - start) // 2
    for _ in range(num_values // 50):
        m[start + 2 * random.randrange(num_values)] ^= 1
PY
  mkdir served/.making
  cp next.safetensors served/.making/model.safetensors
  mv served/.making "served/step-$1"
}
follow() {
  "$SNUG" sync --follow "$ADDRESS" "$1" --json >>"$1.json" 2>>"$1.err" &
  PID=$!
  PIDS+=("$PID")
}

publish 1
"$SNUG" sync --serve served --listen 127.0.0.1:0 --json >server.json 2>server.err &
PIDS+=($!)
until grep -q '^listening on ' server.err; do sleep 0.1; done
ADDRESS=$(sed -n 's/^listening on //p' server.err)
follow one
follow two
victim=$PID
follow three
for ((n = 2; n <= VERSIONS; n++)); do
  publish $n
  if ((n == VERSIONS / 3)); then kill -9 $victim; fi
  if ((n == 2 * VERSIONS / 3)); then follow two; fi
done
want=$(sha256sum <"served/step-$VERSIONS/model.safetensors")
for follower in one two three; do
  for ((i = 0; i < 600; i++)); do [ -e "$follower/step-$VERSIONS" ] && break; sleep 0.1; done
  for version in "$follower"/step-*; do
    [ "$(sha256sum <"$version/model.safetensors")" = "$(sha256sum <"served/$(basename "$version")/model.safetensors")" ] ||
      { echo "$version differs"; exit 1; }
  done
  [ "$(sha256sum <"$follower/step-$VERSIONS/model.safetensors")" = "$want" ] || { echo "$follower is behind"; exit 1; }
done
sleep 0.5
python3 - <<'PY'
import json
for name in ("one", "two", "three"):
    events = [json.loads(line) for line in open(name + ".json")]
    kinds = {k: [e for e in events if e["update"] == k] for k in ("full", "patch")}
    print(f"{name}: {len(events)} updates, SHA-256 identical;", "; ".join(
        f"{len(v)} {k}, {sum(e['wire_bytes'] for e in v) / sum(e['raw_bytes'] for e in v):.2%} of the raw bytes"
        for k, v in kinds.items() if v))
events = [json.loads(line) for line in open("server.json")]
print(f"server: {sum(e['wire_bytes'] for e in events) / 1e6:.1f} MB sent for "
      f"{sum(e['raw_bytes'] for e in events) / 1e6:.1f} MB of versions")
PY
