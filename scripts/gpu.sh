#!/usr/bin/env bash
# gpu.sh test|bench BUILD_DIR JOBS: runs the GPU tests or benchmarks, or says what is missing.
set -euo pipefail
what=$1 build=$2 jobs=$3

# Two processes share one GPU at the same time only under MPS; without it they take turns.
under_mps() (
  if [[ -z ${CUDA_MPS_PIPE_DIRECTORY:-} ]] && command -v nvidia-cuda-mps-control > /dev/null; then
    folder=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$folder
    if nvidia-cuda-mps-control -d; then
      trap 'echo quit | nvidia-cuda-mps-control; rm -rf "$folder"' EXIT
    else
      echo "gpu-bench: MPS does not start: two processes will take turns on the GPU" >&2
      unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
      rm -rf "$folder"
    fi
  fi
  "$@"
)

nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null || true)
if [[ -z $nvcc ]]; then
  echo "gpu-$what: no nvcc found; install the CUDA toolkit (12.8 or later) or put its bin folder into PATH"
  exit 1
fi
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DSNUG_CUDA=ON
targets=()
if [[ $what == bench ]]; then targets=(--target bench); fi
cmake --build "$build" -j "$jobs" "${targets[@]}"
if [[ ! -e /dev/nvidia0 ]] && ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
  echo "gpu-$what: built, but there is no NVIDIA GPU on this machine to run on"
  exit 1
fi

if [[ $what == test ]]; then
  ctest --test-dir "$build" --output-on-failure -L '^gpu$' --no-tests=error
else
  found=0
  for program in "$build"/bench/gpu_*_bench; do
    [[ -x $program ]] || continue
    found=1
    case $program in
      */gpu_wire_bench) under_mps "$program" ;;
      *) "$program" ;;
    esac
  done
  [[ $found == 1 ]] || { echo "gpu-bench: no GPU benchmark was built" >&2; exit 1; }
fi
