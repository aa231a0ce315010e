#!/usr/bin/env bash
# nccl_symbols_test.sh PLUGIN: it exports what NCCL looks for and nothing else.
set -euo pipefail
plugin=$1

expected=$(printf 'ncclNetPlugin_v%s\n' 8 9 10 11 12 | sort)
exported=$(nm -D --defined-only "$plugin" | awk '{print $3}' | sort)
if [[ $exported != "$expected" ]]; then
  echo "exported: $exported"
  echo "expected: $expected"
  exit 1
fi
echo "exports the tables v8 to v12 only"

# Where an NCCL is installed: the newest table it knows is one of them.
libnccl=$(ldconfig -p 2>/dev/null | awk '/libnccl\.so\.2/ && !found {print $NF; found = 1}')
if [[ -z $libnccl ]] && command -v python3 >/dev/null; then
  libnccl=$(python3 - <<'PY'
import importlib.util, pathlib
spec = importlib.util.find_spec("nvidia")
for folder in (spec.submodule_search_locations if spec else []):
    for path in pathlib.Path(folder).glob("nccl/lib/libnccl.so.2"):
        print(path)
PY
)
fi
if [[ -z $libnccl ]]; then
  echo "no NCCL here to compare with"
  exit 0
fi
newest=$(LC_ALL=C grep -aoE 'ncclNetPlugin_v[0-9]+' "$libnccl" | sort -uV | tail -1)
echo "$libnccl looks for $newest first"
grep -qx "$newest" <<<"$expected" || { echo "that table is missing"; exit 1; }
