# CUDA kernels, where nvcc is found: library snug_cuda from every .cu below
# src/codec, src/delta and src/gemm and everything below src/cuda and, where
# there is a wire, src/gpu_wire.
#
# SNUG_CUDA=AUTO|ON|OFF; SNUG_CUDA_ALL=ON builds for every supported GPU instead
# of the default Hopper (or CMAKE_CUDA_ARCHITECTURES, if given).
option(SNUG_CUDA_ALL "Build the CUDA kernels for sm_80, 89, 90, 100 and 120" OFF)

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS
     src/codec/*.cu src/delta/*.cu src/gemm/*.cu src/cuda/*.cu src/cuda/*.cpp)
if(TARGET snug_wire)
  file(GLOB gpu_wire_sources CONFIGURE_DEPENDS src/gpu_wire/*.cu src/gpu_wire/*.cpp)
  list(APPEND cuda_sources ${gpu_wire_sources})
endif()
set(SNUG_HAVE_CUDA OFF)
if(NOT cuda_sources OR SNUG_CUDA STREQUAL "OFF")
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
  set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90a-real 100-real 120)
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

add_library(snug_cuda STATIC ${cuda_sources})
add_library(snug::cuda ALIAS snug_cuda)
set_target_properties(snug_cuda PROPERTIES EXPORT_NAME cuda)
target_include_directories(snug_cuda PRIVATE src)
target_compile_options(snug_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall,-Wextra>)
target_link_libraries(snug_cuda PUBLIC snug PRIVATE CUDA::cudart_static $<BUILD_INTERFACE:snug_warnings>)
if(TARGET snug_wire)
  target_link_libraries(snug_cuda PUBLIC snug_wire)
endif()
message(STATUS "Snug: CUDA ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
