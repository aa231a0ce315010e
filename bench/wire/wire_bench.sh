#!/usr/bin/env bash
# snug send over links of 1, 2.5 and 5 Gbit/s against the same tool sending raw and
# against nc: two network namespaces, a veth pair, a token bucket. Needs root, ip, tc
# and nc; prints a table. Files lie in memory, so that no disk is measured.
#
#   bench/wire/wire_bench.sh [SNUG] [RUNS] [RATES...]
set -euo pipefail
SNUG=${1:-build/snug} RUNS=${2:-5}
shift $(($# < 2 ? $# : 2))
RATES=${*:-1gbit 2500mbit 5gbit}
SNUG=$(realpath "$SNUG")
[ "$(id -u)" = 0 ] || { echo "skipped: network namespaces need root"; exit 0; }
for tool in ip tc nc python3; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not there"; exit 0; }
done
WORK=$(mktemp -d /dev/shm/snug-wire.XXXX)
A=snug-a-$$ B=snug-b-$$
cleanup() {
  ip netns del $A 2>/dev/null || true
  ip netns del $B 2>/dev/null || true
  rm -rf "$WORK"
}
trap cleanup EXIT
ip netns add $A 2>/dev/null && ip netns add $B || { echo "skipped: no network namespaces here"; exit 0; }
ip link add snug-a netns $A type veth peer name snug-b netns $B
ip -n $A addr add 10.77.0.1/24 dev snug-a
ip -n $B addr add 10.77.0.2/24 dev snug-b
ip -n $A link set snug-a up
ip -n $B link set snug-b up

"$SNUG" sample "$WORK/model.safetensors" --size 512MiB >/dev/null
python3 - "$WORK/random.safetensors" <<'PY'
import json, os, sys
n = 512 << 20
head = json.dumps({"x": {"dtype": "BF16", "shape": [n // 2], "data_offsets": [0, n]}}).encode()
head += b" " * (-len(head) % 8)
with open(sys.argv[1], "wb") as f:
    f.write(len(head).to_bytes(8, "little") + head)
    for _ in range(512):
        f.write(os.urandom(1 << 20))
PY
export SNUG_TOKEN=benchmark-token
mkdir "$WORK/in"

send_snug() {  # send_snug FILE MODE: prints the seconds
  rm -rf "$WORK"/in/*
  ip netns exec $B timeout 120 "$SNUG" recv "$WORK/in" --listen 10.77.0.2:7000 --once -q &
  local receiver=$! try
  sleep 0.3
  ip netns exec $A timeout 120 "$SNUG" send "$1" 10.77.0.2:7000 --mode "$2" --json >"$WORK/report"
  wait $receiver
  cmp -s "$1" "$WORK/in/$(basename "$1")" || { echo "WRONG BYTES" >&2; exit 1; }
  python3 -c "import json; print(json.load(open('$WORK/report'))['seconds'])"
}

send_nc() {  # the end is when the receiver has everything
  rm -rf "$WORK"/in/*
  ip netns exec $B timeout 120 nc -l 10.77.0.2 7001 >"$WORK/in/x" &
  local receiver=$! start end
  sleep 0.3
  start=$(date +%s.%N)
  ip netns exec $A timeout 120 nc -N 10.77.0.2 7001 <"$1"
  wait $receiver
  end=$(date +%s.%N)
  cmp -s "$1" "$WORK/in/x" || { echo "WRONG BYTES" >&2; exit 1; }
  python3 -c "print($end - $start)"
}

echo "| link | data | nc, s | snug raw, s | snug auto, s | auto over raw | auto over nc |"
echo "|---|---|---|---|---|---|---|"
for rate in $RATES; do
  ip netns exec $A tc qdisc replace dev snug-a root tbf rate "$rate" burst 1mb latency 20ms
  for data in model random; do
    : >"$WORK/times"
    for ((run = 0; run < RUNS; run++)); do
      echo "$(send_nc "$WORK/$data.safetensors")" \
           "$(send_snug "$WORK/$data.safetensors" raw)" \
           "$(send_snug "$WORK/$data.safetensors" auto)" >>"$WORK/times"
    done
    python3 - "$rate" "$data" "$WORK/times" <<'PY'
import statistics, sys
rate, data, path = sys.argv[1:]
nc, raw, auto = (statistics.median(float(x) for x in column)
                 for column in zip(*(line.split() for line in open(path))))
print(f"| {rate} | {data} | {nc:.3f} | {raw:.3f} | {auto:.3f} | {raw / auto:.3f}x | {nc / auto:.3f}x |")
PY
  done
done
