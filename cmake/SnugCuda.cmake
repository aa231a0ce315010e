# CUDA kernels, where nvcc is found: snug_cuda (codec, deltas, linear layers) and, where
# there are store and wire, snug_gpu_load and snug_gpu_link.
#
# SNUG_CUDA=AUTO|ON|OFF; SNUG_CUDA_ALL=ON builds for every supported GPU instead
# of the default Hopper (or CMAKE_CUDA_ARCHITECTURES, if given).
option(SNUG_CUDA_ALL "Build the CUDA kernels for sm_80, 89, 90, 100 and 120" OFF)
option(SNUG_CUDA_SMALL "Compress the kernels in the libraries, and leave out their line numbers" OFF)

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/gpu/*.cu src/gpu/*.cpp
     src/codec/cuda/*.cu src/codec/cuda/*.cpp src/delta/cuda/*.cu src/delta/cuda/*.cpp
     src/gemm/cuda/*.cu src/gemm/cuda/*.cpp)
list(APPEND cuda_sources src/capi/gpu_codec_capi.cpp src/capi/gemm_capi.cpp
     src/capi/experts_capi.cpp)
file(GLOB gpu_link_sources CONFIGURE_DEPENDS src/gpu_link/cuda/*.cu src/gpu_link/cuda/*.cpp)
file(GLOB gpu_load_sources CONFIGURE_DEPENDS src/store/cuda/*.cpp)
set(SNUG_HAVE_CUDA OFF)
if(SNUG_CUDA STREQUAL "OFF")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(SNUG_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(SNUG_NVCC)
  if(SNUG_NVCC)
    set(CMAKE_CUDA_COMPILER ${SNUG_NVCC})
  endif()
endif()
if(SNUG_CUDA_ALL)
  # No PTX: the wheel would grow by 2 MB for GPUs that do not exist yet.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90a-real 100-real 120-real)
elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(SNUG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "Snug: SNUG_CUDA=ON, but no working nvcc was found. Install the CUDA toolkit "
                        "(12.8 or later) or put its bin folder into PATH.")
  endif()
  message(STATUS "Snug: no nvcc found: building without CUDA")
  return()
endif()

set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # older CMake does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
set(SNUG_HAVE_CUDA ON)

set(SNUG_CUDA_OPTIONS
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra;$<IF:$<BOOL:${SNUG_CUDA_SMALL}>,-compress-mode=size,-lineinfo>>")

# snug_add_cuda_part(NAME SOURCES...): as snug_add_part, with kernels.
function(snug_add_cuda_part name)
  snug_add_part(${name} ${ARGN})
  target_compile_options(snug_${name} PRIVATE ${SNUG_CUDA_OPTIONS})
  target_link_libraries(snug_${name} PRIVATE CUDA::cudart_static)
endfunction()
snug_add_cuda_part(cuda ${cuda_sources})
if(TARGET snug_link_core)
  snug_add_cuda_part(gpu_link ${gpu_link_sources} src/capi/gpu_link_capi.cpp)
  target_link_libraries(snug_gpu_link PUBLIC snug_cuda snug_wire PRIVATE snug_link_core snug_net)
endif()
if(TARGET snug_store)
  snug_add_cuda_part(gpu_load ${gpu_load_sources} src/capi/gpu_load_capi.cpp)
  target_link_libraries(snug_gpu_load PUBLIC snug_cuda snug_store PRIVATE snug_hash)
endif()
message(STATUS "Snug: CUDA ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
