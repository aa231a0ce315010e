#!/usr/bin/env bash
# nccl_symbols_test.sh PLUGIN: it exports what NCCL looks for and nothing else, and no thread of it
# can call CUDA.
set -euo pipefail
plugin=$1

expected=$( (printf 'ncclNetPlugin_v%s\n' 8 9 10 11 12; echo ncclProfiler_v5) | sort)
exported=$(nm -D --defined-only "$plugin" | awk '{print $3}' | sort)
if [[ $exported != "$expected" ]]; then
  echo "exported: $exported"
  echo "expected: $expected"
  exit 1
fi
echo "exports the network tables v8 to v12 and the profiler table v5 only"

# CUDA calls from threads of the plugin can hang beside a kernel of NCCL. It neither links CUDA nor
# looks for it; the workers' library, which does, is loaded by the profiler table alone.
if readelf -d "$plugin" | grep NEEDED | grep -E 'libcuda|libcudart|libnv'; then
  echo "the plugin links CUDA"
  exit 1
fi
if nm -D --undefined-only "$plugin" | awk '{print $NF}' | grep -E '^_*(cuda|cu)[A-Z]'; then
  echo "the plugin calls CUDA"
  exit 1
fi
if grep -aqE 'libcuda(rt)?\.so' "$plugin"; then
  echo "the plugin names CUDA's libraries"
  exit 1
fi
echo "reaches no CUDA of its own"

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
# 2.28 and later take the profiler table from the network plugin.
if LC_ALL=C grep -aq 'ncclProfiler_v5' "$libnccl"; then
  echo "$libnccl takes ncclProfiler_v5"
else
  echo "$libnccl does not know ncclProfiler_v5: CPU codecs"
fi
