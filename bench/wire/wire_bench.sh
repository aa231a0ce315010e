#!/usr/bin/env bash
# snug send over slow links against the same tool sending raw and against nc: two network
# namespaces, a veth pair, a token bucket. Needs root, ip, tc, nc and python3; prints a
# table. Files lie in memory, so that no disk is measured.
#
#   bench/wire/wire_bench.sh [SNUG] [--runs N] [--rates "1gbit 2500mbit 5gbit"]
#                            [--data DIR] [--kinds "real gaussian random"] [--mib "1 16 512"]
#                            [--chunks "256KiB 1MiB" | --encryption]
#
# Data, files of about --mib MiB of BF16 (512): `real`, the safetensors of DIR with every tensor repeated
# (only with --data); `gaussian`, what `snug sample` makes; `random`, random bits. With
# --chunks a table of chunk sizes is printed instead, with --encryption one of the time without it,
# with it and a token that has to be stretched, and with it and a token of `snug token`.
set -euo pipefail
SNUG=build/snug RUNS=5 RATES="1gbit 2500mbit 5gbit" DATA="" KINDS="" CHUNKS="" ENCRYPTION="" SIZES=512
while [ $# -gt 0 ]; do
  case $1 in
    --runs) RUNS=$2 && shift ;;
    --rates) RATES=$2 && shift ;;
    --data) DATA=$2 && shift ;;
    --kinds) KINDS=$2 && shift ;;
    --mib) SIZES=$2 && shift ;;
    --chunks) CHUNKS=$2 && shift ;;
    --encryption) ENCRYPTION=1 ;;
    -*) echo "unknown option $1" >&2 && exit 2 ;;
    *) SNUG=$1 ;;
  esac
  shift
done
KINDS=${KINDS:-${DATA:+real} gaussian random}
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

make_real() {  # a model of the same tensors, each as many times higher as it takes
  python3 - "$DATA" "$1" "$MIB" <<'PY'
import glob, json, sys
tensors = []
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    data = open(path, "rb").read()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            tensors.append((name, entry, data[start + first:start + last]))
times = -(-(int(sys.argv[3]) << 20) // sum(len(t[2]) for t in tensors))
head, at = {}, 0
for name, entry, data in tensors:
    shape = [entry["shape"][0] * times] + entry["shape"][1:]
    head[name] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": [at, at + len(data) * times]}
    at += len(data) * times
head = json.dumps(head).encode()
head += b" " * (-len(head) % 8)
with open(sys.argv[2], "wb") as f:
    f.write(len(head).to_bytes(8, "little") + head)
    for name, entry, data in tensors:
        for _ in range(times):
            f.write(data)
PY
}
make_gaussian() { "$SNUG" sample "$1" --size "${MIB}MiB" >/dev/null; }
make_random() {
  python3 - "$1" "$MIB" <<'PY'
import json, os, sys
mib = int(sys.argv[2])
n = mib << 20
head = json.dumps({"x": {"dtype": "BF16", "shape": [n // 2], "data_offsets": [0, n]}}).encode()
head += b" " * (-len(head) % 8)
with open(sys.argv[1], "wb") as f:
    f.write(len(head).to_bytes(8, "little") + head)
    for _ in range(mib):
        f.write(os.urandom(1 << 20))
PY
}
SNUG_TOKEN=$("$SNUG" token)
export SNUG_TOKEN
mkdir "$WORK/in"

send_snug() {  # send_snug FILE MODE [CHUNK [FLAG]]: prints the seconds
  rm -rf "$WORK"/in/*
  ip netns exec $B timeout 120 "$SNUG" recv "$WORK/in" --listen 10.77.0.2:7000 --once -q ${4:-} &
  local receiver=$!
  sleep 0.3
  ip netns exec $A timeout 120 "$SNUG" send "$1" 10.77.0.2:7000 --mode "$2" --chunk "${3:-1MiB}" ${4:-} --json >"$WORK/report"
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

# row LABELS: the medians of the columns of $WORK/times, and how much faster the last is.
row() {
  python3 - "$1" "$WORK/times" "$(wc -c <"$WORK/$kind.safetensors")" "$rate" <<'PY'
import statistics, sys
labels, path, num_bytes, rate = sys.argv[1:]
*others, auto = (statistics.median(float(x) for x in column)
                 for column in zip(*(line.split() for line in open(path))))
bits = float(rate[:-4]) * {"g": 1e9, "m": 1e6}[rate[-4]]
print(f"| {labels} |", " | ".join(f"{s:.3f}" for s in [*others, auto]), "|",
      " | ".join(f"{s / auto:.3f}x" for s in others[::-1]), f"| {int(num_bytes) * 8 / bits:.3f} |")
PY
}

if [ -n "$CHUNKS" ]; then
  echo "| link | data | MiB | chunk | snug raw, s | snug auto, s | auto over raw | link's bound for raw, s |"
  echo "|---|---|---|---|---|---|---|---|"
elif [ -n "$ENCRYPTION" ]; then
  echo "| link | data | MiB | --insecure, s | stretched token, s | encrypted, s | encrypted over stretched | encrypted over --insecure | link's bound for raw, s |"
  echo "|---|---|---|---|---|---|---|---|---|"
else
  echo "| link | data | MiB | nc, s | snug raw, s | snug auto, s | auto over raw | auto over nc | link's bound for raw, s |"
  echo "|---|---|---|---|---|---|---|---|---|"
fi
for kind in $KINDS; do
  file=$WORK/$kind.safetensors
  for MIB in $SIZES; do
    "make_$kind" "$file"
    for rate in $RATES; do
      ip netns exec $A tc qdisc replace dev snug-a root tbf rate "$rate" burst 1mb latency 20ms
      for chunk in ${CHUNKS:-none}; do
        : >"$WORK/times"
        for ((run = 0; run < RUNS; run++)); do
          if [ -n "$ENCRYPTION" ]; then
            echo "$(SNUG_TOKEN="" send_snug "$file" auto 1MiB --insecure)" \
              "$(SNUG_TOKEN=a-token-of-a-person send_snug "$file" auto) $(send_snug "$file" auto)"
          elif [ "$chunk" = none ]; then
            echo "$(send_nc "$file") $(send_snug "$file" raw) $(send_snug "$file" auto)"
          else
            echo "$(send_snug "$file" raw "$chunk") $(send_snug "$file" auto "$chunk")"
          fi >>"$WORK/times"
        done
        labels="$rate | $kind | $MIB"
        if [ "$chunk" = none ]; then row "$labels"; else row "$labels | $chunk"; fi
      done
    done
    rm "$file"
  done
done
