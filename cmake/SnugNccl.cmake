# libnccl-net-snug.so: the network plugin NCCL loads with NCCL_NET_PLUGIN=snug.
# The library snug_nccl holds everything but the tables, for tests and benchmarks.
option(SNUG_NCCL "Build the NCCL network plugin" ON)
file(GLOB nccl_sources CONFIGURE_DEPENDS src/nccl/*.cpp)
if(NOT SNUG_NCCL OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  return()
endif()
set(nccl_tables ${CMAKE_CURRENT_SOURCE_DIR}/src/nccl/plugin.cpp
                ${CMAKE_CURRENT_SOURCE_DIR}/src/nccl/profiler.cpp)
set(nccl_exports ${CMAKE_CURRENT_SOURCE_DIR}/src/nccl/snug_nccl.map)
list(REMOVE_ITEM nccl_sources ${nccl_tables})

add_library(snug_nccl STATIC ${nccl_sources})
target_include_directories(snug_nccl PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/src)
target_link_libraries(snug_nccl PUBLIC snug snug_net Threads::Threads ${CMAKE_DL_LIBS} PRIVATE snug_warnings)

# NCCL unloads plugins with its last communicator, but threads and exit handlers
# stay: nodelete keeps the code they run.
add_library(nccl-net-snug MODULE ${nccl_tables})
set_target_properties(nccl-net-snug PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      LINK_DEPENDS ${nccl_exports} INSTALL_RPATH $ORIGIN)
target_link_libraries(nccl-net-snug PRIVATE snug_nccl snug_warnings)
target_link_options(nccl-net-snug PRIVATE -Wl,--version-script=${nccl_exports} -Wl,-z,nodelete -Wl,--no-undefined)
if(SNUG_SANITIZE)
  # Sanitizers resolve their functions in the program that loads the plugin.
  target_link_options(nccl-net-snug PRIVATE -Wl,-z,undefs)
else()
  # Programs that load it may bring an older C++ runtime.
  target_link_options(nccl-net-snug PRIVATE -static-libstdc++ -static-libgcc)
endif()
install(TARGETS nccl-net-snug LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# `make build` builds what `make install` installs.
cmake_language(DEFER CALL add_dependencies shipped nccl-net-snug)

# The codec workers on the GPU. The plugin links no CUDA: it loads this library where NCCL launches
# its kernels.
if(SNUG_HAVE_CUDA)
  file(GLOB worker_sources CONFIGURE_DEPENDS src/nccl/cuda/*.cu src/nccl/cuda/*.cpp)
  add_library(nccl-snug-workers MODULE ${worker_sources})
  set_target_properties(nccl-snug-workers PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
  target_include_directories(nccl-snug-workers PRIVATE src include)
  target_compile_options(nccl-snug-workers PRIVATE ${SNUG_CUDA_OPTIONS})
  target_link_libraries(nccl-snug-workers PRIVATE CUDA::cudart_static Threads::Threads snug_warnings)
  # libgcc stays shared: its static unwinder needs glibc 2.35. So does code that nobody calls.
  target_link_options(nccl-snug-workers PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,nodelete
    -Wl,--no-undefined -Wl,--gc-sections -static-libstdc++)
  install(TARGETS nccl-snug-workers LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  cmake_language(DEFER CALL add_dependencies shipped nccl-snug-workers)
endif()
