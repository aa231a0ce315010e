#!/usr/bin/env bash
# make_sglang_venv.sh FOLDER: a virtual environment with SGLang 0.5.23 for CPUs, 6 GB, and Mooncake,
# which needs Debian's libibverbs1.
#
# SGLang's wheel asks for packages that only a GPU needs, and for a torch whose torchvision pip does
# not find. So its other requirements are installed one by one, and SGLang without them.
set -euo pipefail
folder=$1
version=0.5.23
[[ -e $folder/complete ]] && exit 0
python3 -m venv "$folder"
pip=$folder/bin/pip
$pip install -q torch==2.13.0 torchvision==0.28.0
$pip download -q --no-deps -d "$folder/wheels" "sglang==$version"
"$folder/bin/python" "$(dirname "$0")/wheel_requirements.py" "$folder"/wheels/sglang-*.whl \
  '(torch|cuda|nvidia|nvshmem|flash|humming|quack|sgl|tilelang).*' > "$folder/requirements.txt"
$pip install -q -r "$folder/requirements.txt"
$pip install -q --no-deps "$folder"/wheels/sglang-*.whl
$pip install -q mooncake-transfer-engine-non-cuda
# Without a GPU, SGLang looks for a function of vLLM that it then does not call.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm"
touch "$site/vllm/__init__.py"
echo "rotary_embedding = None" > "$site/vllm/_custom_ops.py"
touch "$folder/complete"
