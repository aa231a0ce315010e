# libsnug_c.so: every C ABI that was built (codecs, deltas, checkpoints, wire, GPU) in
# one library, for languages that load it at run time. Exports snug_* alone.
set(c_abi_parts snug)
foreach(part snug_net snug_store snug_wire snug_link_core snug_cuda snug_gpu_load
        snug_gpu_link)
  if(TARGET ${part})
    list(APPEND c_abi_parts ${part})
  endif()
endforeach()
set(c_abi_exports ${CMAKE_CURRENT_SOURCE_DIR}/src/capi/exports.map)

add_library(snug_c SHARED src/capi/shared.cpp)
set_target_properties(snug_c PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} LINK_DEPENDS ${c_abi_exports}
                      LINKER_LANGUAGE CXX)
# Nothing here calls the functions, so the linker is told to keep them all.
target_link_libraries(snug_c PRIVATE
  -Wl,--whole-archive ${c_abi_parts} -Wl,--no-whole-archive
  Threads::Threads -Wl,--version-script=${c_abi_exports})
