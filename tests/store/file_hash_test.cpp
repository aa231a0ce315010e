// Every build of the hash gives what xxhash gives, however the bytes are fed.
#include "store/file_hash.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <string>

#include "store/store_files.h"
#include "support/prng.h"

namespace snug::test {
namespace {

std::string one_shot(const std::string& bytes) {
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes.data(), bytes.size()));
  std::string hex;
  for (const unsigned char byte : digest.digest)
    for (const int nibble : {byte >> 4, byte & 15}) hex += "0123456789abcdef"[nibble];
  return hex;
}

std::string in_pieces(store::FileHash& hash, const std::string& bytes) {
  Prng prng(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = std::min(bytes.size() - at, prng.below(5000) + 1);
    hash.update(bytes.data() + at, n);
    at += n;
  }
  return hash.hex();
}

TEST(FileHash, AgreesWithXxhash) {
  for (const std::size_t size :
       {0u, 1u, 16u, 17u, 128u, 240u, 241u, 1023u, 1024u, 100000u, 1234567u}) {
    const std::string bytes = weight_bytes("U8", size, size);
    store::FileHash portable(hash::kPortableXxh3), chosen;
    EXPECT_EQ(in_pieces(portable, bytes), one_shot(bytes)) << size;
    EXPECT_EQ(in_pieces(chosen, bytes), one_shot(bytes)) << size;
    for (const hash::Xxh3* build : {&hash::kPortableXxh3, &hash::xxh3()})
      EXPECT_EQ(build->hash64(bytes.data(), size), XXH3_64bits(bytes.data(), size)) << size;
  }
}

}  // namespace
}  // namespace snug::test
