// The hash once more, compiled for AVX2 within this file alone.
#include "hash/xxh3.h"

#if defined(__x86_64__) && defined(__GNUC__)

// Everything that xxhash.h includes comes first, so that nothing but the hash is
// compiled for the instruction set below.
#include <immintrin.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "codec/cpu.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

namespace snug::hash {
namespace {
#include "hash/xxh3-inl.h"
}  // namespace
}  // namespace snug::hash

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace snug::hash {

const Xxh3* avx2_xxh3() noexcept {
  static constexpr Xxh3 kFunctions = {hash64, create, update, digest, destroy};
  return codec::cpu_features().avx2 ? &kFunctions : nullptr;
}

}  // namespace snug::hash

#else

namespace snug::hash {
const Xxh3* avx2_xxh3() noexcept { return nullptr; }
}  // namespace snug::hash

#endif
