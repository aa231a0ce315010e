# Third-party libraries as imported targets: snug_hwy, snug_xxhash, snug_zstd, snug_openssl,
# snug_ipsec_mb, snug_fmt, snug_json, snug_cli11, snug_benchmark. A target exists exactly where its
# library was found. Static libraries are preferred, so that what is built here runs on a machine
# without these packages. Also installed, because users of a static libsnug link the same things.
include_guard(GLOBAL)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# snug_import(<target> <header> [library names, best first])
function(snug_import target header)
  find_path(${target}_INCLUDE_DIR ${header})
  mark_as_advanced(${target}_INCLUDE_DIR)
  if(NOT ${target}_INCLUDE_DIR)
    return()
  endif()
  if(ARGN)
    find_library(${target}_LIBRARY NAMES ${ARGN})
    mark_as_advanced(${target}_LIBRARY)
    if(NOT ${target}_LIBRARY)
      return()
    endif()
  endif()
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} INTERFACE ${${target}_INCLUDE_DIR})
  if(ARGN)
    target_link_libraries(${target} INTERFACE ${${target}_LIBRARY})
  endif()
endfunction()

# snug_require(<option> <target> <Debian package> ...): stops with all that is missing.
function(snug_require option)
  set(missing "")
  while(ARGN)
    list(POP_FRONT ARGN target package)
    if(NOT TARGET ${target})
      list(APPEND missing ${package})
    endif()
  endwhile()
  if(missing)
    list(JOIN missing " " missing)
    message(FATAL_ERROR "Snug: packages that are needed and not installed: ${missing}\n"
                        "scripts/setup.sh installs them; -D${option}=OFF builds without.")
  endif()
endfunction()

snug_import(snug_hwy hwy/highway.h)
if(TARGET snug_hwy)
  # Headers only: Snug asks the CPU itself, and Highway's own checks would call its library.
  target_compile_definitions(snug_hwy INTERFACE HWY_IS_DEBUG_BUILD=0)
endif()
snug_import(snug_xxhash xxhash.h libxxhash.a xxhash)
snug_import(snug_zstd zstd.h libzstd.a zstd)
# Shared, unlike the others: security fixes must reach it without a new build of Snug. Only the
# wheel has it inside: its build sees nothing but libssl.a (scripts/wheel.sh).
snug_import(snug_openssl openssl/ssl.h ssl)
if(TARGET snug_openssl)
  find_library(snug_crypto_LIBRARY NAMES crypto)
  mark_as_advanced(snug_crypto_LIBRARY)
  target_link_libraries(snug_openssl INTERFACE ${snug_crypto_LIBRARY})
  if(snug_crypto_LIBRARY MATCHES "\\.a$")
    target_link_libraries(snug_openssl INTERFACE ${CMAKE_DL_LIBS} Threads::Threads)
  endif()
endif()
# Shared, too: Debian has no other. Not where OpenSSL is as fast (src/wire/aes_gcm.h): programs
# would need a library that they never call. Users of an installed Snug have no such option and take
# what it was linked with.
if(DEFINED SNUG_IPSEC_MB AND TARGET snug_openssl)
  file(STRINGS ${snug_openssl_INCLUDE_DIR}/openssl/opensslv.h openssl_version
       REGEX "define OPENSSL_VERSION_M(AJOR|INOR) ")
  string(REGEX REPLACE "[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2" openssl_version
         "${openssl_version}")
endif()
if(NOT DEFINED SNUG_IPSEC_MB OR (SNUG_IPSEC_MB AND openssl_version VERSION_LESS 3.1))
  snug_import(snug_ipsec_mb intel-ipsec-mb.h IPSec_MB)
endif()
snug_import(snug_json nlohmann/json.hpp)
snug_import(snug_cli11 CLI/CLI.hpp)
snug_import(snug_fmt fmt/format.h)
if(TARGET snug_fmt)
  # Debian ships no libfmt.a.
  target_compile_definitions(snug_fmt INTERFACE FMT_HEADER_ONLY)
endif()
snug_import(snug_benchmark benchmark/benchmark.h libbenchmark.a benchmark)
