#include "hash/xxh3.h"

#include <xxhash.h>

#include <cstring>

namespace snug::hash {
namespace {
#include "hash/xxh3-inl.h"
}  // namespace

const Xxh3 kPortableXxh3 = {hash64, create, update, digest, destroy};

const Xxh3& xxh3() noexcept {
  const Xxh3* const avx2 = avx2_xxh3();
  return avx2 != nullptr ? *avx2 : kPortableXxh3;
}

}  // namespace snug::hash
