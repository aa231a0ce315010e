# snug_add_test_folder(<folder> [libraries...]): see tests/CMakeLists.txt.

# Targets that a CPU lacks fall back to the best one, with a message.
set(SNUG_SIMD_TARGETS scalar avx2 avx512)

function(snug_register_test name folder)
  set(command ${ARGN})
  # The secret of the tests' user is not the secret of the user who runs them.
  set(environment SNUG_CLI=${CMAKE_BINARY_DIR}/snug SNUG_TEST_DATA=${CMAKE_CURRENT_SOURCE_DIR}/data
                  XDG_CONFIG_HOME=${CMAKE_BINARY_DIR}/tests/config)
  if(folder STREQUAL "codec" AND NOT name MATCHES "kernels|same_bytes|large|ratio")
    foreach(simd IN LISTS SNUG_SIMD_TARGETS)
      add_test(NAME ${folder}.${name}.${simd} COMMAND ${command})
      set_tests_properties(${folder}.${name}.${simd} PROPERTIES
        ENVIRONMENT "${environment};SNUG_FORCE=${simd}" LABELS ${folder} TIMEOUT 900)
    endforeach()
  else()
    add_test(NAME ${folder}.${name} COMMAND ${command})
    set_tests_properties(${folder}.${name} PROPERTIES
      ENVIRONMENT "${environment}" LABELS ${folder} TIMEOUT 900)
  endif()
endfunction()

# Optimizing a test under sanitizers takes half of its compile time, and the code under test is in
# the libraries.
function(snug_compile_quickly target)
  if(SNUG_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  endif()
endfunction()

function(snug_add_test_folder folder)
  file(GLOB tests CONFIGURE_DEPENDS ${folder}/*_test.cpp ${folder}/*_test.c ${folder}/*_test.cu)
  file(GLOB support CONFIGURE_DEPENDS ${folder}/*.cpp)
  if(TARGET snug-cli)  # scripts drive the tool
    file(GLOB scripts CONFIGURE_DEPENDS ${folder}/*_test.sh)
  endif()
  list(REMOVE_ITEM support "" ${tests})

  # Programs that write files into the tree are built, but are no part of the tests.
  set(tools ${support})
  list(FILTER tools INCLUDE REGEX "/make_[^/]*\\.cpp$")
  list(REMOVE_ITEM support "" ${tools})

  set(libraries test_support snug GTest::gtest GTest::gtest_main Threads::Threads snug_warnings)
  if(SNUG_STORE)
    list(PREPEND libraries snug_link_core snug_transfer snug_openssl)
  endif()
  list(PREPEND libraries ${ARGN})
  list(APPEND libraries snug_net)
  if(folder STREQUAL "gpu")
    list(PREPEND libraries snug_cuda CUDA::cudart_static)
    if(TARGET snug_gpu_link)
      list(PREPEND libraries snug_gpu_link snug_gpu_load)
    endif()
  endif()
  if(support)
    add_library(${folder}_test_support STATIC ${support})
    target_include_directories(${folder}_test_support PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${folder}_test_support PUBLIC ${libraries})
    list(PREPEND libraries ${folder}_test_support)
  endif()
  foreach(source IN LISTS tests tools)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
    target_compile_definitions(${name} PRIVATE SNUG_TEST_DIR="${PROJECT_SOURCE_DIR}/tests")
    snug_compile_quickly(${name})
    target_link_libraries(${name} PRIVATE ${libraries})
  endforeach()
  foreach(source IN LISTS tests)
    get_filename_component(name ${source} NAME_WE)
    snug_register_test(${name} ${folder} ${name})
  endforeach()
  foreach(script IN LISTS scripts)
    get_filename_component(name ${script} NAME_WE)
    snug_register_test(${name} ${folder} bash ${script})
    set_tests_properties(${folder}.${name} PROPERTIES LABELS "${folder};script")
  endforeach()
endfunction()
