# make install: headers, libraries, the tool, find_package(snug), pkg-config.
include(CMakePackageConfigHelpers)
set(snug_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/snug)

set(installed_targets snug)
if(SNUG_STORE)
  list(APPEND installed_targets snug_hash snug_store snug_net snug_wire snug_transfer snug_link_core)
endif()
install(TARGETS ${installed_targets} EXPORT snugTargets)
install(EXPORT snugTargets NAMESPACE snug:: DESTINATION ${snug_package_dir})
if(TARGET snug_cuda)
  # On its own: users without the CUDA toolkit still find the rest.
  set(cuda_targets snug_cuda)
  if(TARGET snug_gpu_link)
    list(APPEND cuda_targets snug_gpu_link snug_gpu_load)
  endif()
  install(TARGETS ${cuda_targets} EXPORT snugCudaTargets)
  install(EXPORT snugCudaTargets NAMESPACE snug:: DESTINATION ${snug_package_dir})
  list(APPEND installed_targets ${cuda_targets})
endif()
install(TARGETS snug_c)
list(APPEND installed_targets snug_c)
if(TARGET snug-cli)
  install(TARGETS snug-cli)
  list(APPEND installed_targets snug-cli)
endif()
add_custom_target(shipped DEPENDS ${installed_targets})
install(DIRECTORY include/snug DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

configure_package_config_file(cmake/snugConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/snugConfig.cmake
                              INSTALL_DESTINATION ${snug_package_dir})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/snugConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/snugConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/snugConfigVersion.cmake
              cmake/SnugDependencies.cmake
        DESTINATION ${snug_package_dir})

# One pkg-config file for each library that a user links. C programs need the C++ runtime, too.
# Paths are relative, so that `cmake --install --prefix` and moved trees work.
file(RELATIVE_PATH snug_pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
function(snug_pkg_config pc_name pc_requires pc_libs)
  configure_file(cmake/snug.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${pc_name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${pc_name}.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

snug_pkg_config(snug "" "-lsnug")
if(SNUG_STORE)
  snug_pkg_config(snug-store "snug" "-lsnug_store -lsnug_hash -lxxhash -lzstd")
  snug_pkg_config(snug-wire "snug"
                  "-lsnug_wire -lsnug_net -lsnug_hash -lxxhash -lzstd -lssl -lcrypto -ldl")
  snug_pkg_config(snug-transfer "snug-wire snug-store" "-lsnug_transfer -lsnug_net")
endif()
if(TARGET snug_cuda)
  snug_pkg_config(snug-cuda "snug" "-lsnug_cuda -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
if(TARGET snug_gpu_link)
  snug_pkg_config(snug-gpu-load "snug-store snug-cuda" "-lsnug_gpu_load")
  snug_pkg_config(snug-gpu-link "snug-wire snug-cuda" "-lsnug_gpu_link -lsnug_link_core -lsnug_net")
endif()
