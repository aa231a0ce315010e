# Each bench/**/*_bench.cpp (or .cu) is one program in build/bench, built by the target `bench`.
file(GLOB_RECURSE bench_programs CONFIGURE_DEPENDS bench/*_bench.cpp)
file(GLOB_RECURSE gpu_bench_programs CONFIGURE_DEPENDS bench/*_bench.cu)
if(NOT TARGET snug_benchmark OR NOT TARGET snug_zstd)
  message(STATUS "Snug: no benchmarks: they need libbenchmark-dev and libzstd-dev")
  add_custom_target(bench COMMAND echo "bench: needs the packages libbenchmark-dev and libzstd-dev" COMMAND false)
  return()
endif()

set(bench_libraries snug snug_benchmark snug_zstd Threads::Threads snug_warnings)
if(SNUG_STORE)
  list(APPEND bench_libraries snug_transfer snug_link_core snug_net)
endif()
if(TARGET snug_nccl)
  list(APPEND bench_libraries snug_nccl)
else()
  list(FILTER bench_programs EXCLUDE REGEX "/bench/nccl/")
endif()

add_custom_target(bench)
foreach(source IN LISTS bench_programs gpu_bench_programs)
  get_filename_component(name ${source} NAME_WE)
  get_filename_component(extension ${source} LAST_EXT)
  # Programs about the GPU live in bench/gpu or are .cu files.
  if(extension STREQUAL ".cu" OR source MATCHES "/bench/gpu/")
    if(NOT SNUG_HAVE_CUDA)
      continue()
    endif()
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${name} PRIVATE snug_cuda CUDA::cudart_static)
    if(TARGET snug_gpu_link)
      target_link_libraries(${name} PRIVATE snug_gpu_link)
    endif()
  else()
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_include_directories(${name} PRIVATE src bench tests)
  target_link_libraries(${name} PRIVATE ${bench_libraries})
  add_dependencies(bench ${name})
endforeach()

# libsnug_c.so over a link that is held back, for benchmarks in Python: the first definition of
# snug_link_open is the slow one.
if(SNUG_HAVE_CUDA AND TARGET snug_gpu_link)
  add_library(snug_c_paced SHARED EXCLUDE_FROM_ALL bench/kv/paced_link.cpp src/capi/shared.cpp)
  set_target_properties(snug_c_paced PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                        LINKER_LANGUAGE CXX)
  target_include_directories(snug_c_paced PRIVATE src tests)
  target_link_libraries(snug_c_paced PRIVATE
    -Wl,--allow-multiple-definition
    -Wl,--whole-archive ${c_abi_parts} -Wl,--no-whole-archive
    Threads::Threads CUDA::cudart_static -Wl,--version-script=${c_abi_exports})
  add_dependencies(bench snug_c_paced)
endif()
